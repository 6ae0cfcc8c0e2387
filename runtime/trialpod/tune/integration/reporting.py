"""What the callbacks for training libraries share: which metrics are reported, and with which checkpoint."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.session import report

logger = logging.getLogger(__name__)

Metrics = str | Sequence[str] | Mapping[str, str] | None
"""None is all; a dict maps the reported name to the library's."""


def chosen(metrics: Metrics, found: Mapping[str, Any], who: str, *, lenient: bool = False) -> dict[str, Any]:
    """Return the metrics to report.

    Args:
        metrics: those that were asked for.
        found: what the library has.
        who: the callback, for errors.
        lenient: leave out what is missing, with a warning.

    Raises:
        InvalidInputError: one is missing.
    """
    if not metrics:
        return dict(found)
    names = (
        dict(metrics)
        if isinstance(metrics, Mapping)
        else {name: name for name in ([metrics] if isinstance(metrics, str) else metrics)}
    )
    missing = [theirs for theirs in names.values() if theirs not in found]
    if missing and lenient:
        logger.warning("%s: not logged yet, and not reported: %s", who, ", ".join(missing))
    elif missing:
        raise InvalidInputError(
            f"{who}(metrics={metrics!r}): there is no metric {missing[0]!r}; there are {', '.join(sorted(found))}"
        )
    return {ours: found[theirs] for ours, theirs in names.items() if theirs in found}


def report_with(metrics: dict[str, Any], save: Callable[[str], Any] | None, filename: str) -> None:
    """Report, with a checkpoint that `save` writes to a path if it is given."""
    if save is None:
        report(metrics)
        return
    with tempfile.TemporaryDirectory(prefix="trialpod-checkpoint_") as folder:
        save(os.path.join(folder, filename))
        report(metrics, checkpoint=Checkpoint.from_directory(folder))


class BoosterReports:
    """Reports of libraries that boost: every iteration, some with the model.

    Args:
        metrics: which to report.
        filename: the model's in the checkpoint.
        frequency: iterations from one checkpoint to the next; 0 = none on the way.
        checkpoint_at_end: whether the last report has one.
        results_postprocessing_fn: called with what the library has of each metric; returns the metrics.
    """

    def __init__(
        self,
        metrics: Metrics,
        filename: str,
        frequency: int,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Callable[[Any], dict[str, Any]] | None,
    ) -> None:
        if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 0:
            raise InvalidInputError(f"frequency={frequency!r}: must be a number of iterations, 0 for none")
        self.metrics, self.filename = metrics, filename
        self.frequency, self.at_end = frequency, checkpoint_at_end
        self._process = results_postprocessing_fn
        self.last: dict[str, Any] = {}
        self.saved = -1

    def report(
        self,
        raw: Any,
        plain: dict[str, Any],
        iteration: int,
        save: Callable[[str], Any],
        who: str,
        *,
        last: bool = False,
    ) -> None:
        """Report one iteration, counted from 0, with the model if it is due; `last`: none comes after it."""
        found = dict(self._process(raw)) if self._process is not None else plain
        self.last = chosen(self.metrics, found, who)
        due = (last and self.at_end) or (bool(self.frequency) and (iteration + 1) % self.frequency == 0)
        if due:
            self.saved = iteration
        report_with(self.last, save if due else None, self.filename)
