"""`Trial`: one trial as callbacks, loggers and reporters of all generations of Ray Tune see it.

Invariant: everything here is computed from what the trial says of itself; what cannot be known of a trial that only
looks (its stopping criteria, what it exports) has the value of a trial that was given none.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from trialpod.compat.activation import under_ray
from trialpod.storage.layout import PICKLED_ERROR_FILE
from trialpod.tune.location.storage_context import StorageContext
from trialpod.tune.placement_groups import PlacementGroupFactory, Resources
from trialpod.tune.trainable.training_result import TrainingResult
from trialpod.tune.trial_core import TrialCore

if TYPE_CHECKING:
    from trialpod.tune.checkpoints.checkpoint import Checkpoint
    from trialpod.tune.outcomes import TrialOutcome
    from trialpod.tune.trial_config import CheckpointConfig

logger = logging.getLogger(__name__)

_warned: list[str] = []  # by which trial `checkpoint_now` was asked first


class Location:
    """Where a trial runs: a host and a process, as far as its results say."""

    def __init__(self, hostname: str | None = None, pid: int | None = None) -> None:
        self.hostname = hostname
        self.pid = pid

    def __str__(self) -> str:
        if not self.pid:
            return ""
        return f"{self.hostname}:{self.pid}" if self.hostname else f"pid={self.pid}"


class RunMetadata:
    """What has become of a trial so far.

    Args:
        trial: the trial.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    @property
    def last_result(self) -> dict[str, Any]:
        """Its latest result."""
        return self._trial.last_result

    @property
    def metric_analysis(self) -> dict[str, dict[str, float]]:
        """As of the trial."""
        return self._trial.metric_analysis

    @property
    def metric_n_steps(self) -> dict[str, dict[str, list[float]]]:
        """As of the trial."""
        return self._trial.metric_n_steps

    @property
    def num_failures(self) -> int:
        """As of the trial."""
        return self._trial.num_failures

    @property
    def start_time(self) -> float | None:
        """As of the trial."""
        return self._trial.start_time

    @property
    def error_filename(self) -> str | None:
        """The name of the file with its errors, None while it has none."""
        return os.path.basename(self._trial.error_file) if self._trial.error_file else None


