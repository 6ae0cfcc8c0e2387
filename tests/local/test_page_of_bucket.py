from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from minio_server import MinioServer, environment_keys
from sample_experiment import SampleExperiment

from trialpod.storage.base import Storage
from trialpod_operator.experiment.replica.journal_layout import JOURNAL, folder_of, piece_key
from trialpod_operator.experiment.stored import JOURNAL_ID, read_stored
from trialpod_operator.ui.access import NoSuchExperimentError, User
from trialpod_operator.ui.local_experiments import LIST_S, LocalExperiments

pytestmark = [pytest.mark.local, pytest.mark.once]
USER = User("somebody")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as started, environment_keys():
        yield started


def put(storage: Storage, folder: Path) -> None:
    """Put an experiment into the bucket as its operator would: the journal in pieces."""
    SampleExperiment(folder, [1, 2])
    storage.put_directory(folder, folder.name)
    journal = folder_of((read_stored(folder) or {})[JOURNAL_ID])
    for log in (folder / JOURNAL).iterdir():
        storage.delete(f"{folder.name}/{JOURNAL}/{log.name}")
        storage.write(f"{folder.name}/{piece_key(journal, log.name, 0)}", log.read_bytes())


@pytest.fixture
def runs(server: MinioServer, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    """A prefix with two experiments and something else."""
    storage = server.storage(f"s3://tests/{request.node.name}")
    for name in ("climb", "digits"):
        put(storage, tmp_path / name)
    storage.write("notes/today.txt", b"x")
    return storage


def found(server: MinioServer, uri: str, clock: Clock | None = None) -> LocalExperiments:
    return LocalExperiments(f"{uri}?endpoint_override={server.endpoint}", clock or Clock())


class TestPrefix:
    def test_experiments_below_it_are_listed_and_opened(self, server: MinioServer, runs: Storage) -> None:
        experiments = found(server, runs.uri)
        assert sorted(each["id"] for each in experiments.summaries(USER)) == ["climb", "digits"]
        model = experiments.model(USER, "digits")
        model.refresh(0.0)
        assert model.summary()["trials"] == 2
        with pytest.raises(NoSuchExperimentError):
            experiments.model(USER, "notes")
        experiments.close()

    def test_new_one_appears(self, server: MinioServer, runs: Storage, tmp_path: Path) -> None:
        clock = Clock()
        experiments = found(server, runs.uri, clock)
        assert len(experiments.summaries(USER)) == 2
        put(runs, tmp_path / "late")
        clock.now += LIST_S
        assert "late" in [each["id"] for each in experiments.summaries(USER)]
        experiments.close()

    def test_one_experiment_is_shown_alone(self, server: MinioServer, runs: Storage) -> None:
        experiments = found(server, f"{runs.uri}/climb")
        assert [each["id"] for each in experiments.summaries(USER)] == ["climb"]
        experiments.close()
