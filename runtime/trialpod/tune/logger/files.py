"""The loggers that Ray Tune writes files with: here the experiment writes these files in any case.

``progress.csv``, ``result.json``, ``params.json`` and the TensorBoard events of each trial follow from the
experiment's journal, so they are complete also after a crash. These classes are there so that scripts that name them
go on to work; each refuses to start when its file would not be written.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.logger.logger_callback import LoggerCallback


class CSVLoggerCallback(LoggerCallback):
    """``progress.csv`` of each trial, which is written in any case."""


class JsonLoggerCallback(LoggerCallback):
    """``result.json`` and ``params.json`` of each trial, which are written in any case."""


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
