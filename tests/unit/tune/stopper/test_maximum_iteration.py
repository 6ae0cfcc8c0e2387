"""MaximumIterationStopper counts results by itself."""

from __future__ import annotations

import pytest
from stopper_checks import first_stop, met, reloaded, result

from trialpod.errors import InvalidInputError
from trialpod.tune.stopper import MaximumIterationStopper


def test_each_trial_is_stopped_at_its_nth_result() -> None:
    stopper = MaximumIterationStopper(3)
    assert first_stop(stopper, [0] * 5, "a") == 3
    assert first_stop(stopper, [0] * 5, "b") == 3
    assert stopper.reason() == {"stopper": "maximum_iteration", "results": 3, "max_iter": 3}
    assert not stopper.stop_all()


def test_what_is_repeated_after_a_failure_counts_again() -> None:
    stopper = MaximumIterationStopper(4)
    assert not any(stopper("a", result(number)) for number in (1, 2, 1))
    assert stopper("a", result(2))


def test_horizon_is_the_first_result_that_can_stop() -> None:
    stopper = MaximumIterationStopper(3)
    stopper.on_attempt_start("a")
    assert [met(stopper, "a", result(number)) for number in (1, 2, 3)] == [False, False, True]
    stopper("a", result(1))
    assert [met(stopper, "a", result(number)) for number in (2, 3)] == [False, True]


def test_counts_survive_a_restart() -> None:
    stopper = MaximumIterationStopper(3)
    stopper("a", result(1))
    assert first_stop(reloaded(stopper, MaximumIterationStopper(3)), [0] * 5) == 2


@pytest.mark.parametrize("wrong", [0, 1.5, True, "3"])
def test_a_wrong_maximum_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidInputError, match="max_iter"):
        MaximumIterationStopper(wrong)
