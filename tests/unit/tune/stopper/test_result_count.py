"""The horizon of the n-th result is never later than that result, over any sequence of attempts."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from trialpod.tune.stopper.result_count import ResultCount


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 20), st.booleans())
def test_no_attempt_passes_the_wanted_result_without_waiting(
    attempts: list[int], wanted: int, announced: bool
) -> None:
    count, total = ResultCount(), 0
    for length in attempts:
        if announced:
            count.on_attempt_start("a")
        count_at_start = count.horizons("a", wanted)
        for number in range(1, length + 1):
            data = {"iterations_since_restore": number, "training_iteration": number}
            waits_now = any(data[horizon.attr] >= horizon.at for horizon in count.horizons("a", wanted))
            waits_as_told_first = any(data[horizon.attr] >= horizon.at for horizon in count_at_start)
            total = count.add("a")
            assert total < wanted or (waits_now and waits_as_told_first)


def test_an_announced_attempt_waits_at_exactly_the_wanted_result() -> None:
    count = ResultCount()
    for _ in range(2):
        count.on_attempt_start("a")
        for _ in range(3):
            count.add("a")
    assert [(horizon.attr, horizon.at) for horizon in count.horizons("a", 10)] == [
        ("iterations_since_restore", 7.0),
        ("training_iteration", 10.0),
    ]


def test_counts_go_through_json() -> None:
    count, other = ResultCount(), ResultCount()
    count.on_attempt_start("a")
    count.add("a")
    count.add("b")
    other.set_state(json.loads(json.dumps(count.get_state())))
    assert other.horizons("a", 9) == count.horizons("a", 9)
    assert other.add("b") == 2
    other.forget("b")
    assert other.add("b") == 1
