"""Parameters of schedulers that name a file: read on the user's machine, refused where a manifest is for a cluster.

A scheduler says by `FILE_PARAMETERS` which they are, and which parameter takes the lines of the file in their place.
A scheduler within another one's parameters, as ``{"name": ..., "parameters": {...}}``, is looked at too.

Invariants: no message shows anything of a file; no more of a file is read than `MAX_BYTES`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.catalogue import SCHEDULERS

MAX_BYTES = 16 * 1024 * 1024


def file_parameters(name: str, parameters: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where a scheduler's parameters name files, each with the parameter that takes the lines in its place."""
    for key, replacement in _declared(name).items():
        if parameters.get(key) is not None:
            yield (key,), replacement
    for key, inner in _inner(parameters):
        for path, replacement in file_parameters(inner["name"], inner["parameters"]):
            yield (key, "parameters", *path), replacement


def with_lines(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scheduler's parameters with the lines of files in place of their names.

    Raises:
        InvalidInputError: a file cannot be read.
    """
    found = dict(parameters)
    for key, replacement in _declared(name).items():
        if found.get(key) is not None:
            found[replacement] = read_lines(str(found.pop(key)), key)
    for key, inner in _inner(parameters):
        found[key] = {**inner, "parameters": with_lines(inner["name"], inner["parameters"])}
    return found


def scheduler_with_lines(scheduler: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scheduler of a manifest, ``{"name": ..., "parameters": {...}}``, with `with_lines` of its parameters.

    Raises:
        InvalidInputError: a file cannot be read.
    """
    parameters = scheduler.get("parameters")
    return {**scheduler, "parameters": with_lines(scheduler["name"], parameters)} if parameters else dict(scheduler)


def read_lines(path: str, parameter: str) -> list[str]:
    """Return the lines of the file that a parameter names.

    Raises:
        InvalidInputError: it cannot be read, is too large, or is not text.
    """
    try:
        with open(os.path.expanduser(path), "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInputError(f"{parameter} {path} cannot be read: {reason}", parameter=parameter) from None
    if len(data) > MAX_BYTES:
        raise InvalidInputError(f"{parameter} {path} is larger than {MAX_BYTES} bytes", parameter=parameter)
    try:
        return data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{parameter} {path}: line {line} is not UTF-8", parameter=parameter) from None


def _declared(name: str) -> Mapping[str, str]:
    try:
        declared: Mapping[str, str] = getattr(SCHEDULERS.find(name), "FILE_PARAMETERS", {})
    except Exception:  # noqa: BLE001 - none of that name, or a plug-in that cannot be imported: making it says so
        return {}
    return declared


def _inner(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in parameters.items():
        if (
            isinstance(value, Mapping)
            and isinstance(value.get("name"), str)
            and isinstance(value.get("parameters"), Mapping)
        ):
            yield key, value
