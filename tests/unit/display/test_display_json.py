from __future__ import annotations

import io
import json
import math
from typing import Any

from display_views import any_row, any_view, experiment, trial
from hypothesis import given, settings

from trialpod_operator.display import events
from trialpod_operator.display.choose import choose_display
from trialpod_operator.display.json_lines import JsonLinesDisplay
from trialpod_operator.display.view import ExperimentView, TrialRow


def lines(text: str) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not strict JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_every_event_is_one_object_and_the_last_is_finished() -> None:
    out, time = io.StringIO(), 0.0
    display = JsonLinesDisplay(out, now=lambda: time, wall_clock=lambda: 1700000000.1234)
    display.start(experiment([], results=0))
    display.event(events.trial_started(trial(0)))
    display.update(experiment([trial(0)], results=5))
    time = 11.0
    display.update(experiment([trial(0)], results=7))
    display.event(events.trial_failed(trial(1, "ERROR", error="ValueError: no")))
    rows = [trial(0), trial(1, "ERROR", error="ValueError: no", value=None)]
    display.finish(experiment(rows, state="Succeeded"))
    objects = lines(out.getvalue())
    assert [item["event"] for item in objects] == [
        "started",
        "trial_started",
        "progress",
        "trial_failed",
        "finished",
    ]
    assert {item["time"] for item in objects} == {1700000000.123}
    assert objects[1]["data"]["params"] == {"lr": 0.1, "layers": 2, "epochs": 9}
    assert objects[2]["results"] == 7
    assert objects[3]["trial_id"] == "ab12c_00001"
    finished = objects[-1]
    assert finished["state"] == "Succeeded"
    assert finished["path"] == "./trialpod-results/digits"
    assert finished["best"]["trial_id"] == "ab12c_00000"
    assert finished["params"] == {"lr": 0.1, "layers": 2, "epochs": 9}
    assert finished["checkpoint"] == "./trialpod-results/digits/train_ab12c_00000/checkpoint_000002"
    assert finished["failures"] == [{"message": "ValueError: no", "trials": 1}]


def test_nan_and_infinities_are_strings() -> None:
    out = io.StringIO()
    row = trial(0, value=math.nan, config={"a": math.inf, "b": [-math.inf], "c": {1: object}})
    JsonLinesDisplay(out).finish(experiment([row], best=row))
    best = lines(out.getvalue())[0]["best"]
    assert best["value"] == "NaN"
    assert best["params"] == {"a": "Infinity", "b": ["-Infinity"], "c": {"1": "object"}}


def test_json_is_chosen_whatever_the_stream_is() -> None:
    assert isinstance(choose_display(io.StringIO(), json=True, verbose=-1), JsonLinesDisplay)


@settings(max_examples=40)
@given(view=any_view, row=any_row)
def test_any_view_is_strict_json(view: ExperimentView, row: TrialRow) -> None:
    out = io.StringIO()
    display = JsonLinesDisplay(out)
    display.start(view)
    display.event(events.trial_started(row))
    display.event(events.trial_ended(row, view.metric))
    display.finish(view)
    assert [item["event"] for item in lines(out.getvalue())] == [
        "started",
        "trial_started",
        "trial_ended",
        "finished",
    ]
