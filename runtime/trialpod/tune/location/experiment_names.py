"""Which name and directory a new experiment of a `Tuner` gets.

Invariant: a directory that another experiment has is never taken.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from trialpod import variables
from trialpod.errors import InvalidInputError, MissingPathError, NotAFolderError
from trialpod.tune.location.locations import Location


@dataclass(slots=True)
class RunNames:
    """Numbers the experiments of a script to which the environment gives one name: "x", "x_2", "x_3", ..."""

    used: dict[str, int] = field(default_factory=dict)

    def next(self, name: str) -> str:
        """Return the name for the next experiment that is to be called `name`."""
        self.used[name] = self.used.get(name, 0) + 1
        return name if self.used[name] == 1 else f"{name}_{self.used[name]}"


def default_name(trainable: str, now: float) -> str:
    """Return the name of an experiment that was given none; `now` is in seconds since the epoch."""
    if os.environ.get("TUNE_DISABLE_DATED_SUBDIR") == "1":  # as Ray Tune reads it
        return trainable
    return f"{trainable}_{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(now))}"


_REFUSED: dict[type[OSError], type[InvalidInputError]] = {
    FileNotFoundError: MissingPathError,
    NotADirectoryError: NotAFolderError,
}


def claim(location: Location, *, exact: bool) -> Location:
    """Make the experiment's directory; a generated name gets a number when another experiment has it."""
    number = 1
    while True:
        ending = "" if number == 1 else f"_{number}"
        path = location.directory + ending
        try:
            os.makedirs(path, exist_ok=exact)
        except FileExistsError:
            if exact:
                raise InvalidInputError(
                    f"{path} cannot be an experiment's directory: there is a file of that name"
                ) from None
            number += 1
            continue
        except OSError as error:
            kind = next((each for cause, each in _REFUSED.items() if isinstance(error, cause)), InvalidInputError)
            remedy = variables.WORK_DIR if location.uri else "--storage, or RunConfig(storage_path=...)"
            raise kind(
                f"the experiment's directory {path} cannot be made: {error.strerror}; choose another {remedy}"
            ) from error
        return Location(path, location.uri and location.uri + ending)
