"""Placeholders in the texts of an object: ``${trialParameters.lr}``, as in Katib's templates. Pure.

``${trialParameters.dropout=0.1}`` has a default for trials without the parameter; ``${trialParameters.workers:json}``
as a whole text becomes the value itself, a number say, and so does the default of
``${trialParameters.workers=2:json}``; ``${trialSpec.Name}`` and ``${trialSpec.Namespace}`` are the object's own.
All else stays as it is: ``$(VAR)`` of Kubernetes, ``{{inputs.parameters.x}}`` of Argo, a shell's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError
from trialpod_operator.api.paths import Path

_TOKEN = re.compile(r"\$\{(trialParameters|trialSpec)\.([^}=:]+)(?:=([^}]*?))?(:json)?\}")
OWN = ("Name", "Namespace")


def names_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, str, bool]]:
    """Yield every parameter that an object's texts ask for: where, its name, and whether it has a default.

    Raises:
        InvalidInputError: a placeholder of the object's own is unknown, or a default is not the JSON that it is to
            be; `parameter` is its path, as texts.
    """
    for at, text in _texts(value, path):
        for token in _TOKEN.finditer(text):
            if token[1] == "trialParameters":
                if token[3] is not None:
                    _default(token, at)
                yield at, token[2], token[3] is not None
            elif token[2] not in OWN:
                known = " and ".join(f"${{trialSpec.{each}}}" for each in OWN)
                raise InvalidInputError(
                    f"{token[0]} is not a placeholder; of the object's own there are {known}",
                    parameter=tuple(map(str, at)),
                )


def render(value: Any, params: Mapping[str, Any], own: Mapping[str, str]) -> Any:
    """Return an object with the values of one trial in its texts.

    Raises:
        InvalidInputError, TrainableError: the trial has no such parameter, or its value has no form as text.
    """
    if isinstance(value, Mapping):
        return {key: render(each, params, own) for key, each in value.items()}
    if isinstance(value, list):
        return [render(each, params, own) for each in value]
    if not isinstance(value, str) or "${trial" not in value:
        return value
    whole = _TOKEN.fullmatch(value)
    if whole is not None and whole[4]:
        return _value(whole, params, own)
    return _TOKEN.sub(lambda token: _shown(token, params, own), value)


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, (*path, str(key)))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _texts(each, (*path, index))
    elif isinstance(value, str) and "${trial" in value:
        yield path, value


def _value(token: re.Match[str], params: Mapping[str, Any], own: Mapping[str, str]) -> Any:
    from trialpod.tune.command.template import leaves, lookup, plain

    if token[1] == "trialSpec":
        return own[token[2]]
    value, found = lookup(params, token[2])
    if found:
        return plain(value, token[2])
    if token[3] is not None:
        return _default(token)
    known = ", ".join(name for name, _ in leaves(params)) or "none"
    raise InvalidInputError(
        f"the trial has no parameter {token[2]!r}; it has {known}; write ${{trialParameters.{token[2]}=default}} for "
        "one that some trials do not have"
    )


def _default(token: re.Match[str], path: Path = ()) -> Any:
    if not token[4]:
        return token[3]
    try:
        return msgspec.json.decode(token[3])
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise InvalidInputError(
            f"{token[0]} has a default that is not JSON, such as 2 or true; a text is in quotes, or without :json",
            parameter=tuple(map(str, path)),
        ) from None


def _shown(token: re.Match[str], params: Mapping[str, Any], own: Mapping[str, str]) -> str:
    from trialpod.tune.command.template import render_value

    return render_value(_value(token, params, own), token[2])
