"""Turns values of any type into what MessagePack has a form for.

Invariants: what cannot travel is refused with its path; a value that contains itself is refused, not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import msgspec

from trialpod.errors import NotPicklableError, TrialpodError
from trialpod.protocol.readable import GREATEST_INTEGER, LEAST_INTEGER, readable, text_of
from trialpod.protocol.value_unpacking import TYPED, Opaque

LARGE = 64 * 1024
"""Bytes from which on a value is stored by itself, where there is a store."""

SCALARS = frozenset({bool, float, int, str, bytes, type(None)})
_MAX_DEPTH = 200
_MAX_READABLE_BYTES = 64 * 1024

encode_packed = msgspec.msgpack.Encoder().encode
"""Encodes what a `Packer` returned."""


class ValueStore(Protocol):
    """Stores large values, each once."""

    def put(self, value: Any) -> bytes | None:
        """Store a value and return a pickle that refers to it; None if it is small.

        Raises:
            StorageError: it cannot be stored.
            Exception: whatever the value's own code raises; it cannot be pickled.
        """


class UnpicklableError(Exception):
    """A value cannot be pickled; `path` leads to it."""

    def __init__(self, value: Any, reason: str) -> None:
        super().__init__(reason)
        self.value = value
        self.path: list[str] = []

    def complain(self, name: str) -> NoReturn:
        """Raise NotPicklableError; `name` is what the path begins with."""
        path = f"{name}{''.join(reversed(self.path))}"
        raise NotPicklableError(
            f"{path} cannot be sent to the trials: {self}; create it inside the Trainable, or pass what it is made "
            "from",
            path=path,
            value=self.value,
        ) from self.__cause__


class Packer:
    """Turns one value into what MessagePack has a form for."""

    __slots__ = ("_open", "_size", "_store")

    def __init__(self, store: ValueStore | None) -> None:
        self._store = store
        self._open: dict[int, Any] = {}  # the containers on the way to the present value
        self._size = 0

    def pack(self, value: Any, *, root: bool = False) -> Any:
        """Return what `encode_packed` can encode; with `root`, the value itself is never stored apart.

        Raises:
            UnpicklableError: a value in it cannot travel.
        """
        kind = value.__class__
        if kind in SCALARS:
            return self._scalar(value, kind)
        if kind is dict or kind is list or kind is tuple or kind is set or kind is frozenset or _is_ordered(kind):
            return self._container(value, kind, root)
        if isinstance(value, Opaque):
            self._size += len(value.data)
            return msgspec.msgpack.Ext(value.code, value.data)
        parts = _PARTS.get(f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}")
        packed = parts(value) if parts is not None else None
        if packed is not None:
            return self._ext(packed, value)
        if kind.__module__ == "numpy" and (found := _numpy_parts(value)) is not None:
            return self._ext(found, value)
        if kind is slice:
            return self._ext(["slice", *(self.pack(part) for part in (value.start, value.stop, value.step))], value)
        return self._pickled(value)

    def _scalar(self, value: Any, kind: type) -> Any:
        if kind is int:
            self._size += 9
            if not LEAST_INTEGER <= value <= GREATEST_INTEGER:
                return self._ext(["int", _integer_bytes(value)], value)
        elif kind is str:
            self._size += len(value)
            if not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:
                    return self._ext(["str", value.encode("utf-8", "surrogatepass")], value)
            return self._stored(value) if len(value) >= LARGE and self._store is not None else value
        elif kind is bytes:
            self._size += len(value)
            return self._stored(value) if len(value) >= LARGE and self._store is not None else value
        else:
            self._size += 9
        return value

    def _container(self, value: Any, kind: type, root: bool) -> Any:
        if id(value) in self._open:
            raise UnpicklableError(value, "it contains itself")
        if len(self._open) >= _MAX_DEPTH:
            raise UnpicklableError(value, f"it is nested more than {_MAX_DEPTH} levels deep")
        self._open[id(value)] = value
        before = self._size
        packed: Any
        if kind is list:
            packed = self._items(value)
        elif kind is dict and all(key.__class__ is str or _is_small(key) for key in value):
            packed = self._values(value)
        elif kind is tuple or kind is set or kind is frozenset:
            items = self._items(value)
            if kind is not tuple:
                items.sort(key=encode_packed)  # so that equal sets have equal bytes
            packed = msgspec.msgpack.Ext(TYPED, encode_packed([kind.__name__, items]))
        else:
            pairs = [self._pair(key, item) for key, item in value.items()]
            packed = msgspec.msgpack.Ext(TYPED, encode_packed([kind.__name__, pairs]))
        del self._open[id(value)]
        if self._store is not None and not root and self._size - before >= LARGE:
            self._size = before
            return self._stored(value, packed)
        return packed

    def _items(self, items: Any) -> list[Any]:
        if SCALARS.issuperset(map(type, items)) and self._store is None:
            return [item if item.__class__ is float else self._scalar(item, item.__class__) for item in items]
        packed = []
        for index, item in enumerate(items):
            try:
                packed.append(self.pack(item))
            except UnpicklableError as error:
                error.path.append(f"[{index}]")
                raise
        return packed

    def _values(self, items: Mapping[Any, Any]) -> dict[Any, Any]:
        packed = {}
        for key, item in items.items():
            try:
                packed[self._scalar(key, key.__class__)] = self.pack(item)
            except UnpicklableError as error:
                error.path.append(f"[{key!r}]")
                raise
        return packed

    def _pair(self, key: Any, item: Any) -> list[Any]:
        try:
            return [self.pack(key), self.pack(item)]
        except UnpicklableError as error:
            error.path.append(f"[{key!r:.60}]")
            raise

    def _ext(self, parts: list[Any], value: Any) -> Any:
        data = encode_packed(parts)
        if self._store is not None and len(data) >= LARGE:
            return self._stored(value, msgspec.msgpack.Ext(TYPED, data))
        self._size += len(data)
        return msgspec.msgpack.Ext(TYPED, data)

    def _stored(self, value: Any, packed: Any = None) -> Any:
        """Return a reference to a large value; what it is packed as if the store finds it small."""
        assert self._store is not None
        try:
            reference = self._store.put(value)
        except TrialpodError:
            raise  # of the store
        # Whatever a class raises while it is pickled means that it cannot be.
        except Exception as error:
            raise UnpicklableError(value, _reason(error)) from error
        if reference is None:
            return value if packed is None else packed
        data = encode_packed(["pickle", _stored_text(value), None, reference])
        self._size += len(data)
        return msgspec.msgpack.Ext(TYPED, data)

    def _pickled(self, value: Any) -> Any:
        from trialpod.protocol.pickling import dumps

        reference: bytes | None = None
        try:
            if self._store is not None:
                reference = self._store.put(value)
            body = dumps(value, by_name=True) if reference is None else reference
        except TrialpodError:
            raise  # of the store
        except Exception as error:
            raise UnpicklableError(value, _reason(error)) from error
        plain, text = (None, _stored_text(value)) if reference is not None else _shown(value)
        is_number = isinstance(value, (int, float)) and plain.__class__ in (int, float)
        data = encode_packed(["number" if is_number else "pickle", text, plain, body])
        self._size += len(data)
        return msgspec.msgpack.Ext(TYPED, data)


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def refuse_tensor(value: Any) -> None:
    """Raise TypeError for a tensor of PyTorch: reported by mistake, it would keep its whole graph alive."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "torch" and kind.__name__ in ("Tensor", "Parameter"):
        raise TypeError("a torch.Tensor cannot be reported; call .item() on it (or .tolist()) before you report it")


