"""Search space domains: what they draw, refuse and say of themselves."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

from typing import Any

import numpy as np
from ray import tune
from ray.tune.search import sample


def _drawn(domain: Any, seed: int = 5) -> Any:
    found = domain.sample(size=6, random_state=np.random.RandomState(seed))
    return [value.item() if hasattr(value, "item") else value for value in found]


@probe
def values_of_a_seed(folder: str) -> dict[str, Any]:
    domains = {
        "uniform": tune.uniform(-1, 3),
        "quniform": tune.quniform(0, 10, 0.5),
        "loguniform": tune.loguniform(1e-4, 1),
        "qloguniform": tune.qloguniform(1e-3, 1, 1e-3),
        "randn": tune.randn(3, 2),
        "qrandn": tune.qrandn(3, 2, 0.25),
        "randint": tune.randint(0, 50),
        "qrandint": tune.qrandint(0, 50, 5),
        "qrandint of 1": tune.qrandint(0, 5),
        "lograndint": tune.lograndint(1, 1000),
        "qlograndint": tune.qlograndint(10, 1000, 10),
        "choice of texts": tune.choice(["a", "b", "c"]),
        "choice of tuples": tune.choice([(1, 2), (3, 4)]),
        "choice of a range": tune.choice(range(10)),
        "uniform of integers": tune.uniform(0, 10),
    }
    return {name: _drawn(domain) for name, domain in domains.items()}


@probe
def generators(folder: str) -> dict[str, Any]:
    return {
        "an int seeds": [float(value) for value in tune.uniform(0, 1).sample(size=3, random_state=3)],
        "one value": float(tune.uniform(0, 1).sample(random_state=3)),
        "default_rng": [
            float(value) for value in tune.uniform(0, 1).sample(size=3, random_state=np.random.default_rng(3))
        ],
        "default_rng integers": [
            int(value) for value in tune.randint(0, 100).sample(size=3, random_state=np.random.default_rng(3))
        ],
        "default_rng choice": tune.choice(list("abcdef")).sample(size=3, random_state=np.random.default_rng(3)),
    }


@probe
def odd_bounds(folder: str) -> dict[str, Any]:
    def draws(make: Any) -> Any:
        def call() -> Any:
            values = make().sample(size=20, random_state=1)
            return [round(float(min(values)), 6), round(float(max(values)), 6)]

        return raised(call)

    return {
        "uniform(2, 1)": draws(lambda: tune.uniform(2, 1)),
        "uniform(1, 1)": draws(lambda: tune.uniform(1, 1)),
        "loguniform(1, 0.1)": draws(lambda: tune.loguniform(1, 0.1)),
        "loguniform(0, 1)": draws(lambda: tune.loguniform(0, 1)),
        "loguniform(-1, 1)": draws(lambda: tune.loguniform(-1, 1)),
        "randint(5, 5)": draws(lambda: tune.randint(5, 5)),
        "randint(5, 1)": draws(lambda: tune.randint(5, 1)),
        "randint(10)": draws(lambda: tune.randint(10)),
        "lograndint(0, 5)": draws(lambda: tune.lograndint(0, 5)),
        "lograndint(5, 2)": draws(lambda: tune.lograndint(5, 2)),
        "quniform(0, 1, 0.3)": draws(lambda: tune.quniform(0, 1, 0.3)),
        "quniform(0.1, 1, 0.5)": draws(lambda: tune.quniform(0.1, 1, 0.5)),
        "qrandint(1, 10, 3)": draws(lambda: tune.qrandint(1, 10, 3)),
        "qrandint(1, 2, 5)": draws(lambda: tune.qrandint(1, 2, 5)),
        "qloguniform(0.1, 1, 0.3)": draws(lambda: tune.qloguniform(0.1, 1, 0.3)),
        "randn(0, -1)": draws(lambda: tune.randn(0, -1)),
        "randint of floats": draws(lambda: tune.randint(0.0, 3.0)),
        "uniform of texts": draws(lambda: tune.uniform("a", "b")),
        "choice([])": raised(lambda: [type(tune.choice([])).__name__]),
        "choice([]) drawn": raised(lambda: tune.choice([]).sample()),
        "choice of a dict": raised(lambda: tune.choice({"a": 1}).sample()),
        "choice of a set": raised(lambda: tune.choice({1}).sample()),
        "choice of a text": raised(lambda: tune.choice("abc").sample(random_state=2)),
        "choice(5)": raised(lambda: tune.choice(5)),
        "grid_search(5)": raised(lambda: tune.grid_search(5)),
        "grid_search of a tuple": raised(lambda: tune.grid_search((1, 2))),
        "grid_search([])": raised(lambda: tune.grid_search([])),
        "grid_search of a text": raised(lambda: tune.grid_search("ab")),
    }


@probe
def what_domains_say(folder: str) -> dict[str, Any]:
    domains = [
        tune.uniform(0, 1),
        tune.loguniform(0.1, 1),
        tune.quniform(0, 1, 0.1),
        tune.randn(),
        tune.randint(1, 5),
        tune.lograndint(1, 5),
        tune.qrandint(2, 8, 2),
        tune.choice([1, 2]),
        tune.sample_from(lambda: 1),
    ]
    return {
        "domain_str": [domain.domain_str for domain in domains[:-1]],
        "class": [type(domain).__name__ for domain in domains],
        "is_grid": [domain.is_grid() for domain in domains],
        "is_function": [domain.is_function() for domain in domains],
        "sampler": [isinstance(domain.get_sampler(), sample.Sampler) for domain in domains],
        "sampler of a uniform": isinstance(tune.uniform(0, 1).get_sampler(), sample.Uniform),
        "sampler of steps": isinstance(tune.quniform(0, 1, 0.5).get_sampler(), sample.Quantized),
        "bounds": [tune.uniform(0, 1).lower, tune.uniform(0, 1).upper, tune.randint(1, 5).upper],
        "len of a choice": len(tune.choice([1, 2, 3])),
        "index of a choice": tune.choice([1, 2, 3])[1],
        "is_valid": [
            tune.uniform(0, 1).is_valid(0.5),
            tune.uniform(0, 1).is_valid(2),
            tune.randint(0, 3).is_valid(3),
            tune.choice([1, 2]).is_valid(2),
            tune.choice([1, 2]).is_valid(5),
        ],
        "grid": sample.Categorical([1, 2]).grid().is_grid(),
        "grid_search is a dict": tune.grid_search([1, 2]),
        "set_sampler twice": raised(lambda: tune.uniform(0, 1).set_sampler(tune.uniform(2, 3).get_sampler())),
        "quantized": _drawn(sample.Float(0, 1).uniform().quantized(0.25)),
        "integer quantized": _drawn(sample.Integer(0, 20).uniform().quantized(4)),
        "normal": _drawn(sample.Float(None, None).normal(1, 2)),
        "loguniform of no bounds": raised(lambda: sample.Float(None, None).loguniform()),
        "uniform of no bounds": raised(lambda: sample.Float(None, None).uniform()),
        "cast": [tune.uniform(0, 1).cast("0.5"), tune.randint(0, 5).cast("3")],
    }


@probe
def functions(folder: str) -> dict[str, Any]:
    class Spec(dict):  # type: ignore[type-arg]
        pass

    return {
        "no argument": lambda: tune.sample_from(lambda: 4).sample(),
        "a config": lambda: tune.sample_from(lambda config: config["a"] + 1).sample(config={"a": 4}),
        "a spec": lambda: tune.sample_from(lambda spec: spec.config.a + 1).sample(config={"a": 4}),
        "a spec by key": lambda: tune.sample_from(lambda spec: spec["config"]["a"] + 1).sample(config={"a": 4}),
        "two arguments": raised(lambda: tune.sample_from(lambda a, b: 1)),
        "no function": raised(lambda: tune.sample_from(5)),
        "an error inside": raised(lambda: tune.sample_from(lambda: 1 / 0).sample()),
        "a size": lambda: tune.sample_from(lambda: 2).sample(size=3),
    }
