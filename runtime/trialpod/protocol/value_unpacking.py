"""Reads what `trialpod.protocol.value_packing` writes, opening the user's objects or leaving them closed.

Invariants: closed values are read without NumPy and without running anything of the user's, whatever bytes they
consist of, in time and memory that grow with their number; what is damaged is a `msgspec.ValidationError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError

TYPED = 2
"""Code of the extension: MessagePack of [kind, parts...]."""

MAX_INTEGER_BYTES = 1000
"""Length of an integer from which on a Fraction or a range stays closed: arithmetic takes time with its square."""

MAX_UNEVEN = 100
"""Maximum number of members of an open set, and keys of a dict, whose hashes may all be equal on purpose."""

_PICKLED = ("pickle", "number")
_MAX_AXES = 64  # of an array of NumPy
_MAX_LISTED = 800_000  # bytes of an array, and items of the lists that show it
_OF_ITEMS = frozenset({"tuple", "set", "frozenset", "dict", "OrderedDict"})
_EVEN = frozenset({str, bytes, bool, float, type(None)})


class Opaque:
    """A value that this process passes on without opening it. Encodes to the bytes that it came from."""

    __slots__ = ()

    code: int
    data: bytes

    @property
    def plain(self) -> Any:
        """Its readable form."""
        kind, *parts = msgspec.msgpack.decode(self.data, ext_hook=closed)
        if kind in _PICKLED:
            return parts[0] if parts[1] is None else parts[1]
        if kind in _MAKE:
            return f"<{kind} of {len(parts[0])} items>" if kind in _OF_ITEMS else f"<{kind}>"
        return _plain_of_numpy(kind, parts)

    def __repr__(self) -> str:
        kind, *parts = msgspec.msgpack.decode(self.data, ext_hook=closed)
        if kind in _PICKLED:
            return str(parts[0])
        if kind == "array":
            return f"<ndarray {'x'.join(str(length) for length in parts[1]) or 'scalar'} {parts[0][1:]}>"
        return str(self.plain)

    def __str__(self) -> str:
        return self.__repr__()


class OpaqueValue(Opaque):
    """A value that this process passes on without opening it."""

    __slots__ = ("code", "data")

    def __init__(self, data: bytes, code: int = TYPED) -> None:
        self.data = data
        self.code = code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueValue) and self.data == other.data and self.code == other.code

    def __hash__(self) -> int:
        return hash(self.data)


class OpaqueFloat(Opaque, float):
    """A float of a type that this process does not open: NumPy's, or a subclass."""


class OpaqueInt(Opaque, int):
    """An integer (or a truth value) of a type that this process does not open: NumPy's, an IntEnum, a subclass."""


def closed(code: int, data: memoryview) -> Any:
    """Read an extension value without opening pickles or needing NumPy; numbers keep what they came from."""
    return _read_closed(code, data, closed)


def comparable(code: int, data: memoryview) -> Any:
    """As `closed`, but numbers of any type become plain numbers: for what is read and not passed on."""
    found = _read_closed(code, data, comparable)
    return found.plain if isinstance(found, (OpaqueFloat, OpaqueInt)) else found


def _read_closed(code: int, data: memoryview, hook: Callable[[int, memoryview], Any]) -> Any:
    if code != TYPED:
        return msgspec.msgpack.Ext(code, bytes(data))
    kind, parts = _parts_of(data, hook)
    make = _MAKE.get(kind)
    try:
        if make is not None:
            return OpaqueValue(bytes(data)) if _is_costly(kind, parts) else make(*parts)
        plain = _checked_plain(kind, parts)
    except (TypeError, ValueError, ArithmeticError, AttributeError, IndexError, struct.error) as error:
        raise msgspec.ValidationError(f"a value of the kind {kind!r:.40} is damaged: {error}") from error
    opaque: Any
    if plain.__class__ is float:
        opaque = OpaqueFloat(plain)
    elif plain.__class__ is int or plain.__class__ is bool:
        opaque = OpaqueInt(plain)
    else:
        opaque = OpaqueValue(b"")
    opaque.code, opaque.data = code, bytes(data)
    return opaque