def _shown(value: Any) -> tuple[Any, str]:
    """Return the readable form of a value that travels as a pickle, None where it is the text; and the text."""
    text = text_of(value)
    plain = readable(value)
    if plain == text and plain.__class__ is str:
        return None, text
    try:
        packed = Packer(None).pack(plain)
    except UnpicklableError:
        return None, text
    return (None if len(encode_packed(packed)) > _MAX_READABLE_BYTES else packed), text


def _stored_text(value: Any) -> str:
    kind = type(value)
    if hasattr(kind, "shape"):
        return text_of(value)
    try:
        return f"<{kind.__qualname__} of {len(value)} items>"
    except Exception:  # noqa: BLE001 - an object need not have a length, and its own __len__ may raise
        return f"<{kind.__qualname__}>"


def shown_text(value: Any) -> str:
    """Return the text that is stored instead of a metric that cannot be pickled."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - an object's own __str__ may raise anything
        text = text_of(value)
    return text[:1000].encode(errors="replace").decode()


def _is_small(key: Any) -> bool:
    return key.__class__ is int and LEAST_INTEGER <= key <= GREATEST_INTEGER


def _is_ordered(kind: type) -> bool:
    return kind.__qualname__ == "OrderedDict" and kind.__module__ == "collections"


def _integer_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _datetime_parts(value: Any) -> list[Any] | None:
    zone = value.tzinfo
    if zone is not None and repr(zone) != "datetime.timezone.utc":
        return None
    return [type(value).__qualname__, value.isoformat(), value.fold]


def _path_parts(value: Any) -> list[Any] | None:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return ["path", type(value).__name__, text]


def _fraction_parts(value: Any) -> list[Any]:
    return ["Fraction", _integer_bytes(value.numerator), _integer_bytes(value.denominator)]


def _range_parts(value: Any) -> list[Any]:
    return ["range", *(_integer_bytes(part) for part in (value.start, value.stop, value.step))]


def _array_parts(value: Any) -> list[Any] | None:
    dtype = value.dtype
    if dtype.kind not in "biufcMm" or dtype.type.__module__ != "numpy":
        return None
    order = "F" if value.flags.fnc else "C"
    return ["array", dtype.str, list(value.shape), order, value.tobytes(order)]


def _numpy_parts(value: Any) -> list[Any] | None:
    dtype = getattr(value, "dtype", None)
    if dtype is None or getattr(value, "shape", None) != () or not hasattr(dtype, "isbuiltin"):
        return None
    if dtype.kind not in "biufcMm" or dtype.isbuiltin != 1 or type(value) is not dtype.type:
        return None
    return ["scalar", dtype.str, value.tobytes(), readable(value)]


_PARTS: dict[str, Callable[[Any], list[Any] | None]] = {
    "builtins.complex": lambda value: ["complex", value.real, value.imag],
    "builtins.bytearray": lambda value: ["bytearray", bytes(value)],
    "builtins.range": _range_parts,
    "datetime.datetime": _datetime_parts,
    "datetime.date": lambda value: ["date", value.isoformat()],
    "datetime.time": _datetime_parts,
    "datetime.timedelta": lambda value: ["timedelta", value.days, value.seconds, value.microseconds],
    "decimal.Decimal": lambda value: ["Decimal", str(value)],
    "fractions.Fraction": _fraction_parts,
    "uuid.UUID": lambda value: ["UUID", value.bytes],
    "numpy.ndarray": _array_parts,
    "pathlib.PosixPath": _path_parts,
    "pathlib.WindowsPath": _path_parts,
    "pathlib.PurePosixPath": _path_parts,
    "pathlib.PureWindowsPath": _path_parts,
}
