"""Parameters and metrics as MessagePack, from which every value comes back equal and of its own type.

Plain data (None, bool, int, float incl. NaN and infinities, str, bytes, list, dict) travels as itself. Everything
else travels as an extension value, in one of two ways:

* What Python and NumPy define (tuples, sets, large integers, dates, paths, complex numbers, arrays, ...) travels by
  its parts, so that every process reads it without running anything.
* Any other object travels as a pickle, beside its readable form and a line of text. A pickle is opened only in the
  process of the user who made it (`params_decoder`). For the operator (`opaque_decoder`) it stays closed: an
  `OpaqueValue`, which encodes to the bytes that it came from. If it is a number (an IntEnum), the operator may
  compute with it.

A large value may be stored by itself, once, and then travels as a pickle that refers to it; see `ValueStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from trialpod.protocol.readable import number, readable, real_number, text_of
from trialpod.protocol.value_packing import (
    SCALARS,
    Packer,
    UnpicklableError,
    ValueStore,
    encode_packed,
    refuse_tensor,
    shown_text,
)
from trialpod.protocol.value_unpacking import (
    Opaque,
    OpaqueFloat,
    OpaqueInt,
    OpaqueValue,
    closed,
    comparable,
    leniently_opened,
    opened,
)

__all__ = [
    "MetricsEncoder",
    "OpaqueFloat",
    "OpaqueInt",
    "OpaqueValue",
    "ParamsEncoder",
    "ResultReader",
    "ValueStore",
    "metrics_encoder",
    "number",
    "opaque_decoder",
    "open_leniently",
    "params_decoder",
    "params_encoder",
    "plain_encoder",
    "readable",
    "real_number",
    "results_decoder",
    "same_value",
    "text_of",
    "unreadable",
]


class ParamsEncoder:
    """Encodes parameters.

    Args:
        store: takes large values; None leaves them in the result.
    """

    __slots__ = ("_store",)

    def __init__(self, store: ValueStore | None = None) -> None:
        self._store = store

    def encode(self, value: Any, name: str = "config") -> bytes:
        """Return parameters as MessagePack; `name` is what an error calls them.

        Raises:
            NotPicklableError: a value cannot be pickled; the message has its path.
        """
        try:
            return encode_packed(Packer(self._store).pack(value, root=True))
        except UnpicklableError as error:
            error.complain(name)

    def encode_value(self, value: Any, name: str) -> bytes:
        """Return one value as MessagePack, as `encode` does; it may be stored apart as a whole."""
        try:
            return encode_packed(Packer(self._store).pack(value))
        except UnpicklableError as error:
            error.complain(name)


class MetricsEncoder:
    """Encodes one flat result."""

    __slots__ = ("_warn",)

    def __init__(self, warn: Callable[[str, str], None] | None = None) -> None:
        self._warn = warn

    def encode(self, value: Any) -> bytes:
        """Return a result as MessagePack.

        A metric that cannot be pickled is replaced by its text, if there is a caller to warn; see `__init__`.

        Raises:
            NotPicklableError: a value cannot be pickled; the message has its key.
            TypeError, ValueError, OverflowError, RecursionError: a value cannot be reported.
        """
        if value.__class__ is dict and SCALARS.issuperset(map(type, value.values())):
            try:
                return encode_packed(value)
            except (OverflowError, UnicodeEncodeError):
                pass  # an integer beyond 64 bits, a lone surrogate
        packer = Packer(None)
        if value.__class__ is not dict:
            refuse_tensor(value)
            try:
                return encode_packed(packer.pack(value))
            except UnpicklableError as error:
                error.complain("the metric")
        packed = {}
        for key, item in value.items():
            if item.__class__ not in SCALARS:
                refuse_tensor(item)
            try:
                packed[key] = packer.pack(item)
            except UnpicklableError as error:
                if self._warn is None:
                    error.complain(f"the metric {key!r}")
                self._warn(key, str(error))
                packed[key] = shown_text(item)
        return encode_packed(packed)


def same_value(one: Any, other: Any) -> bool:
    """Return whether two values are of one type and equal, also when ``==`` gives no truth value (arrays)."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        if one == other:
            return True
        own: Any = type(one).__eq__
        if own is not object.__eq__:
            return False
    except Exception:  # noqa: BLE001 - ``==`` may raise anything, as that of an array does; the contents decide
        pass
    try:
        mine, theirs = params_encoder.encode(one), params_encoder.encode(other)
        # A pickle of what was unpickled may differ from the first one in what it shares.
        return mine == theirs or params_encoder.encode(params_decoder.decode(mine)) == theirs
    except Exception:  # noqa: BLE001 - the user's objects are pickled and unpickled, which may raise anything
        return False


class ResultReader:
    """Decodes results as `results_decoder` does, and remembers whether one was more than plain data.

    Attributes:
        typed: a result had an extension value since this was set to False.
        decode: returns a result.
    """

    def __init__(self) -> None:
        self.typed = False
        self.decode = msgspec.msgpack.Decoder(ext_hook=self._hook).decode

    def _hook(self, code: int, data: memoryview) -> Any:
        self.typed = True
        return comparable(code, data)


def unreadable(data: Any, name: str = "config") -> tuple[str, Exception] | None:
    """Return the path of the first value that cannot be opened in this process, and why; None if all can be."""
    for path, value in _opaque_values(opaque_decoder.decode(data), name):
        try:
            opened(value.code, memoryview(value.data))
        except Exception as error:  # noqa: BLE001 - unpickling runs user code
            return path, error
    return None


def _opaque_values(value: Any, path: str) -> Iterator[tuple[str, Opaque]]:
    if isinstance(value, Opaque):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _opaque_values(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield from _opaque_values(item, f"{path}[{index}]")


metrics_encoder = MetricsEncoder()
plain_encoder = msgspec.msgpack.Encoder(enc_hook=readable)
"""Encodes results for an operator that does not know extension values: every value in its readable form."""
params_encoder = ParamsEncoder()
opaque_decoder = msgspec.msgpack.Decoder(ext_hook=closed)
"""Decodes parameters in the operator, which may encode them again; never runs user code."""
results_decoder = msgspec.msgpack.Decoder(ext_hook=comparable)
"""Decodes results in the operator, and whatever is only shown; never runs user code."""
params_decoder = msgspec.msgpack.Decoder(ext_hook=opened)
"""Decodes parameters and results in the user's own process."""
lenient_decoder = msgspec.msgpack.Decoder(ext_hook=leniently_opened)


def open_leniently(data: Any) -> Any:
    """Return parameters or a result in the user's own process; what cannot be opened there is an `OpaqueValue`."""
    return lenient_decoder.decode(data)
