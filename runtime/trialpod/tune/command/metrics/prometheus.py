"""Samples in Prometheus' text format: ``name{label="value"} 0.5 1700000000``.

A metric is called as the sample is, with its labels: ``loss``, ``loss{phase="val"}``.
"""

from __future__ import annotations

import re

from trialpod.tune.command.metrics.text import Number, number

MAX_BYTES = 4 * 1024 * 1024

_SAMPLE = re.compile(
    r"\s*(?P<name>[A-Za-z_:][\w:]*)\s*(?P<labels>\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*"
)


def samples(text: str) -> dict[str, Number]:
    """Return the samples of a scrape; comments and what is not a sample are passed over."""
    found = {}
    for line in text[:MAX_BYTES].splitlines():
        if line.lstrip().startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        value = number(match["value"]) if match else None
        if match is not None and value is not None:
            labels = re.sub(r"\s*,\s*}$", "}", match["labels"] or "")
            found[match["name"] + ("" if labels == "{}" else labels)] = value
    return found
