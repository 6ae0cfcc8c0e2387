"""What a list of experiments reads of their journals."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sample_experiment import SampleExperiment

from trialpod.errors import StorageError
from trialpod.storage.lock import ExperimentLock
from trialpod_operator.commands.list import local_facts
from trialpod_operator.ui import local_experiments
from trialpod_operator.ui.access import User
from trialpod_operator.ui.local_experiments import MAX_MODELS, LocalExperiments
from trialpod_operator.view import reading
from trialpod_operator.view.model import ExperimentModel, ModelClosedError

USER = User("local")
MANY = MAX_MODELS + 5


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingModel(ExperimentModel):
    """Counts, by experiment, how often a journal is read from its beginning, and how often it is followed."""

    opened: ClassVar[Counter[str]] = Counter()
    followed: ClassVar[Counter[str]] = Counter()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.opened[self.location.name] += 1

    def refresh(self, *args: Any, **options: Any) -> bool:
        self.followed[self.location.name] += 1
        return super().refresh(*args, **options)


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_experiments, "ExperimentModel", CountingModel)


@pytest.fixture
def samples(tmp_path: Path) -> dict[str, SampleExperiment]:
    return {name: SampleExperiment(tmp_path / name, [1]) for name in (f"e{at:02d}" for at in range(MANY))}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def experiments(tmp_path: Path, samples: dict[str, SampleExperiment], clock: Clock) -> LocalExperiments:
    return LocalExperiments(str(tmp_path), clock)


def poll(experiments: LocalExperiments, clock: Clock) -> dict[str, Any]:
    clock.now += 5.0
    CountingModel.opened.clear()
    CountingModel.followed.clear()
    return {each["id"]: each for each in experiments.summaries(USER)}


class TestList:
    def test_reads_each_journal_once_while_none_grows(self, experiments: LocalExperiments, clock: Clock) -> None:
        assert len(poll(experiments, clock)) == MANY
        assert CountingModel.opened.total() == MANY
        assert len(poll(experiments, clock)) == MANY
        assert (CountingModel.opened.total(), CountingModel.followed.total()) == (0, 0)

    def test_reads_only_the_journal_that_has_grown(
        self, experiments: LocalExperiments, clock: Clock, samples: dict[str, SampleExperiment]
    ) -> None:
        poll(experiments, clock)
        grown = samples["e24"]
        for number in range(1, 4):
            grown.report(grown.trials[0], float(number))
            best = poll(experiments, clock)["e24"]["best"]
            assert best["value"] == number
            assert CountingModel.followed == {"e24": 1}
        assert CountingModel.opened == {}  # it is followed from where it was

    def test_follows_most_where_more_grow_than_are_kept(
        self, experiments: LocalExperiments, clock: Clock, samples: dict[str, SampleExperiment]
    ) -> None:
        poll(experiments, clock)
        for sample in samples.values():
            sample.report(sample.trials[0], 7.0)
        assert {each["best"]["value"] for each in poll(experiments, clock).values()} == {7.0}
        assert CountingModel.opened.total() == MANY - MAX_MODELS

    def test_lists_new_ones_and_forgets_removed_ones(
        self, experiments: LocalExperiments, clock: Clock, samples: dict[str, SampleExperiment], tmp_path: Path
    ) -> None:
        poll(experiments, clock)
        (tmp_path / "e03").rename(tmp_path / "other")
        found = poll(experiments, clock)
        assert "e03" not in found
        assert CountingModel.opened == {"other": 1}

    def test_leaves_out_a_folder_it_may_not_look_into(
        self, experiments: LocalExperiments, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = tmp_path / "lost+found"
        closed.mkdir(mode=0)
        stat = os.stat

        def refuse(path: Any, **options: Any) -> os.stat_result:
            if not isinstance(path, int) and Path(path).parent == closed:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return stat(path, **options)

        monkeypatch.setattr(os, "stat", refuse)  # what other users than root get
        assert len(poll(experiments, clock)) == MANY
        assert len(local_facts(tmp_path)) == MANY

    def test_names_a_folder_that_was_removed(
        self, experiments: LocalExperiments, clock: Clock, tmp_path: Path
    ) -> None:
        tmp_path.rename(tmp_path.with_name("moved"))
        for read in (lambda: experiments.summaries(USER), lambda: experiments.model(USER, "e01")):
            with pytest.raises(StorageError, match=r"cannot list .*: No such file or directory"):
                read()

    def test_shows_that_a_process_has_come_or_gone(
        self, experiments: LocalExperiments, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert poll(experiments, clock)["e01"]["state"] == "Interrupted"
        running = local_experiments.activity

        def activity(folder: Path, *, orphans: bool) -> Any:
            found = running(folder, orphans=orphans)
            return type(found)(found.holder, runs=folder.name == "e01")

        monkeypatch.setattr(local_experiments, "activity", activity)
        found = poll(experiments, clock)
        assert (found["e01"]["state"], found["e02"]["state"]) == ("Running", "Interrupted")

    def test_looks_at_no_other_process_than_the_holder(
        self, experiments: LocalExperiments, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scan(folder: Path) -> list[int]:
            raise AssertionError(f"all processes are searched for {folder}")

        monkeypatch.setattr(reading, "lock_users", scan)
        with ExperimentLock(tmp_path / "e01"):
            found = poll(experiments, clock)
            assert reading.activity(tmp_path / "e01").runs
        assert found["e01"]["state"] == "Running"
        assert poll(experiments, clock)["e01"]["state"] == "Interrupted"
        assert {fact["state"] for fact in local_facts(tmp_path)} == {"Interrupted"}

    def test_twice_at_once_answers_both(self, experiments: LocalExperiments, clock: Clock) -> None:
        together = threading.Barrier(4)

        def ask(_number: int) -> int:
            together.wait()
            return len(experiments.summaries(USER))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(ask, range(4))) == [MANY] * 4


class TestModelInUse:
    def test_is_not_dropped_for_others(self, experiments: LocalExperiments, clock: Clock) -> None:
        used, unused = experiments.model(USER, "e00"), experiments.model(USER, "e01")
        with used.in_use():
            for number in range(2, MANY):
                experiments.model(USER, f"e{number:02d}")
            used.refresh()
            assert experiments.model(USER, "e00") is used
            with pytest.raises(ModelClosedError):
                unused.refresh()
        for number in range(1, MANY):
            experiments.model(USER, f"e{number:02d}")
        with pytest.raises(ModelClosedError):
            used.refresh()
