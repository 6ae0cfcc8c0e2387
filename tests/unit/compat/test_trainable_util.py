from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trialpod.compat.ray.trainable_util import TrainableUtil
from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.legacy.experiment import Experiment, _convert_to_experiment_list


def train(config: dict[str, Any]) -> None: ...


def test_checkpoint_directories_are_made_found_and_removed(tmp_path: Path) -> None:
    folder = TrainableUtil.make_checkpoint_dir(str(tmp_path), 3)
    assert folder == str(tmp_path / "checkpoint_000003")
    inside = Path(folder, "deep", "model")
    inside.parent.mkdir()
    inside.write_text("x")
    assert TrainableUtil.find_checkpoint_dir(str(inside)) == folder
    assert TrainableUtil.find_checkpoint_dir(folder) == folder
    TrainableUtil.make_checkpoint_dir(str(tmp_path), 3, override=True)
    assert not inside.exists()
    TrainableUtil.remove_checkpoint_dir(folder)
    with pytest.raises(CheckpointError, match="is in no checkpoint directory"):
        TrainableUtil.find_checkpoint_dir(folder)


def test_experiments_are_taken_in_every_form() -> None:
    one = Experiment("one", train)
    assert _convert_to_experiment_list(None) == []
    assert _convert_to_experiment_list(one) == _convert_to_experiment_list([one]) == [one]
    made, same = _convert_to_experiment_list({"two": {"run": train, "num_samples": 2}, "one": one})
    assert (made.name, made.arguments["num_samples"], same) == ("two", 2, one)
    with pytest.raises(InvalidInputError, match="not int: 5"):
        _convert_to_experiment_list(5)
