"""Variant generation: order, tags, nesting, dependencies, errors."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

from typing import Any

import numpy as np
from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.variant_generator import generate_variants, grid_search


def _train(config: dict[str, Any]) -> None:
    return None


def _made(space: dict[str, Any], samples: int = 1, **arguments: Any) -> Any:
    tune.register_trainable("train", _train)
    search = BasicVariantGenerator(**arguments)
    search.add_configurations({"e": {"run": "train", "config": space, "num_samples": samples}})
    found = []
    while not search.is_finished():
        trial = search.next_trial()
        if trial is not None:
            found.append([trial.config, trial.experiment_tag])
    return found


@probe
def grids(folder: str) -> dict[str, Any]:
    return {
        "one": lambda: _made({"a": tune.grid_search([1, 2, 3])}),
        "two": lambda: _made({"b": tune.grid_search([1, 2]), "a": tune.grid_search([3, 4])}),
        "nested": lambda: _made({"m": {"x": tune.grid_search([1, 2]), "y": 5}}),
        "in a list": lambda: _made({"m": [tune.grid_search([1, 2]), 7]}),
        "of lists": lambda: _made({"m": tune.grid_search([[1, 2], [3]])}),
        "of dicts": lambda: _made({"m": tune.grid_search([{"a": 1}, {"a": 2}])}),
        "as a dict": lambda: _made({"m": {"grid_search": [1, 2]}}),
        "samples": lambda: _made({"a": tune.grid_search([1, 2])}, 2),
        "grid of grids": lambda: _made({"a": tune.grid_search([{"grid_search": [1, 2]}, 3])}),
        "grid of domains": [
            row[0]["a"] for row in _made({"a": tune.grid_search([tune.uniform(0, 1), 7])}, random_state=3)
        ],
        "long values": lambda: [
            row[1] for row in _made({"a": tune.grid_search([0.123456789, "x" * 50, None, True])})
        ],
        "objects in tags": lambda: [row[1] for row in _made({"a": tune.grid_search([[1, 2], {"k": 1}, (1, 2)])})],
        "path in a tag": lambda: [row[1] for row in _made({"m": {"n": {"x": tune.grid_search(["a/b"])}}})],
        "a grid beside others": lambda: _made(
            {"a": tune.choice([1, 2]), "b": tune.grid_search([1, 2])}, 2, random_state=5
        ),
        "constant grid": lambda: _made(
            {"a": tune.uniform(0, 1), "b": tune.grid_search([1, 2])}, 2, random_state=5, constant_grid_search=True
        ),
    }


@probe
def dependencies(folder: str) -> dict[str, Any]:
    return {
        "spec.config": lambda: _made(
            {"a": tune.grid_search([1, 2]), "b": tune.sample_from(lambda spec: spec.config.a * 10)}
        ),
        "config": lambda: _made({"a": 3, "b": tune.sample_from(lambda config: config["a"] * 10)}),
        "a lambda in the space": lambda: _made({"a": 3, "b": lambda spec: spec.config.a * 10})[0][1],
        "a chain": lambda: _made(
            {
                "a": tune.sample_from(lambda config: config["b"] + 1),
                "b": tune.sample_from(lambda config: config["c"] + 1),
                "c": 1,
            }
        ),
        "a cycle": raised(
            lambda: _made(
                {
                    "a": tune.sample_from(lambda config: config["b"] + 1),
                    "b": tune.sample_from(lambda config: config["a"] + 1),
                }
            )
        ),
        "an error": raised(lambda: _made({"a": tune.sample_from(lambda: 1 / 0)})),
        "nested": lambda: _made({"m": {"a": 2}, "b": tune.sample_from(lambda spec: spec.config.m.a + 1)}),
        "a missing key": raised(lambda: _made({"b": tune.sample_from(lambda spec: spec.config.nothing)})),
        "returns a grid": raised(lambda: _made({"b": tune.sample_from(lambda: tune.grid_search([1, 2]))})),
        "eval": lambda: _made({"a": {"eval": "1 + 2"}})[0][0],
    }


@probe
def points(folder: str) -> dict[str, Any]:
    space = {"a": tune.uniform(0, 1), "b": tune.choice(["x", "y"])}
    return {
        "full": lambda: _made(dict(space), 3, random_state=2, points_to_evaluate=[{"a": 0.5, "b": "x"}]),
        "partial": lambda: _made(dict(space), 2, random_state=2, points_to_evaluate=[{"a": 0.5}]),
        "more than samples": len(
            _made(dict(space), 1, random_state=2, points_to_evaluate=[{"a": 0.1}, {"a": 0.2}, {"a": 0.3}])
        ),
        "unknown key": raised(lambda: _made(dict(space), 1, random_state=2, points_to_evaluate=[{"zz": 1}])),
        "outside": raised(lambda: _made(dict(space), 1, random_state=2, points_to_evaluate=[{"b": "zz"}])),
        "with a grid": lambda: _made({"a": tune.grid_search([1, 2])}, 1, points_to_evaluate=[{"a": 2}]),
        "no list": raised(lambda: _made(dict(space), 1, points_to_evaluate={"a": 1})),
    }


@probe
def functions_of_the_module(folder: str) -> dict[str, Any]:
    np.random.seed(3)
    made = list(generate_variants({"a": grid_search([1, 2]), "b": tune.uniform(0, 1)}))
    return {
        "generate_variants": [[list(map(str, row[0])), row[1]] for row in made],
        "seeded": lambda: [row[1] for row in generate_variants({"a": tune.uniform(0, 1)}, random_state=4)],
        "total": lambda: BasicVariantGenerator(max_concurrent=2).total_samples,
        "finished": lambda: BasicVariantGenerator().is_finished(),
        "max_concurrent": raised(lambda: BasicVariantGenerator(max_concurrent=-1)),
    }


@probe
def values_stay(folder: str) -> dict[str, Any]:
    config = _made({"t": (1, 2), "n": None, "f": _train, "s": {1}, "e": {}, "l": [], "d": {5: "x"}})[0][0]
    return {
        "types": {str(key): type(value).__name__ for key, value in config.items()},
        "keys": config["d"],
        "an integer as a key": lambda: _made({5: "x"})[0][0],
        "a tuple with a domain": lambda: type(_made({"t": (tune.choice([1]), 2)})[0][0]["t"]).__name__,
        "the space is not changed": raised(lambda: _unchanged()),
    }


def _unchanged() -> bool:
    space = {"a": tune.grid_search([1, 2])}
    _made(space)
    return bool(space == {"a": {"grid_search": [1, 2]}})
