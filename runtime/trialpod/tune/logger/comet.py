"""Comet: one experiment there for each trial.

Invariant: a trial has one Comet experiment in one run of ours; one that continues later gets the same by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trialpod.tune.logger.library import DESCRIPTIVE, numbers, require, step_of
from trialpod.tune.logger.logger_callback import LoggerCallback
from trialpod.tune.results import flattened

if TYPE_CHECKING:
    from trialpod.tune.trial import Trial

_OTHERS = ("trial_id", "experiment_tag", "node_ip", "hostname", "pid", "date")


class CometLoggerCallback(LoggerCallback):
    """Logs each trial as an experiment in Comet.

    Args:
        online: False keeps it in files, which can be uploaded later.
        tags: for every experiment.
        save_checkpoints: upload each checkpoint.
        experiment_kwargs: for ``comet_ml.Experiment`` or ``comet_ml.OfflineExperiment``. An ``api_key`` is not stored
            with the experiment: one that is restored takes Comet's own settings, such as COMET_API_KEY.

    Raises:
        InvalidInputError: comet_ml is not installed.
    """

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        **experiment_kwargs: Any,
    ) -> None:
        require("comet_ml", "comet-ml", "CometLoggerCallback")
        self.online = online
        self.tags = list(tags or ())
        self.save_checkpoints = save_checkpoints
        self.experiment_kwargs = experiment_kwargs
        self._experiments: dict[str, Any] = {}
        self._keys: dict[str, str] = {}  # of those of an earlier run

    def __getstate__(self) -> dict[str, Any]:
        options = {name: value for name, value in self.experiment_kwargs.items() if name != "api_key"}
        return {**self.__dict__, "_experiments": {}, "experiment_kwargs": options}

    def setup(self, *args: Any, **info: Any) -> None:
        """Start without the Comet experiments of another run of ours: trials there may have the same ids."""
        self._keys = {}

    def log_trial_start(self, trial: Trial) -> None:
        """Begin an experiment, unless the trial has one."""
        if trial.trial_id in self._experiments:
            return
        comet = require("comet_ml", "comet-ml", "CometLoggerCallback")
        options = {"disabled": False, **self.experiment_kwargs}
        key = self._keys.get(trial.trial_id)
        if key is not None and self.online:
            experiment = comet.ExistingExperiment(previous_experiment=key, **options)
        else:
            experiment = (comet.Experiment if self.online else comet.OfflineExperiment)(**options)
        experiment.set_name(str(trial))
        experiment.add_tags(self.tags)
        experiment.log_other("Created from", "trialpod")
        experiment.log_parameters(flattened(trial.config))
        self._experiments[trial.trial_id] = experiment
        self._keys[trial.trial_id] = str(experiment.get_key())

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Log the numbers of a result, and what else is new."""
        experiment = self._experiments[trial.trial_id]
        step = step_of(result)
        experiment.log_others({name: result[name] for name in _OTHERS if name in result})
        experiment.log_metrics(numbers(result), step=step)
        texts = {name: text for name, text in result.items() if isinstance(text, str) and name not in DESCRIPTIVE}
        if texts:
            experiment.log_others(texts)

    def log_trial_save(self, trial: Trial) -> None:
        """Upload the newest checkpoint, if that was asked for."""
        if not self.save_checkpoints or trial.checkpoint is None:
            return
        with trial.checkpoint.as_directory() as folder:
            self._experiments[trial.trial_id].log_asset_folder(
                str(folder), log_file_name=True, step=step_of(trial.last_result)
            )

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """End the experiment."""
        experiment = self._experiments.pop(trial.trial_id, None)
        if experiment is not None:
            experiment.end()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """End the experiments of trials that did not end."""
        for experiment in self._experiments.values():
            experiment.end()
        self._experiments.clear()

    def get_state(self) -> dict[str, Any]:
        """Return which Comet experiment belongs to which trial."""
        return {"keys": dict(self._keys)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with the Comet experiments of an earlier time."""
        self._keys = dict(state["keys"])
