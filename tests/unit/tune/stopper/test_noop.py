"""NoopStopper stops nothing."""

from __future__ import annotations

from stopper_checks import first_stop, reloaded

from trialpod.tune.stopper import NoopStopper


def test_nothing_is_stopped_and_nobody_waits() -> None:
    stopper = reloaded(NoopStopper(), NoopStopper())
    assert first_stop(stopper, [0, 1]) is None
    assert not stopper.stop_all()
    assert stopper.horizons("a") == []
