"""What parameters and metrics become on the wire: the same values for the user, closed ones for the operator."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import json
import math
import os
import pathlib
import pickle
import threading
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import attrs
import msgspec
import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from trialpod.errors import NotPicklableError
from trialpod.protocol.readable import number, readable
from trialpod.protocol.values import (
    MetricsEncoder,
    OpaqueFloat,
    OpaqueInt,
    OpaqueValue,
    ParamsEncoder,
    ResultReader,
    metrics_encoder,
    opaque_decoder,
    open_leniently,
    params_decoder,
    params_encoder,
    results_decoder,
    same_value,
    unreadable,
)


def typed(*parts: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(2, msgspec.msgpack.encode(list(parts)))


ENDLESS = typed("range", b"\0", (10**12).to_bytes(6, "big"), b"\1")
"""A few bytes that are many items when something takes them one by one."""

EQUAL_HASHES = [typed("int", (number * (2**61 - 1)).to_bytes(11, "big")) for number in range(60_000)]
"""A set of these takes time with the square of their number."""


class Estimator:
    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Estimator) and other.depth == self.depth

    __hash__ = None  # type: ignore[assignment]


class Scalar(float):
    """A subclass of float, as NumPy's float64 is one."""


class Activation(enum.Enum):
    RELU = "relu"
    TANH = ("tanh", 2)


class Level(enum.IntEnum):
    LOW = 1


class Color(enum.StrEnum):
    RED = "red"


class Legacy(str, enum.Enum):  # noqa: UP042 - what scripts for older Pythons have
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: Any


@dataclasses.dataclass
class Data:
    a: Any
    b: tuple[int, ...] = ()


@attrs.define
class Attributes:
    a: Any


class Model(pydantic.BaseModel):
    a: int
    b: str = "x"


def train(config: dict[str, Any]) -> int:
    return len(config)


def explode() -> None:
    raise AssertionError("a pickle was opened")


class Bomb:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return explode, ()


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are of the same types, in every part, and equal; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return bool(
            one.dtype == other.dtype
            and one.shape == other.shape
            and (one.tobytes() == other.tobytes() or all(map(equal, one.ravel().tolist(), other.ravel().tolist())))
        )
    if isinstance(one, Data):
        return equal(one.a, other.a) and equal(one.b, other.b)
    if isinstance(one, Attributes):
        return equal(one.a, other.a)
    if isinstance(one, (pd.Series, pd.DataFrame)):
        return bool(one.equals(other))
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, complex):
        return equal(one.real, other.real) and equal(one.imag, other.imag)
    if isinstance(one, decimal.Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, dict):
        return list(map(type, one)) == list(map(type, other)) and all(
            equal(mine, theirs) and equal(one[mine], other[theirs]) for mine, theirs in zip(one, other, strict=True)
        )
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


INTEGERS = st.integers() | st.integers(min_value=-(2**200), max_value=2**200)
HASHABLE = st.one_of(
    st.none(), st.booleans(), INTEGERS, st.floats(allow_nan=False), st.text(), st.binary(), st.uuids(), st.dates(),
    st.fractions(), st.sampled_from([*Activation, *Level, *Color, *Legacy]), st.tuples(st.integers(), st.text()),
)  # fmt: skip
# NumPy's own pickle forgets the byte order of dates.
DTYPES = st_np.scalar_dtypes().filter(lambda dtype: dtype.kind not in "Mm" or dtype.isnative)
LEAVES = st.one_of(
    HASHABLE,
    st.floats(),
    st.complex_numbers(),
    st.decimals(allow_nan=False),
    st.datetimes(),
    st.datetimes(timezones=st.timezones()),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.times(),
    st.timedeltas(),
    st.binary().map(bytearray),
    st.builds(range, st.integers(), st.integers(), st.integers(min_value=1)),
    st.slices(10),
    st.sampled_from([pathlib.Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("c:\\x")]),
    st.builds(Estimator, st.integers()),
    st.builds(Scalar, st.floats()),
    st.builds(Model, a=st.integers()),
    st.sampled_from([train, Data, Model, Activation, int, len, Ellipsis]),
    st_np.arrays(DTYPES, st_np.array_shapes(min_dims=0, min_side=0)),
    DTYPES.flatmap(st_np.from_dtype),
    st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)).map(pd.Timestamp),
    st.lists(st.integers(0, 9)).map(pd.Series),
    st.lists(st.integers(0, 9)).map(lambda column: pd.DataFrame({"a": column})),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.text(), inner),
        st.dictionaries(HASHABLE, inner),
        st.dictionaries(st.text(), inner).map(collections.OrderedDict),
        st.dictionaries(st.text(), inner).map(lambda items: collections.defaultdict(list, items)),
        st.lists(inner).map(collections.deque),
        st.sets(HASHABLE),
        st.frozensets(HASHABLE),
        st.builds(Point, st.integers(), inner),
        st.builds(Data, inner),
        st.builds(Attributes, inner),
    ),
    max_leaves=8,
)


