"""The line of the best value so far."""

from __future__ import annotations

import math

from trialpod_operator.display.sparkline import MAX_SAMPLES, BestSoFar, sparkline


class TestSparkline:
    def test_lowest_and_highest_take_the_ends(self) -> None:
        assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"

    def test_nothing_is_drawn_before_the_best_has_changed(self) -> None:
        best = BestSoFar()
        for value in (None, math.nan, 0.5, 0.5):
            best.observe(value)
        assert best.line(16) == ""
        best.observe(0.7)
        assert best.line(16) == "▁▁█"

    def test_long_run_keeps_its_shape_within_the_width(self) -> None:
        best = BestSoFar()
        for step in range(10 * MAX_SAMPLES):
            best.observe(float(step))
        line = best.line(8)
        assert len(line) == 8
        assert list(line) == sorted(line)
        assert (line[0], line[-1]) == ("▁", "█")
