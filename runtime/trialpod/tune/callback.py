"""`Callback`: what a user's code may do while an experiment runs, with Ray Tune's hooks.

Callbacks run in the process of the script, one after another in the order of ``RunConfig(callbacks=[...])``, after
what they receive is safe in the experiment's journal. The experiment waits for them, so what takes long belongs
into a thread. An exception in a callback ends the experiment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trialpod.tune.checkpoints.checkpoint import Checkpoint
    from trialpod.tune.trial import Trial


class Callback:
    """Base class: override the hooks you need. New arguments come as keywords, so keep ``**info``.

    `iteration` counts the steps of the experiment (every event is one), `trials` are all trials so far, in the order
    in which they were made; do not change that list.
    """

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Called once, before anything starts.

        Args:
            stop: ``RunConfig(stop=...)``; ``{}`` without one.
            num_samples: ``TuneConfig(num_samples=...)``.
            total_num_samples: how many trials there will be; None when that is open.
            info: ``time_budget_s``, seconds or None, and more in later versions. A `setup` without ``**info`` gets
                the arguments that it names.
        """

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called before each event is handled."""

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called after each event was handled, and the other hooks were called for it."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when a process begins with the trial: for the first time, and again after a pause or a failure."""

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called after `on_trial_start` when the trial resumes from a checkpoint."""

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called after the trial committed a checkpoint, which is ``trial.checkpoint``, and after `on_checkpoint`.

        It is not called for a checkpoint that is already removed, as there are newer or better ones to keep.
        """

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Called for each result.

        Args:
            iteration: the experiment's step.
            trials: all trials so far.
            trial: the one that reported.
            result: by flattened names ("loss/train"; ``result["loss"]["train"]`` works too), with the config under
                "config". A copy that may be changed.
            info: more, in later versions.
        """

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when the trial has ended without failing, by itself or stopped."""

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when the trial failed or lost its machine, and will be retried."""

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when the trial failed for good."""

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Checkpoint, **info: Any
    ) -> None:
        """Called after the trial committed a checkpoint."""

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Called once at the end, also when the experiment was interrupted or ended by an error."""

    def get_state(self) -> dict[str, Any] | None:
        """Return what `set_state` is to be given when the experiment continues later; None = nothing."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned in an earlier run of the experiment; called after `setup`."""
