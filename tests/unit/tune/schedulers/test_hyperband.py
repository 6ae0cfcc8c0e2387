"""HyperBand's brackets: sizes, rungs, who is cut, and that nobody is left waiting."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment, Step
from trialpod.tune.schedulers import HyperBandScheduler


def experiment(count: int, slots: int | None = None, **arguments: Any) -> SimulatedExperiment:
    def make() -> HyperBandScheduler:
        return HyperBandScheduler(metric="score", mode="max", **{"max_t": 9, "reduction_factor": 3, **arguments})

    return SimulatedExperiment(make, [{}] * count, slots=slots)


def brackets(**arguments: Any) -> list[tuple[int, list[float]]]:
    """Size and milestones of the brackets of the first band, in the order in which they are filled."""
    simulated = experiment(200, **arguments)
    saved = simulated.scheduler.get_state()["brackets"]
    found = [(bracket["size"], bracket["milestones"]) for bracket in saved]
    return found[: next((n for n, bracket in enumerate(found[1:], 1) if bracket == found[0]), len(found))]


def test_brackets_have_the_sizes_of_ray() -> None:
    assert brackets(max_t=81, reduction_factor=3) == [
        (5, [81]),
        (8, [27, 81]),
        (15, [9, 27, 81]),
        (34, [3, 9, 27, 81]),
        (81, [1, 3, 9, 27, 81]),
    ]


def test_every_bracket_ends_at_max_t() -> None:
    assert [milestones[-1] for _, milestones in brackets(max_t=100, reduction_factor=4)] == [100] * 4
    assert brackets(max_t=100, reduction_factor=4)[3][1] == [1, 6, 25, 100]


def test_trials_wait_for_each_other_and_the_best_continue() -> None:
    simulated = experiment(8)  # the first bracket has 3 trials, the second the other 5
    assert {trial.status for trial in simulated.trials} == {"RUNNING"}
    for number in range(3, 8):
        simulated.play([Step(number, metrics={"score": number / 10})] * 3)
    # 2 of 5 pass
    assert [trial.status for trial in simulated.trials[3:]] == ["TERMINATED"] * 3 + ["RUNNING"] * 2
    stopped = simulated.decisions()["t_00003"][-1]
    assert stopped[0] == "STOPPED"
    assert stopped[1] == {
        "scheduler": "hyperband",
        "rule": "rung",
        "time_attr": "training_iteration",
        "time": 3,
        "metric": "score",
        "mode": "max",
        "value": 0.3,
        "bracket": 1,
        "rung": 3.0,
        "cutoff": 0.6,
        "rank": 5,
        "compared": 5,
        "kept": 2,
    }
    simulated.play([Step(7, metrics={"score": 0.7})] * 6)
    assert simulated.trials[7].status == "TERMINATED"
    assert simulated.decisions()["t_00007"][-1][1]["rule"] == "max_t"


def test_nan_counts_as_worst() -> None:
    simulated = experiment(8)
    for number, score in zip(range(3, 8), (math.nan, 0.1, 0.2, math.nan, 0.3), strict=True):
        simulated.play([Step(number, metrics={"score": score})] * 3)
    survivors = [number for number in range(3, 8) if simulated.trials[number].status == "RUNNING"]
    assert survivors == [5, 7]


def test_unfilled_bracket_is_halved_when_idle() -> None:
    simulated = experiment(5, slots=5)  # two trials of five in the second bracket
    simulated.play([Step(3, metrics={"score": 0.1})] * 3)
    assert simulated.trials[3].status == "PAUSED"
    simulated.play([Step(4, metrics={"score": 0.2})] * 3)
    assert [trial.status for trial in simulated.trials[3:]] == ["RUNNING", "RUNNING"]


def test_end_of_the_last_member_releases_the_rest() -> None:
    for kind in ("complete", "die"):
        simulated = experiment(8)
        for number in range(3, 7):
            simulated.play([Step(number, metrics={"score": number / 10})] * 3)
        assert simulated.trials[6].status == "PAUSED"
        simulated.play([Step(7, kind, metrics={"score": 0.9})])
        assert simulated.trials[6].status == "RUNNING"
        assert simulated.trials[3].status == "TERMINATED"


def test_retried_trial_keeps_its_bracket() -> None:
    simulated = experiment(8)
    for number in range(3, 7):
        simulated.play([Step(number, metrics={"score": number / 10})] * 3)
    simulated.play([Step(7, "fail")])
    assert [trial.status for trial in simulated.trials[3:]] == ["PAUSED"] * 4 + ["RUNNING"]


def test_a_trial_that_jumps_over_rungs_is_not_left_waiting() -> None:
    simulated = experiment(8, time_attr="time_total_s")
    for number in range(3, 8):
        simulated.play([Step(number, advance=20.0, metrics={"score": number / 10})])
    assert [trial.status for trial in simulated.trials[3:]] == ["TERMINATED"] * 5


@pytest.mark.parametrize(
    "wrong", [{"max_t": 0}, {"max_t": 0.5}, {"reduction_factor": 1}, {"stop_last_trials": 1}, {"mode": "mx"}]
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        HyperBandScheduler(**wrong)


def test_a_state_of_other_parameters_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_t"):
        HyperBandScheduler(max_t=9).set_state(HyperBandScheduler(max_t=81).get_state())
