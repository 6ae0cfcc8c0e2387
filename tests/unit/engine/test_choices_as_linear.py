"""Schedulers choose as if they looked through all trials at each choice, whatever happens.

The engine plays random events twice: as it is, and with what keeps trials in order replaced by plain loops.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from engine_support import ListSearch, settings
from random_events import RandomEvents

from trialpod.tune.schedulers import auto, create_scheduler, hyperband, hyperband_compatible, pbt
from trialpod.tune.schedulers.hyperband import HyperBandScheduler
from trialpod.tune.schedulers.pbt_population import Population
from trialpod.tune.schedulers.waiting_trials import Waiting
from trialpod.tune.search.sample import uniform
from trialpod_operator.engine.engine import Engine

pytestmark = pytest.mark.once

PBT: dict[str, Any] = {
    "perturbation_interval": 2,
    "hyperparam_mutations": {"x": uniform(0.0, 100.0)},
    "quantile_fraction": 0.4,
}
HYPERBAND: dict[str, Any] = {"max_t": 9, "reduction_factor": 3}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "pbt": ("pbt", PBT),
    "pbt synch": ("pbt", PBT | {"synch": True}),
    "pbt as ray": ("pbt", PBT | {"perturbation_interval": 1, "compatible": True}),
    "hyperband": ("hyperband", HYPERBAND),
    "hyperband to the end": ("hyperband", HYPERBAND | {"stop_last_trials": False}),
    "hyperband as ray": ("hyperband", HYPERBAND | {"compatible": True}),
    "hb_bohb": ("hb_bohb", HYPERBAND),
    "hb_bohb as ray": ("hb_bohb", HYPERBAND | {"compatible": True}),
    "auto": ("auto", {"max_t": 27, "reduction_factor": 3, "calibration": 4}),
}
PLAYS = 8


class PlainWaiting:
    """What `WaitingTrials` does, by looking at all trials each time."""

    def __init__(self, key: Any) -> None:
        self._key = key
        self._found: list[tuple[Any, Any]] = []

    def touch(self, trial_id: str) -> None:
        pass

    def refresh(self, controller: Any) -> None:
        paused: list[Any] = []
        list(controller.paused_trials(paused.append))  # `append` returns None: none of them is asked about
        waiting = [Waiting(trial, "pending") for trial in controller.pending_trials()]
        waiting += [Waiting(trial, "paused", number) for number, trial in enumerate(paused)]
        self._found = [(key, each.trial) for each in waiting if (key := self._key(each)) is not None]

    def begin_choice(self, controller: Any) -> None:
        list(controller.paused_trials())
        self.refresh(controller)

    def first(self, controller: Any, least: Any = (), below: Any = None) -> Any:
        found = [each for each in self._found if each[0] >= least and (below is None or each[0] < below)]
        able = (
            trial for _, trial in sorted(found, key=lambda each: each[0]) if controller.has_resources_for_trial(trial)
        )
        return next(able, None)

    def next_groups(self, least: int) -> list[tuple[int, int]]:
        groups = {key[:2] for key, _ in self._found if key[0] >= least}
        return sorted(group for group in groups if group[0] == min(groups)[0])


class PlainPopulation(Population):
    """A population whose sources are sought among all members."""

    def refresh(self, controller: Any) -> None:
        self._controller = controller

    def sources(self, count: int) -> Any:
        scores = {each: member.score for each, member in self.members.items() if member.live}
        numbers: dict[str, float] = {
            each: -math.inf if math.isnan(score) else score
            for each, score in scores.items()
            if score is not None and not (self._skips_nan and math.isnan(score))
        }
        top = sorted(numbers, key=lambda each: numbers[each])[len(numbers) - count :]
        ready = [each for each in top if not math.isnan(scores[each] or 0.0)]
        return [(0.0, 0, each) for each in ready if self._controller.get_trial(each).checkpoint is not None]


def cut_down(self: HyperBandScheduler, controller: Any, *, only_full: bool) -> None:
    for bracket in self._brackets:
        if bracket.all_wait() and (bracket.full or not only_full):
            self._cut_down(controller, bracket)


def play(kind: str, seed: int) -> tuple[list[Any], bytes]:
    """Return what was decided, and the engine's state in the end."""
    name, arguments = KINDS[kind]
    extra: dict[str, Any] = {"plans_budget": True, "max_trial_hours": 0.3} if seed % 4 == 3 else {}
    plan = settings(
        max_concurrent=[3, 6, 1][seed % 3], num_samples=[12, 60, 30][seed // 3 % 3], max_failures=3, **extra
    )
    arguments = {"time_attr": "training_iteration", **arguments}
    events = RandomEvents(lambda: Engine(ListSearch(0), create_scheduler(name, **arguments)), plan, seed)
    return events.play(200), events.engine.snapshot()


@pytest.mark.parametrize("kind", KINDS)
def test_choices_are_those_of_plain_loops(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    played = [play(kind, seed) for seed in range(PLAYS)]
    for module in (auto, hyperband, hyperband_compatible, pbt):
        monkeypatch.setattr(module, "WaitingTrials", PlainWaiting)
    monkeypatch.setattr(pbt, "Population", PlainPopulation)
    monkeypatch.setattr(HyperBandScheduler, "_cut_down_complete", cut_down)
    for seed in range(PLAYS):
        log, state = play(kind, seed)
        assert repr(played[seed][0]) == repr(log), seed
        assert played[seed][1] == state, seed
