"""What a trial shows to a callback while one of its hooks is called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_experiment import SampleExperiment

from trialpod.protocol.messages import CheckpointInfo
from trialpod.tune import Callback, Checkpoint
from trialpod.tune.trial import Trial
from trialpod_operator.engine.events import CheckpointsChanged
from trialpod_operator.local.callbacks import Callbacks


class Saves(Callback):
    def __init__(self) -> None:
        self.checkpoints: list[str] = []
        self.saves: list[list[str]] = []
        self.trials: list[Trial] = []

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Checkpoint, **info: Any
    ) -> None:
        self.checkpoints.append(name_of(checkpoint))

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        assert trial.checkpoint is not None
        self.saves.append([name_of(checkpoint) for checkpoint in trial.get_trial_checkpoints()])
        self.trials.append(trial)


def name_of(checkpoint: Checkpoint) -> str:
    return os.path.basename(checkpoint.path).removeprefix("checkpoint_00000")


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[SampleExperiment]:
    folder = tmp_path / "exp"
    folder.mkdir()
    made = SampleExperiment(folder, [1])
    yield made
    made.close()


def deliver(sample: SampleExperiment, count: int, deleted: list[int]) -> Saves:
    """Let a trial commit checkpoints, and delete some of them, in one event."""
    saves = Saves()
    callbacks = Callbacks([saves], sample.folder)
    callbacks.begin(sample.host)
    (trial,) = sample.trials
    sample.start(trial)
    infos = [
        CheckpointInfo(name=f"checkpoint_{index:06d}", index=index, iteration=index + 1, metrics={}, attempt=1)
        for index in range(count)
    ]
    names = [infos[index].name for index in deleted]
    event = CheckpointsChanged(trial_id=trial, attempt=1, committed=infos, deleted=names)
    with callbacks.step(event):
        sample.apply(event)
    return saves


class TestSave:
    def test_shows_the_checkpoint_that_was_saved(self, sample: SampleExperiment) -> None:
        saves = deliver(sample, 3, [])
        assert saves.saves == [["0"], ["0", "1"], ["0", "1", "2"]]
        assert saves.checkpoints == ["0", "1", "2"]
        assert len(saves.trials[0].checkpoints) == 3  # after the hook it has all of them

    def test_a_removed_checkpoint_is_not_saved(self, sample: SampleExperiment) -> None:
        saves = deliver(sample, 4, [0, 2])
        assert saves.saves == [["1"], ["1", "3"]]
