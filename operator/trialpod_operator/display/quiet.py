"""Shows warnings and errors only, each once, one line each; a finished experiment is summed up by the command."""

from __future__ import annotations

from typing import TextIO

from trialpod_operator.display.base import LineWriter, TrialOutput
from trialpod_operator.display.events import Event
from trialpod_operator.display.progress import Notices
from trialpod_operator.display.view import ExperimentView


class QuietDisplay:
    """A display that only says what went wrong.

    Args:
        stream: Where warnings and errors go.
    """

    detail = 0
    rows = 0
    interval_s = 60.0

    def __init__(self, stream: TextIO) -> None:
        self._out = LineWriter(stream)
        self._notices = Notices()

    def start(self, view: ExperimentView) -> None:
        """Show nothing."""

    def update(self, view: ExperimentView) -> None:
        """Show nothing."""

    def event(self, event: Event) -> None:
        """Show a warning or an error, unless the same was shown before."""
        if event.level != "info":
            for line in self._notices.lines(event):
                self._out.line(line)

    def output(self, output: TrialOutput) -> None:
        """Show nothing."""

    def finish(self, view: ExperimentView) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing is held."""


class SilentDisplay(QuietDisplay):
    """A display that shows nothing at all."""

    def event(self, event: Event) -> None:
        """Show nothing."""
