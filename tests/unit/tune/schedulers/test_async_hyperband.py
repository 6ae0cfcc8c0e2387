"""ASHA's decisions, by hand and as properties."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialpod.errors import InvalidInputError
from trialpod.tune.schedulers import ASHAScheduler, AsyncHyperBandScheduler, FIFOScheduler, create_scheduler
from trialpod.tune.schedulers.trial_scheduler import ControllerView

CONTROLLER = cast(ControllerView, None)  # ASHA looks at no other trial


@dataclass
class Trial:
    trial_id: str
    status: str = "RUNNING"
    config: dict[str, Any] = field(default_factory=dict)
    last_result: dict[str, Any] = field(default_factory=dict)


def asha(**arguments: Any) -> AsyncHyperBandScheduler:
    return AsyncHyperBandScheduler(**{"metric": "acc", "mode": "max", **arguments})


def tell(scheduler: AsyncHyperBandScheduler, trial: str, time: float, value: Any) -> str:
    view = Trial(trial)
    scheduler.on_trial_add(CONTROLLER, view)
    return scheduler.on_trial_result(CONTROLLER, view, {"training_iteration": time, "acc": value})


def horizon(scheduler: AsyncHyperBandScheduler, trial: str) -> float | None:
    found = scheduler.horizons(Trial(trial))
    return found[0].at if found else None


def test_stops_below_the_interpolated_quantile() -> None:
    scheduler = asha(max_t=81, reduction_factor=4)
    assert tell(scheduler, "a", 1, 0.1) == "CONTINUE"  # the first at a rung
    assert tell(scheduler, "b", 1, 0.2) == "CONTINUE"
    assert tell(scheduler, "c", 1, 0.6) == "CONTINUE"
    # of 0.1, 0.2, 0.6 the 75 % quantile lies half way between 0.2 and 0.6
    assert tell(scheduler, "d", 1, 0.39) == "STOP"
    assert scheduler.reason() == {
        "scheduler": "async_hyperband",
        "rule": "rung",
        "bracket": 0,
        "time_attr": "training_iteration",
        "rung": 1,
        "time": 1,
        "metric": "acc",
        "mode": "max",
        "value": 0.39,
        "cutoff": pytest.approx(0.4),
        "rank": 2,
        "compared": 4,
    }
    # now of 0.1, 0.2, 0.39, 0.6: 0.39 + 0.25 * 0.21
    assert tell(scheduler, "e", 1, 0.4424) == "STOP"
    assert scheduler.reason()["cutoff"] == pytest.approx(0.4425)


def test_smaller_is_better_in_min_mode() -> None:
    scheduler = asha(mode="min", reduction_factor=2)
    assert tell(scheduler, "a", 1, 1.0) == "CONTINUE"
    assert tell(scheduler, "b", 1, 2.0) == "STOP"
    assert (scheduler.reason()["value"], scheduler.reason()["cutoff"]) == (2.0, 1.0)
    assert tell(scheduler, "c", 1, 1.5) == "CONTINUE"  # ties continue


def test_max_t_is_recorded_on_completion() -> None:
    scheduler = asha(max_t=4, reduction_factor=2)
    assert tell(scheduler, "a", 4, 0.9) == "STOP"
    assert scheduler.reason()["rule"] == "max_t"
    assert tell(scheduler, "b", 2, 0.1) == "CONTINUE"  # nothing was recorded at rung 2
    scheduler.on_trial_complete(CONTROLLER, Trial("b"), {"training_iteration": 4, "acc": 0.3})
    rungs = scheduler.get_state()["brackets"][0]
    assert {rung["milestone"]: rung["values"] for rung in rungs} == {1: [], 2: [0.1], 4: [0.3]}


def test_skipped_rung_is_filled_by_the_next_result() -> None:
    scheduler = asha(max_t=100, reduction_factor=4)
    assert horizon(scheduler, "a") == 0.0  # not added yet: wait at every result
    scheduler.on_trial_add(CONTROLLER, Trial("a"))
    assert horizon(scheduler, "a") == 1.0
    tell(scheduler, "a", 20, 0.5)
    assert horizon(scheduler, "a") == 1.0
    tell(scheduler, "a", 21, 0.6)
    tell(scheduler, "a", 22, 0.7)
    assert [rung["values"] for rung in scheduler.get_state()["brackets"][0]] == [[0.7], [0.6], [0.5], []]
    assert horizon(scheduler, "a") == 64.0
    tell(scheduler, "a", 64, 0.5)
    assert horizon(scheduler, "a") == 100.0


def test_without_stop_last_trials() -> None:
    scheduler = asha(max_t=4, reduction_factor=2, stop_last_trials=False)
    assert tell(scheduler, "a", 2, 0.5) == "CONTINUE"
    assert tell(scheduler, "a", 3, 0.5) == "CONTINUE"
    assert tell(scheduler, "a", 9, 0.5) == "CONTINUE"
    assert [rung["values"] for rung in scheduler.get_state()["brackets"][0]] == [[], [0.5], [0.5]]


def test_nan_continues_and_counts_in_no_cutoff() -> None:
    scheduler = asha(reduction_factor=2)
    assert tell(scheduler, "a", 1, math.nan) == "CONTINUE"
    assert tell(scheduler, "b", 1, 0.5) == "CONTINUE"
    assert tell(scheduler, "c", 1, 0.4) == "STOP"
    assert scheduler.reason()["compared"] == 2


def test_infinite_values_keep_the_cutoff_a_number() -> None:
    scheduler = asha(reduction_factor=2)
    for trial, value in (("a", -math.inf), ("b", 0.5), ("c", math.inf)):
        assert tell(scheduler, trial, 1, value) == "CONTINUE"
    assert tell(scheduler, "d", 1, 0.4) == "STOP"
    restored = asha(reduction_factor=2)
    restored.set_state(json.loads(json.dumps(scheduler.get_state(), allow_nan=False)))
    assert restored.get_state() == scheduler.get_state()


def test_results_without_metric_or_time_continue() -> None:
    scheduler, view = asha(), Trial("a")
    scheduler.on_trial_add(CONTROLLER, view)
    assert scheduler.on_trial_result(CONTROLLER, view, {"training_iteration": 200}) == "CONTINUE"
    assert scheduler.on_trial_result(CONTROLLER, view, {"acc": 1.0}) == "CONTINUE"


def test_horizons_follow_the_time_attribute() -> None:
    scheduler = asha(time_attr="time_total_s", grace_period=2.5, max_t=30, reduction_factor=4)
    scheduler.on_trial_add(CONTROLLER, Trial("a"))
    (found,) = scheduler.horizons(Trial("a"))
    assert (found.attr, found.at) == ("time_total_s", 2.5)


def test_brackets_are_drawn_by_their_size_and_kept_over_a_retry() -> None:
    scheduler = asha(max_t=81, reduction_factor=3, brackets=3)
    for number in range(3000):
        scheduler.on_trial_add(CONTROLLER, Trial(str(number)))
    before = scheduler.get_state()["trials"]
    counts = Counter(bracket for bracket, _ in before.values())
    for bracket, share in enumerate((0.665, 0.245, 0.090)):
        assert counts[bracket] / 3000 == pytest.approx(share, abs=0.03)
    scheduler.on_trial_add(CONTROLLER, Trial("5"))
    assert scheduler.get_state()["trials"] == before


histories = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 9), st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9, math.nan])),
    max_size=120,
)
arguments = st.fixed_dictionaries(
    {
        "max_t": st.sampled_from([9, 27, 30]),
        "grace_period": st.sampled_from([1, 2]),
        "reduction_factor": st.sampled_from([2, 3, 1.5]),
        "brackets": st.sampled_from([1, 2]),
        "stop_last_trials": st.booleans(),
        "mode": st.sampled_from(["min", "max"]),
    }
)


@settings(max_examples=200)
@given(histories, arguments)
def test_decisions_are_the_same_when_only_asked_at_horizons(history: Any, given_arguments: Any) -> None:
    always, seldom = asha(**given_arguments), asha(**given_arguments)
    times: dict[int, int] = {}
    stopped = set()
    for number, step, value in history:
        if number in stopped:
            continue
        view = Trial(str(number))
        if number not in times:
            always.on_trial_add(CONTROLLER, view)
            seldom.on_trial_add(CONTROLLER, view)
        times[number] = times.get(number, 0) + step
        result = {"training_iteration": times[number], "acc": value}
        met = any(result[found.attr] >= found.at for found in seldom.horizons(view))
        decision = always.on_trial_result(CONTROLLER, view, result)
        asked = seldom.on_trial_result(CONTROLLER, view, result) if met else "CONTINUE"
        assert decision == asked
        if decision == "STOP":
            assert always.reason() == seldom.reason()
            stopped.add(number)
    assert always.get_state() == seldom.get_state()


@settings(max_examples=50)
@given(histories, arguments, st.integers(0, 120))
def test_state_through_json_gives_the_same_further_decisions(history: Any, given_arguments: Any, at: int) -> None:
    scheduler = asha(**given_arguments)
    for number, step, value in history[:at]:
        tell(scheduler, str(number), step, value)
    restored = asha(**given_arguments)
    restored.set_state(json.loads(json.dumps(scheduler.get_state(), allow_nan=False)))
    for number, step, value in history[at:]:
        assert tell(scheduler, str(number + 3), step, value) == tell(restored, str(number + 3), step, value)
    assert restored.get_state() == scheduler.get_state()


def test_a_state_of_other_milestones_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="parameters that the experiment was started with"):
        asha(max_t=9).set_state(asha(max_t=100).get_state())


def test_a_missing_metric_is_an_error_with_a_remedy() -> None:
    with pytest.raises(InvalidInputError, match="set both in the experiment"):
        AsyncHyperBandScheduler().on_trial_add(CONTROLLER, Trial("a"))


def test_metric_and_mode_are_taken_once() -> None:
    scheduler = AsyncHyperBandScheduler()
    assert scheduler.set_search_properties("acc", "max")
    assert not scheduler.set_search_properties("acc", None)
    anonymous = AsyncHyperBandScheduler()
    assert anonymous.set_search_properties(None, "min")
    assert anonymous.metric == "_metric"


@pytest.mark.parametrize(
    "wrong",
    [{"max_t": 0}, {"grace_period": 0}, {"max_t": 2, "grace_period": 3}, {"reduction_factor": 1}, {"brackets": 0},
     {"mode": "maximum"}, {"seed": 0.5}],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        asha(**wrong)


def test_schedulers_are_made_by_name() -> None:
    assert ASHAScheduler is AsyncHyperBandScheduler
    for name in ("async_hyperband", "asynchyperband", "asha", "ASHA"):
        assert isinstance(create_scheduler(name, max_t=9), AsyncHyperBandScheduler)
    assert type(create_scheduler("fifo")) is FIFOScheduler
    with pytest.raises(
        InvalidInputError, match=r"'ahsa'. Did you mean 'asha'\? Known are asha, asha_promotion, async_hyperband"
    ):
        create_scheduler("ahsa")
    with pytest.raises(InvalidInputError, match=r"no parameter 'maxt'. Did you mean 'max_t'\? Allowed are brackets"):
        create_scheduler("asha", maxt=9)
    with pytest.raises(InvalidInputError, match="takes none"):
        create_scheduler("fifo", max_t=9)
