"""Scalars in TensorBoard's event files: TFRecords of Event messages (tensorflow/core/util/event.proto). Pure.

Only the fields that hold a scalar are decoded: ``step``, and of each value of the summary the tag with
``simple_value`` or a float or double tensor of one element. The checksums are not compared: a file that is being
written ends with a partial record, which is left for the next read, and a record of an impossible length ends the
reading of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

MAX_RECORD_BYTES = 64 * 1024 * 1024

_HEADER, _FOOTER = 12, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DT_FLOAT, _DT_DOUBLE = 1, 2


class Scalar(NamedTuple):
    """One scalar of a summary."""

    tag: str
    step: int
    value: float


class DamagedError(ValueError):
    """A record cannot be what was written there."""


def read_scalars(data: bytes) -> tuple[list[Scalar], int]:
    """Return the scalars of all whole records in `data`, and how many bytes these take.

    Raises:
        DamagedError: a record has an impossible length, or is not a message.
    """
    found: list[Scalar] = []
    at = 0
    while at + _HEADER <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > MAX_RECORD_BYTES:
            raise DamagedError(f"a record of {length} bytes at byte {at}")
        end = at + _HEADER + length + _FOOTER
        if end > len(data):
            break
        found += _scalars(data[at + _HEADER : end - _FOOTER])
        at = end
    return found, at


def _scalars(event: bytes) -> Iterator[Scalar]:
    step, summaries = 0, []
    for field, value in _fields(event):
        if field == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >= 1 << 63 else value
        elif field == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            if field == 1 and isinstance(value, bytes):
                yield from _value(value, step)


def _value(data: bytes, step: int) -> Iterator[Scalar]:
    tag, scalar = "", None
    for field, value in _fields(data, fixed32=True):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == 2 and isinstance(value, float):
            scalar = value
        elif field == 8 and isinstance(value, bytes):
            scalar = _tensor(value)
    if tag and scalar is not None:
        yield Scalar(tag, step, scalar)


def _tensor(data: bytes) -> float | None:
    kind, content, values = 0, b"", b""
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 4 and isinstance(value, bytes):
            content = value
        elif field in (5, 6) and isinstance(value, bytes):
            values = value
    raw = content or values
    if kind == _DT_FLOAT and len(raw) == 4:
        return float(struct.unpack("<f", raw)[0])
    if kind == _DT_DOUBLE and len(raw) == 8:
        return float(struct.unpack("<d", raw)[0])
    return None


def _fields(data: bytes, *, fixed32: bool = False) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield (field number, value) of a protocol buffer; with `fixed32`, such values as floats, else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield field, number
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise DamagedError(f"a field of the unknown kind {kind}")
        raw = data[at : at + size]
        at += size
        if len(raw) < size:
            raise DamagedError("a field ends after its message")
        yield field, float(struct.unpack("<f", raw)[0]) if fixed32 and kind == _FIXED32 else raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DamagedError("a number without an end")
