"""Parameters and metrics as MessagePack, without loss for what users really put there.

Plain data (None, bool, int, float incl. NaN and infinities, str, bytes, list, tuple, dict) travels as itself; tuples
arrive as lists. NumPy scalars and zero-dimensional arrays become Python numbers, NumPy arrays lists, paths strings.

Only parameters may carry anything else (a class, a function, an estimator out of ``tune.choice([...])``): it travels
as a pickle, after its name, inside an extension value. The operator passes such a value on unopened as `OpaqueValue`;
it is unpickled only in the process of the user who made it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trialpod.errors import InvalidInputError

_PICKLE = 1
_LEAST_INTEGER, _GREATEST_INTEGER = -(2**63), 2**64 - 1


class OpaqueValue:
    """A pickled parameter that this process passes on without opening it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return self.data.partition(b"\0")[0].decode(errors="replace")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueValue) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)


def plain(value: Any) -> Any:
    """Return the plain-data form of a value of a numeric library or a path; raise TypeError for anything else."""
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    module = type(value).__module__.partition(".")[0]
    if module == "torch":
        raise TypeError("a torch.Tensor cannot be reported; call .item() on it (or .tolist()) before you report it")
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return value.tolist()
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    raise TypeError(f"a value of type {type(value).__module__}.{type(value).__qualname__} is not plain data")


def _plain_or_pickled(value: Any) -> Any:
    if isinstance(value, OpaqueValue):
        return msgspec.msgpack.Ext(_PICKLE, value.data)
    try:
        return plain(value)
    except TypeError:
        import cloudpickle

        return msgspec.msgpack.Ext(_PICKLE, _name(value).encode() + b"\0" + cloudpickle.dumps(value))


def _name(value: Any) -> str:
    """Return what people are shown of a value that cannot be opened."""
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else f"<{type(value).__qualname__}>"


def _opaque(code: int, data: memoryview) -> Any:
    return OpaqueValue(bytes(data)) if code == _PICKLE else msgspec.msgpack.Ext(code, bytes(data))


def _unpickled(code: int, data: memoryview) -> Any:
    if code != _PICKLE:
        raise InvalidInputError(
            f"a parameter has the form {code}, which this version of trialpod does not know: a newer one wrote it; "
            "upgrade trialpod in the trial's image"
        )
    import pickle

    return pickle.loads(bytes(data).partition(b"\0")[2])


class ParamsEncoder:
    """Encodes parameters; integers that MessagePack has no room for travel as a pickle."""

    __slots__ = ("_encoder",)

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain_or_pickled)

    def encode(self, value: Any) -> bytes:
        """Return the parameters as MessagePack."""
        try:
            return self._encoder.encode(value)
        except OverflowError:
            return self._encoder.encode(_with_packed_integers(value))


def _with_packed_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_packed_integers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_packed_integers(item) for item in value]
    if isinstance(value, int) and not _LEAST_INTEGER <= value <= _GREATEST_INTEGER:
        import pickle

        return OpaqueValue(str(value).encode() + b"\0" + pickle.dumps(int(value)))
    return value


metrics_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
params_encoder = ParamsEncoder()
opaque_decoder = msgspec.msgpack.Decoder(ext_hook=_opaque)
"""Decodes results and parameters in the operator; never runs user code."""
params_decoder = msgspec.msgpack.Decoder(ext_hook=_unpickled)
"""Decodes parameters in the user's own process."""
