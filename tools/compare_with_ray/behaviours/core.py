"""Tasks, actors and objects of `ray` itself, as scripts use them beside Tune."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import time
from typing import Any

import ray


@probe
def objects(folder: str) -> dict[str, Any]:
    import numpy as np

    ref = ray.put({"a": [1, 2]})
    array = ray.put(np.arange(4))
    return {
        "put and get": lambda: ray.get(ref),
        "a list": lambda: ray.get([ref, ray.put(3)]),
        "an array": lambda: ray.get(array).tolist(),
        "get of no reference": lambda: ray.get(5),
        "put of a reference": lambda: ray.put(ref),
        "is_initialized": lambda: ray.is_initialized(),
        "init again": lambda: ray.init(),
        "init again, ignored": lambda: ray.init(ignore_reinit_error=True) is not None,
        "a copy": lambda: ray.get(ref) is ray.get(ref),
    }


@probe
def tasks(folder: str) -> dict[str, Any]:
    @ray.remote
    def add(a: int, b: int = 1) -> int:
        return a + b

    @ray.remote(num_returns=2)
    def two() -> Any:
        return 1, 2

    @ray.remote
    def fails() -> None:
        raise ValueError("inside")

    @ray.remote
    def slow() -> int:
        time.sleep(5)
        return 1

    @ray.remote(num_cpus=1)
    def nested(n: int) -> int:
        return int(ray.get(add.remote(n)))

    def caught(kind: type[Exception]) -> bool:
        try:
            ray.get(fails.remote())
        except kind:
            return True
        return False

    return {
        "one": lambda: ray.get(add.remote(1, b=2)),
        "several": lambda: ray.get([add.remote(i) for i in range(4)]),
        "a reference as argument": lambda: ray.get(add.remote(add.remote(1), b=2)),
        "two returns": lambda: ray.get(two.remote()),
        "options": lambda: ray.get(add.options(num_cpus=1).remote(1)),
        "nested": lambda: ray.get(nested.remote(3)),
        "called directly": lambda: add(1),
        "an error": lambda: ray.get(fails.remote()),
        "caught as ValueError": lambda: caught(ValueError),
        "caught as RayTaskError": lambda: caught(ray.exceptions.RayTaskError),
        "a timeout": lambda: ray.get(slow.remote(), timeout=0.2),
        "wait": lambda: [len(part) for part in ray.wait([add.remote(1), add.remote(2)], num_returns=2, timeout=30)],
        "wait for nothing": lambda: ray.wait([]),
        "wait for one of no list": lambda: ray.wait(add.remote(1)),
        "a wrong argument": lambda: ray.get(add.remote(1, c=2)),
        "remote of a value": lambda: ray.remote(5),
    }


@probe
def actors(folder: str) -> dict[str, Any]:
    @ray.remote
    class Counter:
        def __init__(self, start: int = 0) -> None:
            self.n = start

        def add(self, by: int = 1) -> int:
            self.n += by
            return self.n

        def fail(self) -> None:
            raise KeyError("inside")

    counter = Counter.remote(5)
    named = Counter.options(name="named").remote()
    killed = Counter.remote()
    ray.get(killed.add.remote())
    ray.kill(killed)
    return {
        "calls": lambda: ray.get([counter.add.remote(), counter.add.remote(2)]),
        "an error": lambda: ray.get(counter.fail.remote()),
        "after an error": lambda: ray.get(counter.add.remote(0)),
        "by name": lambda: [ray.get(named.add.remote()), ray.get(ray.get_actor("named").add.remote())],
        "an unknown name": lambda: ray.get_actor("missing"),
        "a missing method": lambda: counter.nothing.remote(),
        "called directly": lambda: Counter(),
        "a method called directly": lambda: counter.add(),
        "killed": lambda: ray.get(killed.add.remote()),
    }


@probe
def in_trials(folder: str) -> dict[str, Any]:
    from ray import tune

    @ray.remote
    def square(n: int) -> int:
        return n * n

    data = ray.put([1, 2, 3])

    def uses_task(config: dict[str, Any]) -> dict[str, Any]:
        return {"n": ray.get(square.remote(config["n"]))}

    def uses_object(config: dict[str, Any]) -> dict[str, Any]:
        return {"n": sum(ray.get(data))}

    def run(function: Any) -> Any:
        return (
            tune.Tuner(function, param_space={"n": 3}, run_config=tune.RunConfig(storage_path=folder, verbose=0))
            .fit()[0]
            .metrics["n"]
        )

    return {"a task": lambda: run(uses_task), "an object": lambda: run(uses_object)}
