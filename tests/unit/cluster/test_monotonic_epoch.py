"""The operator's clock is never set back, and always advances."""

from __future__ import annotations

from trialpod_operator.cluster.controller import monotonic_epoch


def test_a_clock_that_is_set_back_continues_from_where_it_was() -> None:
    given = [1000.0]
    clock = monotonic_epoch(lambda: given[0])
    given[0] = 1010.0
    assert clock() == 1010.0
    given[0] -= 3600.0
    assert clock() == 1010.0
    given[0] += 5.0
    assert clock() == 1015.0


def test_a_clock_that_is_set_forward_is_followed() -> None:
    given = [1000.0]
    clock = monotonic_epoch(lambda: given[0])
    given[0] = 5000.0
    assert clock() == 5000.0