def _parts_of(data: Any, hook: Callable[[int, memoryview], Any]) -> tuple[str, list[Any]]:
    found = msgspec.msgpack.decode(data, ext_hook=hook)
    if type(found) is not list or not found or type(found[0]) is not str:
        raise msgspec.ValidationError("an extension value has no kind")
    return found[0], found[1:]


def _is_costly(kind: str, parts: list[Any]) -> bool:
    """Return whether a value made of these parts could take time with the square of their size.

    Raises:
        TypeError, ValueError: they are not its parts; a range instead of a list could be any number of items.
    """
    if kind in _OF_ITEMS:
        (items,) = parts
        if type(items) is not list:
            raise TypeError("its items are not a list")
        if kind == "tuple" or len(items) <= MAX_UNEVEN:
            return False
        keys = items if kind.endswith("set") else [key for key, _ in items]
        return sum(not _hashes_evenly(key) for key in keys) > MAX_UNEVEN
    return kind in ("Fraction", "range") and any(len(part) > MAX_INTEGER_BYTES for part in parts)


def _hashes_evenly(key: Any) -> bool:
    """Return whether few values of its type have the same hash, also if they are chosen for that."""
    kind = key.__class__
    return kind in _EVEN or (kind is int and -(2**63) <= key < 2**64)


def _checked_plain(kind: str, parts: list[Any]) -> Any:
    """Return the number that a value is if it is one that stays closed, else None; refuse what is damaged."""
    if kind in _PICKLED:
        text, plain, body = parts
        if type(text) is not str or type(body) is not bytes:
            raise ValueError("it has no pickle")
        return plain if kind == "number" else None
    if kind == "scalar":
        dtype, raw, plain = parts
        if type(dtype) is not str or type(raw) is not bytes:
            raise ValueError("it has no contents")
        return plain
    if kind == "array":
        dtype, shape, order, raw = parts
        if type(dtype) is not str or type(shape) is not list or order not in ("C", "F") or type(raw) is not bytes:
            raise ValueError("it has no contents")
        if len(shape) > _MAX_AXES:
            raise ValueError(f"it has {len(shape)} axes")
        size = int(dtype[2:].partition("[")[0])
        for length in shape:
            if type(length) is not int or length < 0:
                raise ValueError(f"it has the shape {shape!r:.60}")
            size *= length
        if size != len(raw):
            raise ValueError(f"it has {len(raw)} bytes instead of {size}")
        return None
    raise ValueError("this version of trialpod does not know it: a newer one wrote it; upgrade trialpod")


def _plain_of_numpy(kind: str, parts: list[Any]) -> Any:
    if kind == "scalar":
        return parts[2]
    dtype, shape, order, raw = parts
    code = _STRUCT_CODES.get(dtype[1:])
    lists = math.prod(length or 1 for length in shape) * len(shape)  # at most, and their items
    if code is None or len(raw) > _MAX_LISTED or lists > _MAX_LISTED:
        return f"<ndarray {'x'.join(str(length) for length in shape) or 'scalar'} {dtype[1:]}>"
    byte_order = ">" if dtype[0] == ">" else "<"
    items = [item[0] for item in struct.iter_unpack(byte_order + code, raw)] if raw else []
    return _shaped(items, shape, order)


_STRUCT_CODES = {
    "b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f2": "e",
    "f4": "f", "f8": "d",
}  # fmt: skip


def _shaped(items: list[Any], shape: list[int], order: str) -> Any:
    """Return the nested lists of an array with these items."""
    strides, stride = [0] * len(shape), 1
    for axis in range(len(shape)) if order == "F" else reversed(range(len(shape))):
        strides[axis], stride = stride, stride * shape[axis]

    def nested(axis: int, offset: int) -> Any:
        if axis == len(shape):
            return items[offset]
        return [nested(axis + 1, offset + index * strides[axis]) for index in range(shape[axis])]

    return nested(0, 0)


