"""A model that is dropped, for room, while a request uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_experiment import SampleExperiment
from starlette.testclient import TestClient

from trialpod_operator.ui import local_experiments
from trialpod_operator.ui.access import Sessions, User, allowed_hosts
from trialpod_operator.ui.app import Server
from trialpod_operator.ui.local_experiments import LocalExperiments
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel, ModelClosedError


class Dropping(LocalExperiments):
    """Drops so many models behind the back of who has asked for them."""

    drops = 0

    def model(self, user: User, experiment_id: str) -> ExperimentModel:
        found = super().model(user, experiment_id)
        if self.drops:
            self.drops -= 1
            self._models.pop(experiment_id).close()
        return found


@pytest.fixture
def experiments(tmp_path: Path) -> Dropping:
    SampleExperiment(tmp_path / "e", [1, 2])
    return Dropping(str(tmp_path))


@pytest.fixture
def client(experiments: Dropping) -> Iterator[TestClient]:
    sessions = Sessions()
    app = Server(experiments, sessions, allowed_hosts(8000)).app()
    with TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False) as client:
        assert client.get(f"/?token={sessions.token}").status_code == 303
        yield client


class TestDroppedModel:
    def test_is_replaced_within_the_request(self, experiments: Dropping, client: TestClient) -> None:
        experiments.drops = 1
        answer = client.get("/api/experiments/e")
        assert (answer.status_code, answer.json()["name"]) == (200, "e")

    def test_that_is_dropped_again_and_again_is_unavailable(self, experiments: Dropping, client: TestClient) -> None:
        experiments.drops = 100
        answer = client.get("/api/experiments/e/trials")
        assert answer.status_code == 503
        assert answer.json()["error"]["remedy"] == "ask again"

    def test_reads_nothing_any_more(self, tmp_path: Path) -> None:
        SampleExperiment(tmp_path / "e", [1])
        model = ExperimentModel(Location(tmp_path / "e"))
        model.close()
        with pytest.raises(ModelClosedError):
            model.refresh()

    def test_is_the_one_that_was_asked_for_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in "abc":
            SampleExperiment(tmp_path / name, [1])
        monkeypatch.setattr(local_experiments, "MAX_MODELS", 2)
        found = LocalExperiments(str(tmp_path))
        first, second, _ = [found.model(User(), name) for name in "abc"]
        with pytest.raises(ModelClosedError):
            first.refresh()
        second.refresh()
