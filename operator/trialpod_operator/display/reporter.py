"""Shows an experiment through a script's own progress reporter; warnings and errors are written as lines besides.

An exception in the reporter ends the experiment, as one in a callback does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from trialpod.tune.callback_list import CallbackError
from trialpod.tune.progress_reporter import ProgressReporter
from trialpod.tune.trial import Trial
from trialpod_operator.display.base import TrialOutput, write_output
from trialpod_operator.display.quiet import QuietDisplay
from trialpod_operator.display.view import ExperimentView


class ReporterDisplay(QuietDisplay):
    """A display that asks a reporter.

    Args:
        stream: Where warnings and errors go.
        reporter: The script's.
        trials: All trials so far; the list grows.
    """

    interval_s = 1.0

    def __init__(self, stream: TextIO, reporter: ProgressReporter, trials: Sequence[Trial]) -> None:
        super().__init__(stream)
        self._reporter = reporter
        self._trials = trials

    def start(self, view: ExperimentView) -> None:
        """Set the reporter up."""
        self._guarded("setup", start_time=time.time(), total_samples=view.total, metric=view.metric, mode=_mode(view))

    def update(self, view: ExperimentView) -> None:
        """Let the reporter report if it wants to."""
        self._report(view, done=False)

    def output(self, output: TrialOutput) -> None:
        """Write what a trial printed."""
        write_output(self._out, output)

    def finish(self, view: ExperimentView) -> None:
        """Let the reporter report for the last time."""
        self._report(view, done=True)

    def _report(self, view: ExperimentView, *, done: bool) -> None:
        trials = list(self._trials)
        if self._guarded("should_report", trials, done=done):
            self._guarded("report", trials, done, f"Results: {view.path}", view.message)

    def _guarded(self, method: str, *arguments: Any, **more: Any) -> Any:
        call: Callable[..., Any] = getattr(self._reporter, method)
        try:
            return call(*arguments, **more)
        except Exception as error:
            raise CallbackError(
                f"the progress reporter {type(self._reporter).__name__} raised {type(error).__name__} in "
                f"{method}(): {error}; the experiment was ended, and Tuner.restore(...) continues with it"
            ) from error


def _mode(view: ExperimentView) -> str | None:
    return view.mode if view.metric else None
