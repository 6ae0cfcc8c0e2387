"""Runs a class Trainable: restore, step after step, checkpoints when the rules, the result or a pause ask for one.

Invariants:

* A step that has finished is reported. After SIGTERM the last step is checkpointed and reported, and the
  attempt ends.
* The state is saved before the result that it belongs to is sent; the checkpoint is committed after that, while the
  next step runs. When the answer pauses or preempts the trial, the state is saved after it.
* When the trial is to follow another one, nothing is saved: the state is of no use any more.
"""

from __future__ import annotations

import logging
from typing import Any

from trialpod.compat.activation import under_ray
from trialpod.errors import TrainableError
from trialpod.legacy.run_options import export_formats, restore_path
from trialpod.protocol.messages import CheckpointInfo
from trialpod.runner.attempt import Attempt
from trialpod.tune import session as sessions
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.report_values import flatten
from trialpod.tune.session import Outcome, Session
from trialpod.tune.trainable.trainable import Trainable, TrainingResult

log = logging.getLogger(__name__)

_STATIC = ("trial_id", "pid", "hostname", "node_ip", "config")


class ClassRunner:
    """Runs one attempt of a class Trainable.

    Args:
        attempt: the attempt.
        config: the trial's parameters.
        kept: an object of the same class left by an earlier trial of this process.
    """

    def __init__(self, attempt: Attempt, config: dict[str, Any], kept: Trainable | None = None) -> None:
        self.trainable: Trainable | None = kept
        self._attempt = attempt
        self._config = config
        self._as_ray = under_ray()
        self._session = Session(attempt.info, attempt, reports=False)
        self._warned = False

    @property
    def is_reusable(self) -> bool:
        """Whether the object can continue with another config."""
        trainable = self.trainable
        return trainable is not None and type(trainable).reset_config is not Trainable.reset_config

    def run(self, cls: type[Trainable]) -> Outcome:
        """Run the trial to its end and return how it is over for this process."""
        sessions.install(self._session)
        try:
            trainable = self._ready(cls)
            found = self._attempt.restore()
            if found is not None:
                info, path = found
                trainable.restore(TrainingResult(Checkpoint(path), info.metrics))
            elif (given := restore_path(cls)) is not None:
                trainable.restore(Checkpoint(given))
            is_trained = found is not None and self._attempt.is_trained(found[0])
            outcome: Outcome = "completed" if is_trained else self._loop(trainable)
            if outcome in ("completed", "stopped") and (formats := export_formats(cls)):
                self._attempt.exporting = True
                trainable.export_model(formats)
                self._attempt.exporting = False
            return outcome
        finally:
            sessions.install(None)

    def discard(self) -> None:
        """Stop the object; what its cleanup raises no longer changes how the trial ended."""
        trainable, self.trainable = self.trainable, None
        if trainable is None:
            return
        try:
            trainable.stop()
        except Exception:
            log.warning("cleanup() raised", exc_info=True)

    def _ready(self, cls: type[Trainable]) -> Trainable:
        if self.trainable is not None:
            if type(self.trainable) is cls and self.trainable.reset(self._config):
                return self.trainable
            self.discard()
        self.trainable = cls(self._config)
        if not hasattr(self.trainable, "_iteration"):
            raise TrainableError(
                f"{cls.__name__}.__init__() does not call super().__init__(config): call it, or write setup(config) "
                "instead"
            )
        return self.trainable

    def _loop(self, trainable: Trainable) -> Outcome:
        attempt, rules = self._attempt, self._attempt.assignment.checkpoint_rules
        if self._preempted():
            # Before the first step there is nothing new to save.
            return "preempted"
        attempt.judge_alone()
        while True:
            complete = trainable.train()
            if self._session.forked:
                raise TrainableError(
                    "a process forked in step() returned from step(); it has to end itself (os._exit)"
                )
            result = complete.copy()
            for key in _STATIC:
                result.pop(key, None)
            result = flatten(result, attempt.nested)
            result["checkpoint_dir_name"] = None
            done = bool(result["done"]) or attempt.judge(result)
            result["done"] = done
            info = None
            if result.get("should_checkpoint") or (
                rules.frequency > 0 and result["training_iteration"] % rules.frequency == 0
            ):
                info = self._save(trainable, result)
            elif rules.at_end if done else (self._preempted() or self._needs_horizon_checkpoint(result)):
                # Saved before it is sent: at a horizon, the answer may come too late.
                info = self._save_if_possible(trainable, result)
            if self._as_ray:  # where the results of a class do not name its checkpoints
                result.pop("checkpoint_dir_name", None)
            outcome = attempt.send(result, info, done)
            if outcome is None:
                if not self._preempted():
                    continue
                outcome = "preempted"
            if info is None and (
                outcome == "paused" or outcome == "preempted" or (outcome == "stopped" and rules.at_end)
            ):
                info = self._save_if_possible(trainable, result)
                if info is not None:
                    attempt.announce(info)
            return outcome

    def _needs_horizon_checkpoint(self, result: dict[str, Any]) -> bool:
        """Whether others may resume from what the trial is now."""
        return self._attempt.assignment.saves_at_horizon and self._attempt.at_horizon(result)

    def _preempted(self) -> bool:
        """Whether to save and end; a rank above 0 continues, as rank 0 may need it for the step before it saves."""
        return self._attempt.preempted and not self._attempt.assignment.rank

    def _save(self, trainable: Trainable, result: dict[str, Any]) -> CheckpointInfo:
        folder = self._attempt.begin_checkpoint()
        trainable.save(str(folder))
        return self._attempt.snapshot(None, result)

    def _save_if_possible(self, trainable: Trainable, result: dict[str, Any]) -> CheckpointInfo | None:
        if type(trainable).save_checkpoint is Trainable.save_checkpoint:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s does not define save_checkpoint(): its state is not kept, and another attempt would start "
                    "from the beginning",
                    type(trainable).__name__,
                )
            return None
        return self._save(trainable, result)
