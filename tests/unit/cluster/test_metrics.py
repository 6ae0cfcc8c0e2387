"""Instruments and their text, read back by Prometheus' own parser."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trialpod_operator.cluster.metrics import Counter, Family, Histogram, LabelledCounter, exposition


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_histogram_has_cumulative_buckets_their_sum_and_their_count() -> None:
    histogram = Histogram("x_seconds", "Times.", (0.5, 1.0))
    for value in (0.25, 0.5, 0.75, 7.0):
        histogram.observe(value)
    found = parsed(exposition([histogram]))
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name == "x_seconds_bucket"}
    assert buckets == {"0.5": 2, "1": 3, "+Inf": 4}
    assert (found["x_seconds_sum", ()], found["x_seconds_count", ()]) == (8.5, 4)
    assert histogram.count == 4


@pytest.mark.parametrize("value", ['"', "\\", "\n", "\\n", 'ü, {x="y"} 1', ""])
def test_a_label_may_hold_anything(value: str) -> None:
    found = parsed(Family("x", "gauge", 'A "help"\\ of\ntwo lines.', ("label",), [((value,), 2.5)]).text())
    assert found == {("x", (("label", value),)): 2.5}


@pytest.mark.parametrize("value", [0, 3, -1, 1e300, 0.1, math.inf, -math.inf, 1792000000.25])
def test_numbers_come_back_as_they_were(value: float) -> None:
    assert parsed(Family("x", "gauge", "X.", (), [((), value)]).text()) == {("x", ()): value}


def test_not_a_number_is_written_as_prometheus_writes_it() -> None:
    assert math.isnan(parsed(Family("x", "gauge", "X.", (), [((), math.nan)]).text())["x", ()])


def test_a_labelled_counter_has_a_bounded_number_of_series_and_loses_no_count() -> None:
    counter = LabelledCounter("x_total", "X.", ("kind", "reason"), most=3)
    for number in range(10):
        counter.add("failure", f"Reason{number}")
    counter.add("failure", "Reason0")
    found = parsed(counter.text())
    assert len(found) == 4
    assert found["x_total", (("kind", "failure"), ("reason", "Reason0"))] == 2
    assert found["x_total", (("kind", "other"), ("reason", "other"))] == 7


def test_every_family_says_once_what_it_is() -> None:
    parts: list[Any] = [Counter("a_total", "A.", 3), LabelledCounter("b_total", "B.", ("x",)), Histogram("c", "C.")]
    text = exposition(parts)
    types = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert types == [["a_total", "counter"], ["b_total", "counter"], ["c", "histogram"]]
    assert text.count("# HELP") == 3
    assert text.endswith("\n")
