"""An experiment from a command line: ``python train.py --lr {lr:loguniform:1e-4:1e-1}``. Pure.

A placeholder with a distribution adds a parameter to the search space: its arguments follow, with colons between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.command.command import command_name
from trialpod_operator.api.models import API_VERSION, KIND
from trialpod_operator.api.search_space import NAMES

DEFAULT_SAMPLES = 10

_INLINE = re.compile(r"(?<!\{)\{(?P<name>[^{}:=]+):(?P<distribution>[^{}:]*)(?P<arguments>(?::[^{}:]*)*)\}")
_LISTS = ("choice", "grid_search")


def document_of(
    words: Sequence[str], *, metric: str | None = None, mode: str | None = None, samples: int | None = None
) -> dict[str, Any]:
    """Return the manifest of a command line.

    Args:
        words: the program and its arguments.
        metric: the objective.
        mode: "min" or "max".
        samples: how many trials; default: 10, or the whole grid once.

    Raises:
        InvalidInputError: a placeholder cannot be read.
    """
    space: dict[str, Any] = {}
    command = [_INLINE.sub(lambda match: _parameter(match, space), word) for word in words]
    if samples is None:
        samples = 1 if all("grid_search" in each for each in space.values()) else DEFAULT_SAMPLES
    name = re.sub(r"[^a-z0-9]+", "-", command_name(words).lower()).strip("-")[:40].strip("-") or "command"
    spec: dict[str, Any] = {"trainable": {"command": command}, "searchSpace": space, "numSamples": samples}
    if metric is not None:
        spec |= {"metric": metric, "mode": mode or "min"}
    elif mode is not None:
        spec["mode"] = mode
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def _parameter(match: re.Match[str], space: dict[str, Any]) -> str:
    name, distribution = match["name"], match["distribution"]
    if distribution not in NAMES or distribution == "literal":
        guess = nearest(distribution, NAMES)
        hint = f"; did you mean {guess!r}?" if guess else f"; there are {', '.join(NAMES[:-1])}"
        raise InvalidInputError(f"{match[0]}: {distribution!r} is not a distribution{hint}")
    arguments = [_value(text) for text in match["arguments"].split(":")[1:]]
    found = {distribution: arguments}
    if space.setdefault(name, found) != found:
        raise InvalidInputError(
            f"{match[0]}: {name} has another distribution before; write {{{name}}} the second time"
        )
    if not arguments:
        usage = "a:b:c" if distribution in _LISTS else "1e-4:1e-1"
        raise InvalidInputError(f"{match[0]} has no arguments; write {{{name}:{distribution}:{usage}}}")
    return f"{{{name}}}"


def _value(text: str) -> Any:
    """Return an argument: a JSON scalar, or the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, (dict, list)) else value
