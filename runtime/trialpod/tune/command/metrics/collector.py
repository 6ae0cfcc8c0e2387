"""Puts metrics together to results: a result is complete with the values that bring the objective.

So what belongs together may stand on several lines, the objective's last, and nothing depends on timing. Without an
objective each line, row or object with a metric is a result.

Invariants: every value is in exactly one result, or in `rest`; names that trialpod itself sets are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from trialpod.protocol.messages import AUTO_RESULT_KEYS
from trialpod.tune.command.metrics.text import Number

ITERATION = "training_iteration"
MAX_NAMES = 256
"""Metrics in one result; more are left out, and named once in the log."""
_SET_BY_TRIALPOD = AUTO_RESULT_KEYS - {"timesteps_total", "episodes_total"}
"""Of a command it cannot know these two."""


class ResultCollector:
    """Collects the results of one attempt.

    Args:
        objective: the metric that completes a result; None takes each group of values as one.
        step: the value that is the iteration; "" has them counted by the reporter.
        last_step: the iteration that the attempt resumes from.
        kept: other names that are never too many.
    """

    def __init__(self, objective: str | None, step: str = "", last_step: int = 0, kept: Iterable[str] = ()) -> None:
        self._objective = objective
        self._step = step or None
        self._last_step = last_step
        self._kept = frozenset((*kept, objective, step))
        self._said: Number | None = None  # of the step, since the last complete result
        self.rest: dict[str, Number] = {}
        """Values since the last complete result."""
        self.found = 0
        self.dropped: set[str] = set()
        """Names that were left out, because they are trialpod's or there are too many."""

    def add(self, values: Mapping[str, Number], step: Number | None = None) -> dict[str, Number] | None:
        """Take values that were found together; return the result that they complete.

        Args:
            values: names and numbers.
            step: the iteration that they were reported for, where that was said beside them.
        """
        for name, value in values.items():
            if name == self._step:
                self._said = value
            if name not in _SET_BY_TRIALPOD and (
                len(self.rest) < MAX_NAMES or name in self.rest or name in self._kept
            ):
                self.rest[name] = value
            elif name != self._step and len(self.dropped) < MAX_NAMES:
                self.dropped.add(name)
        if not self.rest or (self._objective is not None and self._objective not in values):
            return None
        result, self.rest = self.rest, {}
        self.found += 1
        said, self._said = self._said if step is None else step, None
        if said is not None or (self._step and self._last_step):
            self._last_step = self._iteration(said)
            result[ITERATION] = self._last_step
        return result

    def _iteration(self, said: Number | None) -> int:
        """Return the iteration of a result: what was said if that is a whole number that grows, else one more."""
        if said is not None and math.isfinite(said) and said == int(said) and int(said) > self._last_step:
            return int(said)
        return self._last_step + 1
