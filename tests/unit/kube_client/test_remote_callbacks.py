from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from api_server import experiment_object, trial_object

from trialpod import tune
from trialpod.errors import StorageError, TrialpodError
from trialpod.storage.directory import DirectoryStorage
from trialpod_operator.kube_client.callbacks import RemoteCallbacks

Json = dict[str, Any]


class Notes(tune.Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def setup(self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **info: Any) -> None:
        self.found.append(f"setup {num_samples} {total_num_samples}")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.found.append(f"start {trial.trial_id} of {len(trials)}")

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Json, **info: Any) -> None:
        self.found.append(f"result {trial.trial_id} {result['loss']}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.found.append(f"recover {trial.trial_id}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.found.append(f"complete {trial.trial_id} {trial.last_result['loss']}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.found.append(f"error {trial.trial_id}")

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        self.found.append(f"checkpoint {trial.trial_id}")

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.found.append("end")


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = Notes()
        self.now = 0.0
        self.away = False
        self.callbacks = RemoteCallbacks(
            [self.notes], self._storage, str(folder), num_samples=2, clock=lambda: self.now
        )

    def _storage(self) -> DirectoryStorage:
        if self.away:
            raise StorageError("it is away")
        return DirectoryStorage(self.folder)

    def trial(self, index: int, state: str, **status: Any) -> Json:
        return trial_object("climb", index, state, nodeName="a", storageUri=f"{self.folder}/t{index}", **status)

    def results(self, index: int, *losses: float, torn: str = "") -> None:
        (self.folder / f"t{index}").mkdir(exist_ok=True)
        lines = [json.dumps({"loss": loss, "training_iteration": at + 1}) + "\n" for at, loss in enumerate(losses)]
        (self.folder / f"t{index}" / "result.json").write_text("".join(lines) + torn)

    def look(self, *trials: Json, final: bool = False) -> list[str]:
        self.now += 10.0
        before = len(self.notes.found)
        self.callbacks.refresh(experiment_object("climb", trials={"total": 2}), list(trials), final=final)
        return self.notes.found[before:]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_results_come_once_between_start_and_end(world: World) -> None:
    assert world.look(world.trial(0, "PENDING", attempt=0, iteration=0)) == ["setup 2 2"]
    world.results(0, 3.0, 2.0, torn='{"loss": 1')
    running = world.trial(0, "RUNNING", iteration=2)
    assert world.look(running) == ["start d75de_00000 of 1", "result d75de_00000 3.0", "result d75de_00000 2.0"]
    assert world.look(running) == []
    # It has ended, and its last results are not in the storage yet.
    ended = world.trial(0, "TERMINATED", iteration=3)
    assert world.look(ended) == []
    world.results(0, 3.0, 2.0, 1.0)
    assert world.look(ended) == ["result d75de_00000 1.0", "complete d75de_00000 1.0"]
    assert world.look(ended, final=True) == []
    world.callbacks.end()
    world.callbacks.end()
    assert world.notes.found[-1] == "end"
    assert world.notes.found.count("end") == 1


@pytest.mark.parametrize("iteration", [float("nan"), float("inf"), "ten", None])
def test_an_iteration_that_is_no_number_is_not_counted(world: World, iteration: Any) -> None:
    world.results(0, 2.0, 1.0)
    path = world.folder / "t0" / "result.json"
    path.write_text(json.dumps({"loss": 3.0, "training_iteration": iteration}) + "\n" + path.read_text())
    assert world.look(world.trial(0, "TERMINATED", iteration=2))[2:] == [
        "result d75de_00000 3.0",
        "result d75de_00000 2.0",
        "result d75de_00000 1.0",
        "complete d75de_00000 1.0",
    ]


def test_setbacks_checkpoints_and_failures_are_reported(world: World) -> None:
    world.look(world.trial(0, "RUNNING", iteration=0))
    saved = {"name": "checkpoint_000004", "iteration": 2}
    assert world.look(world.trial(0, "RUNNING", iteration=0, checkpoint=saved)) == ["checkpoint d75de_00000"]
    assert world.look(world.trial(0, "RUNNING", iteration=0, checkpoint=saved, disruptions=1)) == [
        "recover d75de_00000"
    ]
    failed = world.trial(0, "ERROR", iteration=0, failures=1, disruptions=1, message="no")
    assert world.look(failed) == ["error d75de_00000"]


def test_a_storage_that_is_away_delays_results_and_loses_none(world: World) -> None:
    world.away = True
    world.results(0, 1.0)
    ended = world.trial(0, "TERMINATED", iteration=1)
    assert world.look(ended) == ["setup 2 2", "start d75de_00000 of 1"]
    world.away = False
    assert world.look(ended, final=True) == ["result d75de_00000 1.0", "complete d75de_00000 1.0"]


def test_an_exception_of_a_callback_leaves_with_its_name(world: World) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no")

    world.notes.on_trial_start = fail  # type: ignore[method-assign]
    world.callbacks = RemoteCallbacks([world.notes], world._storage, str(world.folder))
    with pytest.raises(TrialpodError, match="Notes"):
        world.look(world.trial(0, "RUNNING"))
