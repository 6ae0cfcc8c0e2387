"""Values of every type in configs and results: from a script to its trials and back, also in a later process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from minio_server import ACCESS_KEY, SECRET_KEY, MinioServer

SCRIPT = """
import collections, dataclasses, datetime as dt, enum, fractions, os, pathlib, sys, threading
import attrs, numpy as np, pandas as pd, pydantic
from helper import Thing
from trialpod import tune
from trialpod.tune.schedulers import FIFOScheduler
from trialpod.tune.search import Searcher

class Act(enum.Enum):
    RELU = "relu"

Point = collections.namedtuple("Point", "x y")

@dataclasses.dataclass
class Options:
    depth: int
    where: pathlib.Path

class Model(pydantic.BaseModel):
    width: int

@attrs.define
class Attributes:
    name: str

def relu(x):
    return max(x, 0)

SPACE = {
    "point": tune.grid_search([Point(1, (2,)), Point(3, (4,))]),
    "layers": tune.choice([(64, 64)]),
    "drawn": tune.sample_from(lambda spec: {spec.config.layers[0]}),
    "act": Act.RELU,
    "options": Options(3, pathlib.Path("/data")),
    "when": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
    "share": fractions.Fraction(1, 3),
    "ordered": collections.OrderedDict(b=tune.uniform(0, 1), a=1),
    "keys": {1: "one", (2, 3): "tuple"},
    "array": np.arange(3, dtype="f4"),
    "frame": pd.DataFrame({"a": [1, 2]}),
    "model": Model(width=2),
    "attributes": {"inner": [Attributes("x")]},
    "thing": Thing(3),
    "relu": relu,
    "class": Options,
    "scaled": lambda x: 2 * x,
}
def space():
    return {**SPACE, "big": np.arange(float(os.environ["BIG"]))}

REPORTED = {
    "loss": np.float32(0.25), "act": Act.RELU, "pair": (1, 2), "array": np.ones((2, 2), "i2"), "huge": 2**70,
    "options": Options(4, pathlib.Path("x")), "complex": 1j, "when": dt.date(2026, 1, 2), "thing": Thing(4),
    "model": Model(width=3), "frame": pd.DataFrame({"b": [3]}),
}

def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, pd.DataFrame):
        return one.equals(other)
    return one == other

def check(config, where):
    for name, value in SPACE.items():
        found = config[name]
        if name not in ("point", "layers", "drawn", "ordered", "scaled"):
            assert type(found) is type(value) and (same(found, value) or name == "relu"), (where, name, found)
    assert len(config["big"]) == float(os.environ["BIG"]) and config["big"].dtype == float, where
    assert config["act"] is Act.RELU and isinstance(config["options"], Options), where
    assert type(config["point"]) is Point and type(config["point"].y) is tuple, (where, config["point"])
    assert config["layers"] == (64, 64) and config["drawn"] == {64}, where
    assert type(config["ordered"]) is collections.OrderedDict and list(config["ordered"]) == ["b", "a"], where
    assert config["relu"](-1) == 0 and config["scaled"](2) == 4, where

def check_result(result, where):
    for name, value in REPORTED.items():
        assert type(result[name]) is type(value) and same(result[name], value), (where, name, result[name])
    assert isinstance(result["lock"], str) and "lock" in result["lock"], (where, result["lock"])
    check(result["config"], where)

def train(config):
    check(config, "trial")
    config["big"] += 1  # its own copy
    if config["point"].x == 3 and not os.path.exists(os.environ["MARK"]):
        raise ValueError("fails at first")
    tune.report({**REPORTED, "lock": threading.Lock()})

class Own(Searcher):
    def __init__(self):
        super().__init__(metric="loss", mode="min")
        self.made = 0

    def suggest(self, trial_id):
        self.made += 1
        drawn = {"point": Point(3, (4,)), "layers": (64, 64), "drawn": {64}}
        return {**space(), **drawn, "ordered": collections.OrderedDict(b=0.5, a=1)}

    def on_trial_complete(self, trial_id, result=None, error=False):
        for name, value in REPORTED.items():
            assert type(result[name]) is type(value) and same(result[name], value), (name, result[name])
        found = {name: result["config/" + name] for name in space() if name not in ("ordered", "keys", "attributes")}
        check({**found, "ordered": collections.OrderedDict(b=1, a=1), "keys": SPACE["keys"],
               "attributes": SPACE["attributes"]}, "searcher")
        print("searcher saw", self.made)

