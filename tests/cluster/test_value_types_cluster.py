"""Values of configs and results keep their types between a script, its trials' pods and its deciding code's pod."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_access import Cluster
from experiments import storage_at
from script_runs import run_script

pytestmark = pytest.mark.usefixtures("operator")

HELPER = """
class Thing:
    def __init__(self, size):
        self.size = size

    def __eq__(self, other):
        return self.size == other.size

    def __hash__(self):
        return self.size
"""
SCRIPT = """
import collections, dataclasses, datetime as dt, enum, fractions, os, pathlib, sys
import numpy as np
from helper import Thing
from trialpod import tune
from trialpod.tune.schedulers import FIFOScheduler

class Act(enum.Enum):
    RELU = "relu"

Point = collections.namedtuple("Point", "x y")

@dataclasses.dataclass
class Options:
    depth: int
    where: pathlib.Path

def relu(x):
    return max(x, 0)

SPACE = {
    "point": tune.grid_search([Point(1, (2,)), Point(3, (4,))]),
    "layers": tune.choice([(64, 64)]),
    "act": Act.RELU,
    "options": Options(3, pathlib.Path("/data")),
    "when": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
    "share": fractions.Fraction(1, 3),
    "keys": {1: "one", (2, 3): "tuple"},
    "set": {1, 2},
    "array": np.arange(3, dtype="f4"),
    "relu": relu,
    "class": Options,
    "thing": Thing(3),
    "huge": 2**70,
}
REPORTED = {
    "loss": np.float32(0.25), "act": Act.RELU, "pair": (1, 2), "array": np.ones((2, 2), "i2"), "huge": 2**70,
    "options": Options(4, pathlib.Path("x")), "complex": 1j, "when": dt.date(2026, 1, 2), "thing": Thing(4),
}

def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return one == other

def check(config, where):
    for name, value in SPACE.items():
        found = config[name]
        if name not in ("point", "layers"):
            assert type(found) is type(value) and (same(found, value) or name == "relu"), (where, name, found)
    assert config["act"] is Act.RELU and isinstance(config["options"], Options), where
    assert type(config["point"]) is Point and type(config["point"].y) is tuple, (where, config["point"])
    assert config["layers"] == (64, 64) and config["relu"](-1) == 0, where
    assert config["big"].shape == (300_000,) and config["big"].dtype == float, where

def check_result(result, where):
    for name, value in REPORTED.items():
        assert type(result[name]) is type(value) and same(result[name], value), (where, name, result[name])

def train(config):
    check(config, "trial")
    config["big"] += 1
    tune.report({**REPORTED, "nested": {"deep": {"x": 1}}})

class Sees(FIFOScheduler):
    def on_trial_add(self, controller, trial):
        check(trial.config, "scheduler")
    def on_trial_result(self, controller, trial, result):
        check_result(result, "scheduler")
        return "CONTINUE"

class Watches(tune.Callback):
    started = reported = 0
    def on_trial_start(self, iteration, trials, trial, **info):
        Watches.started += 1
        check(trial.config, "callback")
    def on_trial_result(self, iteration, trials, trial, result, **info):
        Watches.reported += 1
        check_result(result, "callback")
        check(result["config"], "callback's result")

def main():
    if sys.argv[1] == "fit":
        tuning = tune.TuneConfig(metric="loss", mode="min", scheduler=Sees())
        space = {**SPACE, "big": np.arange(300_000.0)}
        run = tune.RunConfig(name="types", verbose=0, callbacks=[Watches()])
        grid = tune.Tuner(train, param_space=space, tune_config=tuning, run_config=run).fit()
        assert (Watches.started, Watches.reported) == (2, 2), (Watches.started, Watches.reported)
    else:
        grid = tune.Tuner.restore(os.environ["TRIALPOD_STORAGE"] + "/types", train).fit()
    assert len(grid) == 2 and not grid.errors, grid.errors
    for result in grid:
        check(result.config, "Result.config")
        check_result(result.metrics, "Result.metrics")
        assert result.metrics["nested"]["deep"]["x"] == 1
    print("typed", sys.argv[1])

if __name__ == "__main__":
    main()
"""


def test_values_keep_their_types(tmp_path: Path, namespace: Cluster) -> None:
    """In trials, in scheduler and callback of the script, in results, and in another process that restores them."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(HELPER)
    assert "typed fit" in run_script(script, tmp_path, namespace, "fit")
    assert "typed again" in run_script(script, tmp_path, namespace, "again")
    sizes = storage_at(namespace, "types").sizes()
    large = [key for key, size in sizes.items() if size > 2_000_000]
    assert len(large) == 1, large
    assert "/objects/" in large[0]
