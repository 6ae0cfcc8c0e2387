"""The cluster's page as users meet it, in front of stand-ins for the API server and the store."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from api_server import ApiServer, condition_of, experiment_object, trial_object
from bucket_server import BucketServer
from sample_experiment import SampleExperiment
from starlette.testclient import TestClient

from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod.storage.s3 import routes as s3_routes
from trialpod_operator.cluster_ui import experiments as shared
from trialpod_operator.cluster_ui import serve
from trialpod_operator.cluster_ui.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS
from trialpod_operator.cluster_ui.serve import SharedOptions, SharedPage
from trialpod_operator.experiment.replica.journal_layout import JOURNAL, folder_of, piece_key
from trialpod_operator.experiment.stored import JOURNAL_ID, read_stored, write_stored
from trialpod_operator.kube_client.kubeconfig import find_access
from trialpod_operator.ui.access import User
from trialpod_operator.ui.serve import PageServer

Json = dict[str, Any]
HOST = "http://127.0.0.1:8080"
GROUP = "/apis/trialpod.dev/v1alpha1"
ANN, BEN, EVE = "token-of-ann", "token-of-ben", "token-of-eve"
USERS = {ANN: "ann", BEN: "ben", EVE: "eve"}


class Permissions:
    """Answers reviews: who has which token, and what they may do."""

    def __init__(self, server: ApiServer) -> None:
        self.tokens = dict(USERS)
        self.rules = {("ann", "team", "view"), ("ben", "other", "view"), ("ben", "other", "edit")}
        server.routes["POST", TOKEN_REVIEWS] = self._token
        server.routes["POST", ACCESS_REVIEWS] = self._access

    def _token(self, body: Json) -> Json:
        name = self.tokens.get(body["spec"]["token"])
        return {"status": {"authenticated": name is not None, "user": {"username": name or ""}}}

    def _access(self, body: Json) -> Json:
        spec = body["spec"]
        wanted = spec["resourceAttributes"]
        role = {"get": "view", "list": "view", "patch": "edit"}[wanted["verb"]]
        role = "logs" if wanted["resource"] == "pods" else role
        return {"status": {"allowed": (spec["user"], wanted.get("namespace", ""), role) in self.rules}}


class World:
    """Two namespaces with an experiment each, `climb` in team and `swim` in other; and `stray`, stored over climb."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.now = 0.0
        self.folder = folder
        self.permissions = Permissions(server)
        self.bucket = BucketServer(folder / "bucket")
        server.tells_namespaces_apart = True
        keys = {"AWS_ACCESS_KEY_ID": "bXk=", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0"}
        server.put("secrets", {"metadata": {"name": "keys"}, "data": keys})
        self.samples = {name: self._stored(name, place) for name, place in (("climb", "team"), ("swim", "other"))}

    def _stored(self, name: str, namespace: str) -> SampleExperiment:
        sample = SampleExperiment(self.folder / "here" / name, [1, 2])
        sample.start(sample.trials[0])
        sample.report(sample.trials[0], 5.0)
        stored = {**(read_stored(sample.folder) or {}), "namespace": namespace}
        write_stored(sample.folder, stored)
        place = self.bucket.folder / "experiments" / name
        for file in (sample.folder / JOURNAL).glob("*.log"):
            piece = place / piece_key(folder_of(stored[JOURNAL_ID]), file.name, 0)
            piece.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, piece)
        shutil.copy(sample.folder / EXPERIMENT_KEY, place / EXPERIMENT_KEY)
        self.put(name, namespace, "experiments")
        trial = trial_object(name, 0, "RUNNING")
        trial["spec"]["trialId"] = sample.trials[0]
        trial["metadata"]["namespace"] = namespace
        self.server.put("tunetrials", trial)
        return sample

    def put(self, name: str, namespace: str, prefix: str) -> None:
        """Create a TuneExperiment whose storage is below `prefix`."""
        storage = {
            "uri": f"s3://tune/{prefix}",
            "endpoint": f"http://127.0.0.1:{self.bucket.port}",
            "credentialsSecret": "keys",
        }
        spec = {
            "metric": "score",
            "mode": "max",
            "image": "train:1",
            "trainable": {"entrypoint": "m:train"},
            "searchSpace": {"x": {"uniform": [0, 1]}},
            "numSamples": 2,
            "storage": storage,
        }
        made = experiment_object(name, spec, conditions=[condition_of("Ready", "True", "Running")])
        made["metadata"]["namespace"] = namespace
        self.server.put("tuneexperiments", made)

    def page(self, folder: Path, **environment: str) -> SharedPage:
        """Return a page whose clocks are this world's."""
        options = SharedOptions.from_environment(environment)
        return SharedPage(find_access(), options, folder / "work", lambda: self.now)


