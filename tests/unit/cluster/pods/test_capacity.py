"""How far an experiment runs ahead of what has found a place."""

from __future__ import annotations

from trialpod_operator.cluster.pods.queues import AHEAD, IN_QUEUE, slots


def rounds(room: int, most: int, *, queued: bool) -> list[int]:
    """Return how many attempts are in progress after each round in which all find a place that there is room for."""
    now, placed, seen = None, 0, []
    for _ in range(12):
        found = slots(now, placed, most, queued=queued, waits=queued and placed == room)
        now = found if found is not None else now
        in_progress = most if now is None else min(now, most)
        seen.append(in_progress)
        placed = min(in_progress, room)
    return seen


def test_a_small_limit_of_the_users_is_left_alone() -> None:
    assert slots(None, 0, AHEAD) is None
    assert slots(None, 0, IN_QUEUE, queued=True, waits=True) is None


def test_limited_demand_doubles_once_all_are_placed() -> None:
    assert rounds(1000, 200, queued=False)[:5] == [16, 32, 64, 128, 200]
    assert rounds(1000, 50, queued=True)[:5] == [4, 8, 16, 32, 50]


def test_at_most_as_many_wait_as_have_a_place() -> None:
    assert rounds(30, 1000, queued=False)[-1] <= 2 * 30 + AHEAD


def test_in_a_queue_a_few_wait_and_the_parallelism_is_the_quotas() -> None:
    assert slots(20, 8, 1000, queued=True, waits=True) == 8 + IN_QUEUE
    assert slots(12, 7, 1000, queued=True, waits=True) is None  # one has ended; its place is about to be taken
    assert slots(12, 2, 1000, queued=True, waits=True) == 2 + IN_QUEUE


def test_without_a_limit_some_pods_are_ahead_and_of_groups_one() -> None:
    assert slots(None, 0, None) == AHEAD
    assert slots(None, 3, None, grouped=True) == 4
    assert slots(None, 3, None, grouped=True, queued=True, waits=True) == 3 + IN_QUEUE


def test_a_limit_that_is_raised_lets_nothing_start_at_once() -> None:
    assert slots(None, 8, 1000) == 8 + AHEAD
    assert slots(16, 8, 20) == 20
    assert slots(30, 8, 10) is None  # the user's limit holds by itself
