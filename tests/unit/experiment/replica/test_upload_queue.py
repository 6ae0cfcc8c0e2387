"""Running trials take turns in having their files copied."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from trialpod_operator.experiment.replica.upload_queue import LIVE_INTERVAL_S, MAX_LIVE_INTERVAL_S, LiveTurns


def looks(running: int, seconds: int) -> dict[str, list[float]]:
    """Return when the files of each of so many trials are looked at, which start together."""
    turns, found = LiveTurns(), {f"trial_{number}": [0.0] for number in range(running)}
    for now in range(seconds + 1):
        for name in turns.take(list(found), 1000.0 + now):
            found[name].append(float(now))
    return found


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


class TestTurns:
    @pytest.mark.parametrize("running", [1, 15])
    def test_few_are_looked_at_every_quarter_minute(self, running: int) -> None:
        for times in looks(running, 100).values():
            assert gaps(times) == [LIVE_INTERVAL_S] * 6

    def test_many_share_one_look_in_a_second(self) -> None:
        found = looks(60, 600)
        of_second = Counter(int(at) for times in found.values() for at in times[1:])
        assert sum(of_second.values()) == pytest.approx(600, abs=20)
        assert max(count for second, count in of_second.items() if second > LIVE_INTERVAL_S) <= 2
        assert max(gap for times in found.values() for gap in gaps(times)) <= 61.0

    def test_nobody_waits_longer_than_the_maximum(self) -> None:
        found = looks(3000, 650)
        assert all(len(times) >= 3 for times in found.values())
        assert max(gap for times in found.values() for gap in gaps(times)) <= MAX_LIVE_INTERVAL_S + 1.0

    def test_ended_ones_are_forgotten_and_new_ones_wait(self) -> None:
        turns = LiveTurns()
        assert turns.take(["old"], 0.0) == []
        assert turns.take(["old", "new"], LIVE_INTERVAL_S) == ["old"]
        assert turns.take(["new"], 2 * LIVE_INTERVAL_S) == ["new"]
        assert turns.take(["old"], 2 * LIVE_INTERVAL_S + 1.0) == []
