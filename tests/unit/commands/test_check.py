"""`trialpod check` against a stand-in for the API server."""

from __future__ import annotations

import argparse
import email.utils
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from api_server import GROUP, ApiServer, Run

from trialpod_operator.api.models import TuneExperimentSpec
from trialpod_operator.cluster import names
from trialpod_operator.cluster.shards.assignment import SHARDS, Shard, ShardMap
from trialpod_operator.commands.check import probe_of
from trialpod_operator.kube_client import probe_pod
from trialpod_operator.kube_client.checks import Checks
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.findings import Finding, clock_finding, quota_finding
from trialpod_operator.kube_client.probe_pod import Probe, build

Json = dict[str, Any]
ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
FORBIDDEN = {"code": 403, "reason": "Forbidden", "message": "you may not"}


def schema(*left_out: str) -> Json:
    fields = {name: {} for name in TuneExperimentSpec.__struct_encode_fields__ if name not in left_out}
    kind = [{"group": "trialpod.dev", "kind": "TuneExperiment", "version": "v1alpha1"}]
    found = {"x-kubernetes-group-version-kind": kind, "properties": {"spec": {"properties": fields}}}
    return {"components": {"schemas": {"dev.trialpod.TuneExperiment": found}}}


def operator_pod(*, ready: str = "True", namespaces: str = "", image: str = "train:1", **environment: str) -> Json:
    variables = {
        "TRIALPOD_NAMESPACES": namespaces,
        "TRIALPOD_DEFAULT_IMAGE": image,
        "TRIALPOD_DEFAULT_STORAGE_URI": "s3://tune/runs",
        "TRIALPOD_DEFAULT_STORAGE_SECRET": "minio",
        **environment,
    }
    return {
        "metadata": {
            "name": "trialpod-0",
            "namespace": "trialpod-system",
            "labels": {"app.kubernetes.io/version": "0.1.0"},
        },
        "spec": {
            "containers": [{"name": "operator", "env": [{"name": k, "value": v} for k, v in variables.items()]}]
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    """One where all is well."""
    server.routes = {
        ("GET", "/version"): {"gitVersion": "v1.33.1"},
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"): {"status": {"userInfo": {"username": "jane"}}},
        ("GET", "/api/v1/namespaces/team"): {"status": {"phase": "Active"}},
        ("GET", GROUP): {"resources": []},
        ("GET", f"/openapi/v3{GROUP}"): schema(),
        ("POST", ACCESS): {"status": {"allowed": True}},
        ("GET", "/api/v1/pods"): {"items": [operator_pod()]},
        ("GET", "/api/v1/nodes"): {"items": [{"status": {"allocatable": {"nvidia.com/gpu": "4"}}}, {}]},
        ("GET", "/api/v1/namespaces/team/resourcequotas"): {"items": []},
    }
    return server


def test_a_cluster_where_experiments_can_run_has_only_fine_lines(server: ApiServer, trialpod: Run) -> None:
    text = trialpod("check", "--no-pod")
    assert "fine   API server: Kubernetes v1.33.1" in text
    assert "as jane" in text
    assert "fine   definitions: trialpod.dev/v1alpha1, with all fields of this version" in text
    assert "fine   permissions: jane may run" in text
    assert "fine   operator: trialpod 0.1.0 is ready: trialpod-system/trialpod-0" in text
    assert "fine   quota: the namespace has none" in text
    assert "fine   GPUs: 4 nvidia.com/gpu on 1 of 2 nodes" in text
    assert text.endswith("experiments can run here\n")
    assert {each["state"] for each in json.loads(trialpod("check", "--no-pod", "--json"))} == {"ok"}


@pytest.mark.parametrize(
    ("route", "answer", "expected"),
    [
        (("GET", GROUP), {"code": 404, "message": "no"}, "-> a cluster administrator can install it: helm install"),
        (("GET", f"/openapi/v3{GROUP}"), schema("suspend"), "spec.suspend is not in them\n         -> kubectl apply"),
        (("POST", ACCESS), {"status": {"allowed": False}}, "--clusterrole=edit --user=jane"),
        (("GET", "/api/v1/pods"), {"items": []}, "there is none in the cluster"),
        (("GET", "/api/v1/pods"), {"items": [operator_pod(ready="False")]}, "-> kubectl -n trialpod-system logs"),
        (("GET", "/api/v1/pods"), {"items": [operator_pod(namespaces="lab, x")]}, "or use one of: lab, x"),
        (("GET", "/api/v1/namespaces/team"), {"code": 404, "message": "no"}, "-> kubectl create namespace team"),
        (("GET", "/version"), {"gitVersion": "v1.27.3"}, "trialpod needs Kubernetes 1.30 or newer"),
    ],
)  # fmt: skip
def test_what_is_wrong_comes_with_its_remedy(
    server: ApiServer, trialpod: Run, route: tuple[str, str], answer: Json, expected: str
) -> None:
    server.routes[route] = answer
    text = trialpod("check", "--no-pod", status=1)
    assert expected in text
    assert "\nWRONG  " in f"\n{text}"


def test_what_may_not_be_seen_is_not_known_and_no_error(server: ApiServer, trialpod: Run) -> None:
    for path in ("/api/v1/pods", "/api/v1/namespaces/trialpod-system/pods", "/api/v1/nodes", f"/openapi/v3{GROUP}"):
        server.routes["GET", path] = FORBIDDEN
    text = trialpod("check", "--no-pod")
    assert "?      operator: its pod cannot be seen" in text
    assert "experiments can run here; 3 could not be checked" in text


def test_a_cluster_that_does_not_answer_ends_the_check(server: ApiServer, trialpod: Run) -> None:
    server.close()
    assert "cannot be reached" in trialpod("check", status=1)


def test_two_operators_for_one_namespace_are_reported(server: ApiServer, trialpod: Run) -> None:
    other = operator_pod()
    other["metadata"]["namespace"] = "team"
    server.routes["GET", "/api/v1/pods"] = {"items": [operator_pod(), other]}
    text = trialpod("check", "--no-pod", status=1)
    assert "WRONG  operator: several serve the namespace" in text
    assert "those in team, trialpod-system" in text
    assert "-> remove all but one" in text


def test_the_lease_tells_version_and_life_of_the_operator(server: ApiServer, trialpod: Run) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    path = "/apis/coordination.k8s.io/v1/namespaces/trialpod-system/leases/trialpod-operator"
    lease = {"metadata": {"annotations": {"trialpod.dev/version": "0.1.9"}}, "spec": {"renewTime": now}}
    server.routes["GET", path] = lease
    text = trialpod("check", "--no-pod")
    assert "operator: trialpod 0.1.9 is ready" in text
    assert "fine   operator's Lease: renewed" in text
    server.routes["GET", path] = {**lease, "spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}
    assert "it is not active" in trialpod("check", "--no-pod", status=1)
    server.routes["GET", path] = {**lease, "metadata": {"annotations": {"trialpod.dev/version": "0.9.0"}}}
    assert 'pip install "trialpod==0.9.0"' in trialpod("check", "--no-pod", status=1)


def test_operators_that_share_the_work_are_counted(server: ApiServer, trialpod: Run) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/trialpod-system/leases/trialpod-operator"
    shard_map = ShardMap(shards=tuple(Shard(owner="ab"[number % 4 // 3], epoch=1) for number in range(SHARDS)))
    notes = {"trialpod.dev/version": "0.1.9", "trialpod.dev/shards": shard_map.encode()}
    server.routes["GET", path] = {"metadata": {"annotations": notes}, "spec": {}}
    server.routes["GET", "/api/v1/pods"] = {"items": [operator_pod(), operator_pod()]}
    text = trialpod("check", "--no-pod")
    assert "2 operators in trialpod-system: a serves 12 of 16 shards, b serves 4 of 16 shards" in text
    notes["trialpod.dev/shards"] = "of another release"
    assert "trialpod 0.1.9 is ready" in trialpod("check", "--no-pod")


class TestPods:
    """What the API server says of the pods of a manifest's experiment."""

    @staticmethod
    def write(folder: Path, **template: Any) -> str:
        item = {"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "a"}}
        spec = {"trainable": {"entrypoint": "t:train"}, "searchSpace": {}, "template": {"spec": template}}
        path = folder / "a.yaml"
        path.write_text(json.dumps({**item, "spec": spec}))
        return str(path)

    def test_fine_where_the_api_server_would_take_them(
        self, server: ApiServer, trialpod: Run, tmp_path: Path
    ) -> None:
        file = self.write(tmp_path, nodeSelector={"disk": "ssd"})
        assert "fine   pods: the API server would take them" in trialpod("check", "-f", file, "--no-pod")
        assert not server.objects

    def test_misspelt_field_is_named(self, server: ApiServer, trialpod: Run, tmp_path: Path) -> None:
        file = self.write(tmp_path, nodeSelectr={"disk": "ssd"})
        text = trialpod("check", "-f", file, "--no-pod", status=1)
        assert "WRONG  pods: a pod has no field spec.nodeSelectr" in text
        assert "did you mean nodeSelector?" in text
        assert "-> correct spec.template" in text

    def test_unknown_where_the_user_may_not_ask(self, server: ApiServer, trialpod: Run, tmp_path: Path) -> None:
        server.routes["POST", "/api/v1/namespaces/team/pods"] = FORBIDDEN
        text = trialpod("check", "-f", self.write(tmp_path), "--no-pod")
        assert "?      pods: the API server cannot be asked: you may not" in text


# -- from inside --


def inside(
    server: ApiServer, phase: str, *, log: str = "", status: Json | None = None, **probe: Any
) -> list[Finding]:
    path = "/api/v1/namespaces/team/pods/check"
    server.routes["GET", path] = {
        "metadata": {"name": "check", "creationTimestamp": "2026-11-21T10:00:00Z"},
        "spec": {"nodeName": "a", "containers": [{"name": "trial"}]},
        "status": {"phase": phase, **(status or {})},
    }
    server.routes["GET", f"{path}/log"] = log.encode()
    clock = iter(range(1_800_000_000, 1_900_000_000))
    given = {"image": "train:1", "uri": "s3://tune/runs", "secret": "minio", **probe}
    with Experiments.connect() as api:
        checks = Checks(api, clock=lambda: float(next(clock)), sleep=lambda _: None)
        found = list(checks.inside(Probe(**given), "check", 20.0))
    assert ("DELETE", path) in server.requests
    return found


def test_the_pod_proves_image_storage_and_clock(server: ApiServer) -> None:
    told = {"time": 1_800_000_001.0, "release": "0.1.0", "python": "3.11.9", "storage_s": 0.1, "reports": ""}
    found = inside(server, "Succeeded", log=f"noise\ntrialpod-check {json.dumps(told)}\n", reports="https://op:8443")
    assert [each.state for each in found] == ["ok"] * 4
    assert [each.name for each in found] == ["image", "report service", "storage", "clock of node a"]
    assert "trialpod 0.1.0, Python 3.11.9" in found[0].text


def test_what_the_pod_cannot_do_comes_with_its_remedy(server: ApiServer) -> None:
    told = {"time": 1_800_000_001.0, "release": "0.1.0", "storage_error": "no keys", "storage_step": "write"}
    told["reports"] = "timed out"
    found = inside(server, "Succeeded", log=f"trialpod-check {json.dumps(told)}\n", reports="https://op:8443")
    assert [(each.name, each.state) for each in found[1:3]] == [("report service", "bad"), ("storage", "bad")]
    assert "NetworkPolicy" in found[1].remedy
    assert "cannot be written from inside: no keys" in found[2].text
    assert "the Secret minio" in found[2].remedy


def test_unpullable_or_wrong_image_is_reported(server: ApiServer) -> None:
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    status = {
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "trial", "image": "train:1", "state": {"waiting": waiting}}],
    }
    found = inside(server, "Pending", status=status)
    assert found[0].state == "bad"
    assert "train:1" in found[0].text
    found = inside(server, "Succeeded", log='trialpod-check {"image_error": "No module named trialpod"}')
    assert "No module named trialpod" in found[0].text
    lacking = '{"image_error": "No module named trialpod", "lacks": "trialpod", "python": "3.13.1"}'
    found = inside(server, "Succeeded", log=f"trialpod-check {lacking}")
    assert (found[0].state, len(found)) == ("unknown", 1)
    assert "the operator brings it" in found[0].text
    found = inside(server, "Failed", log='exec: "python": executable file not found')
    assert "cannot run the check: exec" in found[0].text


def test_image_without_python_suits_a_command(server: ApiServer) -> None:
    ended = {"reason": "StartError", "exitCode": 128, "message": 'exec: "python": executable file not found'}
    status = {"containerStatuses": [{"name": "trial", "state": {"terminated": ended}}]}
    (found,) = inside(server, "Failed", status=status, command=True)
    assert (found.state, "the operator brings one" in found.text) == ("unknown", True)
    (found,) = inside(server, "Failed", status=status)
    assert found.state == "bad"
    assert "spec.trainable.command" in found.remedy


def test_image_of_another_architecture_is_named(server: ApiServer) -> None:
    ended = {"reason": "Error", "exitCode": 255, "message": "exec /usr/bin/python: exec format error"}
    status = {"containerStatuses": [{"name": "trial", "state": {"terminated": ended}}]}
    for command in (True, False):
        (found,) = inside(server, "Failed", status=status, command=command)
        assert (found.state, "built for another architecture" in found.text) == ("bad", True)
        assert "kubernetes.io/arch" in found.remedy


def test_a_pod_that_is_refused_says_why(server: ApiServer) -> None:
    message = 'pods "check" is forbidden: exceeded quota: small, requested: pods=1, used: pods=5, limited: pods=5'
    server.routes["POST", "/api/v1/namespaces/team/pods"] = {"code": 403, "reason": "Forbidden", "message": message}
    with Experiments.connect() as api:
        found = list(Checks(api).inside(Probe(image="train:1"), "check", 20.0))
    assert found[0].state == "bad"
    assert "quota" in found[0].text


def test_somebody_who_may_make_no_pod_is_not_called_the_operator(server: ApiServer) -> None:
    message = 'pods "check" is forbidden: User "jane" cannot create resource "pods" in API group "" in the namespace'
    server.routes["POST", "/api/v1/namespaces/team/pods"] = {"code": 403, "reason": "Forbidden", "message": message}
    with Experiments.connect() as api:
        (found,) = Checks(api).inside(Probe(image="train:1"), "check", 20.0)
    assert (found.state, found.text) == ("unknown", "you may not create one, so nothing is checked from inside")


class TestCode:
    """The Trainable of the manifest is imported in the image."""

    told: ClassVar[Json] = {"time": 1_800_000_001.0, "release": "0.1.0", "storage_s": 0.1}

    def finding(self, server: ApiServer, **found: Any) -> Finding:
        log = f"trialpod-check {json.dumps({**self.told, **found})}\n"
        shown = inside(server, "Succeeded", log=log, trainable={"entrypoint": "train:trian"})
        return next(each for each in shown if each.name == "code")

    def test_that_is_not_there(self, server: ApiServer) -> None:
        error = "the entry point 'train:trian': train has no trian; did you mean 'train'?"
        found = self.finding(server, import_error=error, import_s=0.1)
        assert (found.state, found.text) == ("bad", error)
        assert "correct spec.trainable, or the code in train:1" in found.remedy

    def test_that_needs_more_memory(self, server: ApiServer) -> None:
        found = self.finding(server)
        assert found.state == "bad"
        assert "spec.resources.memory" in found.remedy

    def test_that_is_fine(self, server: ApiServer) -> None:
        found = self.finding(server, import_error="", import_s=1.25)
        assert found.state == "ok"
        assert "train:trian is imported from inside in 1.2 s" in found.text

    def test_is_loaded_as_a_trial_would(self) -> None:
        own = {
            "name": "trial",
            "env": [{"name": "PYTHONPATH", "value": "/code"}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        template = {"spec": {"containers": [{"name": "proxy"}, own], "volumes": [{"name": "data", "emptyDir": {}}]}}
        code = {"configMapRef": {"name": "code", "key": "train.py", "entrypoint": "pkg.train:train"}}
        probe = Probe(image="i", secret="minio", pod_template=template, trainable=code)
        pod = probe_pod.build(probe, "check", "team")
        container = pod["spec"]["containers"][0]
        assert {each["name"] for each in pod["spec"]["volumes"]} == {"data", "code", "keys"}
        assert {each["mountPath"] for each in container["volumeMounts"]} >= {"/data", names.CODE_DIR}
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables["PYTHONPATH"] == "/code"
        assert json.loads(variables["CHECK_TRAINABLE"]) == {"entrypoint": "pkg.train:train", "path": [names.CODE_DIR]}
        items = next(each for each in pod["spec"]["volumes"] if each["name"] == "code")["configMap"]["items"]
        assert items == [{"key": "train.py", "path": "pkg/train.py"}]

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({"entrypoint": "json:lods"}, "lods"),
            ({"source": "import nothing_there"}, "nothing_there"),
            ({"source": "raise SystemExit(3)"}, ""),
            ({"source": "def train(config):\n    pass\n"}, None),
        ],
    )
    def test_the_program_in_the_pod_imports_it(self, given: Json, error: str | None) -> None:
        done = subprocess.run(
            [sys.executable, "-c", probe_pod.PROGRAM],
            env={"CHECK_TRAINABLE": json.dumps(given)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found = probe_pod.read(done.stdout)
        assert found is not None, done.stderr
        if error is None:
            assert found["import_error"] == ""
        else:
            assert found["import_error"]
            assert error in found["import_error"]


def test_pod_meets_restricted_standard_and_template() -> None:
    template = {
        "spec": {"imagePullSecrets": [{"name": "reg"}], "containers": [{"name": "trial"}], "nodeSelector": {"a": "b"}}
    }
    probe = Probe(image="i", secret="minio", resources={"cpu": 2, "gpu": 1}, pod_template=template)
    pod = probe_pod.build(probe, "check", "team")
    container = pod["spec"]["containers"][0]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "reg"}]
    assert pod["spec"]["nodeSelector"] == {"a": "b"}
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "128Mi", "nvidia.com/gpu": "1"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "app.kubernetes.io/managed-by" not in pod["metadata"]["labels"]  # the operator leaves it alone


def test_the_program_in_the_pod_finds_out_what_it_says(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", probe_pod.PROGRAM],
        env={"CHECK_URI": str(tmp_path / "store"), "CHECK_REPORTS": "https://127.0.0.1:1", "CHECK_RETRY_S": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = probe_pod.read(done.stdout)
    assert found is not None, done.stderr
    assert "storage_error" not in found
    assert found["release"]
    assert "refused" in found["reports"]
    assert probe_pod.read("nothing") is None


def test_pod_waits_until_network_policies_let_it_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as service:
        service.bind(("127.0.0.1", 0))
        monkeypatch.setenv("CHECK_REPORTS", f"https://127.0.0.1:{service.getsockname()[1]}")
        monkeypatch.setattr(time, "sleep", lambda _: service.listen())  # refused until the first wait
        with pytest.raises(SystemExit):
            exec(probe_pod.PROGRAM, {})
    assert (probe_pod.read(capsys.readouterr().out) or {})["reports"] == ""


@pytest.mark.parametrize(
    ("theirs", "state", "text"), [(1.0, "ok", "agrees"), (30.0, "ok", "30 s ahead"), (-300.0, "bad", "300 s behind")]
)
def test_clocks_may_differ_by_little(theirs: float, state: str, text: str) -> None:
    found = clock_finding("node", 1000.0 + theirs, 1000.0)
    assert found.state == state
    assert text in found.text


def test_the_clock_of_the_api_server_is_read_from_its_answers(server: ApiServer, trialpod: Run) -> None:
    assert "fine   API server's clock" in trialpod("check", "--no-pod")
    assert email.utils.parsedate_to_datetime("Sat, 21 Nov 2026 10:00:00 GMT")


def test_a_quota_that_is_used_up_is_bad() -> None:
    def quota(used: str) -> Json:
        status = {
            "hard": {"pods": "5", "requests.cpu": "4", "services": "1"},
            "used": {"pods": used, "requests.cpu": "500m"},
        }
        return {"metadata": {"name": "small"}, "status": status}

    assert quota_finding(quota("2")).text == "in use: pods 2 of 5, requests.cpu 500m of 4"
    assert quota_finding(quota("5")).state == "bad"


def test_devices_are_counted_in_every_form(server: ApiServer, trialpod: Run) -> None:
    amounts = [{"nvidia.com/gpu": each} for each in ("16k", "2", "many", None)]
    nodes = [{"status": {"allocatable": each}} for each in (*amounts, None)]
    server.routes["GET", "/api/v1/nodes"] = {"items": nodes}
    assert "fine   GPUs: 16002 nvidia.com/gpu on 2 of 5 nodes" in trialpod("check", "--no-pod")


class TestQuota:
    def found(self, key: str, *, spec: Json | None = None, **more: Any) -> str:
        status = {"hard": {"pods": "5", key: "1"}, "used": {"pods": "1", key: "1"}}
        return quota_finding({"metadata": {"name": "small"}, "spec": spec or {}, "status": status}, **more).state

    @pytest.mark.parametrize(
        "key", ["requests.storage", "requests.nvidia.com/gpu", "requests.hugepages-2Mi", "configmaps", "services"]
    )
    def test_used_up_for_others_is_fine(self, key: str) -> None:
        assert self.found(key) == "ok"

    @pytest.mark.parametrize(
        "key", ["limits.memory", "cpu", "requests.ephemeral-storage", "count/pods", "count/tunetrials.trialpod.dev"]
    )
    def test_used_up_for_every_pod_is_bad(self, key: str) -> None:
        assert self.found(key) == "bad"

    def test_used_up_is_bad_where_the_experiment_needs_it(self) -> None:
        assert self.found("requests.nvidia.com/gpu", devices={"nvidia.com/gpu"}) == "bad"
        assert self.found("requests.nvidia.com/gpu", devices={"amd.com/gpu"}) == "ok"
        assert self.found("count/configmaps", needs_config_map=True) == "bad"

    @pytest.mark.parametrize("spec", [{"scopes": ["BestEffort"]}, {"scopeSelector": {"matchExpressions": []}}])
    def test_used_up_for_some_pods_is_not_known(self, spec: Json) -> None:
        assert self.found("cpu", spec=spec) == "unknown"

    def test_is_compared_with_the_manifest(self, server: ApiServer, trialpod: Run, tmp_path: Path) -> None:
        hard = {"requests.nvidia.com/gpu": "0", "configmaps": "3"}
        quota = {"metadata": {"name": "small"}, "status": {"hard": hard, "used": hard}}
        server.routes["GET", "/api/v1/namespaces/team/resourcequotas"] = {"items": [quota]}
        server.routes["GET", "/api/v1/namespaces/team/configmaps/trialpod-ca"] = {"metadata": {}}
        assert "fine   quota small: it does not limit these pods" in trialpod("check", "--no-pod")
        assert "WRONG  quota small: used up: requests.nvidia.com/gpu 0 of 0" in trialpod(
            "check", "--no-pod", "--gpu", "1", status=1
        )
        del server.routes["GET", "/api/v1/namespaces/team/configmaps/trialpod-ca"]
        assert "WRONG  quota small: used up: configmaps 3 of 3" in trialpod("check", "--no-pod", status=1)


QUEUES = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/localqueues"
NO_KUEUE = {"code": 404, "reason": "NotFound", "message": "the server could not find the requested resource"}


def local_queue(name: str, active: str = "True", message: str = "") -> Json:
    condition = {"type": "Active", "status": active, "reason": "R", "message": message}
    status = {"conditions": [condition], "admittedWorkloads": 1, "pendingWorkloads": 2}
    return {"metadata": {"name": name}, "spec": {"clusterQueue": "everybody"}, "status": status}


def manifest_in(folder: Path, queue: str = "", **storage: Any) -> str:
    spec: Json = {
        "trainable": {"entrypoint": "train:train"},
        "searchSpace": {"lr": {"uniform": [0, 1]}},
        "metric": "loss",
        "mode": "min",
        "storage": {"uri": "s3://tune/runs", "credentialsSecret": "minio", **storage},
    }
    if queue:
        spec["template"] = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": queue}}}
    head = {"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "climb"}}
    file = folder / "climb.yaml"
    file.write_text(json.dumps({**head, "spec": spec}))
    return str(file)


def test_the_queues_of_the_namespace_are_reported(server: ApiServer, trialpod: Run) -> None:
    server.routes["GET", QUEUES] = NO_KUEUE
    older = QUEUES.replace("v1beta2", "v1beta1")
    server.routes["GET", older] = {"items": [local_queue("gpus"), local_queue("old", "False", "it is stopped")]}
    text = trialpod("check", "--no-pod")
    assert "fine   queue gpus: it is active, of the ClusterQueue everybody: 1 admitted, 2 waiting" in text
    assert "?      queue old: it is not active: it is stopped; only experiments that name it would wait" in text


def test_a_cluster_without_kueue_has_no_line_about_queues(server: ApiServer, trialpod: Run, tmp_path: Path) -> None:
    for version in ("v1beta2", "v1beta1"):
        server.routes["GET", QUEUES.replace("v1beta2", version)] = NO_KUEUE
    assert "queue" not in trialpod("check", "--no-pod", "-f", manifest_in(tmp_path))
    text = trialpod("check", "--no-pod", "-n", "team", "-f", manifest_in(tmp_path, "gpus"), status=1)
    assert (
        "WRONG  queues: the label kueue.x-k8s.io/queue-name names the queue gpus, and the cluster has no Kueue"
        in text
    )


def test_a_queue_that_would_take_no_pod_is_wrong(server: ApiServer, trialpod: Run, tmp_path: Path) -> None:
    stopped = local_queue("gpus", "False", "ClusterQueue everybody is stopped")
    server.routes["GET", QUEUES] = {"items": [stopped]}
    text = trialpod("check", "--no-pod", "-f", manifest_in(tmp_path, "gpu"), status=1)
    assert (
        "WRONG  queues: the namespace team has no LocalQueue gpu: pods would wait forever; did you mean gpus?" in text
    )
    text = trialpod("check", "--no-pod", "-f", manifest_in(tmp_path, "gpus"), status=1)
    assert "WRONG  queue gpus: it is not active: ClusterQueue everybody is stopped; pods would wait in it" in text
    server.routes["GET", QUEUES] = FORBIDDEN
    text = trialpod("check", "--no-pod", "-f", manifest_in(tmp_path, "gpus"))
    assert "?      queues: LocalQueues cannot be seen: Forbidden" in text


@pytest.mark.parametrize(
    ("storage", "told", "scoped"),
    [
        ({}, "", False),
        ({"scopedCredentials": {"roleArn": "arn:aws:iam::1:role/r"}}, "", True),
        ({}, "scoped", True),
        ({"credentialsSecret": None}, "own", True),
        ({"credentialsSecret": None, "uri": "s3://others/runs"}, "own", False),
    ],
)
def test_short_lived_keys_are_not_tested_with_a_secret(storage: Json, told: str, scoped: bool) -> None:
    spec = {"storage": {"uri": "s3://tune/runs/a", "credentialsSecret": "minio", **storage}}
    facts = {names.CREDENTIALS_ANNOTATION: told, names.STORAGE_ANNOTATION: '{"uri": "s3://tune/runs"}'}
    options = argparse.Namespace(storage=None, secret=None, endpoint=None, image="train:1", gpu=0)
    made = probe_of(options, spec, facts, "nvidia.com/gpu")
    assert made.scoped == scoped
    options.secret = "other"
    assert not probe_of(options, spec, facts, "nvidia.com/gpu").scoped


@pytest.mark.parametrize("lease", [True, False])
def test_operators_own_keys_are_for_each_namespace(server: ApiServer, *, lease: bool) -> None:
    uri = "s3://tune/{namespace}"
    pod = operator_pod(
        TRIALPOD_DEFAULT_STORAGE_URI=uri, TRIALPOD_DEFAULT_STORAGE_SECRET="", TRIALPOD_STORAGE_KEYS_DIR="/keys"
    )
    server.routes["GET", "/api/v1/pods"] = {"items": [pod]}
    if lease:
        facts = {names.CREDENTIALS_ANNOTATION: "own", names.STORAGE_ANNOTATION: json.dumps({"uri": uri})}
        path = "/apis/coordination.k8s.io/v1/namespaces/trialpod-system/leases/trialpod-operator"
        server.routes["GET", path] = {"metadata": {"annotations": facts}}
    options = argparse.Namespace(storage=None, secret=None, endpoint=None, image="train:1", gpu=0)
    with Experiments.connect() as api:
        checks = Checks(api)
        list(checks.operator())
    assert probe_of(options, {}, checks.facts, "nvidia.com/gpu").uri == "s3://tune/team"
    for uri, scoped in (("s3://tune/team/x", True), ("s3://tune/other", False)):
        assert probe_of(options, {"storage": {"uri": uri}}, checks.facts, "nvidia.com/gpu").scoped == scoped


def test_what_covers_a_storage_that_is_not_tried_is_reported(server: ApiServer) -> None:
    told = {"time": 1_800_000_001.0, "release": "0.1.0", "python": "3.11.9"}
    found = inside(server, "Succeeded", log=f"trialpod-check {json.dumps(told)}\n", scoped=True)
    (line,) = [each for each in found if each.name == "storage"]
    assert line.state == "unknown"
    assert "before an experiment's first trial, and `trialpod why NAME` tells what is refused" in line.text
    pod = build(Probe(image="train:1", uri="s3://tune/runs", secret="minio", scoped=True), "check", "team")
    assert "volumes" not in pod["spec"]
    assert "CHECK_URI" not in [each["name"] for each in pod["spec"]["containers"][0].get("env", [])]


class TestTrialKinds:
    """`trialpod check -f` with `spec.trialResource`."""

    @staticmethod
    def found(server: ApiServer, trialpod: Run, folder: Path, status: int = 1) -> str:
        pod = {"spec": {"containers": [{"name": "trial", "image": "any:1"}]}}
        template = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod}}
        spec = {"trainable": {"command": ["./train"]}, "trialResource": {"template": template}}
        manifest = {"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "a"}}
        file = folder / "experiment.yaml"
        file.write_text(json.dumps({**manifest, "spec": spec}))
        text = trialpod("check", "--no-pod", "-f", str(file), "-n", "team", status=status)
        return text[text.index("trial kind") :]

    def test_a_kind_that_the_operator_may_make_is_fine(
        self, server: ApiServer, trialpod: Run, tmp_path: Path
    ) -> None:
        server.routes["GET", "/apis/batch/v1"] = {"resources": [{"name": "jobs", "kind": "Job"}]}
        pod = operator_pod()
        pod["spec"]["containers"][0]["env"].append({"name": "TRIALPOD_TRIAL_KINDS", "value": "batch/v1/Job=jobs"})
        server.routes["GET", "/api/v1/pods"] = {"items": [pod]}
        found = self.found(server, trialpod, tmp_path, status=0)
        assert found.startswith("trial kind: the operator may make jobs of batch/v1")

    def test_a_missing_right_is_named_with_its_remedy(self, server: ApiServer, trialpod: Run, tmp_path: Path) -> None:
        server.routes["GET", "/apis/batch/v1"] = {"resources": [{"name": "jobs", "kind": "Job"}]}
        found = self.found(server, trialpod, tmp_path)
        assert found.startswith("trial kind: the operator may not make jobs of batch/v1")
        assert "adds {apiVersion: batch/v1, kind: Job, resource: jobs} to the chart's trialKinds" in found

    def test_a_kind_that_is_not_there_is_named(self, server: ApiServer, trialpod: Run, tmp_path: Path) -> None:
        server.routes["GET", "/apis/batch/v1"] = {"resources": [{"name": "cronjobs", "kind": "CronJob"}]}
        found = self.found(server, trialpod, tmp_path)
        assert found.startswith("trial kind: the cluster has no kind Job of batch/v1")
