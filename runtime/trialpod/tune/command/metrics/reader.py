"""Reads metrics from lines, by one `MetricsSpec`, and says what it saw when the wanted one never came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from trialpod.errors import nearest
from trialpod.protocol.command import MetricsSpec
from trialpod.tune.command.metrics.pattern import MetricPattern
from trialpod.tune.command.metrics.text import Number, json_numbers, pairs

MAX_SEEN = 256
SHOWN_LINES = 10


class LineReader:
    """Finds metrics in the lines of one output.

    Every number with a name is taken. Where `spec.names` selects some, only lines with one of these, or of
    `wanted`, count; then all their numbers are taken. A pattern says by itself what counts.

    Args:
        spec: where metrics are, and in which form.
        wanted: the objective, and other names that something waits for.

    Raises:
        InvalidInputError: the pattern of `spec` cannot be used.
    """

    def __init__(self, spec: MetricsSpec, wanted: Iterable[str] = ()) -> None:
        self._wanted = frozenset((*spec.names, *wanted, spec.step) if spec.names else ())
        self._find = _finder(spec)
        self.is_pattern = bool(spec.pattern)
        self.seen: dict[str, Number] = {}
        """Names that lines had, wanted or not, with their last values; at most `MAX_SEEN`."""

    def may_count(self, line: str) -> bool:
        """Return False for a line that cannot have a metric: a cheap test before `read`."""
        return self.is_pattern or "=" in line or ":" in line

    def read(self, line: str) -> dict[str, Number]:
        """Return the metrics of a line, {} when it has none that count."""
        found = self._find(line)
        if not found:
            return {}
        for name, value in found.items():
            if len(self.seen) < MAX_SEEN or name in self.seen:
                self.seen[name] = value
        if self._wanted and not self.is_pattern and self._wanted.isdisjoint(found):
            return {}
        return found


def _finder(spec: MetricsSpec) -> Callable[[str], dict[str, Number]]:
    if spec.pattern:
        return MetricPattern(spec.pattern).find
    if spec.format == "text":
        return pairs
    if spec.format == "json":
        return lambda line: json_numbers(line) or {}
    if spec.format == "none":
        return lambda _line: {}
    return _either


def _either(line: str) -> dict[str, Number]:
    found = json_numbers(line)
    return pairs(line) if found is None else found


class LastLines:
    """The last lines of an output, for the message of a failure."""

    def __init__(self, count: int = SHOWN_LINES, width: int = 300) -> None:
        self._lines: deque[str] = deque(maxlen=count)
        self._width = width

    def add(self, line: str) -> None:
        """Keep a line, cut to the width of a message."""
        self._lines.append(line if len(line) <= self._width else line[: self._width - 3] + "...")

    @property
    def last(self) -> str:
        """The last one, "" before the first."""
        return self._lines[-1] if self._lines else ""

    def __str__(self) -> str:
        return "\n".join(f"  | {line}" for line in self._lines) or "  (no output)"


def describe_search(spec: MetricsSpec) -> str:
    """Return where metrics were looked for, in words."""
    places = []
    if spec.pattern:
        places.append(f"lines of the output that match {spec.pattern!r}")
    elif spec.format != "none":
        forms = {"auto": "name=value, name: value or a JSON object", "text": "name=value or name: value",
                 "json": "a JSON object", "csv": "name=value"}  # fmt: skip
        places.append(f"lines of the output with {forms[spec.format]}")
    for name, what in (("file", "the file"), ("tensorboard", "event files in"), ("mlflow", "the MLflow store"),
                       ("prometheus", "metrics at")):  # fmt: skip
        if place := getattr(spec, name):
            places.append(f"{what} {place}")
    return "; ".join([*places, "reports by trialpod-report"])


def missing_metric(name: str, seen: Iterable[str]) -> str:
    """Return what there was instead of a metric, with the nearest names first."""
    names = list(seen)
    if not names:
        return f"no number with a name was found, so not {name!r} either"
    close = nearest(name, names)
    near = f"; did you mean {close!r}?" if close else ""
    return (
        f"{name!r} was not found{near or '.'} There were {', '.join(names[:15])}{', ...' if len(names) > 15 else ''}"
    )
