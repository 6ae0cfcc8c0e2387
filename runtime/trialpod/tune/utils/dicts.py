"""Nested dicts and small things beside them."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError

log = logging.getLogger(__name__)


def flatten_dict(dt: Mapping[str, Any], delimiter: str = "/", prevent_delimiter: bool = False) -> dict[str, Any]:
    """Return ``{"a/b": 1}`` for ``{"a": {"b": 1}}``; an empty dict stays as it is.

    Raises:
        InvalidInputError: a key contains the delimiter, and `prevent_delimiter` is set.
    """
    flat: dict[str, Any] = {}
    for key, value in dt.items():
        if prevent_delimiter and isinstance(key, str) and delimiter in key:
            raise InvalidInputError(f"the key {key!r} contains the delimiter {delimiter!r}; choose another one")
        if isinstance(value, Mapping) and value:
            for inner, leaf in flatten_dict(value, delimiter, prevent_delimiter).items():
                flat[f"{key}{delimiter}{inner}"] = leaf
        else:
            flat[key] = value
    return flat


def unflatten_dict(dt: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Return ``{"a": {"b": 1}}`` for ``{"a/b": 1}``."""
    nested: dict[str, Any] = {}
    for key, value in dt.items():
        *parents, last = key.split(delimiter)
        at = nested
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return nested


def unflattened_lookup(flat_key: str, lookup: Any, delimiter: str = "/", **kwargs: Any) -> Any:
    """Return what ``"a/0/b"`` names in nested dicts and lists; the keyword `default` if it is not there.

    Raises:
        KeyError: it is not there, and no default is given.
    """
    at = lookup
    for part in flat_key.split(delimiter):
        try:
            at = at[part] if isinstance(at, Mapping) else at[int(part)]
        except (KeyError, IndexError, ValueError, TypeError):
            if "default" in kwargs:
                return kwargs["default"]
            raise KeyError(flat_key) from None
    return at


def deep_update(
    original: dict[str, Any],
    new_dict: Mapping[str, Any],
    new_keys_allowed: bool = False,
    allow_new_subkey_list: Iterable[str] | None = None,
    override_all_if_type_changes: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Merge `new_dict` into `original`, which is changed, and return it.

    Args:
        original: nested dicts.
        new_dict: nested dicts whose values win.
        new_keys_allowed: whether keys may be new.
        allow_new_subkey_list: keys below which keys may be new in any case.
        override_all_if_type_changes: keys whose whole value is replaced when its "type" changes.

    Raises:
        InvalidInputError: a key is new and may not be.
    """
    open_keys, replaced = set(allow_new_subkey_list or ()), set(override_all_if_type_changes or ())
    for key, value in new_dict.items():
        before = original.get(key)
        if key not in original and not new_keys_allowed:
            raise InvalidInputError(f"unknown key {key!r}; known are {', '.join(map(str, original))}")
        if isinstance(before, dict) and isinstance(value, Mapping):
            if key in replaced and "type" in value and value["type"] != before.get("type"):
                original[key] = value
            else:
                deep_update(before, value, new_keys_allowed or key in open_keys)
        else:
            original[key] = value
    return original


def merge_dicts(d1: Mapping[str, Any], d2: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new dict of both, nested dicts merged; values of `d2` win."""
    merged: dict[str, Any] = copy.deepcopy(dict(d1))
    return deep_update(merged, d2, new_keys_allowed=True)


def date_str() -> str:
    """Return the present local time in the form of names, ``2025-01-31_12-00-00``."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


class warn_if_slow:  # noqa: N801 - the name that its users know
    """Log a warning when a ``with`` block takes long.

    Args:
        name: what the block does.
        threshold: seconds; None means 0.5.
        message: the warning; "{name}" and "{duration}" are filled in.
        disable: never warn.
    """

    def __init__(
        self, name: str, threshold: float | None = None, message: str | None = None, disable: bool = False
    ) -> None:
        self._name, self._disable = name, disable
        self._threshold = 0.5 if threshold is None else threshold
        self._message = message or "{name} took {duration:.2f} s, which may slow the experiment down"
        self._started = 0.0

    def __enter__(self) -> warn_if_slow:
        """Start to measure."""
        self._started = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        """Warn if it took long."""
        duration = time.monotonic() - self._started
        if duration > self._threshold and not self._disable:
            log.warning("%s", self._message.format(name=self._name, duration=duration))
