"""An experiment in a bucket, as the process that runs it copies it there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_storage import MemoryStorage, fail_on
from sample_experiment import SampleExperiment

from trialpod.cli.main import main
from trialpod.errors import StorageError
from trialpod.storage import registry
from trialpod.storage.base import StorageDeniedError, StorageUnavailableError
from trialpod_operator.experiment.replica.replica import Replica
from trialpod_operator.view import model as model_module
from trialpod_operator.view import reading as reading_module
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.reading import reading


class Copied:
    """A running experiment and its copy."""

    def __init__(self, folder: Path) -> None:
        self.storage = MemoryStorage()
        self.sample = SampleExperiment(folder / "e", [1, 2])
        self.replica = Replica(folder / "e", self.storage)
        self.models: list[ExperimentModel] = []
        self.copy()

    def copy(self) -> None:
        self.sample.host.flush()
        for trial in self.sample.host.engine.state.trials.values():
            self.replica.trial_ended(self.sample.host.files.path(trial).name)
        self.replica.copy()

    def model(self) -> ExperimentModel:
        self.models.append(ExperimentModel(Location("s3://bucket/e", self.storage), clock=lambda: 5000.0))
        return self.models[-1]


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Copied]:
    found = Copied(tmp_path)
    yield found
    for model in found.models:
        model.location.close()


def values(model: ExperimentModel, trial: str) -> list[float]:
    while model.refresh():
        pass
    found: list[float] = json.loads(model.curves())["curves"][trial]["y"]
    return found


class TestBucket:
    def test_only_new_objects_are_read(self, copied: Copied) -> None:
        first = copied.sample.trials[0]
        copied.sample.report(first, 1.0)
        copied.copy()
        model = copied.model()
        assert values(model, first) == [1]
        copied.sample.report(first, 2.0)
        copied.copy()
        copied.storage.calls.clear()
        assert values(model, first) == [1, 2]
        read = [key for name, key in copied.storage.calls if name == "read"]
        assert len(read) == 1
        assert "/00000001.log/" in read[0]

    def test_refresh_of_a_view_reads_what_is_new(self, copied: Copied) -> None:
        first = copied.sample.trials[0]
        copied.sample.start(first)
        copied.copy()
        with reading("s3://bucket/e", copied.storage) as experiment:
            assert experiment.view(None, 5000.0).results == 0
            copied.sample.report(first, 1.0)
            copied.copy()
            copied.storage.calls.clear()
            experiment.refresh()
            assert experiment.view(None, 5000.0).results == 1
            assert len([key for name, key in copied.storage.calls if name == "read"]) == 1

    def test_a_snapshot_is_followed(self, copied: Copied) -> None:
        first = copied.sample.trials[0]
        copied.sample.report(first, 1.0)
        copied.copy()
        model = copied.model()
        assert values(model, first) == [1]
        copied.sample.report(first, 2.0)
        copied.sample.snapshot()
        copied.sample.report(first, 3.0)
        copied.copy()
        assert values(model, first) == values(copied.model(), first) == [1, 2, 3]

    def test_an_outage_makes_it_stale_and_passes(self, copied: Copied) -> None:
        first = copied.sample.trials[0]
        copied.sample.report(first, 1.0)
        copied.copy()
        model = copied.model()
        assert values(model, first) == [1]

        def away(_name: str, _key: str) -> None:
            raise StorageUnavailableError("the store does not answer")

        copied.storage.before = away
        model.refresh()
        header = model.header()
        assert header["stale_since"] == 5000.0
        assert header["damaged"] is None
        copied.storage.before = lambda _name, _key: None
        model.refresh()
        assert model.header()["stale_since"] is None

    def test_a_bucket_that_refuses_is_reported(self, copied: Copied) -> None:
        def refuse(_name: str, _key: str) -> None:
            raise StorageDeniedError("s3://bucket/e: access denied (403); the keys may not list the bucket")

        copied.storage.before = refuse
        model = copied.model()
        model.refresh()
        header = model.header()
        assert header["state"] == "Unreadable"
        assert "access denied (403)" in header["damaged"]["message"]
        assert header["damaged"]["remedy"].startswith("trialpod fsck s3://bucket/e")


class TestFilesOfTrials:
    @pytest.fixture
    def ended(self, copied: Copied) -> str:
        first = copied.sample.trials[0]
        copied.sample.report(first, 1.0, 2.0)
        copied.sample.end(first)
        copied.sample.snapshot()
        copied.copy()
        return first

    @staticmethod
    def reads(copied: Copied) -> int:
        return sum(name == "read" and key.endswith("result.json") for name, key in copied.storage.calls)

    @pytest.mark.parametrize("error", [StorageUnavailableError, StorageDeniedError, StorageError])
    def test_are_read_again_after_an_error(
        self, copied: Copied, ended: str, error: type[StorageError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copied.storage.before = fail_on("read", "result.json", error)
        model = copied.model()
        while model.refresh():
            pass
        assert self.reads(copied) == 1  # an outage is no busy loop
        header = model.header()
        assert (header["loading"], header["stale_since"], header["damaged"]) == (1, 5000.0, None)
        monkeypatch.setattr(model_module, "RETRY_INTERVAL_S", 0.0)
        assert values(model, ended) == [1, 2]
        header = model.header()
        assert (header["loading"], header["stale_since"]) == (0, None)

    def test_that_come_later_are_waited_for(
        self, copied: Copied, ended: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (key,) = (key for key in copied.storage.values if key.endswith("result.json"))
        data = copied.storage.values.pop(key)
        model = copied.model()
        while model.refresh():
            pass
        header = model.header()
        assert (header["loading"], header["stale_since"]) == (1, None)
        copied.storage.values[key] = data
        monkeypatch.setattr(model_module, "RETRY_INTERVAL_S", 0.0)
        assert values(model, ended) == [1, 2]

    def test_that_never_come_are_given_up(self, copied: Copied, ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
        copied.storage.values = {
            key: data for key, data in copied.storage.values.items() if not key.endswith("result.json")
        }
        monkeypatch.setattr(model_module, "RETRY_INTERVAL_S", 0.0)
        model = copied.model()
        while model.header()["loading"] or not self.reads(copied):
            model.refresh()
        assert self.reads(copied) == model_module.MISSING_TRIES
        once = copied.model()
        once.load()
        assert json.loads(once.curves())["curves"] == {}

    def test_that_cannot_be_read_end_an_export(self, copied: Copied, ended: str) -> None:
        copied.storage.before = fail_on("read", "result.json")
        model = copied.model()
        with pytest.raises(StorageUnavailableError):
            model.load()
        model.load()
        assert json.loads(model.curves())["curves"][ended]["y"] == [1, 2]


def test_lines_of_a_log_end_with_a_newline_alone(
    copied: Copied, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    trial = copied.sample.host.engine.state.trials[copied.sample.trials[0]]
    copied.storage.write(f"{copied.sample.host.files.path(trial).name}/log.txt", b"begin\n1%\r2%\r3%\nend\n")
    for module in (registry, reading_module):
        monkeypatch.setattr(module, "open_storage", lambda _uri: copied.storage)
    assert main(["logs", "s3://bucket/e", "0", "--tail", "2"]) == 0
    assert capfdbinary.readouterr().out == b"1%\r2%\r3%\nend\n"