class Watch(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        check_result(result, "callback")
        check(trial.config, "trial of callback")

class Sees(FIFOScheduler):
    def on_trial_add(self, controller, trial):
        check(trial.config, "scheduler")
    def on_trial_result(self, controller, trial, result):
        assert result["pair"] == (1, 2) and result["act"] is Act.RELU and type(result["loss"]) is np.float32, result
        return "CONTINUE"

def main():
    run = tune.RunConfig(name="types", storage_path=os.environ["PLACE"], verbose=0, callbacks=[Watch()])
    if sys.argv[1] == "fit":
        tuning = tune.TuneConfig(metric="loss", mode="min", scheduler=Sees())
        grid = tune.Tuner(train, param_space=space(), tune_config=tuning, run_config=run).fit()
        assert len(grid.errors) == 1, grid.errors
    elif sys.argv[1] == "search":
        run.name = "search"
        tuning = tune.TuneConfig(search_alg=Own(), num_samples=2)
        grid = tune.Tuner(train, tune_config=tuning, run_config=run).fit()
        assert not grid.errors, grid.errors
    else:
        grid = tune.Tuner.restore(os.environ["PLACE"] + "/types", train, resume_errored=True).fit()
        assert not grid.errors, grid.errors
    for result in grid:
        check(result.config, "Result.config")
        if result.error is None:
            check_result(result.metrics, "Result.metrics")
    best = grid.get_best_result("loss", "min")
    assert best.metrics["loss"] == 0.25
    analysis = tune.ExperimentAnalysis(grid.experiment_path, default_metric="loss", default_mode="min")
    check(analysis.best_config, "ExperimentAnalysis")

if __name__ == "__main__":
    main()
"""


HELPER = """
class Thing:
    def __init__(self, size):
        self.size = size

    def __eq__(self, other):
        return self.size == other.size

    def __hash__(self):
        return self.size
"""


def run(folder: Path, *args: str, big: int = 100_000, **more: str) -> str:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text(HELPER)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PLACE": str(folder / "place"), "MARK": str(folder / "mark")}
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), *args],
        env={**env, "BIG": str(big), **more},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return done.stdout


def test_values_keep_their_types_also_when_restored(tmp_path: Path) -> None:
    run(tmp_path, "fit")
    (tmp_path / "mark").touch()
    run(tmp_path, "restore")
    place = tmp_path / "place" / "types"
    (big,) = (place / ".trialpod" / "objects").iterdir()
    assert big.stat().st_size < 810_000
    journal = sum(file.stat().st_size for file in (place / ".trialpod" / "journal").iterdir())
    assert journal < 100_000
    (first, second) = sorted(place.glob("train_*"))
    params = json.loads((first / "params.json").read_text())
    assert params["layers"] == [64, 64]
    assert params["act"] == "relu"
    assert params["options"] == {"depth": 3, "where": "/data"}
    assert params["array"] == [0.0, 1.0, 2.0]
    assert params["big"] == "<ndarray 100000 float64>"
    line = json.loads((second / "result.json").read_text().splitlines()[0])
    assert (line["loss"], line["pair"], line["huge"], line["array"]) == (0.25, [1, 2], 2**70, [[1, 1], [1, 1]])


@pytest.mark.local
def test_a_bucket_has_them_for_another_machine(tmp_path: Path) -> None:
    (tmp_path / "minio").mkdir()
    with MinioServer(tmp_path / "minio") as server:
        server.storage("s3://values/prefix")
        place = {
            "PLACE": "s3://values/prefix",
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        run(tmp_path, "fit", **place)
        shutil.rmtree(tmp_path / "trialpod-results")
        (tmp_path / "mark").touch()
        run(tmp_path, "restore", TRIALPOD_WORK_DIR=str(tmp_path / "elsewhere"), **place)
        storage = server.storage("s3://values/prefix/types")
        assert len([key for key in storage.list() if key.endswith(".value")]) == 1


def test_searcher_of_a_script_gives_and_gets_typed_values(tmp_path: Path) -> None:
    (tmp_path / "mark").touch()
    assert "searcher saw 2" in run(tmp_path, "search")


@pytest.mark.slow
def test_array_of_100_mb_is_stored_once(tmp_path: Path) -> None:
    run(tmp_path, "fit", big=12_500_000)
    place = tmp_path / "place" / "types"
    (big,) = (place / ".trialpod" / "objects").iterdir()
    everything = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    assert 100_000_000 < big.stat().st_size <= everything < 100_500_000
