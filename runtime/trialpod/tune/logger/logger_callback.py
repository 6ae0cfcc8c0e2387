"""`LoggerCallback`: a callback that follows trials from their start over their results to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.tune.callback import Callback

if TYPE_CHECKING:
    from trialpod.tune.trial import Trial


class LoggerCallback(Callback):
    """Base class of loggers: override the ``log_...`` methods you need."""

    def log_trial_start(self, trial: Trial) -> None:
        """Called when a process begins with a trial; again after a pause or a failure."""

    def log_trial_restore(self, trial: Trial) -> None:
        """Called when a trial resumes from a checkpoint."""

    def log_trial_save(self, trial: Trial) -> None:
        """Called when a trial has committed a checkpoint."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Called for each result of a trial.

        Args:
            iteration: the experiment's step, not the trial's ``training_iteration``.
            trial: the trial.
            result: by flattened names, with the config under "config".
        """

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Called when a trial has ended."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: D102
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: D102
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: D102
        self.log_trial_save(trial)

    def on_trial_result(  # noqa: D102
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: D102
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: D102
        self.log_trial_end(trial, failed=True)
