"""`trialpod whatif`: recorded curves under another scheduler."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from trialpod.cli.main import main
from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import grid_search
from trialpod_operator.commands.whatif import replay
from trialpod_operator.engine import events
from trialpod_operator.engine.settings import RepeatRules, Settings
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.stored import write_stored
from trialpod_operator.experiment.trial_files import TrialFiles

LENGTH = 9
CURVES = {
    "steady": lambda step: step / 10,
    "better": lambda step: step / 5,
    "worst": lambda step: 0.01,
    "late": lambda step: 0.02 if step < LENGTH else 50.0,
}
"""Scores of the trials in order of their creation; the one that is best in the end begins badly."""


def record(
    folder: Path,
    *,
    stopped: frozenset[int] = frozenset(),
    lengths: Sequence[int] = (LENGTH,) * len(CURVES),
    scores: Sequence[Callable[[int], float]] = tuple(CURVES.values()),
    objectives: list[Objective] | None = None,
    repeats: int = 0,
    max_concurrent: int = 1,
) -> list[str]:
    """Write an experiment that ran each trial for nine steps of 10 s, one after the other; return the trials' ids.

    The last `repeats` of the trials are repeats of the best of those before.
    """
    search = BasicVariantGenerator(seed=1)
    search.configure({"x": grid_search(list(range(len(scores) - repeats)))}, 1)
    plan = ExperimentPlan(
        settings=Settings(
            name="e",
            trainable_name="train",
            metric="score",
            objectives=objectives or [],
            max_concurrent=max_concurrent,
            repeats=RepeatRules(top=1, times=repeats) if repeats else None,
        ),
        search=search,
        scheduler=FIFOScheduler(),
        stopper=None,
        trainable=TrainableRef(entrypoint="m:train"),
    )
    write_stored(folder, {"name": "e", "total": len(scores)})
    seconds = itertools.count(1000)
    host = JournaledEngine(plan, folder, lambda: float(next(seconds)), lambda action: None)
    host.apply(events.SettingsObserved(settings=plan.settings))
    for number, score in enumerate(scores):
        trial = list(host.engine.state.trials.values())[number]
        rows: list[dict[str, Any]] = [
            {"score": score(step), "training_iteration": step, "time_total_s": 10.0 * step}
            for step in range(1, lengths[number] + 1)
        ]
        raws = [msgspec.Raw(msgspec.msgpack.encode(row)) for row in rows]
        host.apply(events.AttemptStarted(trial_id=trial.trial_id, attempt=1))
        host.apply(events.ResultsReceived(trial_id=trial.trial_id, attempt=1, first=1, results=raws))
        if number in stopped:
            host.apply(events.StopRequested(trial_id=trial.trial_id))
        end = AttemptEnd(cause="stopped" if number in stopped else "completed")
        host.apply(events.AttemptEnded(trial_id=trial.trial_id, attempt=1, end=end))
        directory = TrialFiles(folder, "train").path(trial)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    host.close()
    return list(host.engine.state.trials)


def whatif(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["whatif", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


ASHA = ("--scheduler", "asha", "--set", "reduction_factor=3", "--set", "grace_period=1")


class Iteration(int):
    """A number that counts how often numbers of its kind are compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Iteration.compared += 1
        return int(self) < other

    def __le__(self, other: int) -> bool:
        Iteration.compared += 1
        return int(self) <= other

    __hash__ = int.__hash__


