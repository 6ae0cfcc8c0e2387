"""Asks Ray Tune which trials it makes of search spaces, and writes that down as test data.

    .cache/bench-ray/venv/bin/python tools/compare_with_ray/variants.py > tests/data/ray_variants.json

Needs an environment with ``ray[tune]==2.60.0`` (benchmarks/scratch_environment.py makes one). No cluster is started.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.registry import register_trainable
from ray.tune.search.basic_variant import BasicVariantGenerator

SPACES = Path(__file__).parents[2] / "tests" / "unit" / "tune" / "ray_spaces.py"


def _trials(space: dict[str, Any], samples: int, **arguments: Any) -> list[list[Any]]:
    search = BasicVariantGenerator(**arguments)
    search.add_configurations({"e": {"run": "train", "config": space, "num_samples": samples}})
    found = []
    while not search.is_finished():
        trial = search.next_trial()
        if trial is not None:
            found.append([trial.config, trial.experiment_tag])
    return found


def main() -> None:
    """Write the data to the standard output."""
    spec = importlib.util.spec_from_file_location("ray_spaces", SPACES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    register_trainable("train", lambda _: None)
    cases: dict[str, Any] = {}
    for name in module.spaces(tune):

        def space(name: str = name) -> dict[str, Any]:
            found: dict[str, Any] = module.spaces(tune)[name]
            return found

        cases[name] = {"seed": _trials(space(), 3, random_state=7)}
        cases[name]["RandomState"] = _trials(space(), 3, random_state=np.random.RandomState(7))
        np.random.seed(7)
        cases[name]["global"] = _trials(space(), 3)
        if name in module.POINTS:
            cases[name]["points"] = _trials(space(), 3, random_state=7, points_to_evaluate=module.POINTS[name])
        if name in module.CONSTANT:
            cases[name]["constant"] = _trials(space(), 3, random_state=7, constant_grid_search=True)
    single: dict[str, Any] = {}
    for name in ("floats", "steps", "integers", "integer_steps", "choices"):
        for key, domain in module.spaces(tune)[name].items():
            single[f"{name}/{key}"] = [
                np.asarray(domain.sample(size=5, random_state=3)).tolist()
                if name != "choices"
                else domain.sample(size=5, random_state=3),
                domain.sample(random_state=4),
            ]
    json.dump({"ray": ray.__version__, "cases": cases, "single": single}, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
