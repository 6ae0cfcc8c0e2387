"""experiment_state-DATE.json: where tools that were written for Ray's folders look for the trials of an experiment.

Written when a `fit` under the name ``ray`` has ended, in the form of Ray 2.60. Nothing here reads it: the journal has
the state of an experiment, after every result.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from trialpod.errors import StorageError
from trialpod.protocol.values import readable
from trialpod.storage.registry import open_storage, scheme_of
from trialpod.tune.outcomes import ExperimentOutcome
from trialpod.tune.trial import Trial

_DATE = "%Y-%m-%d_%H-%M-%S"


def write_state(outcome: ExperimentOutcome, started: float, now: float) -> None:
    """Write the file into the experiment's folder.

    Args:
        outcome: what became of the experiment.
        started: when the `fit` began, in seconds since the epoch.
        now: the same, of its end.

    Raises:
        StorageError: it cannot be written.
    """
    state = {
        "trial_data": [_trial(Trial(trial)) for trial in outcome.trials],
        "runner_data": {"_session_str": time.strftime(_DATE, time.localtime(started)), "_metric": outcome.metric},
        "stats": {"start_time": started, "timestamp": now},
    }
    name = f"experiment_state-{time.strftime(_DATE, time.localtime(started))}.json"
    if scheme_of(outcome.path):
        open_storage(outcome.path).write(name, json.dumps(state, indent=2, default=str).encode())
        return
    path = os.path.join(outcome.path, name)
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as stream:
            json.dump(state, stream, indent=2, default=str)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def _trial(trial: Trial) -> list[str]:
    """Return the two texts that Ray keeps of a trial: what it is, and what became of it."""
    about: dict[str, Any] = {
        "stub": False,
        "trainable_name": trial.trainable_name,
        "trial_id": trial.trial_id,
        "config": trial.config,
        "evaluated_params": trial.evaluated_params,
        "experiment_tag": trial.experiment_tag,
        "status": trial.status,
        "relative_logdir": trial.relative_logdir,
    }
    became = {
        "trial_id": trial.trial_id,
        "last_result": dict(trial.last_result),
        "num_failures": trial.num_failures,
        "error_filename": trial.error_filename,
        "start_time": trial.start_time,
    }
    return [json.dumps(readable(each), default=str) for each in (about, became)]
