"""The loggers that Ray Tune writes files with: here the experiment writes these files in any case.

``progress.csv``, ``result.json``, ``params.json`` and the TensorBoard events of each trial follow from the
experiment's journal, so they are complete also after a crash. These classes are there so that scripts that name them
continue to work; each refuses to start when its file would not be written. Called by hand, with a trial of another
class than an experiment's, those for JSON and CSV write the files themselves.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod.tune.logger.logger_callback import LoggerCallback
from trialpod.tune.trial import Trial as TrialView

if TYPE_CHECKING:
    from trialpod.legacy.loggers import CSVLogger, JsonLogger
    from trialpod.tune.trial import Trial


class _FileLogger(LoggerCallback):
    """Writes a file of each trial when it is called by hand; in an experiment it writes nothing."""

    def __init__(self) -> None:
        self._in_experiment = False
        self._writers: dict[Any, JsonLogger | CSVLogger] = {}

    def _writer(self, trial: Trial) -> JsonLogger | CSVLogger:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writers": {}}

    def setup(self, *args: Any, **info: Any) -> None:
        """Leave the files to the experiment, which calls this."""
        self._in_experiment = True

    def log_trial_start(self, trial: Trial) -> None:
        """Open the file, and continue it if it exists."""
        if vars(self).get("_in_experiment", True) or type(trial) is TrialView:
            return
        self.log_trial_end(trial)
        os.makedirs(_folder(trial), exist_ok=True)
        self._writers[trial] = self._writer(trial)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write a result."""
        if vars(self).get("_in_experiment", True) or type(trial) is TrialView:
            return
        if trial not in self._writers:
            self.log_trial_start(trial)
        self._writers[trial].on_result(self._row(result))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Close the file."""
        writer = vars(self).get("_writers", {}).pop(trial, None)
        if writer is not None:
            writer.close()

    def _row(self, result: dict[str, Any]) -> dict[str, Any]:
        return result


class CSVLoggerCallback(_FileLogger):
    """``progress.csv`` of each trial, which an experiment writes in any case."""

    def _writer(self, trial: Trial) -> CSVLogger:
        from trialpod.legacy.loggers import CSVLogger

        return CSVLogger(trial.config, _folder(trial))

    def _row(self, result: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in result.items() if key != "config"}


class JsonLoggerCallback(_FileLogger):
    """``result.json`` and ``params.json`` of each trial, which an experiment writes in any case."""

    def _writer(self, trial: Trial) -> JsonLogger:
        from trialpod.legacy.loggers import JsonLogger

        return JsonLogger(trial.config, _folder(trial))

    def update_config(self, trial: Trial, config: dict[str, Any]) -> None:
        """Write the config of a trial to ``params.json``."""
        writer = self._writers.get(trial)
        if writer is not None:
            writer.update_config(config)


class TBXLoggerCallback(LoggerCallback):
    """The TensorBoard events of each trial, which are written in any case when google-crc32c is installed.

    Raises:
        InvalidInputError: at the start, when it is not.
    """

    def setup(self, *args: Any, **info: Any) -> None:  # noqa: D102
        if find_spec("google_crc32c") is None:
            raise InvalidInputError(
                "TensorBoard's event files need the package google-crc32c, which is not installed; install it with: "
                "pip install google-crc32c"
            )


def _folder(trial: Trial) -> str:
    """Return the directory of a trial of whichever class."""
    for name in ("local_path", "logdir", "path"):
        if folder := getattr(trial, name, None):
            return str(folder)
    raise InvalidInputError(f"the trial {trial!r} has no directory: neither local_path nor logdir nor path is set")
