"""Storage inside a cluster, read from a user's desk: by a port-forward through the API server."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer, Run, condition_of, experiment_object, trial_object
from bucket_server import BucketServer
from memory_storage import MemoryStorage
from sample_experiment import SampleExperiment

from trialpod import tune
from trialpod.storage import registry
from trialpod.storage.directory import DirectoryStorage
from trialpod.storage.options import StorageOptions
from trialpod.storage.registry import open_storage
from trialpod.storage.s3 import routes
from trialpod_operator.experiment.replica.replica import Replica
from trialpod_operator.kube_client import storage as remote_storage
from trialpod_operator.kube_client.backend import KubernetesBackend
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.service_address import service_address

Json = dict[str, Any]

ENDPOINT = "http://minio.storage.svc:9000"
NAMESPACE = "/api/v1/namespaces/storage"
FORBIDDEN: Json = {"code": 403, "reason": "Forbidden", "message": "no"}


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[BucketServer]:
    routes.forget()  # what other tests have said about this bucket
    made = BucketServer(tmp_path / "bucket")
    yield made
    made.close()
    routes.forget()


@pytest.fixture
def store(server: ApiServer, bucket: BucketServer) -> BucketServer:
    """A store in the cluster: the Service `minio` of the namespace `storage`, in front of one pod of two."""
    spec = {"selector": {"app": "minio"}, "ports": [{"port": 9000, "targetPort": "api"}]}
    server.routes["GET", f"{NAMESPACE}/services/minio"] = {"spec": spec}
    pods = [
        {
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "minio", "ports": [{"name": "api", "containerPort": 9900}]}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }
        for name, ready in (("minio-0", "False"), ("minio-1", "True"))
    ]
    server.routes["GET", f"{NAMESPACE}/pods"] = {"items": pods}
    server.forwards[f"{NAMESPACE}/pods/minio-1/portforward", "9900"] = bucket.port
    server.routes["GET", "/api/v1/namespaces/team/secrets/minio"] = {
        "data": {"AWS_ACCESS_KEY_ID": "YQ==", "AWS_SECRET_ACCESS_KEY": "Yg=="}
    }
    storage = {"uri": "s3://tune/runs", "endpoint": ENDPOINT, "credentialsSecret": "minio"}
    item = experiment_object(
        "climb",
        {"storage": storage, "metric": "loss", "mode": "min"},
        conditions=[condition_of("Succeeded", "True", "Succeeded")],
        storageUri="s3://tune/runs/climb",
    )
    server.put("tuneexperiments", item)
    where = "s3://tune/runs/climb/train_0"
    server.put("tunetrials", trial_object("climb", 0, "TERMINATED", storageUri=where, value="0.5"))
    log = bucket.folder / "runs/climb/train_0/log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"step {number}\n" for number in range(5000)))
    return bucket


def opened(environ: Json | None = None) -> list[str]:
    with Experiments.connect() as api, remote_storage.opened(api, api.get("climb"), environ or {}) as (_, storage):
        return storage.list()


class TestPortForward:
    def test_reads_a_log_in_the_cluster(self, store: BucketServer, trialpod: Run) -> None:
        text = trialpod("logs", "climb", "0")
        assert text.splitlines()[-1] == "step 4999"
        assert store.hosts == {"minio.storage.svc:9000"}, "signed for the store's own address"
        assert store.keys == {"a"}, "with the keys of the Secret"

    def test_reads_the_results_of_single_trials(self, store: BucketServer, trialpod: Run, tmp_path: Path) -> None:
        sample = SampleExperiment(tmp_path / "climb", [1, 2])
        first, second = sample.trials
        sample.report(first, 1.0, loss=0.5)
        sample.report(second, 1.0, loss=0.2)
        sample.report(second, 1.0, loss=math.nan)
        sample.host.flush()
        replica = Replica(sample.folder, DirectoryStorage(store.folder / "runs/climb"))
        for each in sample.host.engine.state.trials.values():
            replica.trial_ended(sample.host.files.path(each).name)
        replica.copy()
        found = json.loads(trialpod("best", "climb", "--metric", "loss", "--mode", "min", "--json"))
        assert (found["trial_id"], found["value"]) == (second, 0.2)
        assert store.keys == {"a"}, "with the keys of the Secret"

    def test_takes_the_permissions_of_the_user(self, server: ApiServer, store: BucketServer) -> None:
        assert opened() == ["train_0/log.txt"]
        assert ("GET", f"{NAMESPACE}/pods/minio-1/portforward") in server.requests
        assert set(server.authorizations) == {"Bearer secret-token"}

    def test_impersonates_as_every_request_does(self, server: ApiServer, store: BucketServer) -> None:
        path = Path(os.environ["KUBECONFIG"])
        config = json.loads(path.read_text())
        config["users"][0]["user"] |= {"as": "jane", "as-groups": ["ml", "ops"], "as-user-extra": {"team": ["a"]}}
        path.write_text(json.dumps(config))
        assert opened() == ["train_0/log.txt"]
        assert ("GET", f"{NAMESPACE}/pods/minio-1/portforward") in server.requests
        for head in server.heads:
            assert head.get_all("Impersonate-User") == ["jane"]
            assert head.get_all("Impersonate-Group") == ["ml", "ops"]
            assert head.get_all("Impersonate-Extra-team") == ["a"]
        assert set(server.authorizations) == {"Bearer secret-token"}

    def test_is_not_for_the_storage_of_a_plug_in(
        self, server: ApiServer, store: BucketServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its place has the name of a bucket; nobody but the plug-in may be asked for it, least of all with keys."""
        asked = []

        class Shelf(MemoryStorage):
            @classmethod
            def open(cls, uri: str, options: StorageOptions | None = None, *, check: bool = True) -> Shelf:
                assert options is not None
                asked.append((uri, options.endpoint))
                return cls({"train_0/log.txt": b"step 1\n"})

        monkeypatch.setitem(registry._loaded, "shelf", Shelf)
        item = server.objects["tuneexperiments", "climb"]
        item["status"]["storageUri"] = "shelf://tune/runs/climb"
        assert opened({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}) == ["train_0/log.txt"]
        assert asked == [("shelf://tune/runs/climb", ENDPOINT)]
        assert store.hosts == set()

    def test_writes_large_objects(self, store: BucketServer) -> None:
        data = os.urandom(300_000)
        with Experiments.connect() as api, remote_storage.opened(api, api.get("climb"), {}) as (_, storage):
            storage.write("large", data)
            assert storage.read("large") == data

    def test_finds_the_pod_again_after_it_was_replaced(self, server: ApiServer, store: BucketServer) -> None:
        location = remote_storage.StorageLocation("s3://tune/runs/climb", ENDPOINT, "minio")
        with Experiments.connect() as api:
            storage, route = remote_storage.reach(api, location, {})
        storage.close()
        server.forwards[f"{NAMESPACE}/pods/minio-2/portforward", "9900"] = store.port
        del server.forwards[f"{NAMESPACE}/pods/minio-1/portforward", "9900"]
        server.routes["GET", f"{NAMESPACE}/pods"]["items"][1]["metadata"]["name"] = "minio-2"  # type: ignore[call-overload,index]
        assert storage.list() == ["train_0/log.txt"]
        assert route.endpoint == ENDPOINT

    def test_an_endpoint_of_the_environment_goes_first(self, store: BucketServer) -> None:
        environ = {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{store.port}", "AWS_ACCESS_KEY_ID": "own"}
        environ["AWS_SECRET_ACCESS_KEY"] = "own"
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            assert opened(environ) == ["train_0/log.txt"]
        assert store.hosts == {f"127.0.0.1:{store.port}"}
        assert store.keys == {"own"}

    def test_is_used_when_the_own_endpoint_is_away(self, store: BucketServer, unresolved: None) -> None:
        assert opened({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}) == ["train_0/log.txt"]
        assert store.hosts == {"minio.storage.svc:9000"}

    def test_a_cluster_ip_is_found_by_its_service(
        self, server: ApiServer, store: BucketServer, unresolved: None
    ) -> None:
        server.experiment("climb")["spec"]["storage"]["endpoint"] = "http://127.0.0.1:9"
        service = {"metadata": {"name": "minio", "namespace": "storage"}, "spec": {"clusterIPs": ["127.0.0.1"]}}
        server.routes["GET", "/api/v1/services"] = {"items": [service]}
        spec = server.routes["GET", f"{NAMESPACE}/services/minio"]["spec"]  # type: ignore[call-overload,index]
        spec["ports"][0]["port"] = 9
        assert opened() == ["train_0/log.txt"]


class TestRefusals:
    """Each says what is missing, and how to test for it."""

    def message(self) -> str:
        began = time.monotonic()
        with pytest.raises(remote_storage.DeskStorageError) as caught:
            opened()
        assert time.monotonic() - began < 60
        return str(caught.value)

    @pytest.mark.parametrize(
        ("path", "right"),
        [
            (f"{NAMESPACE}/services/minio", "get services"),
            (f"{NAMESPACE}/pods", "list pods"),
            (f"{NAMESPACE}/pods/minio-1/portforward", "create pods/portforward"),
        ],
    )
    def test_of_a_right(
        self, server: ApiServer, store: BucketServer, unresolved: None, path: str, right: str
    ) -> None:
        server.forwards.clear()
        server.routes["GET", path] = FORBIDDEN
        text = self.message()
        assert f"kubectl auth can-i {right} -n storage" in text
        assert "set AWS_ENDPOINT_URL_S3 to an address" in text

    def test_of_what_is_not_there(self, server: ApiServer, store: BucketServer, unresolved: None) -> None:
        server.routes["GET", f"{NAMESPACE}/pods"] = {"items": []}
        assert "has no pod that runs; kubectl -n storage get pods" in self.message()
        server.routes["GET", f"{NAMESPACE}/services/minio"]["spec"]["ports"] = [{"port": 80}]  # type: ignore[call-overload,index]
        assert "has no port 9000 (its ports: 80)" in self.message()
        server.routes["GET", f"{NAMESPACE}/services/minio"] = {"spec": {"type": "ExternalName"}}
        assert "selects no pods (it is of type ExternalName)" in self.message()
        server.routes["GET", f"{NAMESPACE}/services/minio"] = {"code": 404, "reason": "NotFound", "message": "no"}
        assert "the Service minio in the namespace storage is not there" in self.message()

    def test_of_the_secret(self, server: ApiServer, store: BucketServer) -> None:
        server.routes["GET", "/api/v1/namespaces/team/secrets/minio"] = FORBIDDEN
        assert "may not read the Secret minio: set AWS_ACCESS_KEY_ID" in self.message()


@pytest.fixture
def unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is resolved."""
    import socket

    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    create = socket.create_connection

    def connect(address: tuple[str, int], *given: Any, **more: Any) -> socket.socket:
        return create(address, *given, **more) if address[0] == "127.0.0.1" else fail()

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(remote_storage, "RETRY_S", 0.0)


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        ("http://minio.storage.svc:9000", ("minio", "storage", 9000, True, "")),
        ("https://minio.storage.svc.cluster.local", ("minio", "storage", 443, True, "")),
        ("http://minio-0.minio.storage.svc.k8s.example:9000", ("minio", "storage", 9000, True, "minio-0")),
        ("http://minio:9000", ("minio", "team", 9000, True, "")),
        ("http://minio.storage", ("minio", "storage", 80, False, "")),
        ("https://s3.eu-west-1.amazonaws.com", None),
        ("https://minio.example.com:9000", None),
        ("http://10.0.0.7:9000", None),
        ("http://localhost:9000", None),
        ("", None),
    ],
)
def test_service_names(endpoint: str, found: tuple[Any, ...] | None) -> None:
    address = service_address(endpoint, "team")
    assert (address and (address.service, address.namespace, address.port, address.certain, address.pod)) == found


def test_a_script_needs_no_address_of_the_store(
    server: ApiServer, store: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code goes into the bucket, and a ResultGrid is read, by the port-forward."""
    monkeypatch.setenv("TRIALPOD_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setattr(KubernetesBackend, "_show", lambda *_: None)
    backend = KubernetesBackend(credentials_secret="minio", endpoint=ENDPOINT, environ={})
    tuner = tune.Tuner(
        _train,
        param_space={"x": 1},
        run_config=tune.RunConfig(name="fresh", storage_path="s3://tune/runs"),
        backend=backend,
    )
    with pytest.raises(Exception, match="no experiment"):
        tuner.fit()  # nobody runs it
    spec = server.experiment("fresh")["spec"]
    assert spec["storage"] == {"uri": "s3://tune/runs", "endpoint": ENDPOINT, "credentialsSecret": "minio"}
    key = spec["trainable"]["pickle"]["uri"].removeprefix("s3://tune/")
    assert (store.folder / key).exists()
    assert store.hosts == {"minio.storage.svc:9000"}
    assert open_storage("s3://tune/runs/climb/train_0").read("log.txt").startswith(b"step 0")


def test_a_uri_may_name_a_server_inside_the_cluster(
    server: ApiServer, store: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray's users write it, `endpoint_override` in the URI."""
    monkeypatch.setenv("TRIALPOD_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setattr(KubernetesBackend, "_show", lambda *_: None)
    tuner = tune.Tuner(
        _train,
        param_space={"x": 1},
        run_config=tune.RunConfig(name="fresh", storage_path=f"s3://tune/runs?endpoint_override={ENDPOINT}"),
        backend=KubernetesBackend(credentials_secret="minio", environ={}),
    )
    with pytest.raises(Exception, match="no experiment"):
        tuner.fit()  # nobody runs it
    spec = server.experiment("fresh")["spec"]
    assert spec["storage"] == {"uri": "s3://tune/runs", "endpoint": ENDPOINT, "credentialsSecret": "minio"}
    assert store.hosts == {"minio.storage.svc:9000"}


def _train(config: Json) -> None:
    tune.report({"loss": config["x"]})


def test_the_default_storage_of_the_operator_is_known(
    server: ApiServer, store: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = {"uri": "s3://tune/{namespace}", "endpoint": ENDPOINT, "credentialsSecret": "minio"}
    notes = {"trialpod.dev/default-storage": json.dumps(storage)}
    server.routes["GET", "/api/v1/namespaces/team/configmaps/trialpod-ca"] = {"metadata": {"annotations": notes}}
    assert not KubernetesBackend(environ={}).can_restore("s3://tune/team/other")
    assert store.hosts == {"minio.storage.svc:9000"}
