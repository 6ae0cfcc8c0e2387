"""Large objects of a Trainable: stored once by their contents, loaded once in a process, and swept."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import pytest

from trialpod import tune
from trialpod.compat.ray import core as ray
from trialpod.errors import NotPicklableError, TrainableError
from trialpod.protocol.messages import TrainableRef
from trialpod.runner.load import load_trainable
from trialpod.tune import registry
from trialpod.tune.shipping import stored_objects
from trialpod.tune.shipping.package import pack_trainable, sweep_trainables
from trialpod.tune.shipping.stored_objects import RESTING_S, sweep


def total(config: dict[str, Any], data: Any, other: Any = None, more: Any = None) -> float:
    return float(data.sum()) + config["x"]


class Model(tune.Trainable):
    def setup(self, config: dict[str, Any], data: Any = None) -> None:
        self.data = data

    def step(self) -> dict[str, Any]:
        return {"sum": float(self.data.sum())}


def files(folder: Path) -> list[Path]:
    return sorted((folder / "objects").glob("*"))


@pytest.fixture(autouse=True)
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_objects, "_loaded", {})
    monkeypatch.setattr(registry, "_trainables", {})


def loaded(ref: TrainableRef) -> Any:
    """Load it as another process would."""
    code = (
        "import sys, msgspec, json; from trialpod.protocol.messages import TrainableRef; "
        "from trialpod.runner.load import load_trainable; "
        "print(load_trainable(msgspec.json.decode(sys.argv[1], type=TrainableRef))({'x': 1}))"
    )
    text = msgspec.json.encode(ref).decode()
    done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_equal_arrays_are_stored_once_and_leave_the_pickle_small(tmp_path: Path) -> None:
    data = np.arange(200_000.0)
    ref = pack_trainable(tune.with_parameters(total, data=data, other=data.copy(), more=[1]), tmp_path)
    (file,) = files(tmp_path)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name
    assert data.nbytes <= file.stat().st_size < data.nbytes + 1000
    assert (tmp_path / "trainable.pkl").stat().st_size < 5000
    assert loaded(ref) == str(float(data.sum()) + 1)
    before = file.stat().st_ino
    assert pack_trainable(tune.with_parameters(total, data=data, other=data, more=[1]), tmp_path).sha256
    assert [each.stat().st_ino for each in files(tmp_path)] == [before]


def test_small_objects_stay_in_the_pickle(tmp_path: Path) -> None:
    pack_trainable(tune.with_parameters(total, data=np.arange(10)), tmp_path)
    assert files(tmp_path) == []


def test_class_has_its_array_in_every_trial(tmp_path: Path) -> None:
    data = np.ones(300_000)
    found: Any = load_trainable(pack_trainable(tune.with_parameters(Model, data=data), tmp_path))
    first, second = found({}), found({})
    assert first.step() == {"sum": 300_000.0}
    assert first.data is second.data
    first.data[0] = 7  # a private page of the mapping
    assert float(np.frombuffer(files(tmp_path)[0].read_bytes()[-8 * 300_000 :]).sum()) == 300_000.0
    assert data[0] == 1


def test_without_a_place_the_objects_travel_inside(tmp_path: Path) -> None:
    bound = tune.with_parameters(total, data=np.ones(100_000))
    assert pickle.loads(cloudpickle.dumps(bound))({"x": 1}) == 100_001.0


def test_wrappers_do_not_copy_parameters(tmp_path: Path) -> None:
    bound = tune.with_resources(tune.with_parameters(total, data=np.ones(100_000)), {"cpu": 2})
    tune.register_trainable("wrapped", bound)
    pack_trainable(registry.resolve_trainable("wrapped"), tmp_path)
    assert len(files(tmp_path)) == 1


def test_a_reference_of_ray_is_stored_once_too(tmp_path: Path) -> None:
    ref = ray.put(np.ones(100_000))

    def train(config: dict[str, Any]) -> float:
        return float(ray.get(ref).sum())

    pack_trainable(train, tmp_path)
    assert len(files(tmp_path)) == 1


def test_what_is_not_wanted_any_more_goes_when_it_has_rested(tmp_path: Path) -> None:
    old = pack_trainable(tune.with_parameters(total, data=np.zeros(100_000)), tmp_path)
    new = pack_trainable(tune.with_parameters(total, data=np.ones(100_000)), tmp_path)
    sweep_trainables(tmp_path, new)
    assert len(files(tmp_path)) == 2  # another process may be about to start with them
    long_ago = time.time() - RESTING_S - 1
    for file in (*files(tmp_path), *tmp_path.glob("*.pkl")):
        os.utime(file, (long_ago, long_ago))
    sweep_trainables(tmp_path, new)
    assert len(files(tmp_path)) == 1
    assert [str(file) for file in tmp_path.glob("*.pkl")] == [new.pickle]
    assert old.pickle != new.pickle
    assert loaded(new) == "100001.0"
    assert sweep(tmp_path / "nothing", []) == []


def test_a_missing_or_cut_off_object_is_named(tmp_path: Path) -> None:
    ref = pack_trainable(tune.with_parameters(total, data=np.ones(300_000)), tmp_path)
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for damaged, problem in ((whole[:-1], "it is damaged"), (b"x", "is not an object of a Trainable")):
        file.write_bytes(damaged)
        with pytest.raises(TrainableError, match=problem):
            load_trainable(ref)
    file.unlink()
    with pytest.raises(TrainableError, match="an object of the Trainable cannot be read"):
        load_trainable(ref)


def test_unpicklable_parameter_is_named(tmp_path: Path) -> None:
    culprit = {"rows": np.ones(100_000), "lock": threading.Lock()}
    for trainable, place in ((total, "bound to total"), (Model, "of tune.with_parameters")):
        with pytest.raises(NotPicklableError, match=rf"argument 'data' {place}.*data\['lock'\]: _thread.lock"):
            pack_trainable(tune.with_parameters(trainable, data=culprit), tmp_path)
    assert list(tmp_path.iterdir()) == []
