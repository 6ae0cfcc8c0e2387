"""Search spaces that `tools/compare_with_ray/variants.py` gave to Ray Tune, for both sides to draw from."""

from __future__ import annotations

from typing import Any


def spaces(tune: Any) -> dict[str, dict[str, Any]]:
    """Return search spaces made with the functions of `tune`, which is Ray's module or ours."""
    grid, choice, sample_from = tune.grid_search, tune.choice, tune.sample_from
    return {
        "empty": {},
        "constants": {"a": 1, "b": {"c": "x"}},
        "floats": {"a": tune.uniform(-1, 3), "b": tune.loguniform(1e-5, 1e-1), "c": tune.randn(3, 2)},
        "steps": {"a": tune.quniform(0, 3, 0.5), "b": tune.qloguniform(0.5, 64, 0.5), "c": tune.qrandn(10, 3, 0.2)},
        "integers": {"a": tune.randint(-3, 12), "b": tune.lograndint(1, 1000), "c": tune.randint(0, 2**40)},
        "integer_steps": {"a": tune.qrandint(3, 20, 4), "b": tune.qlograndint(2, 100, 2), "c": tune.qrandint(1, 7)},
        "choices": {"a": choice(["x", "y", "z"]), "b": choice([1, 2.5, None, (3, 4)]), "c": choice([0])},
        "grids": {"z": grid([1, 2]), "a": grid(["x", "y", "z"]), "m": {"b": grid([True, False])}},
        "grid_and_draws": {"u": tune.uniform(0, 1), "g": grid([1, 2, 3]), "c": choice([10, 20])},
        "nested": {"m": {"k": {"u": tune.uniform(0, 1)}}, "l": [tune.uniform(0, 1), 2, (choice([7, 8]), "t")]},
        "order": {"z": tune.uniform(0, 1), "a": tune.uniform(0, 1), "m": {"y": tune.uniform(0, 1)}},
        "from_spec": {"a": tune.uniform(0, 1), "b": sample_from(lambda spec: spec.config.a * 10)},
        "from_item": {"a": tune.randint(1, 5), "b": sample_from(lambda spec: spec["config"]["a"] * 10)},
        "from_later": {
            "b": sample_from(lambda spec: spec.config.a * 2),
            "a": sample_from(lambda spec: spec.config.c + 1),
            "c": tune.uniform(0, 1),
        },
        "from_grid": {"g": grid([1, 2]), "b": sample_from(lambda spec: spec.config.g * 10), "u": tune.uniform(0, 1)},
        "no_argument": {"a": sample_from(lambda: 4), "u": tune.uniform(0, 1)},
        "grid_in_choice": {"a": choice([{"x": grid([1, 2])}, {"x": 9}]), "u": tune.uniform(0, 1)},
        "choice_in_grid": {"a": grid([choice([1, 2, 3]), tune.uniform(5, 6), "c"]), "u": tune.uniform(0, 1)},
        "grid_in_grid": {
            "a": grid([{"x": grid([1, 2]), "y": tune.uniform(0, 1)}, {"z": grid([5, 6, 7])}, 3]),
            "u": tune.uniform(0, 1),
            "b": grid([True, False]),
        },
        "choice_in_choice": {
            "a": choice([{"k": choice(["p", "q"]), "u": tune.uniform(0, 1)}, "plain"]),
            "z": tune.randn(),
        },
        "conditional": {
            "opt": choice(["sgd", "adam"]),
            "momentum": sample_from(lambda spec: 0.9 if spec.config.opt == "sgd" else None),
            "lr": tune.loguniform(1e-4, 1e-1),
        },
        "grid_from_function": {"n": tune.randint(1, 3), "a": sample_from(lambda spec: grid([1, 2, spec.config.n]))},
    }


POINTS: dict[str, list[dict[str, Any]]] = {
    "floats": [{"a": 0.5}, {"a": 1.0, "b": 0.01, "c": 0.0}],
    "grid_and_draws": [{"g": 2}, {"u": 0.5, "c": 10}],
    "grids": [{"z": 1, "a": "x"}],
}

CONSTANT = ("grid_and_draws", "from_grid", "choice_in_grid")
