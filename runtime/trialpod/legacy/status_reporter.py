"""The `reporter` of functions written as ``train(config, reporter)``: the oldest way to report.

Invariant: where `tune.report` unwinds the function because the trial is over, the reporter raises `StopIteration`.
"""

from __future__ import annotations

import os
from typing import Any

from trialpod.legacy.checkpoint_dir import save_checkpoint
from trialpod.tune import session
from trialpod.tune.placement_groups import TrialResources
from trialpod.tune.session import TrialStopped


class StatusReporter:
    """Reports results when it is called: ``reporter(mean_accuracy=0.9, done=True)``.

    Args:
        result_queue: accepted for compatibility, unused.
        continue_semaphore: accepted for compatibility, unused.
        trial_name: the trial's name; None takes that of the running trial.
        trial_id: the trial's id; None takes that of the running trial.
        logdir: the trial's directory; None takes that of the running trial.
    """

    def __init__(
        self,
        result_queue: Any = None,
        continue_semaphore: Any = None,
        trial_name: str | None = None,
        trial_id: str | None = None,
        logdir: str | None = None,
    ) -> None:
        self._trial_name = trial_name
        self._trial_id = trial_id
        self._logdir = logdir

    def __call__(self, metric: Any = None, /, **metrics: Any) -> None:
        """Report one result, with ``done=True`` when it is the last one.

        Raises:
            StopIteration: the trial is over.
            InvalidInputError: the metrics cannot be reported.
        """
        try:
            session.report(metric, **metrics)
        except TrialStopped as stopped:
            raise StopIteration(f"the trial is over ({stopped.cause})") from stopped

    @property
    def trial_name(self) -> str | None:
        """The trial's name, None outside a trial."""
        return self._trial_name or session.get_trial_name()

    @property
    def trial_id(self) -> str | None:
        """The trial's id, None outside a trial."""
        return self._trial_id or session.get_trial_id()

    @property
    def trial_resources(self) -> TrialResources | None:
        """What the trial was granted, None outside a trial."""
        return session.get_trial_resources()

    def has_new_checkpoint(self) -> bool:
        """Return whether `set_checkpoint` has been called since the last report."""
        return session.offered_folder() is not None

    def get_checkpoint(self) -> str | None:
        """Return the folder that `set_checkpoint` was given for the next report, None if there is none."""
        return session.offered_folder()

    def set_checkpoint(self, checkpoint: str | os.PathLike[str], is_new: bool = True) -> None:
        """Take a folder as the checkpoint of the next report.

        Args:
            checkpoint: the folder; it is copied by the next report, and stays.
            is_new: accepted for compatibility, unused.

        Raises:
            CheckpointError: there is no such folder.
        """
        save_checkpoint(os.fspath(checkpoint))

    def get_latest_result(self) -> dict[str, Any]:
        """Return the latest result that was reported, empty before the first."""
        return session.latest_result()

    @property
    def logdir(self) -> str | None:
        """The trial's directory, None outside a trial."""
        return self._logdir or session.get_trial_dir()