def test_reading_results_takes_a_few_steps_each(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = json.loads
    monkeypatch.setattr(replay.json, "loads", lambda line: {"training_iteration": Iteration(loads(line))})
    lines = [*range(1, 1001), *range(991, 1011)]  # it was restored from its result 990
    trial: Any = SimpleNamespace(trial_id="a", config={}, stopped=False, ended=True)
    found = replay.recorded_trial(trial, "".join(f"{line}\n" for line in lines).encode())
    assert [row["training_iteration"] for row in found.results] == list(range(1, 1011))
    assert Iteration.compared < 5000


class TestSaved:
    def test_training_that_is_not_done_is_saved(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        record(tmp_path)
        found = whatif(capsys, str(tmp_path), *ASHA)
        # The third and the fourth trial are below the cutoff at the first rung.
        assert (found["recorded_s"], found["spent_s"], found["saved_s"]) == (360.0, 200.0, 160.0)
        assert (found["stopped"], found["beyond"], found["trials"]) == (2, 0, 4)

    def test_fifo_changes_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        record(tmp_path)
        found = whatif(capsys, str(tmp_path), "--scheduler", "fifo")
        assert (found["saved_s"], found["stopped"]) == (0.0, 0)
        assert not any(trial["lost"] for trial in found["best"])

    def test_repeats_are_left_out(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        ids = record(tmp_path, lengths=(LENGTH,) * 6, scores=[*CURVES.values(), *[CURVES["late"]] * 2], repeats=2)
        assert len(ids) == 6
        found = whatif(capsys, str(tmp_path), *ASHA)
        assert (found["trials"], found["recorded_s"], found["spent_s"]) == (4, 360.0, 200.0)

    def test_paused_trials_that_never_resume_are_saved(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record(tmp_path)
        found = whatif(capsys, str(tmp_path), "--scheduler", "asha_promotion", "--set", "reduction_factor=3")
        assert 0 < found["spent_s"] < 360.0
        assert found["stopped"] >= 2

    def test_max_t_is_the_highest_iteration_unless_set(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record(tmp_path)
        assert whatif(capsys, str(tmp_path), *ASHA)["parameters"]["max_t"] == LENGTH
        assert whatif(capsys, str(tmp_path), *ASHA, "--set", "max_t=3")["spent_s"] == 80.0

    @pytest.mark.parametrize("scheduler", ["asha", "auto", "hyperband"])
    def test_max_t_is_in_units_of_time_attr(
        self, scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record(tmp_path)
        arguments = ("--scheduler", scheduler, "--set", "time_attr=time_total_s")
        assert whatif(capsys, str(tmp_path), *arguments)["parameters"]["max_t"] == 90.0

    def test_max_t_of_device_time_is_in_seconds(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        record(tmp_path)
        arguments = ("--scheduler", "auto", "--set", "time_attr=gpu_seconds")
        assert whatif(capsys, str(tmp_path), *arguments)["parameters"]["max_t"] == 90.0


class TestConcurrency:
    """By default as many trials run at once as ran."""

    def test_is_not_what_was_allowed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        record(tmp_path, max_concurrent=3)
        assert whatif(capsys, str(tmp_path), *ASHA)["maxConcurrent"] == 1
        assert whatif(capsys, str(tmp_path), *ASHA, "--max-concurrent", "2")["maxConcurrent"] == 2

    def test_paused_and_starting_trials_do_not_count(self) -> None:
        def trial(*attempts: tuple[float, float | None]) -> Trial:
            made = Trial(trial_id="a", index=0, tag="a", params=b"\x80", created_at=0.0)
            for began, ended in attempts:
                made.start_attempt(began - 1)
                made.start_work(began, {})
                if ended is not None:
                    made.end_attempt(ended, AttemptEnd(cause="paused"))
            return made

        starting = Trial(trial_id="b", index=1, tag="b", params=b"\x80", created_at=0.0)
        starting.start_attempt(5.0)
        paused = trial((10.0, 20.0), (30.0, None))
        assert replay.concurrency([starting]) == 1
        assert replay.concurrency([starting, paused, trial((20.0, 30.0))]) == 1
        assert replay.concurrency([starting, paused, trial((15.0, 25.0))]) == 2
        assert replay.concurrency([starting, paused, trial((25.0, 40.0)), trial((35.0, None))]) == 3


class TestWinners:
    def test_a_late_winner_is_lost(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        ids = record(tmp_path)
        found = whatif(capsys, str(tmp_path), *ASHA)
        assert found["best"][0] == {
            "trial_id": ids[3], "value": 50.0, "results": 9, "would_report": 1, "lost": True,
        }  # fmt: skip
        assert found["best"][1]["lost"] is False
        assert found["best_left"] == {"trial_id": ids[1], "value": 1.8}

    def test_people_read_which_and_what_is_left(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        ids = record(tmp_path)
        assert main(["whatif", str(tmp_path), *ASHA]) == 0
        text = capsys.readouterr().out
        assert f"train_{ids[3]} (score=50): LOST after 1 of 9 results" in text
        assert f"best that is left  train_{ids[1]} (score=1.8)" in text
        assert "44% less; 2 trials would end earlier" in text

    def test_what_lies_beyond_the_record_is_not_counted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record(tmp_path, stopped=frozenset({2}))
        found = whatif(capsys, str(tmp_path), "--scheduler", "fifo")
        assert (found["beyond"], found["saved_s"]) == (1, 0.0)

    @pytest.mark.parametrize("scheduler", ["hyperband", "auto"])
    def test_trial_paused_at_its_last_result_ends_when_resumed(
        self, scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cut = frozenset(range(2, 18, 3))  # stopped at a rung, with the best scores
        record(
            tmp_path,
            stopped=cut,
            lengths=[3 if number in cut else 27 for number in range(18)],
            scores=[CURVES["better"] if number in cut else CURVES["steady"] for number in range(18)],
        )
        found = whatif(capsys, str(tmp_path), "--scheduler", scheduler)
        assert found["beyond"] >= 1
        assert found["spent_s"] < found["recorded_s"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--scheduler", "nope"), "nope"),
            (("--scheduler", "asha", "--set", "max_t"), "write NAME=VALUE"),
            (("--scheduler", "asha", "--set", "reduction_factor=0.5"), "reduction_factor"),
            (("--scheduler", "asha", "--max-concurrent", "0"), "--max-concurrent must be 1 or more"),
            (("--scheduler", "asha", "--set", "time_attr=epoch"), "--set time_attr=epoch: no recorded result has it"),
            (("--scheduler", "asha", "--set", "time_attr=[1]"), "time_attr"),
            (("--scheduler", "pbt"), "pbt continues trials with other parameters"),
            (
                ("--scheduler", "pbt", "--set", 'hyperparam_mutations={"x": [1, 2]}'),
                "pbt continues trials with other",
            ),
            (("--scheduler", "pbt_replay", "--set", "policy_file=none"), "pbt_replay continues trials with other"),
        ],
    )
    def test_what_cannot_be_used_is_named(
        self, arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record(tmp_path)
        assert main(["whatif", str(tmp_path), *arguments]) != 0
        assert words in capsys.readouterr().err

    def test_an_experiment_without_results_says_so(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        record(tmp_path)
        for file in tmp_path.glob("*/result.json"):
            file.unlink()
        assert main(["whatif", str(tmp_path), *ASHA]) != 0
        assert "no trial has reported a result yet" in capsys.readouterr().err


def test_several_metrics_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, objectives=[Objective("score", "max"), Objective("size", "min")])
    assert main(["whatif", str(tmp_path), "--scheduler", "asha"]) != 0
    assert "has several metrics (max score, min size)" in capsys.readouterr().err