class TestRoundTrip:
    @settings(max_examples=100)
    @given(VALUES)
    @example({1: "int", (1, 2): [Level.LOW], None: np.float32(0.1)})
    @example({"text": "\ud800", "big": [-(2**63) - 1, 2**64], "nested": ((((),),),)})
    @example([np.array(["a", None], object), np.zeros((2, 0, 3), "f4"), np.asfortranarray([[1, 2], [3, 4]])])
    @example([dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))])
    @example([dt.timezone(dt.timedelta(hours=3)), dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "X"))])
    def test_value_comes_back_equal_and_typed(self, value: Any) -> None:
        data = params_encoder.encode({"value": value})
        assert equal(params_decoder.decode(data), {"value": value})
        metrics = metrics_encoder.encode({"value": value})
        assert equal(open_leniently(metrics), {"value": value})
        # The operator passes it on byte for byte, and shows the same as the user's own process.
        assert params_encoder.encode(opaque_decoder.decode(data)) == data
        shown = readable(results_decoder.decode(metrics))
        assert json.dumps(shown, default=lambda found: {bytes: repr}[type(found)](found))
        assert repr(readable({"value": value})) == repr(shown) or "<" in repr(shown)  # "<": too long to be listed

    def test_plain_data_is_plain_on_the_wire(self) -> None:
        params: dict[str, Any] = {"a": 1, "b": [1.5, None, True], "c": {"d": "x"}, "e": b"raw", "f": math.inf}
        for data in (params_encoder.encode(params), metrics_encoder.encode(params)):
            assert data == msgspec.msgpack.encode(params)
            assert msgspec.msgpack.decode(data) == params

    def test_arrays_come_back_writable(self) -> None:
        found = params_decoder.decode(params_encoder.encode({"x": np.zeros(3)}))["x"]
        found += 1
        assert found.tolist() == [1, 1, 1]


