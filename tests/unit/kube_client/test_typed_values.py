"""Callbacks of a script get the values of an experiment in a cluster as they were given and reported."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from api_server import experiment_object, trial_object
from memory_storage import MemoryStorage
from sample_experiment import SampleExperiment

from trialpod import tune
from trialpod.errors import StorageError
from trialpod.tune import grid_search
from trialpod_operator.experiment.replica.replica import Replica
from trialpod_operator.kube_client.callbacks import RemoteCallbacks

URI = "s3://bucket/typed"
Json = dict[str, Any]


class Act(enum.Enum):
    RELU = "relu"


CONFIG = {"act": Act.RELU, "layers": (64, 64), "where": PurePosixPath("/data")}
REPORTED = {"when": dt.date(2026, 1, 2), "pair": (1, 2), "huge": 2**70}


class Sees(tune.Callback):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.configs: list[Json] = []
        self.results: list[Json] = []
        self.last: list[Json] = []

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.configs.append(trial.config)

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Json, **info: Any) -> None:
        self.results.append(dict(result))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.last.append(trial.last_result)


class Cluster:
    """A running experiment, its copy in the bucket, and the script that follows it."""

    def __init__(self, folder: Path) -> None:
        self.sample = SampleExperiment(folder / "typed", [], space={"x": grid_search([1]), **CONFIG})
        self.storage = MemoryStorage()
        self.replica = Replica(folder / "typed", self.storage)
        self.sees = Sees()
        self.away = False
        self.now = 0.0
        self.callbacks = RemoteCallbacks([self.sees], self._open, URI, clock=lambda: self.now)
        (self.trial,) = self.sample.trials
        self.sample.start(self.trial)

    def _open(self) -> MemoryStorage:
        if self.away:
            raise StorageError("it is away")
        return self.storage

    def copy(self) -> None:
        self.sample.host.flush()
        self.replica.trial_ended(self._path.name)
        self.replica.copy()

    @property
    def _path(self) -> Path:
        return Path(self.sample.host.files.path(self.sample.host.engine.state.trials[self.trial]))

    def look(self, state: str, iteration: int, *, final: bool = False) -> None:
        self.now += 10.0
        item = trial_object("typed", 0, state, iteration=iteration, storageUri=f"{URI}/{self._path.name}")
        item["spec"]["trialId"] = self.trial
        self.callbacks.refresh(experiment_object("typed", trials={"total": 1}), [item], final=final)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.callbacks.end()
    made.sample.close()


def same(found: Json, wanted: Json) -> bool:
    return all(type(found[name]) is type(value) and found[name] == value for name, value in wanted.items())


class TestTypes:
    def test_configs_and_results_keep_them(self, cluster: Cluster) -> None:
        cluster.copy()
        cluster.look("RUNNING", 0)
        assert same(cluster.sees.configs[0], CONFIG)
        cluster.sample.report(cluster.trial, 1.0, 2.0, **REPORTED)
        cluster.copy()
        cluster.look("RUNNING", 2)
        assert [result["score"] for result in cluster.sees.results] == [1.0, 2.0]
        assert all(same(result, REPORTED) and same(result["config"], CONFIG) for result in cluster.sees.results)

    def test_latest_result_keeps_them_behind_a_snapshot(self, cluster: Cluster) -> None:
        cluster.sample.report(cluster.trial, 1.0, 2.0, **REPORTED)
        cluster.sample.end(cluster.trial)
        cluster.sample.snapshot()
        cluster.copy()
        cluster.look("TERMINATED", 2, final=True)
        assert same(cluster.sees.last[0], REPORTED)
        assert same(cluster.sees.results[-1], REPORTED)
        assert [result["score"] for result in cluster.sees.results] == [1.0, 2.0], "each one, whatever its types"

    def test_result_that_comes_while_it_looks_keeps_them(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read, late = cluster.storage.read_range, [1.0]

        def read_later(key: str, start: int, length: int) -> bytes:
            if late:
                cluster.sample.report(cluster.trial, late.pop(), **REPORTED)
                cluster.copy()
            return read(key, start, length)

        cluster.copy()
        monkeypatch.setattr(cluster.storage, "read_range", read_later)
        cluster.look("RUNNING", 1)
        assert same(cluster.sees.results[0], REPORTED)

    def test_storage_that_was_away_gives_them_later(self, cluster: Cluster) -> None:
        cluster.away = True
        cluster.sample.report(cluster.trial, 1.0, **REPORTED)
        cluster.copy()
        cluster.look("RUNNING", 1)
        assert cluster.sees.results == []
        cluster.away = False
        cluster.look("RUNNING", 1)
        assert same(cluster.sees.results[0], REPORTED)


def test_script_without_callbacks_reads_nothing(tmp_path: Path) -> None:
    def refuse() -> MemoryStorage:
        raise AssertionError("nothing is to be read")

    callbacks = RemoteCallbacks([], refuse, URI)
    callbacks.refresh(experiment_object("typed", trials={"total": 1}), [trial_object("typed", 0, "RUNNING")])
    callbacks.end()
