"""What an experiment and its trials came to: what a backend returns, and what is read back from storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trialpod.protocol.messages import CheckpointInfo, CheckpointRules
from trialpod.tune.plugins.objectives import Objective


@dataclass(kw_only=True)
class TrialOutcome:
    """One trial when its experiment ended, or as it is found in storage."""

    trial_id: str
    name: str
    config: dict[str, Any]
    status: str  # PENDING, RUNNING, PAUSED, TERMINATED, ERROR
    path: str  # its directory, or its URI when the experiment was read from a storage elsewhere
    last_result: dict[str, Any] | None = None  # flattened, with the static keys (trial_id, config, ...)
    error: str = ""  # one line; empty when there is none
    traceback: str = ""
    checkpoints: list[CheckpointInfo] = field(default_factory=list)  # committed and still there, oldest first
    checkpoint_uri: str = ""  # where they are when that is not `path`
    checkpoint_rules: CheckpointRules = field(default_factory=CheckpointRules)  # rank them from worst to best
    experiment_tag: str = ""
    trainable_name: str = ""
    failures: int = 0
    created_at: float = 0.0  # seconds since the epoch; 0 = not known
    process: dict[str, Any] = field(default_factory=dict)  # pid, hostname and node_ip of its latest attempt
    ended_at: float = 0.0  # seconds since the epoch; 0 = not known, or it has not ended
    resources: dict[str, float] = field(default_factory=dict)  # what it asked for; empty where that is not known


@dataclass(kw_only=True)
class ExperimentOutcome:
    """An experiment when it ended, or as it is found in storage."""

    name: str
    path: str  # its directory, or its URI when it was read from a storage elsewhere
    state: str  # Running, Suspended, Succeeded, Failed, Stopped
    message: str = ""  # one sentence about `state`; may be empty
    metric: str | None = None
    mode: Literal["max", "min"] | None = None
    objectives: list[Objective] = field(default_factory=list)  # of a list of metrics
    uri: str = ""  # where it is stored when that is not only `path`
    broken: str = (
        ""  # why it could not continue as an experiment: a metric that no trial reported, an algorithm's error
    )
    trials: Sequence[TrialOutcome] = field(default_factory=list)  # in order of creation
