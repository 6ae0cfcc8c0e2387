"""CombinedStopper: any of several, and making stoppers by name."""

from __future__ import annotations

import pytest
from stopper_checks import first_stop, met, reloaded, result

from trialpod.errors import InvalidInputError
from trialpod.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    TimeoutStopper,
    TrialPlateauStopper,
    create_stopper,
)


def combined() -> CombinedStopper:
    return CombinedStopper(MaximumIterationStopper(5), TrialPlateauStopper("loss", num_results=3, grace_period=0))


def test_first_stopper_gives_the_reason() -> None:
    stopper = combined()
    assert first_stop(stopper, [1, 1, 1], "a") == 3
    assert stopper.reason()["stopper"] == "trial_plateau"
    assert first_stop(stopper, [1, 2, 3, 4, 5], "b") == 5
    assert stopper.reason()["stopper"] == "maximum_iteration"
    assert not stopper.stop_all()


def test_a_trial_waits_where_any_of_them_needs_it() -> None:
    stopper = combined()
    stopper.on_attempt_start("a")
    assert [met(stopper, "a", result(number)) for number in (1, 2, 3)] == [False, False, True]


def test_every_stopper_sees_every_result_whatever_the_others_say() -> None:
    plateau = ExperimentPlateauStopper("loss", top=2)
    stopper = CombinedStopper(FunctionStopper(lambda trial_id, data: True), plateau)
    assert first_stop(stopper, [1]) == 1
    assert not stopper.stop_all()
    first_stop(stopper, [1], "b")
    assert stopper.stop_all()
    assert stopper.reason()["stopper"] == "experiment_plateau"


def test_time_reaches_the_stoppers_that_take_it() -> None:
    stopper = CombinedStopper(NoopStopper(), TimeoutStopper(10), CombinedStopper(TimeoutStopper(5)))
    stopper.observe(0)
    stopper.observe(2)
    assert stopper.remaining == 3
    stopper.observe(5)
    assert stopper.stop_all()
    assert CombinedStopper(NoopStopper()).remaining is None


def test_all_states_survive_a_restart() -> None:
    stopper = combined()
    first_stop(stopper, [1, 1])
    assert first_stop(reloaded(stopper, combined()), [1]) == 1
    with pytest.raises(InvalidInputError, match="2 stoppers, there are 1"):
        reloaded(stopper, CombinedStopper(NoopStopper()))


def test_the_end_of_a_trial_frees_what_is_kept_of_it() -> None:
    stopper = combined()
    first_stop(stopper, [1, 1])
    stopper.on_trial_end("a")
    assert stopper.get_state() == combined().get_state()


def test_only_stoppers_are_combined() -> None:
    with pytest.raises(InvalidInputError, match="FunctionStopper"):
        CombinedStopper(lambda trial_id, data: True)  # type: ignore[arg-type]


def test_stoppers_are_made_by_name() -> None:
    assert isinstance(create_stopper("maximum_iteration", max_iter=3), MaximumIterationStopper)
    assert isinstance(create_stopper("trial_plateau", metric="loss"), TrialPlateauStopper)
    assert isinstance(create_stopper("experiment_plateau", metric="loss"), ExperimentPlateauStopper)
    assert isinstance(create_stopper("timeout", timeout=3), TimeoutStopper)
    with pytest.raises(InvalidInputError, match="Did you mean 'trial_plateau'"):
        create_stopper("trial_platau", metric="loss")
    with pytest.raises(InvalidInputError, match="needs the parameter 'metric'"):
        create_stopper("trial_plateau")
