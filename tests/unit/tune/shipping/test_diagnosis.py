from __future__ import annotations

import functools
import queue
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from trialpod.tune.shipping.diagnosis import diagnose


class Client:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Slotted:
    __slots__ = ("handle",)

    def __init__(self) -> None:
        self.handle = threading.Lock()


def found(obj: Any, name: str | None = None) -> list[str]:
    return [str(culprit) for culprit in diagnose(obj, name)]


def test_what_can_be_pickled_has_no_culprits() -> None:
    assert diagnose({"a": [1, lambda x: x]}) == []


def test_items_and_attributes_are_followed() -> None:
    assert found({"data": Client(), "lr": 0.1}, "config") == ["config['data'].lock: _thread.lock"]
    assert found([1, (2, Slotted())], "config") == ["config[1][1].handle: _thread.lock"]


def test_closure_variables_are_named() -> None:
    lock = threading.Lock()

    def train(config: dict[str, Any]) -> None:
        print(lock)

    assert found(train) == ["closure variable 'lock' of train: _thread.lock"]


def test_what_is_inside_a_closure_variable_is_reached() -> None:
    client = Client()

    def train(config: dict[str, Any]) -> None:
        print(client)

    assert found(train) == ["closure variable 'client' of train, at client.lock: _thread.lock"]


@pytest.fixture
def script() -> Any:
    """A module that exists only here, as ``__main__`` of a script does: its functions travel by value."""
    import cloudpickle

    module = ModuleType("a_script")
    sys.modules["a_script"] = module
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules["a_script"]


def test_globals_are_named_also_when_an_inner_function_uses_them(script: Any) -> None:
    source = """
import threading
conn = threading.Lock()
other = threading.Lock()
def train(config):
    def inner():
        return conn
    return inner()
"""
    exec(compile(source, "a_script.py", "exec"), script.__dict__)
    assert found(script.train) == ["global 'conn' used by train: _thread.lock"]


def test_walks_through_global_functions(script: Any) -> None:
    source = """
import threading
conn = threading.Lock()
def load():
    return conn
def train(config):
    return load()
"""
    exec(compile(source, "a_script.py", "exec"), script.__dict__)
    assert found(script.train) == ["global 'conn' used by load: _thread.lock"]


def test_defaults_partials_and_bound_methods_are_walked_through() -> None:
    lock = threading.Lock()

    def train(config: dict[str, Any], held: Any = lock) -> None: ...

    def plain(config: dict[str, Any], data: Any) -> None: ...

    assert found(train) == ["default of argument 'held' of train: _thread.lock"]
    assert found(functools.partial(plain, data=lock)) == ["argument 'data' bound to plain: _thread.lock"]

    class Local:
        def __init__(self) -> None:
            self.lock = lock

        def train(self, config: dict[str, Any]) -> None: ...

    assert found(Local().train, "train") == ["train.__self__.lock: _thread.lock"]


def test_walks_through_local_classes() -> None:
    lock = threading.Lock()

    class Train:
        shared = lock

        def step(self) -> None:
            print(lock)

    assert "attribute 'shared' of class Train: _thread.lock" in found(Train)


def test_cycles_end() -> None:
    loop: dict[str, Any] = {"lock": threading.Lock()}
    loop["self"] = loop
    assert found(loop, "config") == ["config['lock']: _thread.lock"]


def test_object_that_refuses_itself_is_the_culprit() -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            raise RuntimeError("not me")

    (culprit,) = diagnose({"x": Refuses()}, "config")
    assert culprit.expression == "config['x']"
    assert culprit.reason == "RuntimeError: not me"


def test_the_search_is_bounded() -> None:
    assert len(diagnose([threading.Lock() for _ in range(100)], "config")) == 10


def test_deep_nesting_names_how_far_it_came() -> None:
    obj: Any = threading.Lock()
    for _ in range(40):
        obj = [obj]
    (culprit,) = diagnose(obj, "config")
    assert culprit.expression.startswith("config[0][0]")


class Proxy:
    """As wrappers of streams are written: attributes come from what it wraps."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


class TestKnownByName:
    def test_what_cannot_be_unpickled_is_named(self) -> None:
        bar = Proxy({})
        (culprit,) = diagnose(lambda: bar)
        assert str(culprit) == "closure variable 'bar' of <lambda>: test_diagnosis.Proxy"
        assert "cannot be unpickled: its __getattr__ calls itself without end" in culprit.reason

    def test_event_and_queue_are_one_culprit_each(self) -> None:
        ready, work = threading.Event(), queue.Queue[int]()
        assert found(lambda: (ready, work)) == [
            "closure variable 'ready' of <lambda>: threading.Event",
            "closure variable 'work' of <lambda>: queue.Queue",
        ]