class TemporaryState:
    """Where a trial is at the moment.

    Args:
        location: where it runs.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.saving_to: Any = None
        self.restoring_from: Any = None
        self.num_restore_failures = 0


class Trial(TrialCore):
    """One trial.

    Args:
        facts: the trial as a backend returned it, or an object with the same attributes that follows it as it runs.
    """

    stub = False
    max_failures = 0
    log_to_file: Any = None
    is_restoring = False
    is_saving = False
    sync_on_checkpoint = True

    def __init__(self, facts: TrialOutcome) -> None:
        super().__init__(facts)
        self.stopping_criterion: dict[str, float] = {}
        self.export_formats: list[str] = []

    def get_error(self) -> Exception | str | None:
        """Return the error that it failed with, or None; under the name ``ray`` its text."""
        return self.error_msg if under_ray() else self.error

    @property
    def error_msg(self) -> str | None:
        """The traceback of its error as text, None while there is none."""
        error = self.error
        return None if error is None else getattr(error, "traceback", "") or str(error)

    @property
    def custom_trial_name(self) -> str | None:
        """Its name, where a `trial_name_creator` made it."""
        return None if self.name == f"{self.trainable_name}_{self.trial_id}" else self.name

    def should_stop(self, result: dict[str, Any]) -> bool:
        """Return whether a result ends the trial: it says so itself, or meets one of the limits in `stop`."""
        limits = self.stopping_criterion
        return bool(result.get("done")) or any(key in result and result[key] >= limits[key] for key in limits)

    @property
    def error_filename(self) -> str | None:
        """The name of the file with its errors."""
        return self.run_metadata.error_filename

    @property
    def pickled_error_file(self) -> str | None:
        """The file with the exception of its latest failure, None while there is none."""
        path = os.path.join(self.path, PICKLED_ERROR_FILE)
        return path if self.error_file and os.path.exists(path) else None

    def get_pickled_error(self) -> Exception | None:
        """Return the error that it failed with, or None."""
        return self.error

    @property
    def has_reported_at_least_once(self) -> bool:
        """Whether it has reported a result."""
        return bool(self.last_result)

    @property
    def metric_n_steps(self) -> dict[str, dict[str, list[float]]]:
        """For each number that it reported, its latest 5 and 10 values. Reads ``result.json``."""
        series = self.metric_series()
        return {name: {"5": values[-5:], "10": values[-10:]} for name, values in series.items()}

    @property
    def location(self) -> Location:
        """Where its latest result came from."""
        result = self.last_result
        return Location(result.get("hostname"), result.get("pid"))

    @property
    def node_ip(self) -> str | None:
        """The address of the machine that its latest result came from."""
        found = None if under_ray() and self.is_finished() else self.last_result.get("node_ip")
        return str(found) if found else None

    def get_runner_ip(self) -> str | None:
        """Return `node_ip`."""
        return self.node_ip

    get_ray_actor_ip = get_runner_ip

    @property
    def placement_group_factory(self) -> PlacementGroupFactory:
        """What it was granted, or one CPU while that is not known."""
        granted = getattr(self._facts, "resources", None) or {"cpu": 1.0}
        names = {"cpu": "CPU", "gpu": "GPU"}
        return PlacementGroupFactory([{names.get(name, name): amount for name, amount in granted.items()}])

    @property
    def resources(self) -> Resources:
        """The same, as the first API wrote it."""
        amounts = self.placement_group_factory.required_resources
        custom = {name: amount for name, amount in amounts.items() if name not in ("CPU", "GPU", "memory")}
        return Resources(
            cpu=amounts.get("CPU", 0),
            gpu=amounts.get("GPU", 0),
            memory=amounts.get("memory", 0),
            custom_resources=custom,
        )

    @property
    def checkpoint_config(self) -> CheckpointConfig:
        """Which checkpoints are made, where that is known."""
        from trialpod.tune.trial_config import CheckpointConfig

        return CheckpointConfig()

    @property
    def checkpoint_freq(self) -> int:
        """How many iterations lie between two checkpoints; 0 makes none on the way."""
        return self.checkpoint_config.checkpoint_frequency

    @property
    def checkpoint_at_end(self) -> bool | None:
        """Whether a checkpoint is made at the end."""
        return self.checkpoint_config.checkpoint_at_end

    @property
    def latest_checkpoint_result(self) -> TrainingResult | None:
        """Its newest checkpoint with the metrics of its result, None if it has none."""
        saved = self.checkpoints
        return TrainingResult(*saved[-1]) if saved else None

    def get_trial_checkpoints(self) -> list[Checkpoint]:
        """Return its checkpoints, oldest first."""
        return [checkpoint for checkpoint, _ in self.checkpoints]

    def checkpoint_now(self) -> None:
        """Do nothing but warn, once: a trial does not wait for callbacks, so the state that one saw may be gone."""
        if not _warned:
            _warned.append(self.trial_id)
            logger.warning(
                "Trial.checkpoint_now() has no effect: a trial does not wait for callbacks. Return "
                "should_checkpoint=True from step(), or set CheckpointConfig(checkpoint_frequency=...)"
            )

    @property
    def remote_path(self) -> str | None:
        """The URI that its checkpoints are in, None when that is a local directory."""
        place = self.checkpoint_place
        return place if "://" in place else None

    @property
    def remote_checkpoint_dir(self) -> str | None:
        """The same."""
        return self.remote_path

    @property
    def uses_cloud_checkpointing(self) -> bool:
        """Whether its checkpoints are in a bucket."""
        return self.remote_path is not None

    @property
    def remote_experiment_path(self) -> str:
        """Where its experiment is stored."""
        return os.path.dirname(self.remote_path or self.path)

    @property
    def run_metadata(self) -> RunMetadata:
        """What has become of it so far."""
        return RunMetadata(self)

    @property
    def temporary_state(self) -> TemporaryState:
        """Where it is at the moment."""
        return TemporaryState(self.location)

    @property
    def storage(self) -> StorageContext:
        """Its paths, and its experiment's."""
        return StorageContext(self.path)

    @property
    def runner(self) -> None:
        """None: a trial is a process of its own, not an actor that could be called."""
        return

    def get_trainable_cls(self) -> Any:
        """Return the class Trainable of its name, None if none is registered here."""
        from trialpod.tune.registry import is_registered, resolve_trainable
        from trialpod.tune.trainable.function_trainable import wrap_function

        if not is_registered(self.trainable_name):
            return None
        found = resolve_trainable(self.trainable_name)
        return found if isinstance(found, type) else wrap_function(found)
