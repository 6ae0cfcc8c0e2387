from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sample_experiment import SampleExperiment

from python_steps import count
from trialpod.errors import InvalidInputError
from trialpod.storage.directory import DirectoryStorage
from trialpod.storage.layout import EXPERIMENT_KEY, JOURNAL_DIR, TRIALPOD_DIR
from trialpod.storage.registry import open_storage
from trialpod.tune.schedulers.pbt import PopulationBasedTraining
from trialpod.tune.search.sample import uniform
from trialpod_operator.engine.trial import MAX_PAST_ATTEMPTS
from trialpod_operator.experiment.fsck.examine import examine
from trialpod_operator.experiment.stored import write_stored
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import MAX_METRICS, ExperimentModel, ModelClosedError, NoSuchTrialError
from trialpod_operator.view.reading import activity, current_view, reading


@pytest.fixture
def sample(tmp_path: Path) -> SampleExperiment:
    return SampleExperiment(tmp_path / "e", [1, 2, 3])


def model_of(sample: SampleExperiment) -> ExperimentModel:
    model = ExperimentModel(Location(sample.folder), clock=lambda: sample.now)
    while model.refresh():
        pass
    return model


def rows(model: ExperimentModel, after: str = "") -> dict[str, Any]:
    return {row["id"]: row for row in json.loads(model.trial_rows(after))["trials"]}


def curve(model: ExperimentModel, trial: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.curves(**options))["curves"]
    return found.get(trial, {})


