from __future__ import annotations

from trialpod.protocol.backoff import Backoff


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(base_s=1.0, cap_s=5.0, uniform=lambda: 1.0)
    assert [backoff.failed() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_jitter_keeps_at_least_half_of_the_delay() -> None:
    assert Backoff(base_s=1.0, uniform=lambda: 0.0).failed() == 0.5


def test_success_starts_again() -> None:
    backoff = Backoff(base_s=1.0, uniform=lambda: 1.0)
    backoff.failed()
    backoff.failed()
    backoff.succeeded()
    assert backoff.failed() == 1.0


def test_a_thousand_failures_do_not_overflow() -> None:
    backoff = Backoff(cap_s=3.0, uniform=lambda: 1.0)
    assert [backoff.failed() for _ in range(2000)][-1] == 3.0
