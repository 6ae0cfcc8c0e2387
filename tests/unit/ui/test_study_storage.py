"""What optuna-dashboard needs of the adapter, by Optuna's own functions and by the dashboard itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from sample_experiment import SampleExperiment
from starlette.testclient import TestClient

from trialpod_operator.ui import local_experiments
from trialpod_operator.ui.access import Sessions, allowed_hosts
from trialpod_operator.ui.local_experiments import LocalExperiments
from trialpod_operator.ui.optuna_storage import MAX_TRIALS, ExperimentStorage, ReadOnlyError

pytestmark = pytest.mark.once


@pytest.fixture
def sample(tmp_path: Path) -> SampleExperiment:
    sample = SampleExperiment(tmp_path / "all" / "e", [1, 2, 3])
    sample.report(sample.trials[0], 1.0, 3.0)
    sample.end(sample.trials[0])
    sample.report(sample.trials[1], 2.0)
    sample.end(sample.trials[1])
    return sample


@pytest.fixture
def storage(sample: SampleExperiment) -> ExperimentStorage:
    return ExperimentStorage(LocalExperiments(str(sample.folder.parent)))


class TestStorage:
    def test_optuna_loads_a_study_of_it(self, storage: ExperimentStorage, sample: SampleExperiment) -> None:
        study = optuna.load_study(study_name="e", storage=storage)
        assert study.best_value == 3.0
        assert study.best_params == {"x": 1}
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "RUNNING"]
        sample.report(sample.trials[2], 9.0)
        sample.end(sample.trials[2])
        assert study.best_value == 9.0
        assert study.trials[2].number == 2

    def test_ids_are_those_of_experiment_and_trial(self, storage: ExperimentStorage, tmp_path: Path) -> None:
        SampleExperiment(tmp_path / "all" / "a", [1])
        found = {study.study_name: study._study_id for study in storage.get_all_studies()}
        assert set(found) == {"a", "e"}
        assert storage.get_trial(found["e"] * MAX_TRIALS + 1).params == {"x": 2}
        SampleExperiment(tmp_path / "all" / "0", [1])
        assert {study.study_name: study._study_id for study in storage.get_all_studies()}.items() > found.items()
        with pytest.raises(KeyError):
            storage.get_trial(found["a"] * MAX_TRIALS + 1)
        with pytest.raises(KeyError):
            storage.get_study_name_from_id(17)

    def test_directions_need_no_model_that_is_kept(
        self, sample: SampleExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local_experiments, "MAX_MODELS", 1)
        SampleExperiment(tmp_path / "all" / "a", [1])
        storage = ExperimentStorage(LocalExperiments(str(sample.folder.parent)))
        for study in storage.get_all_studies():
            assert study.directions == [StudyDirection.MAXIMIZE]
            assert storage.get_study_directions(study._study_id) == [StudyDirection.MAXIMIZE]
        assert len(storage.get_all_studies()) == 2

    def test_an_experiment_that_was_removed_is_left_out(self, storage: ExperimentStorage, tmp_path: Path) -> None:
        SampleExperiment(tmp_path / "all" / "a", [1]).close()
        found = {study.study_name: study._study_id for study in storage.get_all_studies()}
        assert set(found) == {"a", "e"}
        shutil.rmtree(tmp_path / "all" / "a")
        assert {study.study_name: study._study_id for study in storage.get_all_studies()} == {"e": found["e"]}
        with pytest.raises(KeyError):
            storage.get_study_id_from_name("a")
        assert storage.get_study_id_from_name("e") == found["e"]

    def test_every_method_that_changes_something_refuses(self, storage: ExperimentStorage) -> None:
        storage.get_all_studies()
        changing = [name for name in BaseStorage.__abstractmethods__ if not name.startswith("get_")]
        assert len(changing) == 10
        for name in changing:
            method = getattr(storage, name)
            arguments = [0] * (method.__code__.co_argcount - 1 - len(method.__defaults__ or ()))
            with pytest.raises(ReadOnlyError):
                method(*arguments)

    def test_the_interface_is_the_one_that_was_read(self) -> None:
        assert len(BaseStorage.__abstractmethods__) == 18


@pytest.mark.xdist_group("optuna-dashboard")
class TestDashboard:
    @pytest.fixture
    def client(self, sample: SampleExperiment) -> Iterator[TestClient]:
        from trialpod_operator.ui.optuna_dashboard import dashboard_app  # imports scikit-learn: a second of CPU

        sessions = Sessions()
        app = dashboard_app(LocalExperiments(str(sample.folder)), sessions, allowed_hosts(8000))
        with TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False) as client:
            assert client.get("/api/studies").status_code == 401
            assert client.get(f"/?token={sessions.token}").status_code == 303
            yield client

    def test_shows_the_experiment(self, client: TestClient, sample: SampleExperiment) -> None:
        (study,) = client.get("/api/studies").json()["study_summaries"]
        assert study["study_name"] == "e"
        detail = client.get(f"/api/studies/{study['study_id']}").json()
        first = detail["trials"][0]
        assert (first["state"], first["values"]) == ("Complete", [3.0])
        assert [each["value"] for each in first["intermediate_values"]] == [1.0, 3.0]
        assert client.get("/dashboard").status_code == 200

    def test_can_only_be_read(self, client: TestClient) -> None:
        for method, path in (
            ("POST", "/api/studies"),
            ("DELETE", "/api/studies/0"),
            ("POST", "/api/studies/0/rename"),
            ("PUT", "/api/studies/0/note"),
            ("POST", "/api/trials/0/tell"),
            ("PATCH", "/api/studies/0"),
        ):
            assert client.request(method, path).status_code == 405
        assert client.get("/api/studies", headers={"host": "evil.example"}).status_code == 421
