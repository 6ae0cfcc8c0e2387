"""Gives the file with a trial's output the names that ``RunConfig(log_to_file=...)`` asks for, as symbolic links."""

from __future__ import annotations

import os
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.storage.layout import LOG_FILE
from trialpod.tune.callback import Callback
from trialpod.tune.trial import Trial


class LogLinks(Callback):
    """Makes the links when a trial starts.

    Args:
        names: of the links; the same one twice is made once.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self._names = [name for name in dict.fromkeys(names) if name != LOG_FILE]

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Make the links of one trial.

        Raises:
            InvalidInputError: there is something else of that name.
        """
        for name in self._names:
            path = os.path.join(trial.path, name)
            if os.path.islink(path):
                continue
            try:
                os.symlink(LOG_FILE, path)
            except FileExistsError:
                raise InvalidInputError(
                    f"RunConfig(log_to_file=...): {path} is another file; choose another name"
                ) from None
