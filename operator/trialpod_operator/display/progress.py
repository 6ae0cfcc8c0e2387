"""The sentences about progress that the live table and the plain lines share, and the memory of what was said."""

from __future__ import annotations

from collections import deque

from trialpod_operator.display.events import WARNING, Event
from trialpod_operator.display.view import ENDED, ExperimentView
from trialpod_operator.display.words import number, one_line, plural

DISTINCT_NOTICES = 20


def done(view: ExperimentView) -> int:
    """Return how many trials have ended."""
    return sum(view.counts.get(status, 0) for status in ENDED)


def trials(view: ExperimentView) -> str:
    """Return ``12/40 trials``, or ``12 trials done`` when their number is open, and how many of these have failed."""
    failed = f" ({view.counts['ERROR']:,} failed)" if view.counts.get("ERROR") else ""
    if view.total is None:
        return f"{plural(done(view), 'trial')} done{failed}"
    return f"{done(view):,}/{plural(view.total, 'trial')}{failed}"


def standing(view: ExperimentView) -> list[tuple[str, str]]:
    """Return (status, words) for the statuses that matter while an experiment runs and are not zero."""
    words = [("RUNNING", "running"), ("PAUSED", "paused")]
    return [(status, f"{view.counts[status]:,} {word}") for status, word in words if view.counts.get(status)]


def outcome(view: ExperimentView) -> str:
    """Return the state in one word; an experiment that came to its end with failed trials has only finished."""
    return "finished" if view.state == "Succeeded" and view.counts.get("ERROR") else one_line(view.state).lower()


def metric_name(view: ExperimentView) -> str:
    """Return the metric on one line; empty when the experiment has none."""
    return one_line(view.metric or "")


def best_value(view: ExperimentView) -> str:
    """Return ``accuracy=0.9812``, or an empty string while there is no best trial."""
    if view.best is None or view.best.value is None or not view.metric:
        return ""
    return f"{metric_name(view)}={number(view.best.value)}"


class RateMeter:
    """Results per second over the last `window_s` seconds of the experiment's own time."""

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def observe(self, view: ExperimentView) -> float | None:
        """Add a view and return the rate; None until time has passed."""
        samples = self._samples
        if samples and (view.elapsed_s < samples[-1][0] or view.results < samples[-1][1]):
            samples.clear()
        samples.append((view.elapsed_s, view.results))
        while len(samples) > 2 and samples[1][0] <= view.elapsed_s - self._window_s:
            samples.popleft()
        seconds = view.elapsed_s - samples[0][0]
        if seconds >= 0.5:
            return (view.results - samples[0][1]) / seconds
        return view.results / view.elapsed_s if view.elapsed_s >= 0.5 else None


class Notices:
    """Makes lines of events and remembers them, so that no error or warning is shown twice.

    After `DISTINCT_NOTICES` different errors one last line says where the others are.
    """

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._ended = False

    def lines(self, event: Event) -> list[str]:
        """Return the lines to show for an event: none when the same message was shown before."""
        who = one_line(event.trial_id)
        text = one_line(event.message) or event.kind.replace("_", " ")
        if event.level != "info":
            key = f"{event.kind} {text}"
            if key in self._first or self._ended:
                return []
            if len(self._first) >= DISTINCT_NOTICES:
                self._ended = True
                return ["further messages are not shown here; the closing summary names every kind of failure"]
            self._first[key] = who
        if event.level != "info" and (event.kind == WARNING or not who):
            text = f"{event.level}: {text}"
        lines = [f"{who} {text}" if who else text]
        remedy = one_line(str(event.data.get("remedy") or ""))
        log = one_line(str(event.data.get("log") or ""))
        if remedy:
            lines.append(f"  {remedy}")
        if log and event.level == "error":
            lines.append(f"  log: {log}")
        return lines

    def is_repeated(self, event: Event) -> bool:
        """Tell whether this event's message was shown before."""
        return self.first_with(event) is not None

    def first_with(self, event: Event) -> str | None:
        """Return the trial that this event's message was already shown for, None when it was not."""
        return self._first.get(f"{event.kind} {one_line(event.message)}")
