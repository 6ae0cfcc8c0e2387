from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.protocol.pickle_digest import pickle_digest
from trialpod.protocol.pickling import dumps

SCRIPT = """
import abc, dataclasses, enum, sys

NAMES = {"alpha", "beta", "gamma", "delta", "epsilon"}
KINDS = frozenset({"one", "two", "three", "four"})

class Act(enum.Enum):
    RELU = "relu"
    GELU = "gelu"

@dataclasses.dataclass
class Options:
    depth: int = RATE
    names: frozenset = KINDS

class Base(abc.ABC):
    def run(self):
        return helper(self)

class Model(Base):
    RATES = {"a": RATE}
    def step(self):
        return super().run() if self.name in {"adam", "sgd", "lion", "rprop"} else Options()

def helper(value, seen={"x", "y", "z"}):
    return [helper(each) for each in NAMES if each != Act.RELU.value] + [value, seen]

def train(config):
    return Model().step(), helper(config), Act(config["act"])
"""
WRITE = """
from trialpod.tune.shipping.package import packed_trainable
from trialpod.protocol.packed import read_packed
from trialpod.protocol.pickle_digest import pickle_digest
import hashlib
bodies = [read_packed(packed_trainable(each))[1] for each in (train, Model)]
print(*map(pickle_digest, bodies), *(hashlib.sha256(body).hexdigest() for body in bodies))
"""


def digests(folder: Path, seed: int, rate: str = "1") -> list[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("RATE}", f"{rate}}}").replace("= RATE", f"= {rate}") + WRITE)
    environ = {"PYTHONHASHSEED": str(seed), "PATH": ""}
    return subprocess.check_output([sys.executable, script], env=environ, text=True).split()


def test_the_same_script_says_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    one, other = digests(tmp_path, 1), digests(tmp_path / "elsewhere", 2)
    assert one[:2] == other[:2]
    assert one[2:] != other[2:], "the bytes differ, or this shows nothing"
    changed = digests(tmp_path, 1, "2")
    assert changed[0] != one[0]
    assert changed[1] != one[1]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers() | st.text())
        | st.sets(st.text())
    ),
    max_leaves=8,
)


def exact(value: Any) -> Any:
    """What tells values apart as a pickle does: 1 and True, 0.0 and -0.0 are equal."""
    if isinstance(value, dict):
        return "dict", [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [exact(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(repr(exact(item)) for item in value)
    return type(value).__name__, repr(value)


@given(values, values)
def test_equal_values_and_only_these_have_one_digest(one: Any, other: Any) -> None:
    same = pickle_digest(dumps(one)) == pickle_digest(dumps(other))
    assert same == (exact(one) == exact(other))
    assert pickle_digest(dumps(one)) == pickle_digest(dumps(pickle.loads(dumps(one))))


def function(number: int, default: Any = None) -> Any:
    class Local:
        rate = number

        def run(self) -> int:
            return number

    def inner(given: Any = default) -> Any:
        return Local, given, inner

    return inner


class TestCode:
    def test_what_a_function_closes_over_counts(self) -> None:
        assert self.of(function(1)) == self.of(function(1))
        assert self.of(function(1)) != self.of(function(2))
        assert self.of(function(1, [1])) != self.of(function(1, [2]))

    def test_class_bodies_count(self) -> None:
        assert self.of(function(1)()[0]) == self.of(function(1)()[0])
        assert self.of(function(1)()[0]) != self.of(function(2)()[0])

    def test_arrays_count(self) -> None:
        assert self.of(np.arange(3)) == self.of(np.arange(3))
        assert self.of(np.arange(3)) != self.of(np.arange(4))

    def of(self, value: Any) -> str:
        return pickle_digest(cloudpickle.dumps(value))


@pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps([1])[:-3]])
def test_what_is_no_pickle_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        pickle_digest(data)