class TestTrials:
    def test_show_config_metrics_and_best(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        sample.start(first)
        sample.report(first, 1.0, 5.0, 2.0, loss=0.25)
        row = rows(model_of(sample))[first]
        assert row["state"] == "RUNNING"
        assert row["config"] == {"x": 1}
        assert row["metrics"] == {"score": 2.0, "loss": 0.25}
        assert (row["best"], row["iteration"]) == (2.0, 3)

    def test_only_changed_ones_come_after_a_cursor(self, sample: SampleExperiment) -> None:
        first, second, _ = sample.trials
        model = model_of(sample)
        cursor = model.cursor
        sample.report(second, 1.0)
        model.refresh()
        assert list(rows(model, cursor)) == [second]
        assert rows(model, model.cursor) == {}
        assert first in rows(model, "another.7")

    def test_say_why_they_ended(self, sample: SampleExperiment) -> None:
        first, second, _ = sample.trials
        sample.end(first, "failed", error="ValueError: no")
        sample.end(first, "failed", attempt=2, error="ValueError: no")
        sample.report(second, float("nan"))
        found = rows(model_of(sample))
        assert (found[first]["state"], found[first]["reason"]) == ("ERROR", "ValueError: no")
        assert found[first]["restarts"] == 2
        assert found[second]["metrics"]["score"] == "NaN"

    def test_an_end_as_intended_is_no_early_stop(self, tmp_path: Path) -> None:
        sample = SampleExperiment(tmp_path / "e", [1, 2], max_t=4)
        whole, weak = sample.trials
        sample.report(whole, 5.0, 6.0, 7.0, 8.0)
        sample.end(whole, "stopped")
        sample.report(weak, 1.0, 0.5)
        sample.end(weak, "stopped")
        found = rows(model_of(sample))
        assert (found[whole]["stopped_by"], found[whole]["pruned"]) == (None, False)
        assert "max_t=4" in found[whole]["reason"]
        assert (found[weak]["stopped_by"], found[weak]["pruned"]) == ("scheduler", True)
        assert model_of(sample).summary()["counts"] == {"TERMINATED": 1, "STOPPED": 1}

    def test_that_ran_are_pending_once_nobody_runs_them(self, sample: SampleExperiment) -> None:
        interrupted = False
        model = ExperimentModel(Location(sample.folder), interrupted=lambda: interrupted)
        model.refresh()
        assert model.summary()["counts"] == {"RUNNING": 3}
        interrupted = True
        assert model.summary()["counts"] == {"PENDING": 3}

    def test_unknown_one_is_refused(self, sample: SampleExperiment) -> None:
        with pytest.raises(NoSuchTrialError, match="no trial 'nope'"):
            model_of(sample).trial("nope")


class TestGrowth:
    def test_curves_grow_without_reading_files_again(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        sample.report(first, 1.0, 2.0)
        sample.snapshot()
        sample.report(first, 3.0)
        model = model_of(sample)
        assert curve(model, first)["y"] == [1, 2, 3]
        for path in sample.folder.glob("train_*"):
            shutil.rmtree(path)
        sample.report(first, 4.0)
        model.refresh()
        assert curve(model, first) == {"x": [1, 2, 3, 4], "y": [1, 2, 3, 4], "full": True}

    def test_results_count_once_across_snapshots(self, sample: SampleExperiment) -> None:
        first, second, _ = sample.trials
        model = model_of(sample)
        for step in range(5):
            sample.report(first, float(step))
            sample.report(second, -float(step))
            if step % 2:
                sample.snapshot()
            if step != 2:
                model.refresh()
        assert curve(model, first)["y"] == curve(model_of(sample), first)["y"] == [0, 1, 2, 3, 4]
        assert curve(model, second)["y"] == [0, -1, -2, -3, -4]

    def test_a_file_behind_the_journal_is_read_again(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        sample.report(first, 1.0, loss=7.0)
        sample.snapshot()
        model = model_of(sample)
        sample.report(first, 2.0, loss=6.0)  # not in the file yet
        model.refresh()
        assert curve(model, first, metric="loss")["y"] == [7]
        sample.host.flush()
        sample.report(first, 3.0, loss=5.0)
        while model.refresh():
            pass
        sample.host.flush()
        assert curve(model, first, metric="loss")["y"] == [7, 6, 5]

    def test_an_experiment_may_begin_later(self, tmp_path: Path) -> None:
        model = ExperimentModel(Location(tmp_path / "later"))
        model.refresh()
        assert "there is no experiment at" in model.header()["damaged"]["message"]
        assert model.summary()["state"] == "Unreadable"
        sample = SampleExperiment(tmp_path / "later", [1])
        model.refresh()
        assert model.header()["damaged"] is None
        assert list(rows(model)) == sample.trials


class TestAnotherExperiment:
    """It takes the place of the one that was read: it was run again from the beginning."""

    def test_is_shown_alone(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        sample.start(first)
        sample.report(first, 1.0, 2.0, loss=0.5)
        model = model_of(sample)
        cursor = model.cursor
        assert (set(rows(model)), model.header()["total"]) == (set(sample.trials), 3)
        sample.close()
        os.rename(sample.folder, sample.folder.with_name("aside"))
        again = SampleExperiment(sample.folder, [], space={"y": uniform(0.0, 1.0)}, num_samples=2)
        again.report(again.trials[0], 7.0)
        model.refresh()
        shown = json.loads(model.trial_rows(cursor))
        assert shown["whole"] is True
        assert [row["id"] for row in shown["trials"]] == again.trials
        header = model.header()
        assert ([each["name"] for each in header["parameters"]], header["total"]) == (["y"], 2)
        assert header["metrics"] == ["score"]
        assert {each: curve(model, each).get("y") for each in again.trials} == {
            again.trials[0]: [7],
            again.trials[1]: None,
        }
        assert json.loads(model.trial_rows(model.cursor)) == {"cursor": model.cursor, "trials": [], "whole": False}

    def test_of_the_same_stored_file_is_noticed(self, sample: SampleExperiment, tmp_path: Path) -> None:
        model = model_of(sample)
        cursor = model.cursor
        other = SampleExperiment(tmp_path / "other" / "e", [1])
        other.report(other.trials[0], 3.0)
        shutil.rmtree(sample.folder / TRIALPOD_DIR / JOURNAL_DIR)
        shutil.copytree(other.folder / TRIALPOD_DIR / JOURNAL_DIR, sample.folder / TRIALPOD_DIR / JOURNAL_DIR)
        model.refresh()
        shown = json.loads(model.trial_rows(cursor))
        assert ([row["id"] for row in shown["trials"]], shown["whole"]) == (other.trials, True)

    def test_a_later_start_of_the_same_one_forgets_nothing(self, sample: SampleExperiment) -> None:
        model = model_of(sample)
        cursor = model.cursor
        write_stored(sample.folder, {"name": "e", "total": 9, "manifest": {"spec": {"algorithm": "auto"}}})
        sample.report(sample.trials[0], 1.0)
        model.refresh()
        assert list(rows(model, cursor)) == [sample.trials[0]]
        assert model.header()["search"] == "auto"

    def test_a_damaged_stored_file_is_reported_until_it_is_not(self, sample: SampleExperiment) -> None:
        model = model_of(sample)
        file = sample.folder / EXPERIMENT_KEY
        data = file.read_bytes()
        file.write_bytes(b"{")
        for _ in range(2):
            model.refresh()
            assert model.header()["damaged"] is not None
        file.write_bytes(data)
        model.refresh()
        assert model.header()["damaged"] is None


class Hanging(Location):
    """A store that answers while `answers` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.answers, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.answers.set()

    def refresh(self) -> None:
        self.asked.set()
        assert self.answers.wait(60)
        super().refresh()

    def close(self) -> None:
        self.closed.set()
        super().close()


class TestHangingStorage:
    @pytest.fixture
    def location(self, sample: SampleExperiment) -> Hanging:
        return Hanging(sample.folder)

    @pytest.fixture
    def model(self, location: Hanging) -> Iterator[ExperimentModel]:
        """A model that was read once, and waits for the storage in a thread."""
        model = ExperimentModel(location)
        model.refresh()
        location.answers.clear()
        location.asked.clear()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(model.refresh)
            assert location.asked.wait(60)
            yield model
            location.answers.set()
            with contextlib.suppress(ModelClosedError):
                waiting.result(60)

    @staticmethod
    def answer(ask: Callable[[], Any]) -> Any:
        """Return what is answered while the storage hangs."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ask).result(20)

    def test_others_are_answered_from_what_is_known(self, sample: SampleExperiment, model: ExperimentModel) -> None:
        assert self.answer(lambda: model.refresh(max_age_s=1e-9)) is False
        assert self.answer(model.header)["trials"] == len(sample.trials)
        assert self.answer(model.summary)["trials"] == len(sample.trials)

    def test_its_model_is_closed_once_it_answers(self, location: Hanging, model: ExperimentModel) -> None:
        self.answer(model.close)
        assert not location.closed.is_set()
        location.answers.set()
        assert location.closed.wait(60)


class TestCurves:
    def test_long_ones_keep_extremes_and_ends(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        scores = [float(n % 10) for n in range(1000)]
        scores[421], scores[700] = 99.0, -99.0
        for at in range(0, 1000, 10):
            sample.report(first, *scores[at : at + 10])
        model = model_of(sample)
        found = curve(model, first)
        assert len(found["x"]) <= 200
        assert not found["full"]
        assert {99, -99} <= set(found["y"])
        assert (found["x"][0], found["x"][-1]) == (1, 1000)
        assert found["x"] == sorted(found["x"])
        assert len(curve(model, first, points=50)["x"]) <= 50
        sample.host.flush()
        whole = curve(model, first, trials=[first])
        assert whole["y"] == scores

    def test_over_time_and_cost(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        sample.report(first, 1.0, 2.0)
        model = model_of(sample)
        assert curve(model, first, x="time")["x"] == [0.5, 1]
        assert curve(model, first, x="cost")["x"] == [0.5, 1]  # no GPU: a trial counts as one
        with pytest.raises(InvalidInputError, match="one of iteration, time, cost"):
            model.curves(x="moon")

    def test_nan_is_kept_where_nothing_else_is(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        sample.report(first, float("nan"), float("inf"), 1.0)
        assert curve(model_of(sample), first)["y"] == ["NaN", "Infinity", 1]

    def test_few_points_are_sent_when_few_are_asked(self, tmp_path: Path) -> None:
        sample = SampleExperiment(tmp_path / "e", [1])
        sample.report(sample.trials[0], *map(float, range(300)))
        model = model_of(sample)
        assert len(curve(model, sample.trials[0], points=1)["x"]) <= 4


class TestMetricNames:
    @pytest.fixture
    def reads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Keys of the files of trials that were read."""
        keys: list[str] = []
        stored = DirectoryStorage.read

        def read(self: DirectoryStorage, key: str) -> bytes:
            keys.append(key)
            return stored(self, key)

        monkeypatch.setattr(DirectoryStorage, "read", read)
        return keys

    def test_that_no_trial_reports_keep_and_read_nothing(self, sample: SampleExperiment, reads: list[str]) -> None:
        first = sample.trials[0]
        sample.report(first, 1.0, loss=7.0)
        sample.snapshot()
        model = model_of(sample)

        def grow() -> None:
            sample.report(first, 1.0, loss=6.0)
            model.refresh()

        grow()
        reads.clear()
        before = count(grow)
        for number in range(100):
            assert json.loads(model.curves(f"x{number}"))["curves"] == {}
            assert "unavailable" in model.importance(f"x{number}")
        assert reads == []
        assert count(grow) < before * 1.1
        assert curve(model, first, metric="none", trials=[first])["y"] == []

    def test_that_are_many_are_kept_for_those_asked_last(self, sample: SampleExperiment, reads: list[str]) -> None:
        first = sample.trials[0]
        names = [f"m{number}" for number in range(MAX_METRICS + 5)]
        sample.report(first, 1.0, **dict.fromkeys(names, 2.0))
        sample.snapshot()
        model = model_of(sample)
        for name in names:
            assert curve(model, first, metric=name)["y"] == [2]
        reads.clear()
        for name in ("score", *names[-5:]):
            assert len(curve(model, first, metric=name)["y"]) == 1
        assert reads == []
        assert curve(model, first, metric=names[0])["y"] == [2]
        assert len(reads) == 1


class TestHistory:
    def test_attempts_tell_host_exit_and_start(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        sample.start(first)
        sample.report(first, 1.0)
        sample.commit(first, 1)
        sample.end(first, "preempted", error="SIGTERM")
        sample.start(first, 2, "node-b")
        found = json.loads(model_of(sample).trial(first))
        one, two = found["attempts"]
        assert (one["node"], one["exit"], one["resumed_from"]) == ("node-a", "preempted: SIGTERM", None)
        assert (two["node"], two["ended"], two["resumed_from"]) == ("node-b", None, 1)
        assert [each["decision"] for each in found["decisions"]] == ["disruption"]
        assert found["checkpoints"][0]["size"] == 7

    @pytest.mark.parametrize("with_snapshot", [False, True])
    def test_timeline_shows_waits_and_preemptions(self, sample: SampleExperiment, with_snapshot: bool) -> None:
        first = sample.trials[0]
        sample.start(first)
        sample.end(first, "preempted")
        sample.start(first, 2)
        if with_snapshot:
            sample.snapshot()
        spans = [span for span in model_of(sample).timeline()["spans"] if span["trial"] == first]
        kinds = [span["kind"] for span in spans]
        assert kinds[-2:] == ["preempted", "running"]
        assert kinds[0] == "waiting"
        assert spans[-1]["end"] is None
        assert all(one["end"] == two["start"] for one, two in pairwise(spans))


class TestPopulation:
    """Population-based training: many short attempts, of which a snapshot has replaced the records."""

    @pytest.fixture
    def population(self, tmp_path: Path) -> SampleExperiment:
        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=1,
            hyperparam_mutations={"x": [1, 2, 3, 4]},
            custom_explore_fn=lambda config: config,
        )
        return SampleExperiment(tmp_path / "e", [1, 2, 3, 4], scheduler=scheduler, max_concurrent=2)

    @staticmethod
    def train(sample: SampleExperiment, model: ExperimentModel) -> None:
        """Let every trial run five times at least, while `model` follows."""
        trials = sample.host.engine.state.trials
        while min(trial.attempt for trial in trials.values()) < 5 or len(trials) < 4:
            trial = min((each for each in trials.values() if each.running), key=lambda each: each.attempt)
            number = trial.attempt
            sample.start(trial.trial_id, number)
            sample.report(trial.trial_id, float(trial.index), attempt=number)
            sample.commit(trial.trial_id, trial.iteration, number)
            model.refresh()
            if trial.current.decision is None:
                sample.report(trial.trial_id, float(trial.index), attempt=number)
                sample.commit(trial.trial_id, trial.iteration, number)
            sample.end(trial.trial_id, "paused", number)

    def test_spans_have_their_lengths_behind_a_snapshot(self, population: SampleExperiment) -> None:
        following = model_of(population)
        self.train(population, following)
        population.snapshot()
        timeline = model_of(population).timeline()
        assert {span["trial"] for span in timeline["spans"]} == set(population.trials)
        ran = [span for span in timeline["spans"] if span["kind"] == "running"]
        assert len(ran) >= 16
        assert all(span["end"] is None or span["end"] - span["start"] >= 2.0 for span in ran)

    def test_who_follows_sees_the_same_as_who_comes_later(self, population: SampleExperiment) -> None:
        following = model_of(population)
        self.train(population, following)
        following.refresh()
        before = following.timeline()
        population.snapshot()
        following.refresh()
        assert len(before["clones"]) > 2
        later = model_of(population).timeline()
        for found in (before, following.timeline()):
            assert found["spans"] == later["spans"]
            assert sorted(map(str, found["clones"])) == sorted(map(str, later["clones"]))

    def test_the_times_before_those_that_are_kept_are_unknown(self, sample: SampleExperiment) -> None:
        first = sample.trials[0]
        for attempt in range(1, MAX_PAST_ATTEMPTS + 4):
            sample.start(first, attempt)
            sample.end(first, "paused", attempt)
        sample.start(first, MAX_PAST_ATTEMPTS + 4)
        sample.snapshot()
        spans = [span for span in model_of(sample).timeline()["spans"] if span["trial"] == first]
        assert [span["kind"] for span in spans[:2]] == ["unknown", "running"]
        assert spans[1]["attempt"] == 4
        assert all(one["end"] == two["start"] for one, two in pairwise(spans))


class TestHeader:
    def test_tells_state_budget_best_and_parameters(self, sample: SampleExperiment) -> None:
        first, second, third = sample.trials
        sample.start(first)
        sample.report(first, 3.0)
        sample.report(second, 4.0)
        sample.end(second)
        header = model_of(sample).header()
        assert (header["state"], header["trials"]) == ("Running", 3)
        assert header["sentence"].startswith("1/3 trials, 2 running")
        assert header["best"]["trial"] == second
        assert header["best"]["config"] == {"x": 2}
        assert header["budget"][0] == {"name": "trials", "used": 1, "limit": 3, "unit": "trials"}
        (x,) = header["parameters"]
        assert (x["name"], x["kind"], x["low"], x["high"]) == ("x", "int", 1, 3)
        assert header["metrics"] == ["score"]
        assert third in rows(model_of(sample))

    def test_no_time_is_used_up_while_nobody_runs_it(self, sample: SampleExperiment) -> None:
        sample.start(sample.trials[0])
        sample.report(sample.trials[0], 3.0)
        later = sample.now + 3600.0
        found = {}
        for interrupted in (False, True):
            model = ExperimentModel(
                Location(sample.folder), clock=lambda: later, interrupted=lambda interrupted=interrupted: interrupted
            )
            model.load()
            found[interrupted] = model.header()
        assert found[True]["state"] == "Interrupted"
        assert found[True]["elapsed"] < 60
        assert found[True]["estimated_end"] is None
        assert found[True]["budget"][1]["used"] == found[True]["elapsed"]
        assert found[False]["elapsed"] >= 3600

    def test_rows_of_interrupted_trials_are_as_commands_show_them(self, sample: SampleExperiment) -> None:
        sample.start(sample.trials[0])
        sample.report(sample.trials[0], 3.0)
        later = sample.now + 3600.0
        asked = []
        model = ExperimentModel(
            Location(sample.folder), clock=lambda: later, interrupted=lambda: asked.append(1) is None
        )
        model.load()
        first, *_ = model.rows()
        assert (first.status, len(asked)) == ("PENDING", 1)
        assert first.run_time_s < 60
        with reading(sample.folder) as experiment:
            shown = current_view(experiment, activity(sample.folder), None, later)
        assert [(row.status, row.run_time_s) for row in shown.rows] == [
            (row.status, row.run_time_s) for row in model.rows()
        ]

    def test_whether_it_is_interrupted_is_asked_once(self, sample: SampleExperiment) -> None:
        asked = []
        model = ExperimentModel(Location(sample.folder), interrupted=lambda: bool(asked.append(1)))
        model.load()
        assert model.header()["state"] == "Running"
        assert len(asked) == 1

    def test_importance_names_the_parameter(self, tmp_path: Path) -> None:
        sample = SampleExperiment(tmp_path / "e", list(range(12)))
        while running := [each for each in sample.host.engine.state.trials.values() if each.running]:
            for trial in running:
                sample.report(trial.trial_id, float(trial.config["x"]))
                sample.end(trial.trial_id)
        found = model_of(sample).importance()
        assert [each["name"] for each in found["importance"]] == ["x"]
        assert found["trials_used"] == 12
        assert found["remark"] == ""  # there is no order of a single parameter

    def test_importance_says_why_there_is_none(self, sample: SampleExperiment) -> None:
        assert "it needs 4" in model_of(sample).importance()["unavailable"]


class TestDamage:
    def test_a_damaged_journal_is_reported_as_fsck_does(self, sample: SampleExperiment) -> None:
        for score in range(5):
            sample.report(sample.trials[0], float(score))
        sample.close()
        (segment,) = (sample.folder / ".trialpod/journal").glob("*.log")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 0xFF
        segment.write_bytes(bytes(data))
        damaged = model_of(sample).header()["damaged"]
        said = [finding.what for finding in examine(open_storage(str(sample.folder))).findings]
        assert damaged["message"] in said
        assert damaged["remedy"].startswith(f"trialpod fsck {sample.folder}")

    def test_what_was_known_stays(self, sample: SampleExperiment) -> None:
        sample.report(sample.trials[0], 1.0)
        model = model_of(sample)
        (segment,) = (sample.folder / ".trialpod/journal").glob("*.log")
        with open(segment, "ab") as file:
            file.write(segment.read_bytes()[-200:] * 3)
        model.refresh()
        assert len(rows(model)) == 3
