"""`--set PATH=VALUE`: changes to a manifest before it is checked.

The value is read as YAML on one line, by kubectl's rules: `10`, `1e-3`, `[1, 2]`, `{choice: [a, b]}`. `null` removes
a field; nothing after the `=` is the empty string. Mappings that are missing on the way are made; list items are not.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.api.document import Document
from trialpod_operator.api.paths import Path, format_path, parse_path
from trialpod_operator.api.yaml_reader import read_documents

_NULL = ("null", "Null", "NULL", "~")


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Return the document with all overrides applied, in their order.

    Args:
        document: left as it is.
        overrides: such as "spec.numSamples=10" or "spec.searchSpace.lr.loguniform[0]=1e-3".

    Raises:
        InvalidInputError: an override is not PATH=VALUE, or its path leads nowhere in the document.
    """
    if not overrides:
        return document
    value = copy.deepcopy(document.value)
    origins = dict(document.overridden)
    for override in overrides:
        path, new = parse_override(override)
        _set(value, path, new, override)
        origins = {known: text for known, text in origins.items() if known[: len(path)] != path}
        origins[path] = override
    return replace(document, value=value, overridden=origins)


def parse_override(override: str) -> tuple[Path, Any]:
    """Split an override into its path and its value.

    Raises:
        InvalidInputError: it is not PATH=VALUE.
    """
    path, rest = parse_path(override)
    if not path or not isinstance(path[0], str) or not rest.startswith("="):
        raise InvalidInputError(f"--set {override}: write PATH=VALUE, such as spec.numSamples=10")
    if path[0] not in ("metadata", "spec"):
        guess = nearest(path[0], ["metadata", "spec"])
        hint = f'did you mean "{guess}"?' if guess else f"did you mean spec.{format_path(path)}?"
        raise InvalidInputError(f"--set {override}: a path begins with spec or metadata; {hint}")
    text = rest[1:]
    if not text:
        return path, ""
    documents, problems = read_documents(text)
    if problems:
        raise InvalidInputError(f"--set {override}: {problems[0].message}")
    if len(documents) > 1:
        raise InvalidInputError(f"--set {override}: the value is more than one YAML document")
    if not documents and text.strip() not in _NULL:
        raise InvalidInputError(
            f"--set {override}: {text} is a comment or nothing in YAML; put a text into quotes, or write null to "
            "remove the field"
        )
    return path, documents[0].value if documents else None


def _set(root: Any, path: Path, new: Any, override: str) -> None:
    target = root
    for position, part in enumerate(path[:-1]):
        _check_step(target, path[:position], part, override)
        if isinstance(target, dict) and isinstance(part, str) and target.get(part) is None:
            if isinstance(path[position + 1], int):
                raise InvalidInputError(f"--set {override}: {_nothing_at(target, path[: position + 1])}")
            target[part] = {}
        target = target[part]
    last = path[-1]
    _check_step(target, path[:-1], last, override)
    if new is None and isinstance(target, dict):
        target.pop(last, None)
    else:
        target[last] = new


def _check_step(target: Any, path: Path, part: str | int, override: str) -> None:
    """Refuse a step from `target`, which is at `path`, to `part`."""
    where = format_path(path) or "the document"
    if isinstance(part, int):
        if not isinstance(target, list):
            raise InvalidInputError(f"--set {override}: {where} is not a list, it has no item [{part}]")
        if part >= len(target):
            last = f"; its last item is [{len(target) - 1}]" if target else ""
            raise InvalidInputError(f"--set {override}: {where} has {len(target)} items{last}")
    elif isinstance(target, list):
        raise InvalidInputError(f'--set {override}: {where} is a list; write [0], [1], ... in place of ".{part}"')
    elif not isinstance(target, dict):
        raise InvalidInputError(f'--set {override}: {where} is a plain value, it has no field "{part}"')


def _nothing_at(target: dict[str, Any], path: Path) -> str:
    guess = nearest(str(path[-1]), target)
    hint = f'; did you mean "{format_path((*path[:-1], guess))}"?' if guess else ""
    return f"there is no list at {format_path(path)}{hint}"