@pytest.fixture
def world(server: ApiServer, tmp_path: Path) -> Iterator[World]:
    made = World(server, tmp_path)
    yield made
    made.bucket.close()
    s3_routes.forget()


def client_of(page: SharedPage, token: str = "") -> TestClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return TestClient(page.server.app(), base_url=HOST, headers=headers, follow_redirects=False)


@pytest.fixture
def page(world: World, tmp_path: Path) -> Iterator[SharedPage]:
    made = world.page(tmp_path)
    yield made
    made.experiments.close()
    made.close()


@pytest.fixture
def acting(world: World, tmp_path: Path) -> Iterator[SharedPage]:
    made = world.page(tmp_path, TRIALPOD_UI_ACTIONS="true")
    yield made
    made.experiments.close()
    made.close()


def listed(client: TestClient, query: str = "") -> list[str]:
    return [each["id"] for each in client.get(f"/api/experiments{query}").json()["experiments"]]


ROUTES = [
    "",
    "/trials",
    "/trials/{trial}",
    "/curves",
    "/importance",
    "/timeline",
    "/events",
    "/export.csv",
    "/actions",
]


class TestSight:
    def test_each_user_sees_the_own_namespace_only(self, world: World, page: SharedPage) -> None:
        assert listed(client_of(page, ANN)) == ["team.climb"]
        assert listed(client_of(page, BEN)) == ["other.swim"]
        assert listed(client_of(page, EVE)) == []

    def test_all_namespaces_take_the_right_to_all(self, world: World, page: SharedPage) -> None:
        world.permissions.rules.add(("eve", "", "view"))
        assert set(listed(client_of(page, EVE))) == {"team.climb", "other.swim"}
        assert listed(client_of(page, EVE), "?namespace=team") == ["team.climb"]

    @pytest.mark.parametrize(
        "wrong", [{"timeBudget": "30m1h"}, {"metrics": [{"name": "a", "mode": "max"}, {"name": "a", "mode": "min"}]}]
    )
    def test_a_mistake_of_one_user_hides_nothing(self, world: World, page: SharedPage, wrong: Json) -> None:
        """The definition allows what only the operator refuses, and the list is made of all namespaces'."""
        item = experiment_object("wrong", wrong, conditions=[condition_of("Stalled", "True", "InvalidSpec")])
        item["metadata"]["namespace"] = "team"
        world.server.put("tuneexperiments", item)
        assert listed(client_of(page, BEN)) == ["other.swim"]
        found = client_of(page, ANN).get("/api/experiments").json()["experiments"]
        assert {each["id"]: each["state"] for each in found} == {"team.climb": "Running", "team.wrong": "Stalled"}

    @pytest.mark.parametrize("route", ROUTES)
    def test_other_namespaces_do_not_exist(self, acting: SharedPage, world: World, route: str) -> None:
        path = route.replace("{trial}", world.samples["swim"].trials[0])
        with client_of(acting, ANN) as client:
            hidden = client.get(f"/api/experiments/other.swim{path}")
            absent = client.get(f"/api/experiments/other.nope{path}")
        assert hidden.status_code == absent.status_code == 404
        assert hidden.json()["error"]["message"].replace("swim", "nope") == absent.json()["error"]["message"]

    @pytest.mark.parametrize(
        "name", ["climb", "team", "team.", ".climb", "team.%2e%2e", "team.climb%2f..", "TEAM.climb", "team%00.climb"]
    )
    def test_an_id_is_no_path(self, page: SharedPage, world: World, name: str) -> None:
        world.server.requests.clear()
        assert client_of(page, ANN).get(f"/api/experiments/{name}").status_code == 404
        assert not [path for method, path in world.server.requests if method == "GET"]

    def test_data_comes_from_the_experiments_storage(self, page: SharedPage, world: World) -> None:
        header = client_of(page, ANN).get("/api/experiments/team.climb").json()
        assert (header["id"], header["name"]) == ("team.climb", "climb")
        assert header["best"]["trial"] == world.samples["climb"].trials[0]
        assert header["reason"] == "Running"
        assert world.bucket.keys == {"my"}

    def test_another_namespaces_data_is_refused(self, page: SharedPage, world: World) -> None:
        # Somebody's experiment of the same name, at the same place of a shared bucket.
        del world.server.objects["tuneexperiments", "swim"]
        world.put("swim", "team", "experiments")
        client = client_of(page, ANN)
        header = client.get("/api/experiments/team.swim").json()
        assert "another namespace" in header["damaged"]["message"]
        assert client.get("/api/experiments/team.swim/trials").json()["trials"] == []

    def test_logs_take_the_right_to_logs(self, page: SharedPage, world: World) -> None:
        (trial, *_) = world.samples["climb"].trials
        path = f"/api/experiments/team.climb/trials/{trial}"
        found = client_of(page, ANN).get(path).json()
        assert found["logs"] == {"where": "you may not read logs of pods", "tail": None}
        assert found["row"]["id"] == trial
        world.permissions.rules.add(("ann", "team", "logs"))
        world.now += 60.0
        assert client_of(page, ANN).get(path).json()["logs"]["where"].startswith("s3://tune/experiments/climb/")

    def test_a_right_that_is_taken_away_ends_it(self, page: SharedPage, world: World) -> None:
        client = client_of(page, ANN)
        assert client.get("/api/experiments/team.climb").status_code == 200
        world.permissions.rules.clear()
        world.now += 11.0
        assert client.get("/api/experiments/team.climb").status_code == 404
        assert listed(client) == []

    def test_another_namespaces_data_is_refused_later_too(self, page: SharedPage, world: World) -> None:
        """The experiment's data is deleted, and another namespace's experiment of its name begins there."""
        client = client_of(page, ANN)
        assert client.get("/api/experiments/team.climb").json()["damaged"] is None
        rows = client.get("/api/experiments/team.climb/trials").json()["trials"]
        places = [world.bucket.folder / "experiments" / name for name in ("climb", "swim")]
        shutil.rmtree(places[0])
        shutil.copytree(places[1], places[0])
        page.experiments.model(User("ann", token=ANN), "team.climb").refresh()
        assert "another namespace" in client.get("/api/experiments/team.climb").json()["damaged"]["message"]
        assert client.get("/api/experiments/team.climb/trials").json()["trials"] == rows


