"""What PBT, HyperBand and `auto` do at an event does not depend on how many trials there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_support import ListSearch, raw, result, settings

from python_steps import count
from trialpod.protocol.messages import AttemptEnd, CheckpointInfo
from trialpod.tune.schedulers import create_scheduler
from trialpod.tune.search.sample import uniform
from trialpod_operator.engine import events
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.trial import Trial

pytestmark = pytest.mark.once

BRACKET = 120
"""Lines for the trials of one bracket, whose number follows from `max_t` and `reduction_factor`."""
RUNNING = 8
TIME = {"time_attr": "training_iteration"}
SPACE = {"x": uniform(0.0, 9.0)}
KINDS: dict[str, dict[str, Any]] = {
    "pbt": {**TIME, "perturbation_interval": 1, "hyperparam_mutations": SPACE, "quantile_fraction": 0.25},
    "hyperband": {**TIME, "max_t": 9, "reduction_factor": 3},
    "hb_bohb": {**TIME, "max_t": 9, "reduction_factor": 3},
    "auto": {**TIME, "max_t": 9, "reduction_factor": 3, "calibration": 0},
}


def report(engine: Engine, trial: Trial, score: float) -> None:
    at, index = trial.iteration + 1, trial.next_checkpoint_index
    saved = CheckpointInfo(f"c{index}", index, at, {"training_iteration": at}, trial.attempt)
    first = trial.current.received + 1
    engine.apply(
        events.ResultsReceived(
            trial_id=trial.trial_id,
            attempt=trial.attempt,
            first=first,
            results=[raw(result(at, score))],
            committed=[saved],
        ),
        1e9,
    )


def end(engine: Engine, trial: Trial) -> None:
    decision = trial.current.decision
    cause: Any = "completed" if decision is None else "stopped" if decision == "stop" else "paused"
    engine.apply(
        events.AttemptEnded(trial_id=trial.trial_id, attempt=trial.attempt, end=AttemptEnd(cause=cause)), 1e9
    )


def most_lines(kind: str, trials: int, *, compatible: bool) -> dict[str, int]:
    """Return the most lines of an event once so many trials have reported."""
    arguments = KINDS[kind] | ({"compatible": True} if compatible else {})
    engine = Engine(ListSearch(trials + 200), create_scheduler(kind, **arguments))
    plan = settings(num_samples=trials + 200, max_concurrent=RUNNING)
    engine.apply(events.SettingsObserved(settings=plan), 1e9)
    found: dict[str, int] = {}

    def step(name: str, work: Callable[[], None], *, counts: bool) -> None:
        if counts:
            found[name] = max(found.get(name, 0), count(work))
        else:
            work()

    number = 0
    while number < trials + 60:
        number += 1
        trial = next(iter(engine.state.running.values()))
        counts = number > trials
        step("result", lambda trial=trial, number=number: report(engine, trial, number * 37 % 101), counts=counts)  # type: ignore[misc]
        # A trial that continues gives its place to a new trial too, so that there are many.
        step("end", lambda trial=trial: end(engine, trial), counts=counts)  # type: ignore[misc]
    return found


@pytest.mark.parametrize(
    ("kind", "compatible"), [(kind, False) for kind in KINDS] + [(kind, True) for kind in KINDS if kind != "auto"]
)
def test_events_cost_the_same_with_100_and_3000_trials(kind: str, compatible: bool) -> None:
    few, many = (most_lines(kind, number, compatible=compatible) for number in (100, 3_000))
    assert {name: lines for name, lines in many.items() if lines > few[name] + BRACKET} == {}, (few, many)
