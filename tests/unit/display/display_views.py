"""Views of made-up experiments, by hand and at random, for the tests of what a person sees."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from trialpod_operator.display.view import ExperimentView, TrialRow


def trial(number: int, status: str = "TERMINATED", **changes: Any) -> TrialRow:
    trial_id = f"ab12c_{number:05d}"
    path = f"./trialpod-results/digits/train_{trial_id}"
    row = TrialRow(
        trial_id=trial_id,
        name=f"train_{trial_id}",
        status=status,
        config={"lr": 0.1 / (number + 1), "layers": 2, "epochs": 9},
        path=path,
        iteration=9,
        value=0.5 + number / 10,
        run_time_s=3.25,
        attempts=1,
        failures=0,
        disruptions=0,
        error="",
        stop_reason={},
        checkpoint=f"{path}/checkpoint_000002",
        checkpoint_iteration=9,
        last_result={"accuracy": 0.5 + number / 10, "training_iteration": 9},
    )
    return dataclasses.replace(row, **changes)


def experiment(rows: list[TrialRow], **changes: Any) -> ExperimentView:
    counts: dict[str, int] = {}
    failures: dict[str, int] = {}
    for row in rows:
        counts[row.status] = counts.get(row.status, 0) + 1
        if row.error:
            failures[row.error] = failures.get(row.error, 0) + 1
    valued = [row for row in rows if row.value is not None]
    view = ExperimentView(
        name="digits",
        path="./trialpod-results/digits",
        metric="accuracy",
        mode="max",
        state="Running",
        message="",
        total=20,
        counts=counts,
        results=120,
        elapsed_s=14.2,
        time_budget_s=None,
        max_concurrent=8,
        best=max(valued, key=lambda row: row.value or 0.0) if valued else None,
        rows=rows,
        failures=failures,
        trials_per_minute=42.0,
        eta_s=31.0,
    )
    return dataclasses.replace(view, **changes)


_text = st.text(max_size=40) | st.sampled_from(
    ["\x1b[31mred\x1b[0m\n\ttab", "学習率" * 12, "a\r\nb", "[bold]x[/]", ""]
)
_float = st.floats(allow_nan=True, allow_infinity=True)
_value = st.recursive(
    st.none() | st.booleans() | st.integers() | _float | _text | st.binary(max_size=8) | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=3,
)
_trials = st.builds(
    TrialRow,
    trial_id=_text,
    name=_text,
    status=st.sampled_from(["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]) | _text,
    config=st.dictionaries(_text, _value, max_size=4),
    path=_text,
    iteration=st.integers(min_value=0),
    value=st.none() | _float,
    run_time_s=_float,
    attempts=st.integers(0, 99),
    failures=st.integers(0, 99),
    disruptions=st.integers(0, 99),
    error=_text,
    stop_reason=st.dictionaries(st.just("source"), _value, max_size=1),
    checkpoint=st.none() | _text,
    checkpoint_iteration=st.none() | st.integers(0, 10**9),
    last_result=st.dictionaries(_text, _value, max_size=3),
)
any_view = st.builds(
    ExperimentView,
    name=_text,
    path=_text,
    metric=st.none() | _text,
    mode=st.sampled_from(["max", "min"]),
    state=st.sampled_from(["Running", "Suspended", "Succeeded", "Failed", "Stopped"]),
    message=_text,
    total=st.none() | st.integers(0, 10**9),
    counts=st.dictionaries(
        st.sampled_from(["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]), st.integers(0, 10**9)
    ),
    results=st.integers(0, 10**12),
    elapsed_s=_float,
    time_budget_s=st.none() | _float,
    max_concurrent=st.none() | st.integers(1, 10**6),
    best=st.none() | _trials,
    rows=st.lists(_trials, max_size=4),
    failures=st.dictionaries(_text, st.integers(1, 99), max_size=8),
    trials_per_minute=st.none() | _float,
    eta_s=st.none() | _float,
)
any_row = _trials
