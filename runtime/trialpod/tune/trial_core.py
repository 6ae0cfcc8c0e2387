"""What is known of one trial: the part of `Trial` that does not depend on a generation of Ray Tune.

Invariants: it only looks; nothing that is done to it changes an experiment. It is equal to every other view of the
same trial, and reads files only when it is asked for what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trialpod.protocol.messages import CheckpointRules
from trialpod.tune.result import Metrics, Result, checkpoints_in, failure, newest_and_best
from trialpod.tune.results import flattened, number, read_rows, score

if TYPE_CHECKING:
    from trialpod.protocol.messages import CheckpointInfo
    from trialpod.tune.checkpoints.checkpoint import Checkpoint
    from trialpod.tune.outcomes import TrialOutcome

_ANALYSES = {"avg": "avg", "last": "last", "last-5-avg": "last-5-avg", "last-10-avg": "last-10-avg"}


class TrialCore:
    """What is known of one trial; `Trial` has the rarer and older names, too.

    Args:
        facts: the trial as a backend returned it, or an object with the same attributes that follows it as it runs.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    def __init__(self, facts: TrialOutcome) -> None:
        self._facts = facts

    @property
    def trial_id(self) -> str:
        """The trial's id, ``d75de_00012``."""
        return self._facts.trial_id

    @property
    def name(self) -> str:
        """The trial's name, which is also its ``str()``."""
        return self._facts.name

    @property
    def trainable_name(self) -> str:
        """The name of the Trainable."""
        return self._facts.trainable_name or self.name.removesuffix(f"_{self.trial_id}")

    @property
    def experiment_tag(self) -> str:
        """What tells it from the others: ``2_lr=0.0132``."""
        return self._facts.experiment_tag

    @property
    def config(self) -> dict[str, Any]:
        """Its config."""
        return self._facts.config

    @property
    def status(self) -> str:
        """PENDING, RUNNING, PAUSED, TERMINATED or ERROR."""
        return self._facts.status

    @property
    def path(self) -> str:
        """Its directory, or its URI when the experiment was read from a storage elsewhere."""
        return self._facts.path

    @property
    def last_result(self) -> dict[str, Any]:
        """Its latest result by flattened names; empty before the first."""
        return Metrics(self._facts.last_result or {})

    @property
    def num_failures(self) -> int:
        """How often it failed so far."""
        return self._facts.failures

    @property
    def num_failures_after_restore(self) -> int:
        """The same."""
        return self._facts.failures

    @property
    def start_time(self) -> float | None:
        """When it was created, in seconds since the epoch."""
        return self._facts.created_at or None

    @property
    def checkpoint_infos(self) -> Sequence[CheckpointInfo]:
        """Its committed checkpoints that are still there, oldest first."""
        return self._facts.checkpoints

    @property
    def checkpoint_place(self) -> str:
        """The directory or URI that they are in."""
        return self._facts.checkpoint_uri or self.path

    @property
    def checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The same, ready to use, each with the metrics of its result."""
        return checkpoints_in(self.checkpoint_place, self.checkpoint_infos)

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """The config by flattened names ("layers/0/width")."""
        return flattened(self.config)

    @property
    def logdir(self) -> str:
        """The name that older scripts use for `path`."""
        return self.path

    @property
    def local_path(self) -> str:
        """The name that older scripts use for `path`."""
        return self.path

    @property
    def local_dir(self) -> str:
        """The experiment's directory."""
        return os.path.dirname(self.path)

    @property
    def local_experiment_path(self) -> str:
        """The experiment's directory."""
        return os.path.dirname(self.path)

    @property
    def relative_logdir(self) -> str:
        """The name of its directory."""
        return os.path.basename(self.path)

    @property
    def experiment_dir_name(self) -> str:
        """The name of the experiment's directory."""
        return os.path.basename(os.path.dirname(self.path))

    @property
    def error_file(self) -> str | None:
        """The file with the tracebacks of its failures, None while there is none."""
        return os.path.join(self.path, "error.txt") if self._facts.error or self.num_failures else None

    @property
    def error(self) -> Exception | None:
        """The error that it failed with, or None."""
        facts = self._facts
        if facts.status != self.ERROR and not facts.error:
            return None
        return failure(facts.error or "failed without an error", facts.name, facts.traceback, self.path)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Its newest checkpoint, or None."""
        saved = checkpoints_in(self.checkpoint_place, self.checkpoint_infos[-1:])
        return saved[0][0] if saved else None

    @property
    def metric_analysis(self) -> dict[str, dict[str, float]]:
        """For each number that it reported: max, min, avg, last, last-5-avg, last-10-avg. Reads ``result.json``."""
        analysis: dict[str, dict[str, float]] = {}
        for key, series in self.metric_series().items():
            entry = {"max": score(series, "all", "max", finite_only=False)}
            entry["min"] = score(series, "all", "min", finite_only=False)
            entry |= {name: score(series, scope, "max", finite_only=False) for name, scope in _ANALYSES.items()}
            analysis[key] = {name: value for name, value in entry.items() if value is not None}
        return analysis

    def metric_series(self) -> dict[str, list[float]]:
        """Return all values of each number that it reported, oldest first. Reads ``result.json``."""
        values: dict[str, list[float]] = {}
        for row in read_rows(self.path):
            for key, value in row.items():
                if not isinstance(value, (bool, str)) and (found := number(value)) is not None:
                    values.setdefault(key, []).append(found)
        return values

    def is_finished(self) -> bool:
        """Return whether it will not run again."""
        return self.status in (self.TERMINATED, self.ERROR)

    def has_checkpoint(self) -> bool:
        """Return whether it has a checkpoint."""
        return bool(self.checkpoint_infos)

    def as_result(self) -> Result:
        """Return it as `ResultGrid` would."""
        rules = getattr(self._facts, "checkpoint_rules", None) or CheckpointRules()
        newest, best = newest_and_best(self.checkpoint_place, self.checkpoint_infos, rules)
        metrics, error = self.last_result or None, self.error
        path = self.checkpoint_place
        return Result(metrics, newest, error, path, best, config=self.config, local_path=self.path)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrialCore) and (self.trial_id, self.path) == (other.trial_id, other.path)

    def __hash__(self) -> int:
        return hash(self.trial_id)