class TestOperator:
    def test_opens_no_pickle(self) -> None:
        data = params_encoder.encode({"bomb": Bomb(), "nested": [({"deep": Bomb()},)]})
        for closed in (opaque_decoder.decode(data), results_decoder.decode(data), ResultReader().decode(data)):
            assert isinstance(closed["bomb"], OpaqueValue)
            assert repr(closed) == "{'bomb': <Bomb>, 'nested': [({'deep': <Bomb>},)]}"
            assert readable(closed) == {"bomb": "<Bomb>", "nested": [[{"deep": "<Bomb>"}]]}
        assert unreadable(data) is not None
        with pytest.raises(AssertionError, match="was opened"):
            params_decoder.decode(data)

    def test_computes_with_numbers_and_keeps_their_type(self) -> None:
        data = params_encoder.encode(
            {"lr": np.float32(0.5), "n": np.int64(3), "level": Level.LOW, "f": np.bool_(True)}
        )
        closed = opaque_decoder.decode(data)
        assert closed["lr"] * 2 == 1.0
        assert isinstance(closed["lr"], OpaqueFloat)
        assert closed["n"] + 1 == 4
        assert isinstance(closed["n"], OpaqueInt)
        assert readable(closed) == {"lr": 0.5, "n": 3, "level": 1, "f": True}
        assert params_encoder.encode(closed) == data
        shown = results_decoder.decode(data)
        assert [type(value) for value in shown.values()] == [float, int, int, bool]

    def test_reads_what_the_standard_library_defines(self) -> None:
        config = {"t": (1, {2}), "p": pathlib.Path("x"), "d": decimal.Decimal("1.5"), "u": uuid.UUID(int=1)}
        assert equal(opaque_decoder.decode(params_encoder.encode(config)), config)

    def test_shows_arrays_and_fields_without_their_library(self) -> None:
        config = {"x": np.arange(6.0).reshape(2, 3), "f": np.asfortranarray([[1, 2], [3, 4]]), "d": Data(1, (2,))}
        closed = opaque_decoder.decode(params_encoder.encode(config))
        assert readable(closed) == {"x": [[0, 1, 2], [3, 4, 5]], "f": [[1, 2], [3, 4]], "d": {"a": 1, "b": [2]}}
        assert repr(closed) == "{'x': <ndarray 2x3 f8>, 'f': <ndarray 2x2 i8>, 'd': Data(a=1, b=(2,))}"

    def test_leaves_closed_what_could_take_long(self) -> None:
        big = {(number, "x") for number in range(200)}
        config = {"s": big, "d": dict.fromkeys(big), "f": fractions.Fraction(2**9000, 3), "n": set(range(200))}
        data = params_encoder.encode(config)
        closed = opaque_decoder.decode(data)
        assert [isinstance(value, OpaqueValue) for value in closed.values()] == [True, True, True, False]
        assert repr(closed["s"]) == "<set of 200 items>"
        assert readable(closed)["f"] == "<Fraction>"
        assert params_encoder.encode(closed) == data
        assert params_decoder.decode(data) == config

    @given(st.binary(max_size=60), st.sampled_from([1, 2, 3]))
    @example(msgspec.msgpack.encode(["bytearray", 2**40]), 2)
    @example(msgspec.msgpack.encode(["set", [[1]]]), 2)
    @example(msgspec.msgpack.encode(["array", "<f8", [2**40], "C", b""]), 2)
    @example(msgspec.msgpack.encode(["array", "|O", [1], "C", b"12345678"]), 2)
    @example(msgspec.msgpack.encode(["path", "Popen", "ls"]), 2)
    @example(msgspec.msgpack.encode(["pickle", None, None, None]), 2)
    @example(msgspec.msgpack.encode(["unknown"]), 2)
    @example(msgspec.msgpack.encode(["tuple", ENDLESS]), 2)
    @example(msgspec.msgpack.encode(["set", ENDLESS]), 2)
    @example(msgspec.msgpack.encode(["frozenset", ENDLESS]), 2)
    @example(msgspec.msgpack.encode(["dict", ENDLESS]), 2)
    @example(msgspec.msgpack.encode(["OrderedDict", ENDLESS]), 2)
    @example(msgspec.msgpack.encode(["range", b"\1" * 2_000_000]), 2)
    @example(msgspec.msgpack.encode(["Fraction", b"\1" * 2_000_000, b"\1" * 1_999_999]), 2)
    @example(msgspec.msgpack.encode(["array", "<f8", [10**12, 0], "C", b""]), 2)
    @example(msgspec.msgpack.encode(["array", "<f8", [2**62] * 200_000, "C", b""]), 2)
    @example(msgspec.msgpack.encode(["set", EQUAL_HASHES]), 2)
    @example(msgspec.msgpack.encode(["OrderedDict", [[key, 0] for key in EQUAL_HASHES]]), 2)
    def test_damaged_value_is_a_validation_error(self, payload: bytes, code: int) -> None:
        raw = msgspec.msgpack.encode({"x": msgspec.msgpack.Ext(code, payload)})
        try:
            found = results_decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        readable(found)
        repr(found)


