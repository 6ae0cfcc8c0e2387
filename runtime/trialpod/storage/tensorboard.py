"""Encodes a trial's results as a TensorBoard event file, with the names and steps that Ray Tune gives them.

An event file is a sequence of TFRecords: the payload's length (8 bytes), a checksum of these 8 bytes (4), the
payload, its checksum (4), all little-endian. The checksum is CRC-32C, rotated right by 15 bits plus a constant
("masked"), as TensorFlow's record writer does it. A payload is a protocol buffer ``Event``; of its fields these are
used::

    Event    1: wall_time (double)   2: step (int64)   3: file_version (string)   5: summary (Summary)
    Summary  1: value (repeated Value)
    Value    1: tag (string)   2: simple_value (float)

Invariants: the first record says ``brain.Event:2``; the same result always becomes the same bytes. As in Ray, every
number of a result is a scalar ``ray/tune/{name}``, but booleans, NaN and what tells the time or the iteration are
left out, and the step is ``timesteps_total`` if there is one, else ``training_iteration``. Hyperparameters (the
HPARAMS tab) are not written.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from trialpod.storage.layout import EVENT_FILE_PREFIX

TAG_PREFIX = "ray/tune/"
VERSION = b"brain.Event:2"

_LEFT_OUT = frozenset(("pid", "timestamp", "time_total_s", "training_iteration", "config"))
_FRAME = 8 + 4 + 4
_MOST_SHAPES = 64
"""A trial reports few different sets of keys; one that makes new ones all the time must not fill the memory."""
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = b"\x09", b"\x10", b"\x1a", b"\x2a"  # field number and wire type
_VALUE, _TAG, _SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"
_U32, _U64, _DOUBLE = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<d")
_FLOAT32_MAX = 3.4028234663852886e38

Crc32c = Callable[[bytes], int]


def crc32c() -> Crc32c | None:
    """Return the checksum function, None when the package google-crc32c is not installed, or has no machine code."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when it would be a hundred times slower; then it is not used
        try:
            import google_crc32c
        except ImportError:
            return None
    if google_crc32c.implementation != "c":
        return None
    value: Crc32c = google_crc32c.value
    return value


def file_name(created_at: float, host: str) -> str:
    """Return the name of a trial's event file; `created_at` is in seconds since the epoch."""
    safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in host)[:64] or "localhost"
    return f"{EVENT_FILE_PREFIX}{int(created_at):010d}.{safe}"


class EventEncoder:
    """Turns results into records. Holds only what makes it fast."""

    def __init__(self, checksum: Crc32c) -> None:
        """Args: checksum: CRC-32C of bytes."""
        self._checksum = checksum
        self._shapes: dict[tuple[str, ...], tuple[list[bytes], struct.Struct]] = {}

    def header(self, wall_time: float) -> bytes:
        """Return a file's first record; `wall_time` is in seconds since the epoch."""
        return self._record(_WALL_TIME + _DOUBLE.pack(wall_time) + _FILE_VERSION + _varint(len(VERSION)) + VERSION)

    def encode(self, result: Mapping[str, Any]) -> bytes:
        """Return the record of a flattened result; b"" when there is no number in it."""
        names: list[str] = []
        values: list[float] = []
        for name, value in result.items():
            kind = value.__class__
            if (kind is float or kind is int) and name not in _LEFT_OUT and value == value:
                names.append(name)
                values.append(value)
        if not names:
            return b""
        summary = self._summary(tuple(names), values)
        step = _varint(_step(result))
        wall_time = _DOUBLE.pack(_number(result.get("timestamp")))
        return self._record(b"".join((_WALL_TIME, wall_time, _STEP, step, _SUMMARY, _varint(len(summary)), summary)))

    def _summary(self, names: tuple[str, ...], values: list[float]) -> bytes:
        # The same keys come again and again: all that is constant about them is made once.
        known = self._shapes.get(names)
        if known is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            made = [_value_prefix(name) for name in names]
            known = made, struct.Struct("<" + "".join(f"{len(prefix)}sf" for prefix in made))
            self._shapes[names] = known
        prefixes, shape = known
        fields: list[Any] = [None] * (2 * len(values))
        fields[::2] = prefixes
        fields[1::2] = values
        try:
            return shape.pack(*fields)
        except (OverflowError, struct.error):  # beyond what 32 bits hold, or an integer beyond any float
            fields[1::2] = [_as_float32(value) for value in values]
            return shape.pack(*fields)

    def _record(self, payload: bytes) -> bytes:
        length = _U64.pack(len(payload))
        return b"".join((length, self._masked(length), payload, self._masked(payload)))

    def _masked(self, data: bytes) -> bytes:
        crc = self._checksum(data)
        return _U32.pack((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def end_of_last_record(data: bytes) -> int:
    """Return where the last whole record in the contents of a file ends, by the records' lengths."""
    end = 0
    while len(data) - end >= _FRAME:
        following = end + _FRAME + int(_U64.unpack_from(data, end)[0])
        if following > len(data):
            break
        end = following
    return end


def _value_prefix(name: str) -> bytes:
    tag = (TAG_PREFIX + name).encode(errors="replace")
    body = _TAG + _varint(len(tag)) + tag + _SIMPLE_VALUE
    return _VALUE + _varint(len(body) + 4) + body


def _step(result: Mapping[str, Any]) -> int:
    step = _number(result.get("timesteps_total") or result.get("training_iteration"))
    return int(min(max(step, -(2.0**62)), 2.0**62))


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)):
        return 0.0
    try:
        return float(value) if math.isfinite(value) else 0.0
    except OverflowError:
        return 0.0


def _as_float32(value: float) -> float:
    if -_FLOAT32_MAX <= value <= _FLOAT32_MAX:
        return float(value)
    return math.inf if value > 0 else -math.inf


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # negative numbers in two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
