"""What every way of showing a running experiment has in common.

A display never decides anything and never ends an experiment: when its stream is closed or full, it goes silent.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from trialpod_operator.display.events import Event
from trialpod_operator.display.view import ExperimentView
from trialpod_operator.display.words import printed_line


@dataclass(frozen=True, slots=True)
class TrialOutput:
    """Lines that a trial printed, without their newlines; without a trial, a notice about what is not shown."""

    trial_id: str
    trial_name: str
    pid: int
    lines: list[str]

    @property
    def prefix(self) -> str:
        """What stands before each line: ``(train_ab12c_00003 pid=4242)``; empty for a notice."""
        if not self.trial_id:
            return ""
        return f"({self.trial_name} pid={self.pid})" if self.pid else f"({self.trial_name})"


class Display(Protocol):
    """Shows an experiment while it runs.

    Attributes:
        detail: 0 shows no single results, 1 a line for each, 2 also decisions, checkpoints and all their values.
        rows: How many `ExperimentView.rows` it can use; 0 when it looks at none.
        interval_s: How often `update` is worth a call, in seconds. More often does no harm: it returns at once.
    """

    detail: int
    rows: int
    interval_s: float

    def start(self, view: ExperimentView) -> None:
        """Show the experiment for the first time."""

    def update(self, view: ExperimentView) -> None:
        """Show what has changed."""

    def event(self, event: Event) -> None:
        """Show a fact that happened once."""

    def output(self, output: TrialOutput) -> None:
        """Show what a trial printed."""

    def finish(self, view: ExperimentView) -> None:
        """Show the final state and close."""

    def close(self) -> None:
        """Give the terminal back as it was; may be called at any time and more than once."""


def write_closing(stream: TextIO, text: str) -> None:
    """Write the last lines of a command; a reader that went away is ignored, now or when the process ends."""
    if text:
        LineWriter(stream).line(text)
    try:
        stream.flush()
    except (OSError, ValueError):
        # What is still buffered would raise again at the end of the process.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class LineWriter:
    """Writes whole lines to a text stream; a closed or full stream makes it silent, never an error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def line(self, text: str) -> None:
        """Write one line and flush it; characters that the stream cannot encode are escaped."""
        if self._stream is None:
            return
        try:
            self._stream.write(_encodable(self._stream, text) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # A reader that went away (`| head`) or a full disk must not end an experiment.
            self._stream = None


class LastingStream:
    """A text stream that a terminal library may write to: once closed or full, it takes text and drops it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = False

    def write(self, text: str) -> int:
        """Write text, or drop it; characters that the stream cannot encode are escaped."""
        if not self._lost:
            try:
                self._stream.write(_encodable(self._stream, text))
            except (OSError, ValueError):
                self._lost = True
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        if not self._lost:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._lost = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _encodable(stream: TextIO, text: str) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def write_output(out: LineWriter, output: TrialOutput) -> None:
    """Write what a trial printed, each line behind its prefix."""
    for line in output.lines:
        out.line(f"{output.prefix} {printed_line(line)}".strip())