def opened(code: int, data: memoryview) -> Any:
    """Open an extension value: its pickle is loaded, which runs its owner's code."""
    import pickle

    if code != TYPED:
        raise InvalidInputError(
            f"a parameter has the form {code}, and this trialpod reads form {TYPED}: another version wrote it; "
            "use the same version of trialpod in the trial's image"
        )
    kind, parts = _parts_of(data, opened)
    if kind in _PICKLED:
        return pickle.loads(parts[2])
    if kind == "scalar":
        import numpy as np

        return np.frombuffer(parts[1], np.dtype(parts[0]))[0]
    if kind == "array":
        import numpy as np

        dtype, shape, order, raw = parts
        return np.frombuffer(bytearray(raw), np.dtype(dtype)).reshape(shape, order=order)
    make = _MAKE.get(kind)
    if make is None:
        raise InvalidInputError(
            f"a parameter is of the kind {kind!r}, which this version of trialpod does not know: a newer one wrote "
            "it; upgrade trialpod in the trial's image"
        )
    return make(*parts)


def leniently_opened(code: int, data: memoryview) -> Any:
    """Open an extension value; what cannot be opened in this process stays an `OpaqueValue`."""
    try:
        return opened(code, data)
    except Exception:  # noqa: BLE001 - unpickling runs user code; the value stays closed and is shown by its text
        return _read_closed(code, data, closed)


def _made_datetime(text: str, fold: int) -> Any:
    import datetime as dt

    return dt.datetime.fromisoformat(text).replace(fold=fold)


def _made_time(text: str, fold: int) -> Any:
    import datetime as dt

    return dt.time.fromisoformat(text).replace(fold=fold)


def _made_date(text: str) -> Any:
    import datetime as dt

    return dt.date.fromisoformat(text)


def _made_timedelta(days: int, seconds: int, microseconds: int) -> Any:
    import datetime as dt

    return dt.timedelta(days, seconds, microseconds)


def _made_decimal(text: str) -> Any:
    import decimal

    return decimal.Decimal(text)


def _made_fraction(numerator: bytes, denominator: bytes) -> Any:
    import fractions

    return fractions.Fraction(_integer(numerator), _integer(denominator))


def _made_uuid(data: bytes) -> Any:
    import uuid

    return uuid.UUID(bytes=data)


def _made_path(kind: str, text: str) -> Any:
    import os
    import pathlib

    names = ("PurePosixPath", "PureWindowsPath", "WindowsPath" if os.name == "nt" else "PosixPath")
    if kind not in names:
        raise ValueError(f"there is no {kind!r:.40} here")
    return getattr(pathlib, kind)(text)


def _made_ordered(pairs: list[Any]) -> Any:
    import collections

    return collections.OrderedDict(pairs)


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _only_bytes(data: Any) -> bytes:
    if type(data) is not bytes:
        raise TypeError("it has no bytes")
    return data


def _made_range(*parts: bytes) -> range:
    return range(*map(_integer, parts))


def _made_slice(start: Any, stop: Any, step: Any) -> slice:
    return slice(start, stop, step)


def _made_dict(pairs: list[Any]) -> dict[Any, Any]:
    return {key: item for key, item in pairs}  # noqa: C416 - pairs may be of any length in damaged data


_MAKE: dict[str, Callable[..., Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": _made_dict,
    "OrderedDict": _made_ordered,
    "int": _integer,
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
    "complex": complex,
    "bytearray": lambda data: bytearray(_only_bytes(data)),
    "range": _made_range,
    "slice": _made_slice,
    "datetime": _made_datetime,
    "date": _made_date,
    "time": _made_time,
    "timedelta": _made_timedelta,
    "Decimal": _made_decimal,
    "Fraction": _made_fraction,
    "UUID": _made_uuid,
    "path": _made_path,
}
