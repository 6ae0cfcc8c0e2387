"""The `reporter` of functions written as ``train(config, reporter)``: the oldest way to report.

Invariant: where `tune.report` unwinds the function because the trial is over, the reporter raises `StopIteration`.
"""

from __future__ import annotations

from typing import Any

from trialpod.tune import session
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
    def logdir(self) -> str | None:
        """The trial's directory, None outside a trial."""
        return self._logdir or session.get_trial_dir()
