"""TimeoutStopper: time that is passed in."""

from __future__ import annotations

import datetime as dt

import pytest
from stopper_checks import reloaded, result

from trialpod.errors import InvalidInputError
from trialpod.tune.stopper import TimeoutStopper


def test_everything_is_stopped_when_the_time_is_used_up() -> None:
    stopper = TimeoutStopper(dt.timedelta(minutes=1))
    stopper.observe(1000)
    stopper.observe(1059)
    assert (stopper.stop_all(), stopper.remaining, stopper.reason()) == (False, 1, {})
    stopper.observe(1060)
    assert stopper.stop_all()
    assert stopper.reason() == {"stopper": "timeout", "used_s": 60, "timeout_s": 60}
    assert not stopper("a", result(1))
    assert stopper.horizons("a") == []


def test_time_between_two_runs_does_not_count() -> None:
    stopper = TimeoutStopper(10)
    stopper.observe(0)
    stopper.observe(6)
    restored = TimeoutStopper(10)
    reloaded(stopper, restored)
    restored.observe(1000)
    assert restored.remaining == 4
    restored.observe(1004)
    assert restored.stop_all()


def test_suspended_time_and_steps_back_do_not_count() -> None:
    stopper = TimeoutStopper(10)
    for now, active in ((0, True), (3, False), (50, True), (40, True), (42, True)):
        stopper.observe(now, active=active)
    assert stopper.remaining == 5


@pytest.mark.parametrize("wrong", [-1, "10", True, float("nan")])
def test_a_wrong_timeout_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidInputError, match="timeout"):
        TimeoutStopper(wrong)
