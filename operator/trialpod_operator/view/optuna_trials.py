"""Trials as Optuna has them: for its journal, its dashboard, and whatever else reads a study.

=====================  =========================================================
trialpod               Optuna
=====================  =========================================================
PENDING                WAITING
RUNNING, PAUSED        RUNNING
TERMINATED             COMPLETE; PRUNED where a scheduler stopped it before its
                       end; FAIL without a finite value of the metric
ERROR                  FAIL
=====================  =========================================================

The value is the latest finite one of the metric. Curves become intermediate values, at most `MAX_STEPS` a trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.optuna_space import distributions, plain

MAX_STEPS = 100

Json = dict[str, Any]


def frozen_trials(model: ExperimentModel, first_id: int = 0) -> list[FrozenTrial]:
    """Return the trials of an experiment.

    Args:
        model: the experiment, up to date.
        first_id: Optuna's id of the first one.
    """
    facts = model.facts(MAX_STEPS)
    spaces = distributions([row["config"] for row, _ in facts], model.parameters())
    return [_frozen(row, points, spaces, first_id + number, number) for number, (row, points) in enumerate(facts)]


def _frozen(
    row: Json,
    points: Sequence[tuple[float, float]],
    spaces: Mapping[str, BaseDistribution],
    trial_id: int,
    number: int,
) -> FrozenTrial:
    state = _state(row)
    value = row["value"] if row["value"] is not None and math.isfinite(row["value"]) else None
    params = {name: plain(each) for name, each in row["config"].items() if name in spaces}
    started = row["started"] or row["created"]
    ended = (row["ended"] or started) if state.is_finished() else None
    facts = {"trial_id": row["id"], "attempts": row["attempts"], "reason": row["reason"], "parent": row["parent"]}
    return FrozenTrial(
        trial_id=trial_id,
        number=number,
        state=state,
        value=None,
        values=[value] if value is not None and state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        datetime_start=None if state == TrialState.WAITING else datetime.fromtimestamp(started),
        datetime_complete=None if ended is None else datetime.fromtimestamp(max(ended, started)),
        params=params,
        distributions={name: spaces[name] for name in params},
        user_attrs={**row["metrics"], **{name: each for name, each in facts.items() if each not in (None, "")}},
        system_attrs={},
        intermediate_values={int(x): y for x, y in points if math.isfinite(y)},
    )


def _state(row: Json) -> TrialState:
    value = row["value"]
    match row["state"]:
        case "PENDING":
            return TrialState.WAITING
        case "RUNNING" | "PAUSED":
            return TrialState.RUNNING
        case "TERMINATED" if row["pruned"]:
            return TrialState.PRUNED
        case "TERMINATED" if value is not None and math.isfinite(value):
            return TrialState.COMPLETE
    return TrialState.FAIL
