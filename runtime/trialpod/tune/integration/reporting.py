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


def chosen(metrics: Metrics, found: Mapping[str, Any], who: str, *, warned: set[str] | None = None) -> dict[str, Any]:
    """Return the metrics to report.

    Args:
        metrics: those that were asked for.
        found: what the library has.
        who: the callback, for errors.
        warned: if given, leave out what is missing, and warn of each name that is not in it; such names are added.

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
    if warned is not None:
        if new := [theirs for theirs in missing if theirs not in warned]:
            logger.warning("%s: not logged yet, and not reported: %s", who, ", ".join(new))
            warned.update(new)
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
        results_postprocessing_fn: called with the chosen metrics by their reported names; returns what is reported.
    """

    def __init__(
        self,
        metrics: Metrics,
        filename: str,
        frequency: int,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None,
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
        found: dict[str, Any],
        iteration: int,
        save: Callable[[str], Any],
        who: str,
        *,
        last: bool = False,
    ) -> None:
        """Report one iteration, with the model if it is due.

        Args:
            found: the latest values by flat names ("eval-logloss"); a tuple is a mean and its deviation.
            iteration: its number, counted from 0.
            save: writes the model to a path.
            who: the callback, for errors.
            last: no iteration comes after it.
        """
        metrics = chosen(self.metrics, found, who)
        if self._process is not None:
            self.last = dict(self._process(metrics))
        else:
            self.last = {name: value[0] if isinstance(value, tuple) else value for name, value in metrics.items()}
        due = (last and self.at_end) or (bool(self.frequency) and (iteration + 1) % self.frequency == 0)
        if due:
            self.saved = iteration
        report_with(self.last, save if due else None, self.filename)
