"""Ray Tune's older loggers: an object for each trial, that is given its results.

A Trainable that is made by hand takes one as its `logger_creator`; `LegacyLoggerCallback` makes one for each trial of
an experiment. In an experiment the files of `JsonLogger`, `CSVLogger` and `TBXLogger` are written in any case.
"""

from __future__ import annotations

import csv
import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.values import number
from trialpod.storage.layout import PARAMS_FILE, PROGRESS_FILE, RESULT_FILE
from trialpod.tune.logger.logger_callback import LoggerCallback
from trialpod.tune.results import flattened

if TYPE_CHECKING:
    from trialpod.tune.trial import Trial


PICKLED_PARAMS_FILE = "params.pkl"


class Logger:
    """Base class: override `on_result`, and `_init` and `close` where something has to be opened.

    Args:
        config: the trial's.
        logdir: an existing directory for its files.
        trial: the trial, where it is known.
    """

    def __init__(self, config: dict[str, Any], logdir: str, trial: Trial | None = None) -> None:
        self.config = config
        self.logdir = logdir
        self.trial = trial
        self._init()

    def _init(self) -> None:
        """Prepare."""

    def on_result(self, result: dict[str, Any]) -> None:
        """See one result."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_result()")

    def update_config(self, config: dict[str, Any]) -> None:
        """Take over another config."""

    def flush(self) -> None:
        """Write what is buffered."""

    def close(self) -> None:
        """Close the files."""


class NoopLogger(Logger):
    """Writes nothing."""

    def on_result(self, result: dict[str, Any]) -> None:
        """Do nothing."""


class JsonLogger(Logger):
    """Writes ``params.json``, ``params.pkl`` and ``result.json``: one result a line."""

    def _init(self) -> None:
        self.update_config(self.config)
        self._stream: IO[str] = open(os.path.join(self.logdir, RESULT_FILE), "a", encoding="utf-8")  # noqa: SIM115

    def on_result(self, result: dict[str, Any]) -> None:
        """Write a result."""
        self._stream.write(json.dumps(result, default=_plain) + "\n")
        self._stream.flush()

    def update_config(self, config: dict[str, Any]) -> None:
        """Write the config again."""
        self.config = config
        with open(os.path.join(self.logdir, PARAMS_FILE), "w", encoding="utf-8") as stream:
            json.dump(config, stream, indent=2, sort_keys=True, default=_plain)
        import cloudpickle

        with open(os.path.join(self.logdir, PICKLED_PARAMS_FILE), "wb") as pickled:
            cloudpickle.dump(config, pickled)

    def flush(self) -> None:
        """Write what is buffered."""
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class CSVLogger(Logger):
    """Writes ``progress.csv``, whose columns are those of the first result, or of the file that is there."""

    def _init(self) -> None:
        self._writer: Any = None
        path = os.path.join(self.logdir, PROGRESS_FILE)
        self._stream: IO[str] = open(path, "a+", encoding="utf-8", newline="")  # noqa: SIM115
        self._stream.seek(0)
        columns = next(csv.reader(self._stream), None)
        self._stream.seek(0, os.SEEK_END)
        if columns:
            self._writer = csv.DictWriter(self._stream, columns, extrasaction="ignore")

    def on_result(self, result: dict[str, Any]) -> None:
        """Write a row."""
        row = flattened(result)
        if self._writer is None:
            self._writer = csv.DictWriter(self._stream, list(row), extrasaction="ignore")
            self._writer.writeheader()
        self._writer.writerow(row)
        self._stream.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class TBXLogger(Logger):
    """Writes the numbers of each result as TensorBoard's scalars.

    Raises:
        InvalidInputError: the package google-crc32c is not installed.
    """

    def _init(self) -> None:
        from trialpod.storage.tensorboard import EventEncoder, crc32c, file_name

        checksum = crc32c()
        if checksum is None:
            raise InvalidInputError(
                "TensorBoard's event files need the package google-crc32c, which is not installed; install it with: "
                "pip install google-crc32c"
            )
        self._encoder = EventEncoder(checksum)
        now = time.time()
        path = os.path.join(self.logdir, file_name(now, socket.gethostname()))
        self._stream: IO[bytes] = open(path, "wb")  # noqa: SIM115
        self._stream.write(self._encoder.header(now))

    def on_result(self, result: dict[str, Any]) -> None:
        """Write the numbers."""
        plain = {name: number(value) for name, value in flattened(result).items()}
        self._stream.write(self._encoder.encode(plain))
        self._stream.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


DEFAULT_LOGGERS: tuple[type[Logger], ...] = (JsonLogger, CSVLogger, TBXLogger)


class UnifiedLogger(Logger):
    """Several loggers as one.

    Args:
        config: the trial's.
        logdir: an existing directory for its files.
        trial: the trial, where it is known.
        loggers: classes of loggers; None takes those for JSON and CSV, and for TensorBoard where it can be written.
    """

    def __init__(
        self,
        config: dict[str, Any],
        logdir: str,
        trial: Trial | None = None,
        loggers: Iterable[type[Logger]] | None = None,
    ) -> None:
        self._classes = None if loggers is None else list(loggers)
        super().__init__(config, logdir, trial)

    def _init(self) -> None:
        from trialpod.storage.tensorboard import crc32c

        classes = self._classes
        if classes is None:
            classes = [each for each in DEFAULT_LOGGERS if each is not TBXLogger or crc32c() is not None]
        self._loggers = [each(self.config, self.logdir, self.trial) for each in classes]

    def on_result(self, result: dict[str, Any]) -> None:
        """Give it to each."""
        for logger in self._loggers:
            logger.on_result(result)

    def update_config(self, config: dict[str, Any]) -> None:
        """Give it to each."""
        for logger in self._loggers:
            logger.update_config(config)

    def flush(self) -> None:
        """Have each write what is buffered."""
        for logger in self._loggers:
            logger.flush()

    def close(self) -> None:
        """Close each."""
        for logger in self._loggers:
            logger.close()


class LegacyLoggerCallback(LoggerCallback):
    """Makes an older logger for each trial of an experiment, in the trial's directory.

    Args:
        logger_classes: classes of loggers. Those for JSON, CSV and TensorBoard are passed over: the experiment writes
            their files.

    Raises:
        InvalidInputError: one of them is not a class of a logger.
    """

    def __init__(self, logger_classes: Iterable[type[Logger]]) -> None:
        classes = list(logger_classes)
        for each in classes:
            if not isinstance(each, type):
                raise InvalidInputError(
                    f"LegacyLoggerCallback(logger_classes=[{each!r}]): pass classes of tune Loggers"
                )
        self.logger_classes = [each for each in classes if each not in DEFAULT_LOGGERS]
        self._loggers: dict[str, list[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loggers": {}}

    def log_trial_start(self, trial: Trial) -> None:
        """Make the trial's loggers, or tell them the config that it continues with."""
        made = self._loggers.get(trial.trial_id)
        if made is not None:
            for logger in made:
                logger.update_config(trial.config)
            return
        os.makedirs(trial.path, exist_ok=True)
        self._loggers[trial.trial_id] = [each(trial.config, trial.path, trial) for each in self.logger_classes]

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Give them the result."""
        for logger in self._loggers.get(trial.trial_id, ()):
            logger.on_result(result)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Close them."""
        for logger in self._loggers.pop(trial.trial_id, ()):
            logger.close()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Close those of trials that did not end."""
        for made in self._loggers.values():
            for logger in made:
                logger.close()
        self._loggers.clear()


def _plain(value: Any) -> Any:
    """Return what JSON can hold in the place of something else: a NumPy number's value, else its text."""
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", 1) == 1:
        return item()
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)