class TestWhatCannotTravel:
    def test_lock_is_named_with_its_path(self) -> None:
        with pytest.raises(NotPicklableError, match=r"config\['a'\]\['b'\]\[0\] cannot be sent.*lock") as caught:
            params_encoder.encode({"a": {"b": [threading.Lock()]}})
        assert caught.value.path == "config['a']['b'][0]"

    def test_value_that_contains_itself_is_named(self) -> None:
        loop: list[Any] = [1]
        loop.append({"again": loop})
        with pytest.raises(NotPicklableError, match=r"config\['x'\]\[1\]\['again'\].*contains itself"):
            params_encoder.encode({"x": loop})
        twice = [1]
        assert params_decoder.decode(params_encoder.encode({"x": [twice, twice]})) == {"x": [[1], [1]]}

    def test_metric_that_cannot_is_stored_as_text(self) -> None:
        heard: list[tuple[str, str]] = []
        encoder = MetricsEncoder(lambda key, reason: heard.append((key, reason)))
        lock = threading.Lock()
        assert params_decoder.decode(encoder.encode({"loss": 0.5, "lock": lock, "t": (1,)})) == {
            "loss": 0.5, "lock": str(lock), "t": (1,),
        }  # fmt: skip
        assert [key for key, _ in heard] == ["lock"]
        with pytest.raises(NotPicklableError, match=r"the metric 'lock' cannot"):
            metrics_encoder.encode({"lock": lock})

    def test_what_cannot_be_opened_here_is_named_or_kept_closed(self) -> None:
        data = params_encoder.encode({"a": 1, "b": (Bomb(),)})
        path, error = unreadable(data) or ("", None)
        assert path == "config['b'][0]"
        assert isinstance(error, AssertionError)
        found = open_leniently(data)
        assert isinstance(found["b"][0], OpaqueValue)
        assert found["a"] == 1


class TestStore:
    class Store:
        def __init__(self) -> None:
            self.values: list[Any] = []

        def put(self, value: Any) -> bytes | None:
            if len(pickle.dumps(value)) < 64 * 1024:
                return None
            self.values.append(value)
            return pickle.dumps(len(self.values))

    def test_takes_large_values_only(self) -> None:
        store = self.Store()
        big = np.zeros(10_000)
        rows = [[float(number) for number in range(1000)] for _ in range(100)]
        config = {
            "small": (1, 2), "x": {"array": big, "frame": pd.DataFrame({"a": big})}, "text": "x" * 70_000,
            "raw": b"y" * 70_000, "rows": rows, "small_rows": rows[:2], "data": Data(big),
        }  # fmt: skip
        data = ParamsEncoder(store).encode(config)
        assert len(data) < 25_000
        assert [type(value).__name__ for value in store.values] == [
            "ndarray",
            "DataFrame",
            "str",
            "bytes",
            "list",
            "Data",
        ]
        closed = opaque_decoder.decode(data)
        assert repr(closed["x"]["array"]) == "<ndarray 10000 float64>"
        assert readable(closed["rows"]) == "<list of 100 items>"


class TestSameValue:
    def test_distinguishes_types_and_arrays(self) -> None:
        assert same_value(np.ones(3), np.ones(3))
        assert not same_value(np.ones(3), np.ones(4))
        assert not same_value(np.ones(3), np.ones(3, "f4"))
        assert not same_value(1, 1.0)
        assert not same_value((1,), [1])
        assert same_value(Data((1, np.ones(2))), Data((1, np.ones(2))))
        assert same_value({"a": np.ones(2)}, {"a": np.ones(2)})


class TestNumber:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (1, 1), (0.5, 0.5), (True, True), (np.float32(0.5), 0.5), (np.int8(3), 3), (np.array(2.0), 2.0),
            (decimal.Decimal("0.5"), 0.5), (fractions.Fraction(1, 2), 0.5), (Level.LOW, 1), ("1", None), (None, None),
            (np.ones(1), None), (Activation.RELU, None), (dt.timedelta(1), None), (1j, None), ((1,), None),
        ],
    )  # fmt: skip
    def test_reads_numbers_of_every_kind(self, value: Any, expected: Any) -> None:
        assert number(value) == expected
        closed = results_decoder.decode(metrics_encoder.encode({"x": value}))["x"]
        assert number(closed) == expected

    @pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.int64(3), Level.LOW, np.array(2.0)])
    def test_gives_plain_numbers(self, value: Any) -> None:
        assert type(number(value)) in (int, float)


def test_files_of_undecodable_names_travel() -> None:
    path = pathlib.Path(os.fsdecode(b"/tmp/\xff"))
    assert params_decoder.decode(params_encoder.encode({"p": path})) == {"p": path}
