"""What a shell needs to run an experiment, whether it came from a manifest or from a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trialpod.protocol.messages import TrainableRef
from trialpod.protocol.values import params_encoder
from trialpod.storage.options import StorageOptions
from trialpod.tune.backends import TrialNamer
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.search.search_algorithm import SearchAlgorithm
from trialpod.tune.stopper.stopper import Stopper
from trialpod_operator.engine.settings import Settings

DEFAULT_GRACE_S = 10.0
"""How long a trial that is asked to end may take to reach a boundary and save its state."""


@dataclass(frozen=True, kw_only=True)
class RemoteStorage:
    """Where the experiment is kept beside the working directory, and where its trials put their checkpoints.

    `uri` names the experiment's own place ("s3://bucket/prefix/name").
    """

    uri: str
    options: StorageOptions


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """A validated experiment, ready to run.

    `resources` are those of one trial ("cpu" and "gpu" as counts, "memory" in bytes); `resources_of` computes them
    from a trial's config instead. `opens_values`: this is the user's own process, whose algorithms and functions see
    the user's objects themselves. `encode_params` encodes configs. `document` is what is kept as
    ``experiment.json`` for people and tools.
    """

    settings: Settings
    search: SearchAlgorithm
    scheduler: TrialScheduler
    stopper: Stopper | None
    trainable: TrainableRef
    resources: dict[str, float] = field(default_factory=dict)
    resources_of: Callable[[dict[str, Any]], dict[str, float]] | None = None
    suspend: bool = False
    remote: RemoteStorage | None = None
    document: dict[str, Any] = field(default_factory=dict)
    trial_name: TrialNamer | None = None  # from a script
    trial_dirname: TrialNamer | None = None
    environment: dict[str, str] = field(default_factory=dict)  # of the trials' processes, besides this one's
    log_output: bool = True
    notice: str = ""  # said once, when the experiment starts
    grace_s: float = DEFAULT_GRACE_S
    opens_values: bool = False
    encode_params: Callable[[Any], bytes] = params_encoder.encode

    def resources_for(self, config: dict[str, Any]) -> dict[str, float]:
        """Return what a trial with this config asks for."""
        return self.resources_of(config) if self.resources_of is not None else self.resources
