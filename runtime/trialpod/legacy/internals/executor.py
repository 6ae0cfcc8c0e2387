"""`RayTrialExecutor`: the Trainables of single trials, in this process, driven by hand.

Invariants: steps run only inside `get_next_executor_event`; what a Trainable raises there becomes an event, not an
error of the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.legacy.internals.trial import Trial
from trialpod.legacy.run_arguments import TrialExecutor
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.placement_groups import to_resources

TRAINING_RESULT = "TRAINING_RESULT"
ERROR = "ERROR"
PG_READY = "PG_READY"
NO_RUNNING_TRIAL = "NO_RUNNING_TRIAL_TIMEOUT"


class ExecutorEventType:
    """The types of events by name, as scripts compare them."""

    ERROR = ERROR
    NO_RUNNING_TRIAL_TIMEOUT = NO_RUNNING_TRIAL
    PG_READY = PG_READY
    TRAINING_RESULT = TRAINING_RESULT


@dataclass(frozen=True)
class ExecutorEvent:
    """What happened.

    Attributes:
        type: "TRAINING_RESULT", "ERROR", "PG_READY" (another trial may start) or "NO_RUNNING_TRIAL_TIMEOUT".
        trial: whose it is.
        result: the result, or the exception.
    """

    type: str
    trial: Trial | None = None
    result: Any = None


class RayTrialExecutor(TrialExecutor):
    """Starts, trains, saves, pauses and ends Trainables in this process, one thing after the other.

    Args:
        resource_manager: accepted for compatibility, unused.
        reuse_actors: whether `start_trial` gives a stopped Trainable of the same class to the next trial.
        result_buffer_length: accepted for compatibility, unused.
        refresh_period: accepted for compatibility, unused.
        chdir_to_trial_dir: accepted for compatibility, unused: it is the caller's process.
        queue_trials, ray_auto_init, wait_for_placement_group: of older versions; accepted for compatibility, unused.
    """

    def __init__(
        self,
        resource_manager: Any = None,
        reuse_actors: bool = False,
        result_buffer_length: int | None = None,
        refresh_period: float | None = None,
        chdir_to_trial_dir: bool = False,
        *,
        queue_trials: bool = False,
        ray_auto_init: bool | None = None,
        wait_for_placement_group: float | None = None,
    ) -> None:
        self._reuses = reuse_actors
        self._objects: dict[str, Any] = {}
        self._due: list[Trial] = []
        self._kept: list[Any] = []
        self._known: dict[str, Trial] = {}

    def start_trial(self, trial: Trial) -> bool:
        """Make the trial's Trainable, from its checkpoint if it has one; return whether that worked."""
        self._known[trial.trial_id] = trial
        try:
            self._objects[trial.trial_id] = self._made(trial)
            if trial.checkpoint is not None:
                self.restore(trial)
        # What the user's class raises is the trial's error.
        except Exception as error:  # noqa: BLE001
            self.stop_trial(trial, error=True, exc=error)
            return False
        trial.set_status(Trial.RUNNING)
        self.continue_training(trial)
        return True

    def _made(self, trial: Trial) -> Any:
        cls = trial.get_trainable_cls()
        if cls is None:
            raise InvalidInputError(f"the trial {trial.trial_id} is a stub, whose Trainable is not known here")
        for kept in [kept for kept in self._kept if type(kept) is cls]:
            self._kept.remove(kept)
            if kept.reset(dict(trial.config)):
                return kept
            kept.stop()
        return cls(dict(trial.config))

    def continue_training(self, trial: Trial) -> None:
        """Let the trial have its next step when the next event is asked for."""
        self._object(trial)
        if trial not in self._due:
            self._due.append(trial)

    def get_next_executor_event(self, live_trials: Collection[Trial], next_trial_exists: bool) -> ExecutorEvent:
        """Run the step that has been due longest and return what came of it."""
        if next_trial_exists:
            return ExecutorEvent(PG_READY)
        if not self._due:
            return ExecutorEvent(NO_RUNNING_TRIAL)
        trial = self._due.pop(0)
        try:
            result = self._object(trial).train()
        # What the user's class raises is the trial's error.
        except Exception as error:  # noqa: BLE001
            return ExecutorEvent(ERROR, trial, error)
        trial.update_last_result(result)
        return ExecutorEvent(TRAINING_RESULT, trial, result)

    def stop_trial(self, trial: Trial, error: bool = False, exc: BaseException | None = None) -> None:
        """End the trial, as ERROR or TERMINATED; a Trainable that failed is not reused."""
        failed = error or exc is not None
        self._discard(trial, reuse=not failed)
        trial.set_status(Trial.ERROR if failed else Trial.TERMINATED)
        if exc is not None:
            trial.outcome.error = f"{type(exc).__name__}: {exc}"
            trial.outcome.failures += 1

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        """Save the trial, unless told not to, and release its Trainable; `start_trial` continues with it."""
        if should_checkpoint:
            self.save(trial)
        self._discard(trial)
        trial.set_status(Trial.PAUSED)

    def reset_trial(
        self, trial: Trial, new_config: dict[str, Any], new_experiment_tag: str, logger_creator: Any = None
    ) -> bool:
        """Give the trial another config in place; return False if its Trainable cannot do that."""
        if not self._object(trial).reset(dict(new_config), logger_creator):
            return False
        trial.outcome.config, trial.outcome.experiment_tag = dict(new_config), new_experiment_tag
        return True

    def save(self, trial: Trial, storage: Any = "persistent", result: dict[str, Any] | None = None) -> Checkpoint:
        """Save the trial into its directory, and return the checkpoint."""
        made = self._object(trial)
        folder = os.path.join(trial.path, f"checkpoint_{made.iteration:06d}")
        saved = made.save(folder)
        trial.on_checkpoint(saved)
        checkpoint: Checkpoint = saved.checkpoint
        return checkpoint

    def restore(self, trial: Trial) -> None:
        """Put the trial's Trainable back to its newest checkpoint.

        Raises:
            RuntimeError: it has not been started.
            InvalidInputError: it has no checkpoint.
        """
        made = self._object(trial)
        if trial.checkpoint is None:
            raise InvalidInputError(f"the trial {trial.trial_id} has no checkpoint to restore")
        made.restore(trial.checkpoint)
        trial.on_restore()

    def export_trial_if_needed(self, trial: Trial) -> dict[str, str]:
        """Export the trial's model in its `export_formats`; return the paths by format."""
        if not trial.export_formats:
            return {}
        os.makedirs(trial.path, exist_ok=True)
        exported: dict[str, str] = self._object(trial).export_model(trial.export_formats, trial.path)
        return exported

    def has_resources_for_trial(self, trial: Trial) -> bool:
        """Return whether this machine has the CPUs that the trial needs."""
        return to_resources(trial.placement_group_factory).get("cpu", 0.0) <= len(os.sched_getaffinity(0))

    def get_ready_trial(self) -> Trial | None:
        """Return a known trial that is PENDING, None if there is none."""
        return next((trial for trial in self._known.values() if trial.status == Trial.PENDING), None)

    def set_status(self, trial: Trial, status: str) -> None:
        """Set the trial's status."""
        self._known[trial.trial_id] = trial
        trial.set_status(status)

    def get_checkpoints(self) -> dict[str, str]:
        """Return the paths of the trials' newest checkpoints, by trial id."""
        return {name: trial.checkpoint.path for name, trial in self._known.items() if trial.checkpoint is not None}

    def on_step_begin(self) -> None:
        """Do nothing: there are no resources to look at again."""

    on_step_end = on_step_begin

    def debug_string(self) -> str:
        """Return a line for people."""
        return f"{len(self._objects)} trials in this process, {len(self._due)} of them due"

    def cleanup(self) -> None:
        """End all Trainables."""
        for trial in list(self._known.values()):
            if trial.trial_id in self._objects:
                self.stop_trial(trial)
        for kept in self._kept:
            kept.stop()
        self._kept.clear()

    def _object(self, trial: Trial) -> Any:
        made = self._objects.get(trial.trial_id)
        if made is None:
            raise _NotStartedError(f"the trial {trial.trial_id} has not been started in this executor (start_trial)")
        return made

    def _discard(self, trial: Trial, *, reuse: bool = True) -> None:
        if trial in self._due:
            self._due.remove(trial)
        made = self._objects.pop(trial.trial_id, None)
        if made is None:
            return
        if self._reuses and reuse:
            self._kept.append(made)
        else:
            made.stop()


class _NotStartedError(TrialpodError, RuntimeError):
    """A trial is not in the executor."""
