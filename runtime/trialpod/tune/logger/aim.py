"""Aim: one run there for each trial.

Invariant: a trial has one run, also when it is retried or the experiment continues later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trialpod.tune.logger.library import numbers, require, step_of
from trialpod.tune.logger.logger_callback import LoggerCallback
from trialpod.tune.results import flattened

if TYPE_CHECKING:
    from trialpod.tune.trial import Trial

_WHO = "AimLoggerCallback"


class AimLoggerCallback(LoggerCallback):
    """Logs each trial as a run in Aim.

    Args:
        repo: Aim's repository: a directory or a remote one; None takes the current directory.
        experiment_name: Aim's name for the runs' experiment; None takes its default.
        metrics: which metrics are logged; None is all numbers.
        aim_run_kwargs: for ``aim.Run``.

    Raises:
        InvalidInputError: aim is not installed.
    """

    def __init__(
        self,
        repo: Any = None,
        experiment_name: str | None = None,
        metrics: Sequence[str] | None = None,
        **aim_run_kwargs: Any,
    ) -> None:
        require("aim", "aim", _WHO)
        self.repo = repo
        self.experiment_name = experiment_name
        self.metrics = None if metrics is None else list(metrics)
        self.aim_run_kwargs = aim_run_kwargs
        self._runs: dict[str, Any] = {}
        self._hashes: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_runs": {}}

    def setup(self, *args: Any, **info: Any) -> None:
        """Start without the runs of another experiment: trials there may have the same ids."""
        self._hashes = {}

    def log_trial_start(self, trial: Trial) -> None:
        """Begin a run, or continue with the trial's."""
        if trial.trial_id in self._runs:
            return
        aim = require("aim", "aim", _WHO)
        run = aim.Run(
            run_hash=self._hashes.get(trial.trial_id),
            repo=self.repo,
            experiment=self.experiment_name,
            **self.aim_run_kwargs,
        )
        run["trial_id"] = trial.trial_id
        run["hparams"] = flattened(trial.config)
        run["trial_log_dir"] = trial.path
        self._runs[trial.trial_id] = run
        self._hashes[trial.trial_id] = str(run.hash)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Log the numbers of a result."""
        run = self._runs[trial.trial_id]
        for name, value in numbers(result).items():
            if self.metrics is None or name in self.metrics:
                run.track(value, name=name, step=step_of(result), epoch=result.get("training_iteration"))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """End the run."""
        run = self._runs.pop(trial.trial_id, None)
        if run is not None:
            run.close()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """End the runs of trials that did not end."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()

    def get_state(self) -> dict[str, Any]:
        """Return which run belongs to which trial."""
        return {"hashes": dict(self._hashes)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with the runs of an earlier time."""
        self._hashes = dict(state["hashes"])