class TestStorageOutage:
    def test_requests_are_answered_from_what_is_known(
        self, page: SharedPage, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared, "STORAGE_RETRY_S", 0.1)
        client = client_of(page, ANN)
        assert client.get("/api/experiments/team.climb").json()["stale_since"] is None
        world.bucket.is_away = True
        began = time.monotonic()
        page.experiments.model(User("ann", token=ANN), "team.climb").refresh()
        header = client.get("/api/experiments/team.climb").json()
        assert (header["stale_since"] is None, header["trials"]) == (False, 2)
        assert time.monotonic() - began < 30.0  # a storage's own default is to retry for 60 s

    def test_probes_are_answered_while_all_threads_wait(self, page: SharedPage) -> None:
        async def probe() -> int:
            threads = anyio.to_thread.current_default_thread_limiter()
            for number in range(int(threads.total_tokens)):
                threads.acquire_on_behalf_of_nowait(number)
            sent: list[Json] = []

            async def receive() -> Json:
                return {"type": "http.request"}

            async def send(message: Any) -> None:
                sent.append(message)

            request = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b"", "scheme": "http"}
            scope = {**request, "headers": [(b"host", b"127.0.0.1:8080")]}
            await asyncio.wait_for(page.server.app()(scope, receive, send), 30)
            return int(sent[0]["status"])

        assert asyncio.run(probe()) == 200


