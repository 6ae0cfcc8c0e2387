"""Weights & Biases: one run for each trial.

Invariant: a trial has one run, whose id is the trial's, also when it is retried or the experiment continues later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trialpod.tune.logger.library import Nothing, is_worker, numbers, read_key, require
from trialpod.tune.logger.logger_callback import LoggerCallback
from trialpod.tune.results import flattened

if TYPE_CHECKING:
    from trialpod.tune.trial import Trial

_TO_CONFIG = ("trial_id", "experiment_tag", "node_ip", "hostname", "pid", "date")


class WandbLoggerCallback(LoggerCallback):
    """Logs each trial as a run in Weights & Biases. Needs wandb 0.19.10 or later: several runs in one process.

    Args:
        project: the project; None takes the variable WANDB_PROJECT_NAME or wandb's own setting.
        group: the runs' group; None takes the variable WANDB_GROUP_NAME, or else the Trainable's name.
        api_key_file: a file with the API key.
        api_key: the API key. Neither: wandb's own login is used.
        excludes: metrics, or groups of them, that are not logged.
        log_config: update the run's config with each result, for schedulers that change it.
        upload_checkpoints: upload each checkpoint as an artifact.
        save_checkpoints: what older scripts call `upload_checkpoints`.
        upload_timeout: seconds; for scripts that give it, wandb waits by itself.
        kwargs: for ``wandb.init``.

    Raises:
        InvalidInputError: wandb is not installed, or the key cannot be read.
    """

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        excludes: Iterable[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: float = 1800,
        **kwargs: Any,
    ) -> None:
        require("wandb", "wandb", "WandbLoggerCallback")
        self.project = project or os.environ.get("WANDB_PROJECT_NAME")
        self.group = group or os.environ.get("WANDB_GROUP_NAME")
        self.excludes = ["done", "should_checkpoint", *(excludes or ())]
        self.log_config = log_config
        self.upload_checkpoints = upload_checkpoints or save_checkpoints
        self.upload_timeout = upload_timeout
        self.kwargs = kwargs
        self._api_key = read_key("WandbLoggerCallback", api_key, api_key_file)
        self._runs: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        # The key is no part of what is stored with the experiment.
        return {**self.__dict__, "_runs": {}, "_api_key": None}

    def setup(self, *args: Any, **info: Any) -> None:
        """Log in, if a key was given."""
        if self._api_key:
            require("wandb", "wandb", "WandbLoggerCallback").login(key=self._api_key)

    def log_trial_start(self, trial: Trial) -> None:
        """Begin a run, unless the trial has one that is open."""
        if trial.trial_id in self._runs:
            return
        wandb = require("wandb", "wandb", "WandbLoggerCallback")
        options: dict[str, Any] = {
            "id": trial.trial_id,
            "name": str(trial),
            "resume": "allow",
            "reinit": "create_new",
            "project": self.project,
            "group": self.group or trial.trainable_name,
            "config": dict(trial.config),
        }
        self._runs[trial.trial_id] = wandb.init(**{**options, **self.kwargs})

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Log the numbers of a result."""
        run = self._runs[trial.trial_id]
        facts = {name: result[name] for name in _TO_CONFIG if name in result}
        config = {**flattened(result.get("config") or {}), **facts} if self.log_config else facts
        run.config.update(config, allow_val_change=True)
        run.log(numbers(result, self.excludes))

    def log_trial_save(self, trial: Trial) -> None:
        """Upload the newest checkpoint, if that was asked for."""
        if not self.upload_checkpoints or trial.checkpoint is None:
            return
        wandb = require("wandb", "wandb", "WandbLoggerCallback")
        artifact = wandb.Artifact(name=f"checkpoint_{trial}", type="model")
        with trial.checkpoint.as_directory() as folder:
            artifact.add_dir(folder)
        self._runs[trial.trial_id].log_artifact(artifact)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """End the run."""
        run = self._runs.pop(trial.trial_id, None)
        if run is not None:
            run.finish(exit_code=1 if failed else 0)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """End the runs of trials that did not end; they continue when the experiment does."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | os.PathLike[str] | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Begin a run of Weights & Biases in a trial's own process, and return it.

    Args:
        config: the trial's config.
        api_key: the API key; it and the next one may be left out where wandb is logged in.
        api_key_file: a file with the API key, on the machine of the trial.
        rank_zero_only: of a trial of several pods only the first one logs; what the others get does nothing.
        kwargs: for ``wandb.init``; its id, name and group are the trial's unless given.

    Raises:
        InvalidInputError: wandb is not installed, or the key cannot be read.
    """
    wandb: Any = require("wandb", "wandb", "setup_wandb")
    if rank_zero_only and is_worker():
        return Nothing()
    if key := read_key("setup_wandb", api_key, api_key_file):
        wandb.login(key=key)
    from trialpod.tune.session import get_context

    context = get_context()
    options = {
        "id": context.get_trial_id(),
        "name": context.get_trial_name(),
        "group": context.get_experiment_name(),
        "resume": "allow",
        "config": dict(config or {}),
    }
    return wandb.init(**{**options, **kwargs})
