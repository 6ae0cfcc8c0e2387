"""Plain lines for a log or a pipe: one line per change, now and then one about progress, no escape sequences.

A fast experiment does not flood the log: of many trials that start and end within one interval only the first lines
are written, and the next progress line counts the others. Nothing is written while nothing changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from trialpod_operator.display.base import LineWriter, TrialOutput, write_output
from trialpod_operator.display.events import TRIAL_STARTED, Event
from trialpod_operator.display.progress import (
    Notices,
    best_value,
    done,
    metric_name,
    outcome,
    standing,
    trials,
)
from trialpod_operator.display.view import ExperimentView
from trialpod_operator.display.words import duration, one_line, plural, rate

PROGRESS_S = 10.0
TRIAL_LINES = 20


class PlainDisplay:
    """Writes lines.

    Args:
        stream: Where they go.
        verbose: 0 leaves out trial lines beyond `TRIAL_LINES` per interval; 1 writes all, and the trials' results;
            2 also what was decided about them, and their checkpoints.
        now: A monotonic clock, in seconds.
    """

    rows = 0
    interval_s = 1.0

    def __init__(self, stream: TextIO, *, verbose: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self._out = LineWriter(stream)
        self._limit = None if verbose > 0 else TRIAL_LINES
        self.detail = max(verbose, 0)
        self._now = now
        self._notices = Notices()
        self._last = now()
        self._elapsed_s = 0.0
        self._next_progress = PROGRESS_S
        self._shown: tuple[object, ...] = ()
        self._trial_lines = 0
        self._left_out = {"started": 0, "ended": 0}

    def start(self, view: ExperimentView) -> None:
        """Say what is about to run and where its results go."""
        self._last, self._elapsed_s = self._now(), 0.0
        self._next_progress = PROGRESS_S
        self._shown = self._state(view)
        parts = [f"{one_line(view.name)}:"]
        parts.append("an open number of trials" if view.total is None else plural(view.total, "trial"))
        if view.max_concurrent:
            parts.append(f"({view.max_concurrent} at a time)")
        if view.objectives:
            parts.append(f"for {', '.join(one_line(str(each)) for each in view.objectives)}")
        elif view.metric:
            parts.append(f"for the {view.mode}imum of {metric_name(view)}")
        if view.time_budget_s is not None:
            parts.append(f"within {duration(view.time_budget_s)}")
        self._line(" ".join(parts))
        self._line(f"results: {one_line(view.path)}")
        if done(view) or view.results:
            self._line(f"resumed: {self._progress(view)}")

    def update(self, view: ExperimentView) -> None:
        """Write a progress line when one is due and something has changed."""
        elapsed_s = self._time()
        if elapsed_s < self._next_progress:
            return
        state = self._state(view)
        if state == self._shown:
            return
        self._next_progress = elapsed_s + PROGRESS_S
        self._shown = state
        self._line(self._progress(view) + self._take_left_out())

    def event(self, event: Event) -> None:
        """Write an event; an error that was written before is named by the first trial that had it."""
        new_error = event.level == "error" and not self._notices.is_repeated(event)
        if event.trial_id and event.level != "warning" and not new_error:
            if self._limit is not None and self._trial_lines >= self._limit:
                self._left_out["started" if event.kind == TRIAL_STARTED else "ended"] += 1
                return
            self._trial_lines += 1
        first = self._notices.first_with(event) if event.level == "error" else None
        if first is not None:
            self._line(f"{one_line(event.trial_id)} failed with the same error as {first}")
            return
        for line in self._notices.lines(event):
            self._line(line)

    def output(self, output: TrialOutput) -> None:
        """Write what a trial printed, without the time."""
        write_output(self._out, output)

    def finish(self, view: ExperimentView) -> None:
        """Write where things stand."""
        message = one_line(view.message)
        progress = f"{outcome(view)}: {self._progress(view)}{self._take_left_out()}"
        self._line(f"{progress}; {message}" if message else progress)

    def close(self) -> None:
        """Nothing is held."""

    def _take_left_out(self) -> str:
        """Return how many trial lines were left out since the last call, and begin to count again."""
        counts = [f"{plural(count, 'trial')} {word}" for word, count in self._left_out.items() if count]
        self._trial_lines = 0
        self._left_out = {"started": 0, "ended": 0}
        return f" (not shown: {', '.join(counts)})" if counts else ""

    @staticmethod
    def _state(view: ExperimentView) -> tuple[object, ...]:
        best = view.best
        return (
            view.results,
            view.state,
            tuple(view.counts.items()),
            (best.trial_id, repr(best.value)) if best else None,
        )

    @staticmethod
    def _progress(view: ExperimentView) -> str:
        parts = [trials(view)] + [words for _, words in standing(view)]
        best = best_value(view)
        if best and view.best is not None:
            parts.append(f"best {best} ({one_line(view.best.trial_id)})")
        if view.results or view.best is None:  # the resources of a cluster know of the best one before they count
            parts.append(plural(view.results, "result"))
        if view.state == "Running":
            speed = rate(view.trials_per_minute, "trials/min")
            parts += [speed] if speed else []
            parts += [f"ETA {duration(view.eta_s)}"] if view.eta_s is not None else []
        return ", ".join(parts)

    def _line(self, text: str) -> None:
        self._out.line(f"[{self._time():7.1f}s] {text}")

    def _time(self) -> float:
        """Return the seconds since the start; a clock that is set back does not take any of them away."""
        now = self._now()
        self._elapsed_s += max(0.0, now - self._last)
        self._last = now
        return self._elapsed_s
