from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.tune import Checkpoint, Trainable


class Counter(Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.n = 0

    def step(self) -> dict[str, Any]:
        self.n += 1
        return {"n": self.n, "done": self.n == 7, "should_checkpoint": self.n == 3}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"n": self.n}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.n = checkpoint["n"]


def test_what_save_returns_is_a_path_a_checkpoint_and_metrics(tmp_path: Path) -> None:
    first = Counter()
    first.train()
    saved = first.save(str(tmp_path / "c"))
    assert os.path.isdir(saved)
    assert isinstance(saved, str)
    assert saved.checkpoint == Checkpoint(tmp_path / "c")
    assert saved.metrics["n"] == 1
    copy = pickle.loads(pickle.dumps(saved))
    assert (copy, copy.metrics["n"]) == (saved, 1)


def test_buffer_ends_at_checkpoint_end_or_length() -> None:
    counter = Counter()
    assert [row["n"] for row in counter.train_buffered(60)] == [1, 2, 3]
    assert [row["n"] for row in counter.train_buffered(60, 2)] == [4, 5]
    assert [row["n"] for row in counter.train_buffered(0)] == [6]
    assert [row["n"] for row in counter.train_buffered(60)] == [7]


def test_newest_checkpoint_beside_a_missing_one(tmp_path: Path) -> None:
    first = Counter()
    for index in range(3):
        first.train()
        first.save(str(tmp_path / f"checkpoint_{index:06d}"))
    gone = str(tmp_path / "checkpoint_000009")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        Counter().restore(gone)
    second = Counter()
    second.restore(gone, fallback_to_latest=True)
    assert (second.n, second.iteration) == (3, 3)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("/elsewhere/file", "has to write below the directory"),
        (["a"], "returned a list"),
        (5, "returned a int"),
    ],
)
def test_what_save_checkpoint_may_not_return_is_refused(tmp_path: Path, returned: Any, message: str) -> None:
    class Wrong(Counter):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            return returned

    with pytest.raises(InvalidInputError, match=message):
        Wrong().save(str(tmp_path / "c"))


def test_a_folder_that_vanishes_while_it_is_saved_is_an_error(tmp_path: Path) -> None:
    class Removes(Counter):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            os.rmdir(checkpoint_dir)

    with pytest.raises(CheckpointError, match=r"is gone after Removes\.save_checkpoint"):
        Removes().save(str(tmp_path / "c"))


def test_restore_says_what_it_takes() -> None:
    with pytest.raises(InvalidInputError, match="not int"):
        Counter().restore(5)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="restore_from_object needs"):
        Counter().restore_from_object(b"x")
    with pytest.raises(InvalidInputError, match="config must be a dict"):
        Counter(5)  # type: ignore[arg-type]


def test_logger_creator_gives_the_directory(tmp_path: Path) -> None:
    class Logger:
        logdir = str(tmp_path)

        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []
            self.closed = False

        def on_result(self, result: dict[str, Any]) -> None:
            self.rows.append(result)

        def close(self) -> None:
            self.closed = True

    logger = Logger()
    counter = Counter({}, lambda config: logger)
    counter.train()
    counter.stop()
    assert counter.logdir == str(tmp_path)
    assert [row["n"] for row in logger.rows] == [1]
    assert logger.closed


def test_a_model_is_exported_in_the_formats_of_its_class(tmp_path: Path) -> None:
    class Exports(Counter):
        def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
            return {name: os.path.join(export_dir, name) for name in export_formats}

    assert Exports().export_model("onnx", str(tmp_path)) == {"onnx": str(tmp_path / "onnx")}
    assert Exports().export_model("pdf", str(tmp_path)) == {"pdf": str(tmp_path / "pdf")}