class TestSignIn:
    def test_nothing_is_shown_without_a_token(self, page: SharedPage) -> None:
        client = client_of(page)
        for path in ["/api/session", "/api/experiments", *(f"/api/experiments/team.climb{each}" for each in ROUTES)]:
            assert client.get(path).status_code == 401, path
        answer = client.get("/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert client.get("/static/js/main.js").status_code == 401
        assert client.get("/?token=anything").status_code == 303
        assert [client.get(path).status_code for path in ("/login", "/signin.js", "/signin.css", "/healthz")] == [
            200
        ] * 4

    def test_a_token_opens_a_session(self, page: SharedPage) -> None:
        client = client_of(page)
        assert client.post("/signin", data={"token": "wrong"}).status_code == 401
        answer = client.post("/signin", data={"token": ANN})
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Max-Age=3600" in cookie
        assert ANN not in cookie
        assert listed(client) == ["team.climb"]
        assert client.post("/signout").status_code == 204
        assert client.get("/api/experiments").status_code == 401

    def test_it_is_secure_behind_a_proxy_with_tls(self, page: SharedPage) -> None:
        answer = client_of(page).post("/signin", data={"token": ANN}, headers={"x-forwarded-proto": "https"})
        assert "Secure" in answer.headers["set-cookie"]

    def test_it_ends_with_its_token_and_with_time(self, page: SharedPage, world: World) -> None:
        client = client_of(page)
        client.post("/signin", data={"token": ANN})
        del world.permissions.tokens[ANN]
        world.now += 11.0
        assert client.get("/api/session").status_code == 401
        client.post("/signin", data={"token": BEN})
        assert client.get("/api/session").json()["user"] == "ben"
        world.now += 3600.0
        assert client.get("/api/session").status_code == 401

    def test_a_header_goes_before_the_cookie(self, page: SharedPage) -> None:
        client = client_of(page)
        client.post("/signin", data={"token": ANN})
        assert client.get("/api/session", headers={"authorization": f"Bearer {BEN}"}).json()["user"] == "ben"

    @pytest.mark.parametrize(("header", "signs_in"), [("", True), ("Basic YTpi", True), (f"bearer {BEN}", False)])
    def test_it_can_be_ended_unless_a_bearer_token_comes(self, page: SharedPage, header: str, signs_in: bool) -> None:
        client = client_of(page)
        client.post("/signin", data={"token": ANN})
        headers = {"authorization": header} if header else {}
        assert client.get("/api/session", headers=headers).json()["signs_in"] is signs_in

    def test_tokens_are_never_logged(self, page: SharedPage, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            client = client_of(page)
            client.post("/signin", data={"token": ANN})
            client.get("/api/experiments/team.climb")
            client.get("/api/experiments", headers={"authorization": "Bearer unknown-token"})
        assert "token-of" not in caplog.text
        assert "unknown-token" not in caplog.text

    def test_an_outage_of_the_api_server_is_no_sign_out(self, page: SharedPage, world: World) -> None:
        client = client_of(page)
        client.post("/signin", data={"token": ANN})
        answers = dict(world.server.routes)
        world.server.routes["POST", TOKEN_REVIEWS] = {"code": 500, "message": "down"}
        world.now += 11.0
        assert client.get("/api/session").status_code == 503
        world.server.routes.update(answers)
        assert client.get("/api/session").status_code == 200


class TestOtherSites:
    def test_only_known_hosts_are_answered(self, world: World, tmp_path: Path) -> None:
        page = world.page(tmp_path, TRIALPOD_UI_HOSTS="tune.example.com,ui.svc:8080")
        client = client_of(page, ANN)
        for host, status in {
            "tune.example.com": 200,
            "TUNE.example.com:443": 200,
            "ui.svc:8080": 200,
            "localhost:40123": 200,
            "[::1]:8080": 200,
            "ui.svc": 421,
            "evil.example.com": 421,
            "tune.example.com.evil.com": 421,
            "localhost.evil.com": 421,
            "": 421,
        }.items():
            assert client.get("/api/session", headers={"host": host}).status_code == status, host
        page.close()

    def test_requests_of_other_pages_are_refused(self, page: SharedPage) -> None:
        client = client_of(page, ANN)
        for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
            assert client.get("/api/experiments", headers=headers).status_code == 403
            assert client.post("/signin", data={"token": ANN}, headers=headers).status_code == 403
        # A link of another site leads here.
        answer = client_of(page).get("/login", headers={"sec-fetch-site": "cross-site"})
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["x-frame-options"] == "DENY"


class TestActions:
    def act(self, client: TestClient, path: str, action: str, **arguments: Any) -> Any:
        token = client.get("/api/session").json()["token"]
        url = f"/api/experiments/{path}/actions/{action}"
        return client.post(url, json=arguments, headers={"x-trialpod-token": token})

    def test_are_off_unless_asked_for(self, page: SharedPage, world: World) -> None:
        client = client_of(page, BEN)
        assert client.get("/api/session").json()["actions"] is False
        assert client.get("/api/experiments/other.swim/actions").status_code == 404
        assert self.act(client, "other.swim", "suspend").status_code == 404

    def test_are_done_with_the_users_own_token(self, acting: SharedPage, world: World) -> None:
        client = client_of(acting, BEN)
        listed = client.get("/api/experiments/other.swim/actions").json()
        assert [each["allowed"] for each in listed] == [True, False, True, True]
        assert listed[0]["command"] == "trialpod suspend swim -n other"
        assert self.act(client, "other.swim", "suspend").status_code == 200
        assert world.server.experiment("swim")["spec"]["suspend"] is True
        (trial, *_) = world.samples["swim"].trials
        assert self.act(client, "other.swim", "stop-trial", trial=trial).status_code == 200
        changes = [
            (path, who)
            for (method, path), who in zip(world.server.requests, world.server.authorizations, strict=True)
            if method == "PATCH"
        ]
        place = f"{GROUP}/namespaces/other"
        assert changes == [
            (f"{place}/tuneexperiments/swim", f"Bearer {BEN}"),
            (f"{place}/tunetrials/swim-d75de-00000", f"Bearer {BEN}"),
        ]

    def test_are_refused_without_the_right(self, acting: SharedPage, world: World) -> None:
        client = client_of(acting, ANN)
        answer = self.act(client, "team.climb", "suspend")
        assert answer.status_code == 403
        assert "may not patch tuneexperiments" in answer.json()["error"]["message"]
        assert self.act(client, "other.swim", "suspend").status_code == 404
        assert not [method for method, _ in world.server.requests if method == "PATCH"]
        listed = client.get("/api/experiments/team.climb/actions").json()
        assert not any(each["allowed"] for each in listed)

    def test_the_api_server_has_the_last_word(self, acting: SharedPage, world: World) -> None:
        path = f"{GROUP}/namespaces/other/tuneexperiments/swim"
        world.server.routes["PATCH", path] = {"code": 403, "reason": "Forbidden", "message": "no"}
        assert self.act(client_of(acting, BEN), "other.swim", "suspend").status_code == 403

    def test_need_what_only_this_page_can_read(self, acting: SharedPage) -> None:
        client = client_of(acting, BEN)
        url = "/api/experiments/other.swim/actions/suspend"
        assert client.post(url, json={}).status_code == 403
        other = client_of(acting, ANN).get("/api/session").json()["token"]
        assert client.post(url, json={}, headers={"x-trialpod-token": other}).status_code == 403


class TestListening:
    def test_serves_clients_of_both_families(self, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """In a cluster with IPv6 alone, pods have no other address."""
        answers: dict[socket.AddressFamily, int] = {}

        class Visited(PageServer):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                for each in self.servers[0].sockets:
                    address = "::1" if each.family == socket.AF_INET6 else "127.0.0.1"
                    reader, writer = await asyncio.open_connection(address, each.getsockname()[1])
                    writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
                    answers[each.family] = int((await reader.readline()).split()[1])
                    writer.close()
                self.should_exit = True

        monkeypatch.setattr(serve, "PageServer", Visited)
        assert serve.serve_shared(port=0) == 0
        assert answers == dict.fromkeys([socket.AF_INET, *([socket.AF_INET6] if has_ipv6() else [])], 303)

    def test_removes_what_a_killed_process_has_left(
        self, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = (
            "import os, signal, sys; from pathlib import Path; from trialpod.storage.scratch import Scratch; "
            "Path(Scratch(Path(sys.argv[1]), sys.argv[2]).path, 'keys').touch(); os.kill(os.getpid(), signal.SIGKILL)"
        )
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run([sys.executable, "-c", code, disk, serve.WORK_DIR_PREFIX], check=False)
        (left,) = disk.iterdir()
        found: list[Path] = []

        class Visited(PageServer):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                found.extend(disk.iterdir())
                self.should_exit = True

        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        monkeypatch.setattr(serve, "PageServer", Visited)
        assert serve.serve_shared(port=0) == 0
        assert len(found) == 1
        assert found != [left]
        assert not list(disk.iterdir())


def has_ipv6() -> bool:
    """Return whether this machine has it."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class TestBounds:
    def test_what_nobody_looks_at_is_dropped(self, page: SharedPage, world: World, tmp_path: Path) -> None:
        client = client_of(page, ANN)
        assert client.get("/api/experiments/team.climb").status_code == 200
        assert list((tmp_path / "work").rglob(EXPERIMENT_KEY)), "its journal is beside its keys"
        page.experiments.drop_idle()
        assert list((tmp_path / "work").iterdir())
        world.now += shared.IDLE_S
        page.experiments.drop_idle()
        assert not list((tmp_path / "work").iterdir())
        assert client.get("/api/experiments/team.climb").status_code == 200

    def test_few_are_kept(
        self, world: World, page: SharedPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared, "MAX_MODELS", 1)
        world.permissions.rules.add(("ann", "other", "view"))
        client = client_of(page, ANN)
        for name in ("team.climb", "other.swim", "team.climb"):
            assert client.get(f"/api/experiments/{name}").status_code == 200
            assert len(list((tmp_path / "work").iterdir())) == 1

    def test_closing_an_earlier_model_leaves_the_keys_of_a_later_one(
        self, page: SharedPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = client_of(page, ANN)
        client.get("/api/experiments/team.climb")
        model = page.experiments.model(User("ann", token=ANN), "team.climb")
        (keys,) = (tmp_path / "work").iterdir()
        monkeypatch.setattr(model, "close", lambda: None)  # it waits for the storage
        page.experiments._drop(("team", "climb"))
        assert client.get("/api/experiments/team.climb").status_code == 200
        monkeypatch.undo()
        model.close()
        (left,) = (tmp_path / "work").iterdir()
        assert left != keys
        assert list(left.iterdir())

    def test_an_experiment_of_the_same_name_is_another(self, world: World, page: SharedPage) -> None:
        client = client_of(page, ANN)
        assert client.get("/api/experiments/team.climb").json()["damaged"] is None
        world.server.experiment("climb")["metadata"]["uid"] = "new"
        world.server.experiment("climb")["spec"]["storage"]["uri"] = "s3://tune/elsewhere"
        world.now += shared.RESOURCE_INTERVAL_S
        assert client.get("/api/experiments/team.climb").json()["damaged"] is not None

    def test_a_missing_secret_is_said(self, world: World, page: SharedPage) -> None:
        del world.server.objects["secrets", "keys"]
        answer = client_of(page, ANN).get("/api/experiments/team.climb")
        assert answer.status_code == 503
        assert "the Secret keys" in json.dumps(answer.json())
