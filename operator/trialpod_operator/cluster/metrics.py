"""Counters and histograms, and their text for Prometheus (exposition format 0.0.4).

Made for a loop that answers thousands of reports a second: an instrument is a few additions to plain numbers, without
a lock, since only the event loop touches it; whatever can be computed when somebody asks is computed then. (With the
official client each addition takes several times as long, and its import a third of a second.)

Invariants: values of counters never fall; a family has its HELP and TYPE once, before its samples; a labelled counter
has a bounded number of series, whatever strings it is given.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OTHER = "other"
"""The label of what came after a counter's series were used up."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of times."""

Labels = tuple[str, ...]


@dataclass
class Family:
    """All samples of one name, as they are at the moment of asking.

    Attributes:
        name: of the metric; a counter's ends in ``_total``.
        kind: its type.
        help: one sentence.
        labels: names of the labels.
        samples: values of the labels and the number.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: Labels = ()
    samples: Sequence[tuple[Labels, float]] = ()

    def text(self) -> str:
        """Return the lines."""
        lines = [_head(self.name, self.kind, self.help)]
        form = ",".join(f'{label}="%s"' for label in self.labels)
        form = f"{self.name}{{{form}}} %s\n" if form else f"{self.name} %s\n"
        lines += [form % (*map(_escaped, values), _number(value)) for values, value in self.samples]
        return "".join(lines)


@dataclass
class Counter:
    """A number that only grows. Add to `value`.

    Args:
        name: ends in ``_total``.
        help: one sentence.
    """

    name: str
    help: str
    value: float = 0

    def text(self) -> str:
        """Return the lines."""
        return Family(self.name, "counter", self.help, (), [((), self.value)]).text()


@dataclass
class LabelledCounter:
    """Numbers that only grow, by labels.

    Args:
        name: ends in ``_total``.
        help: one sentence.
        labels: names of the labels.
        most: so many series at most; what comes then is counted with all labels `OTHER`.
    """

    name: str
    help: str
    labels: Labels
    most: int = 200
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, *values: str) -> None:
        """Count one, with these values of the labels in their order."""
        known = self.values.get(values)
        if known is None and len(self.values) >= self.most:
            values = (OTHER,) * len(self.labels)
            known = self.values.get(values)
        self.values[values] = (known or 0) + 1

    def text(self) -> str:
        """Return the lines."""
        return Family(self.name, "counter", self.help, self.labels, list(self.values.items())).text()


class Histogram:
    """How often values fell into buckets, and their sum.

    Args:
        name: with its unit, as in ``trialpod_commit_seconds``.
        help: one sentence.
        bounds: upper bounds of the buckets, ascending; one above them all is added.
    """

    def __init__(self, name: str, help: str, bounds: Sequence[float] = SECONDS) -> None:  # noqa: A002 - their word
        self.name = name
        self.help = help
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Take in a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def text(self) -> str:
        """Return the lines."""
        lines = [_head(self.name, "histogram", self.help)]
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            lines.append(f'{self.name}_bucket{{le="{_number(bound)}"}} {total}\n')
        lines.append(f"{self.name}_sum {_number(self._sum)}\n{self.name}_count {total}\n")
        return "".join(lines)


def exposition(parts: Iterable[Family | Counter | LabelledCounter | Histogram]) -> str:
    """Return the text that a scrape gets."""
    return "".join(part.text() for part in parts)


def count_by(values: Iterable[str], known: Iterable[str]) -> Mapping[str, int]:
    """Return how often each value occurs; those of `known` are there even if they do not."""
    counts = dict.fromkeys(known, 0)
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {_one_line(text)}\n# TYPE {name} {kind}\n"


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escaped(text: str) -> str:
    return text if text.isalnum() else _one_line(text).replace('"', '\\"')


def _number(value: float) -> str:
    if type(value) is int:
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == value and value == int(value) and abs(value) < 1e15 else repr(float(value))
