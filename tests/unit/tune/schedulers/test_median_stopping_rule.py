"""The median stopping rule, by hand."""

from __future__ import annotations

import json
import math
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_steps import count
from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment, SimulatedTrial, Step
from trialpod.tune.schedulers import MedianStoppingRule


def experiment(count: int = 4, slots: int | None = None, **arguments: Any) -> SimulatedExperiment:
    defaults = {"time_attr": "training_iteration", "grace_period": 1, "metric": "score", "mode": "max"}
    return SimulatedExperiment(lambda: MedianStoppingRule(**{**defaults, **arguments}), [{}] * count, slots=slots)


def report(simulated: SimulatedExperiment, number: int, *scores: float) -> str:
    simulated.play([Step(number, metrics={"score": score}) for score in scores])
    return simulated.trials[number].status


def test_stops_below_the_median_of_means() -> None:
    simulated = experiment()
    report(simulated, 0, 0.2, 0.4)  # means 0.3, 0.5, 0.9
    report(simulated, 1, 0.4, 0.6)
    report(simulated, 2, 0.9, 0.9)
    assert report(simulated, 3, 0.45) == "RUNNING"  # at 1 the means are 0.2, 0.4, 0.9
    assert report(simulated, 3, 0.44) == "TERMINATED"
    assert simulated.log[-1] == (
        "t_00003",
        "STOP",
        {
            "scheduler": "median_stopping_rule",
            "rule": "median",
            "time_attr": "training_iteration",
            "time": 2,
            "metric": "score",
            "mode": "max",
            "value": 0.44,
            "best": 0.45,
            "cutoff": 0.5,
            "rank": 3,
            "compared": 4,
        },
    )


def test_grace_period_and_minimum_of_samples() -> None:
    simulated = experiment(grace_period=3)
    for number in range(3):
        report(simulated, number, 0.9, 0.9)
    assert report(simulated, 3, 0.0, 0.0) == "RUNNING"
    report(simulated, 0, 0.9)
    report(simulated, 1, 0.9)
    assert report(simulated, 3, 0.0) == "RUNNING"  # two others came to 3
    report(simulated, 2, 0.9)
    assert report(simulated, 3, 0.0) == "RUNNING"  # and none to 4


def test_nan_in_means_and_trials() -> None:
    simulated = experiment(5)
    for number, score in enumerate((math.nan, 0.1, 0.2, 0.3)):
        report(simulated, number, score)
    assert report(simulated, 4, math.nan) == "TERMINATED"
    assert simulated.log[-1][2]["best"] is None
    assert simulated.log[-1][2]["compared"] == 4


def test_one_nan_does_not_hide_a_good_value() -> None:
    simulated = experiment(5)
    for number, score in enumerate((0.1, 0.1, 0.1)):
        report(simulated, number, score, score)
    assert report(simulated, 3, 0.9, math.nan) == "RUNNING"


def test_time_is_shared_while_there_are_too_few_to_compare() -> None:
    simulated = experiment(slots=1)
    assert report(simulated, 0, 0.5) == "PAUSED"
    assert simulated.trials[1].status == "RUNNING"
    assert simulated.log[1][2]["rule"] == "time_slice"
    assert experiment(1).trials[0].status == "RUNNING"
    alone = experiment(1)
    assert report(alone, 0, 0.5) == "RUNNING"


def test_a_soft_stop_pauses_and_comes_back_last() -> None:
    simulated = experiment(hard_stop=False, slots=4)
    for number in range(3):
        report(simulated, number, 0.9)
    assert report(simulated, 3, 0.1) == "RUNNING"  # paused, and started again: no other waits
    assert ("t_00003", "PAUSE") in [(trial, what) for trial, what, _ in simulated.log]
    assert report(simulated, 3, 0.1, 0.1) == "RUNNING"
    assert simulated.scheduler.horizons(simulated.trials[3]) == []


def test_the_last_result_counts_once_when_the_trial_completes() -> None:
    scheduler = MedianStoppingRule(time_attr="training_iteration", grace_period=0, metric="score", mode="max")
    simulated, trial = experiment(), SimulatedTrial("a", {}, "a")
    result = {"training_iteration": 1, "score": 0.5}
    scheduler.on_trial_result(simulated, trial, result)
    scheduler.on_trial_complete(simulated, trial, result)
    assert scheduler.get_state()["trials"]["a"][:2] == [[1], [0.5]]
    scheduler.on_trial_complete(simulated, trial, {"training_iteration": 2, "score": 0.6})
    assert scheduler.get_state()["trials"]["a"][:2] == [[1, 2], [0.5, 0.6]]


def test_repeated_results_replace_earlier_ones() -> None:
    simulated = experiment(grace_period=0)
    report(simulated, 0, 0.1, 0.2, 0.3)
    simulated.play([Step(0, "result", -2.0, {"score": 0.7, "training_iteration": 2})])
    assert simulated.scheduler.get_state()["trials"]["t_00000"][:2] == [[1, 2], [0.1, 0.7]]


def test_result_repeated_at_the_last_time_replaces_it() -> None:
    scheduler = MedianStoppingRule("t", "score", "max", grace_period=1)
    trials = [SimulatedTrial(str(number), {}, str(number)) for number in range(4)]
    for time in (1, 2, 3):
        for trial in trials[1:]:
            assert scheduler.on_trial_result(NO_OTHERS, trial, {"t": time, "score": 0.5}) == "CONTINUE"
    given = [(1, 0.5), (2, 0.6), (3, 0.9), (3, 0.55)]
    for time, score in given:
        assert scheduler.on_trial_result(NO_OTHERS, trials[0], {"t": time, "score": score}) == "CONTINUE"
    assert scheduler.get_state()["trials"]["0"][:2] == [[1, 2, 3], [0.5, 0.6, 0.55]]
    for trial in trials[1:]:
        scheduler.on_trial_result(NO_OTHERS, trial, {"t": 4, "score": 2.0})
    assert scheduler.on_trial_result(NO_OTHERS, trials[0], {"t": 4, "score": 0.1}) == "STOP"
    assert scheduler.reason()["best"] == 0.6


