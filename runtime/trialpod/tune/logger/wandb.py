"""Weights & Biases: one run for each trial.

Invariant: a trial has one run, also when it is retried or the experiment continues later. The run's id begins with
the trial's, which another experiment with the same seed has too; the experiment and the time of the trial's creation
make the rest, so that no other trial has it.
"""

from __future__ import annotations

import hashlib
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
        self._ids: dict[str, str] = {}  # trial_id -> the id of its run

    def __getstate__(self) -> dict[str, Any]:
        # The key is not stored with the experiment.
        return {**self.__dict__, "_runs": {}, "_api_key": None}

    def setup(self, *args: Any, **info: Any) -> None:
        """Log in, if a key was given; an experiment starts without the runs of another one."""
        self._ids = {}
        if self._api_key:
            require("wandb", "wandb", "WandbLoggerCallback").login(key=self._api_key)

    def log_trial_start(self, trial: Trial) -> None:
        """Begin a run, unless the trial has one that is open."""
        if trial.trial_id in self._runs:
            return
        wandb = require("wandb", "wandb", "WandbLoggerCallback")
        if trial.trial_id not in self._ids:
            self._ids[trial.trial_id] = _run_id(trial.trial_id, trial.experiment_dir_name, trial.start_time)
        options: dict[str, Any] = {
            "id": self._ids[trial.trial_id],
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

    def get_state(self) -> dict[str, Any]:
        """Return which run belongs to which trial."""
        return {"ids": dict(self._ids)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with the runs of an earlier time."""
        self._ids = dict(state["ids"])


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
        kwargs: for ``wandb.init``; its name and group are the trial's unless given, and its id is the same in each
            attempt of the trial and in no other trial.

    Raises:
        InvalidInputError: wandb is not installed, or the key cannot be read.
    """
    wandb: Any = require("wandb", "wandb", "setup_wandb")
    if rank_zero_only and is_worker():
        return Nothing()
    if key := read_key("setup_wandb", api_key, api_key_file):
        wandb.login(key=key)
    from trialpod.tune.session import current, get_context

    context, session = get_context(), current()
    info = session.info if session is not None else None
    options = {
        "id": _run_id(info.trial_id, info.experiment, info.created_at) if info is not None else None,
        "name": context.get_trial_name(),
        "group": context.get_experiment_name(),
        "resume": "allow",
        "config": dict(config or {}),
    }
    return wandb.init(**{**options, **kwargs})


def _run_id(trial_id: str, experiment: str, created_at: float | None) -> str:
    return f"{trial_id}_{hashlib.sha256(f'{experiment} {created_at or 0.0!r}'.encode()).hexdigest()[:8]}"
