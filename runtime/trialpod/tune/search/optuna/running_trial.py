"""A running trial as Optuna's storages take it."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def running_trial(params: dict[str, Any], distributions: dict[str, Any], user_attrs: dict[str, Any]) -> Any:
    """Return a FrozenTrial that runs with these parameters."""
    from optuna.trial import FrozenTrial, TrialState  # type: ignore[import-not-found, unused-ignore]

    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=TrialState.RUNNING,
        value=None,
        datetime_start=datetime.now(),  # as Optuna does it: local time
        datetime_complete=None,
        params=params,
        distributions=distributions,
        user_attrs=user_attrs,
        system_attrs={},
        intermediate_values={},
    )