@pytest.mark.parametrize(
    "wrong",
    [{"grace_period": -1}, {"min_samples_required": 0}, {"min_time_slice": math.nan}, {"hard_stop": "no"},
     {"mode": "median"}, {"time_attr": ""}],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        MedianStoppingRule(**wrong)


NO_OTHERS: Any = SimpleNamespace(pending_trials=list, paused_trials=list)


class TestCost:
    """What a result costs does not depend on how many results there were before it."""

    @staticmethod
    def steps(results: int, value: float, *, compatible: bool) -> int:
        scheduler = MedianStoppingRule("t", "score", "max", grace_period=2, compatible=compatible)
        trials = [SimulatedTrial(str(number), {}, str(number)) for number in range(5)]
        for time in range(results):
            for trial in trials:
                scheduler.on_trial_result(NO_OTHERS, trial, {"t": time, "score": 1.0})
        scheduler.on_trial_result(NO_OTHERS, trials[0], {"t": results, "score": value})
        for trial in trials[1:-1]:
            scheduler.on_trial_result(NO_OTHERS, trial, {"t": results, "score": 1.0})
        last = {"t": results, "score": 1.0}
        return count(lambda: scheduler.on_trial_result(NO_OTHERS, trials[-1], last))

    @pytest.mark.parametrize("compatible", [False, True])
    @pytest.mark.parametrize("value", [1.0, math.nan])
    def test_does_not_grow_with_earlier_results(self, value: float, compatible: bool) -> None:
        few, many = (self.steps(results, value, compatible=compatible) for results in (10, 400))
        assert many <= few


times = st.integers(0, 6).map(float)
scores = st.one_of(st.floats(-10, 10), st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16, 1e-9, math.nan, math.inf]))
reports = st.lists(st.tuples(st.integers(0, 4), times, scores), max_size=60)


class TestDefinition:
    """The decisions follow the rule's definition, which is computed here from all results."""

    @settings(max_examples=200, deadline=None)
    @given(reports, st.sampled_from(["max", "min"]), st.booleans())
    def test_as_ray(self, reports: list[tuple[int, float, float]], mode: str, restores: bool) -> None:
        scheduler = MedianStoppingRule("t", "score", mode, 1, 2, compatible=True)
        better: Any = max if mode == "max" else min
        known: dict[int, list[tuple[float, float]]] = {}
        below = set()
        for number, time, score in reports:
            if restores:
                state = json.loads(json.dumps(scheduler.get_state()))
                scheduler = MedianStoppingRule("t", "score", mode, 1, 2, compatible=True)
                scheduler.set_state(state)
            trial = SimulatedTrial(str(number), {}, str(number))
            decision = scheduler.on_trial_result(NO_OTHERS, trial, {"t": time, "score": score})
            expected = "CONTINUE"
            if number not in below:
                known.setdefault(number, []).append((time, score))
                compared = [
                    [value for at, value in results if 1 <= at <= time]
                    for other, results in known.items()
                    if other != number and results[-1][0] >= time
                ]
                means = [mean for values in compared if values and math.isfinite(mean := fmean(values))]
                if time >= 1 and len(means) >= 2:
                    best = better([value for _, value in known[number]])
                    if better(median(means), best) != best:
                        below.add(number)
                        expected = "STOP"
            assert decision == expected

    @settings(max_examples=200, deadline=None)
    @given(reports, st.sampled_from([1.0, -1.0]), st.booleans())
    def test_by_the_paper(self, reports: list[tuple[int, float, float]], sign: float, restores: bool) -> None:
        mode = "max" if sign > 0 else "min"
        scheduler = MedianStoppingRule("t", "score", mode, 1, 2, compatible=False)
        known: dict[int, list[tuple[float, float]]] = {}
        early: dict[int, list[float]] = {}
        judged = set()
        for number, time, score in reports:
            if restores:
                state = json.loads(json.dumps(scheduler.get_state()))
                scheduler = MedianStoppingRule("t", "score", mode, 1, 2, compatible=False)
                scheduler.set_state(state)
            trial = SimulatedTrial(str(number), {}, str(number))
            decision = scheduler.on_trial_result(NO_OTHERS, trial, {"t": time, "score": score})
            expected = "CONTINUE"
            if number not in judged and time < 1:
                early.setdefault(number, []).append(score)
            elif number not in judged:
                own = known.setdefault(number, [])
                if own and time <= own[-1][0]:
                    own[:] = [each for each in own if each[0] < time]
                own.append((time, score))
                means = []
                for other, results in known.items():
                    if other != number and results[-1][0] >= time:
                        total, values = 0.0, [value for at, value in results if at <= time]
                        for value in values:
                            total += value
                        if values and math.isfinite(total):
                            means.append(total / len(values))
                if len(means) >= 2:
                    mine = [sign * value for value in (*(value for _, value in own), *early.get(number, ()))]
                    finite = [value for value in mine if not math.isnan(value)]
                    if not finite or not max(finite) >= median([sign * mean for mean in means]):
                        judged.add(number)
                        expected = "STOP"
            assert decision == expected
