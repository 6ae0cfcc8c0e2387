"""What the callbacks for experiment trackers share: finding their library, and what of a result they can take."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.values import real_number

DESCRIPTIVE = frozenset({"trial_id", "experiment_tag", "pid", "hostname", "node_ip", "config", "date"})
"""Parts of a result that describe the trial."""


class MissingLibraryError(InvalidInputError, ModuleNotFoundError):
    """Something was asked for that needs a library which is not installed."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


def require(module: str, package: str, who: str) -> types.ModuleType:
    """Return a library."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingLibraryError(
            f"{who} needs the package {error.name!r}, which is not installed; install it with: pip install {package}",
            name=error.name,
        ) from error


class Nothing:
    """Stands for a tracker's module where nothing is logged: whatever is taken or called is it again."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):  # what Python asks objects for
            raise AttributeError(name)
        return self

    def __call__(self, *_args: object, **_kwargs: object) -> Nothing:  # noqa: D102
        return self

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


def is_worker() -> bool:
    """Return whether this process is one of a trial's pods beside its first."""
    from trialpod.tune.session import get_context

    return get_context().get_world_rank() > 0


def numbers(result: Mapping[str, Any], without: Iterable[str] = ()) -> dict[str, float]:
    """Return the numbers of a result; `without` names metrics, or groups of them, to leave out."""
    left_out = tuple(without)
    return {
        name: number
        for name, value in result.items()
        if (number := real_number(value)) is not None
        and name not in DESCRIPTIVE
        and not any(name == other or name.startswith(f"{other}/") for other in left_out)
    }


def step_of(result: Mapping[str, Any]) -> int:
    """Return how far the trial is: ``timesteps_total`` if it counts them, else ``training_iteration``."""
    for step in map(real_number, (result.get("timesteps_total"), result.get("training_iteration"))):
        if step and math.isfinite(step):
            return int(step)
    return 0


def read_key(who: str, api_key: str | None, api_key_file: str | os.PathLike[str] | None) -> str | None:
    """Return the key that was given, directly or in a file."""
    if api_key is not None and api_key_file is not None:
        raise InvalidInputError(f"{who}(api_key=..., api_key_file=...): give one of them")
    if api_key_file is None:
        return api_key
    try:
        with open(os.path.expanduser(api_key_file), encoding="utf-8") as stream:
            return stream.readline().strip()
    except OSError as error:
        raise InvalidInputError(f"{who}(api_key_file={os.fspath(api_key_file)!r}): {error.strerror}") from error
