from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_experiment import SampleExperiment
from starlette.testclient import TestClient

from trialpod_operator.ui import app
from trialpod_operator.ui.access import ActionDeniedError, Json, Sessions, User, allowed_hosts
from trialpod_operator.ui.app import ACTIONS, Server
from trialpod_operator.ui.local_experiments import LocalExperiments
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel

HOST = "http://127.0.0.1:8000"


class StopOnly:
    """Lets everybody stop trials, and nothing else."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Json]] = []

    def listed(self, user: User, model: ExperimentModel) -> list[Json]:
        return [{"name": "stop-trial", "command": "trialpod stop", "allowed": True, "why_not": None}]

    def perform(self, user: User, model: ExperimentModel, action: str, arguments: Json) -> str:
        if action != "stop-trial":
            raise ActionDeniedError("you may not; ask for the role tune-editor")
        self.done.append((action, arguments))
        return "stopped"


@pytest.fixture
def sample(tmp_path: Path) -> SampleExperiment:
    return SampleExperiment(tmp_path / "e", ["<b>", 2, 3])


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


def client_of(sample: SampleExperiment, sessions: Sessions, actions: Any = None) -> TestClient:
    experiments = LocalExperiments(str(sample.folder.parent))
    server = Server(experiments, sessions, allowed_hosts(8000), actions)
    return TestClient(server.app(), base_url=HOST, follow_redirects=False)


@pytest.fixture
def client(sample: SampleExperiment, sessions: Sessions) -> Iterator[TestClient]:
    with client_of(sample, sessions) as found:
        assert found.get(f"/?token={sessions.token}").status_code == 303
        yield found


def routes(client: TestClient) -> list[str]:
    paths = [route.path for route in client.app.routes if hasattr(route, "methods")]  # type: ignore[attr-defined]
    return [path.replace("{id}", "e").replace("{trial}", "t").replace("{action}", "suspend") for path in paths]


class TestSession:
    def test_the_token_opens_one_session(self, sample: SampleExperiment, sessions: Sessions) -> None:
        token = sessions.token
        with client_of(sample, sessions) as client, client_of(sample, sessions) as other:
            answer = client.get(f"/?token={token}")
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            cookie = answer.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert client.get("/api/session").json()["actions"] is False
            assert other.get(f"/?token={token}").status_code == 401
            assert token != sessions.token

    def test_every_route_needs_one(self, sample: SampleExperiment, sessions: Sessions) -> None:
        with client_of(sample, sessions) as client:
            found = {path: client.get(path).status_code for path in [*routes(client), "/static/style.css"]}
            assert set(found.values()) == {401}
            assert client.get("/api/session").json()["error"]["reason"] == "NoSession"
            assert client.get("/?token=").status_code == 401


class TestOrigins:
    def test_another_host_name_is_refused(self, client: TestClient) -> None:
        for host in ("evil.example", "evil.example:8000", "127.0.0.1:8001", ""):
            assert client.get("/api/experiments", headers={"host": host}).status_code == 421

    def test_a_page_of_another_origin_is_refused(self, client: TestClient) -> None:
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            answer = client.get("/api/experiments", headers=headers)
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers

    def test_answers_forbid_what_is_not_of_this_origin(self, client: TestClient) -> None:
        for path in ("/api/experiments", "/static/none.js", "/nowhere"):
            headers = client.get(path).headers
            assert headers["content-security-policy"].startswith("default-src 'self'")
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"


class TestRoutes:
    def test_list_names_the_experiments_of_the_folder(self, client: TestClient, sample: SampleExperiment) -> None:
        sample.report(sample.trials[0], 1.0)
        found = client.get("/api/experiments").json()
        (one,) = found["experiments"]
        assert (one["id"], one["state"], one["trials"]) == ("e", "Interrupted", 3)
        assert found["actions"] is False

    def test_data_is_json(self, client: TestClient, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        sample.report(first, 1.0)
        assert client.get("/api/experiments/e").json()["metric"] == "score"
        trials = client.get("/api/experiments/e/trials").json()["trials"]
        assert [row["id"] for row in trials] == sample.trials
        assert trials[0]["config"] == {"x": "<b>"}
        assert client.get("/api/experiments/e/curves?metric=score").json()["curves"][first]["y"] == [1]
        assert client.get(f"/api/experiments/e/trials/{first}").json()["row"]["id"] == first
        assert client.get("/api/experiments/e/timeline").json()["clones"] == []
        assert "unavailable" in client.get("/api/experiments/e/importance").json()
        csv = client.get("/api/experiments/e/export.csv")
        assert csv.text.splitlines()[1].startswith(first)

    def test_errors_say_what_is_wrong(self, client: TestClient) -> None:
        for path, status in (
            ("/api/experiments/none", 404),
            ("/api/experiments/e/trials/none", 404),
            ("/api/experiments/e/curves?x=moon", 400),
            ("/api/experiments/e/curves?points=many", 400),
            ("/api/nothing", 404),
        ):
            answer = client.get(path)
            assert answer.status_code == status
            assert answer.json()["error"]["message"]

    @pytest.mark.parametrize(
        "path",
        [
            "/api/experiments/..%2F..%2Fetc",
            "/api/experiments/%2e%2e",
            "/api/experiments/./e/../../x",
            "/static/../app.py",
            "/static/%2e%2e/app.py",
            "/static/..%2fapp.py",
            "/api/experiments/e/trials/..%2f..%2f.trialpod%2fexperiment.json",
        ],
    )
    def test_no_path_leads_out(self, client: TestClient, path: str) -> None:
        assert client.get(path).status_code == 404

    def test_a_folder_that_is_none_is_reported(self, client: TestClient, sample: SampleExperiment) -> None:
        (sample.folder.parent / "no-experiment").mkdir()
        broken = sample.folder.parent / "broken" / ".trialpod"
        broken.mkdir(parents=True)
        (broken / "experiment.json").write_text("{")
        found = {each["id"]: each["state"] for each in client.get("/api/experiments").json()["experiments"]}
        assert found == {"e": "Interrupted", "broken": "Unreadable"}
        assert "cannot be read" in client.get("/api/experiments/broken").json()["damaged"]["message"]


class Replaced(LocalExperiments):
    """Has another model of the experiment each time, as of one that was created again."""

    folder: Path
    stop: Callable[[], None]

    def model(self, user: User, experiment_id: str) -> ExperimentModel:
        self._headers = 0
        return ExperimentModel(Location(self.folder), standing=self._standing)

    def _standing(self) -> Json:
        self._headers += 1
        if self._headers > 3:  # the stream of events continues
            self.stop()
        return {}


class TestEvents:
    def test_end_when_another_model_takes_the_place(
        self, sample: SampleExperiment, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(app, "RECHECK_INTERVAL_S", 0.0)
        experiments = Replaced(str(sample.folder.parent))
        experiments.folder = sample.folder
        server = Server(experiments, sessions, allowed_hosts(8000))
        experiments.stop = server.stop
        with TestClient(server.app(), base_url=HOST, follow_redirects=False) as client:
            client.get(f"/?token={sessions.token}")
            assert client.get("/api/experiments/e/events").text == ": connected\n\n"


class TestActions:
    def test_are_not_there_when_off(self, client: TestClient) -> None:
        for action in ACTIONS:
            assert client.post(f"/api/experiments/e/actions/{action}").status_code == 404
        assert client.get("/api/experiments/e/actions").status_code == 404

    def test_need_the_sessions_token_and_permissions(self, sample: SampleExperiment, sessions: Sessions) -> None:
        actions = StopOnly()
        with client_of(sample, sessions, actions) as client:
            client.get(f"/?token={sessions.token}")
            token = {"x-trialpod-token": client.get("/api/session").json()["token"]}
            stop = "/api/experiments/e/actions/stop-trial"
            assert client.post(stop, json={"trial": "t"}).status_code == 403
            assert client.post(stop, json={"trial": "t"}, headers={"x-trialpod-token": "x"}).status_code == 403
            assert actions.done == []
            assert client.post(stop, json={"trial": "t"}, headers=token).json() == {"done": "stopped"}
            assert actions.done == [("stop-trial", {"trial": "t"})]
            denied = client.post("/api/experiments/e/actions/resume", json={}, headers=token)
            assert denied.status_code == 403
            assert denied.json()["error"]["remedy"] == "ask for the role tune-editor"
            assert client.post(stop, content=b"[1", headers=token).status_code == 400
            assert client.post(stop, content=b"x" * 100_000, headers=token).status_code == 413
            assert client.post("/api/experiments/e/actions/drop", json={}, headers=token).status_code == 404
