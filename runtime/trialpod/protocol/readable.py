"""The readable form of any value: what files, tables and the Kubernetes API show of it.

It consists of None, bool, int, float, str, bytes, lists and dicts. It is not read back: the value itself travels
beside it (see `trialpod.protocol.values`).

Invariants: no import of a library that the value does not come from; a value's own code runs only for its text, and
an error in that is not passed on; a value that contains itself has an end.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

MAX_TEXT = 200
"""Maximum number of characters of the text that stands for an object."""

MAX_ITEMS = 100_000
"""Maximum number of items of an array or a set that are listed one by one."""

LEAST_INTEGER, GREATEST_INTEGER = -(2**63), 2**64 - 1
"""What MessagePack holds as an integer."""

_MAX_DEPTH = 64
_OPAQUE = "trialpod.protocol.value_unpacking"
_SCALARS = frozenset({bool, int, float, str, bytes, type(None)})
_SIZED = (str, bytes, bytearray, list, dict, tuple, set, frozenset)
_AS_TEXT = frozenset({"Decimal", "Fraction", "UUID", "complex", "timedelta"})


def readable(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return the readable form of a value: plain data that resembles it as closely as possible."""
    if value.__class__ in _SCALARS:
        return value
    plain = getattr(value, "plain", None) if type(value).__module__ == _OPAQUE else None
    if plain is not None:
        return plain
    if depth <= 0:
        return text_of(value)
    if isinstance(value, Mapping):
        return {readable_key(key): readable(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(item, depth - 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return _listed_set(value, depth)
    try:
        return _of_object(value, depth)
    except Exception:  # noqa: BLE001 - a value's own attributes may raise anything; its text is what remains
        return text_of(value)


def readable_key(key: Any) -> Any:
    """Return the readable form of a dict's key: itself if it is a str, int, float, bool or None, else its text."""
    if key.__class__ in _SCALARS and key.__class__ is not bytes:
        return key
    plain = readable(key)
    return plain if plain.__class__ in _SCALARS and plain.__class__ is not bytes else _clipped(text_of(key))


def encodable(text: str) -> str:
    """Return a text without lone surrogates, which have no UTF-8: of a file name that is none they are the bytes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def text_of(value: Any) -> str:
    """Return one line that stands for a value in tables and messages."""
    if isinstance(value, type) or callable(value):
        name = getattr(value, "__qualname__", None)
        if isinstance(name, str):
            return name
    kind = type(value)
    shape = getattr(value, "shape", None) if hasattr(kind, "shape") else None
    if isinstance(shape, tuple) and shape:
        dtype = getattr(value, "dtype", None)
        size = "x".join(str(length) for length in shape)
        return f"<{kind.__qualname__} {size}{f' {dtype}' if dtype is not None else ''}>"
    if has_no_text(kind):
        return f"<{kind.__qualname__}>"
    try:
        if (
            isinstance(value, (str, bytes, bytearray, list, dict, tuple, set, frozenset))
            and len(value) > 10 * MAX_TEXT
        ):
            return f"<{kind.__qualname__} of {len(value)} items>"
        own: Any = kind.__repr__
        text = str(value) if own is object.__repr__ else repr(value)
    except Exception:  # noqa: BLE001 - an object's own __repr__ may raise anything
        return f"<{kind.__qualname__}>"
    return text if len(text) <= MAX_TEXT and "\n" not in text else f"<{kind.__qualname__}>"


def has_no_text(kind: type) -> bool:
    """Return whether the text of a class's objects is only their address in memory."""
    methods: list[Any] = [kind.__repr__, kind.__str__]
    return methods == [object.__repr__, object.__str__]


def number(value: Any) -> int | float | None:
    """Return a value as a number that can be compared, or None if it is none.

    Numbers are those of Python, NumPy's scalars and arrays without dimensions, Decimal, Fraction, and members of
    enumerations that are numbers.
    """
    kind = value.__class__
    if kind is float or kind is int:
        return value  # type: ignore[no-any-return]
    if value is None or isinstance(value, (str, bytes, list, tuple, dict)):
        return None
    if kind.__module__ == _OPAQUE:
        value = readable(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)  # NumPy's doubles are floats, but not plain
    if kind.__module__.partition(".")[0] != "torch" and getattr(value, "ndim", None) == 0 and hasattr(value, "dtype"):
        item = value.item()
        return item if isinstance(item, (int, float)) else None
    numbers = sys.modules.get("numbers")
    decimal = sys.modules.get("decimal")
    if (numbers is not None and isinstance(value, numbers.Real)) or (
        decimal is not None and isinstance(value, decimal.Decimal)
    ):
        try:
            return float(value)
        except (OverflowError, ValueError):
            return math.inf if value > 0 else -math.inf
    return None


def real_number(value: Any) -> int | float | None:
    """Return what `number` does, but None for True and False, and integers as `storable` has them."""
    found = number(value)
    return None if isinstance(found, bool) else storable(found)


def storable(value: Any) -> Any:
    """Return plain data as the journal can hold it: integers beyond 64 bits become floats."""
    if value.__class__ is int and not LEAST_INTEGER <= value <= GREATEST_INTEGER:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if value.__class__ is dict:
        return {key: storable(item) for key, item in value.items()}
    if value.__class__ is list or value.__class__ is tuple:
        return [storable(item) for item in value]
    return value


def _of_object(value: Any, depth: int) -> Any:
    kind = type(value)
    module, name = kind.__module__.partition(".")[0], kind.__qualname__
    enum = sys.modules.get("enum")
    if enum is not None and isinstance(value, enum.Enum):
        return readable(value.value, depth - 1)
    if hasattr(kind, "__fspath__"):
        path = value.__fspath__()
        return path if isinstance(path, str) else text_of(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return _of_array(value, depth)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, Mapping):
        return {readable_key(key): readable(item, depth - 1) for key, item in value.items()}
    if name in _AS_TEXT:
        return str(value)
    if module in ("datetime", "pandas") and hasattr(value, "isoformat"):
        return value.isoformat()
    fields = _field_names(kind)
    if fields is not None:
        return {field: readable(getattr(value, field), depth - 1) for field in fields}
    if isinstance(value, Iterable) and module == "collections":
        return [readable(item, depth - 1) for item in value]
    return text_of(value)


def _of_array(value: Any, depth: int) -> Any:
    if getattr(value, "size", 0) > MAX_ITEMS or type(value).__module__.partition(".")[0] == "torch":
        return text_of(value)
    kind = getattr(value.dtype, "kind", "O")
    if kind in "biuf":
        return value.tolist()
    if kind in "Mmc":
        return readable(value.astype(str).tolist() if getattr(value, "ndim", 1) else str(value), depth - 1)
    listed = value.tolist()
    return text_of(value) if type(listed) is type(value) else readable(listed, depth - 1)


def _listed_set(value: Iterable[Any], depth: int) -> list[Any]:
    items = [readable(item, depth - 1) for item in value]
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=repr)


def _field_names(kind: type) -> list[str] | None:
    """Return the fields of a dataclass, an attrs class or a pydantic model; None for any other class."""
    fields = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "model_fields", None)
    if isinstance(fields, Mapping):
        return [str(name) for name in fields]
    attrs = getattr(kind, "__attrs_attrs__", None)
    return [field.name for field in attrs] if isinstance(attrs, tuple) else None


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
