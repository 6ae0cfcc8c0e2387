from __future__ import annotations

import pytest

from trialpod_operator.reports.rate import Rate, RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_the_steady_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(Rate(per_s=2.0, burst=3.0), clock=clock)
    assert [limiter.take("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert limiter.take("a") == 0.5
    clock.now += 0.5
    assert limiter.take("a") == 0.0
    assert limiter.take("a") == 0.5


def test_one_caller_takes_nothing_from_another() -> None:
    limiter = RateLimiter(Rate(per_s=1.0, burst=1.0), clock=Clock())
    assert (limiter.take("a"), limiter.take("b"), limiter.take("a")) == (0.0, 0.0, 1.0)


def test_bytes_count_too_and_a_refused_request_takes_nothing() -> None:
    clock = Clock()
    limiter = RateLimiter(Rate(per_s=100.0, burst=100.0), Rate(per_s=10.0, burst=50.0), clock=clock)
    assert limiter.take("a", 40) == 0.0
    assert limiter.take("a", 30) == 2.0
    assert limiter.take("a", 10) == 0.0


def test_request_above_the_burst_passes_with_a_full_bucket() -> None:
    clock = Clock()
    limiter = RateLimiter(Rate(per_s=100.0, burst=100.0), Rate(per_s=10.0, burst=50.0), clock=clock)
    assert limiter.take("a", 500) == 0.0
    assert limiter.take("a", 500) == pytest.approx(5.0)
    clock.now += 5.0
    assert limiter.take("a", 500) == 0.0


def test_least_recent_caller_is_evicted_first() -> None:
    limiter = RateLimiter(Rate(per_s=1.0, burst=1.0), clock=Clock(), callers=2)
    limiter.take("a")
    limiter.take("b")
    assert limiter.take("a") > 0.0
    limiter.take("c")
    assert limiter.take("a") > 0.0
    assert limiter.take("b") == 0.0


def test_a_clock_that_goes_backwards_gives_nothing_away() -> None:
    clock = Clock()
    limiter = RateLimiter(Rate(per_s=1.0, burst=1.0), clock=clock)
    limiter.take("a")
    clock.now -= 50.0
    assert limiter.take("a") == 1.0
    clock.now += 1.0
    assert limiter.take("a") == 0.0


def test_callers_whose_buckets_are_full_again_take_no_memory() -> None:
    clock = Clock()
    limiter = RateLimiter(Rate(per_s=1.0, burst=3.0), Rate(per_s=10.0, burst=50.0), clock=clock)
    for number in range(100):
        limiter.take(number, 40)
        clock.now += 1.0
    assert len(limiter._buckets) == 4
