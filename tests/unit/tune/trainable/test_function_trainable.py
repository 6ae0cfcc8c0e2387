from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import CheckpointError, TrainableError
from trialpod.tune import session
from trialpod.tune.registry import resolve_trainable
from trialpod.tune.trainable.function_trainable import wrap_function


def steps(config: dict[str, Any]) -> None:
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        start = checkpoint.to_dict()["n"]
    for n in range(start + 1, config.get("n", 3) + 1):
        tune.report({"n": n}, checkpoint=tune.Checkpoint.from_dict({"n": n}))


def test_each_report_of_a_function_is_one_result_of_its_class() -> None:
    wrapped = wrap_function(steps)({"n": 2})
    assert [wrapped.train()["n"] for _ in range(2)] == [1, 2]
    last = wrapped.train()
    assert (last["n"], last["done"]) == (2, True)
    with pytest.raises(TrainableError, match="has ended"):
        wrapped.train()


def test_a_function_continues_from_the_checkpoint_of_another(tmp_path: Path) -> None:
    cls = wrap_function(steps)
    first, second = cls({"n": 9}), cls({"n": 9})
    with pytest.raises(CheckpointError, match="has not reported a checkpoint"):
        first.save(str(tmp_path / "early"))
    for _ in range(3):
        first.train()
    saved = first.save(str(tmp_path / "c"))
    first.stop()
    second.restore(saved)
    assert second.train()["n"] == 4
    second.stop()


@pytest.mark.parametrize("kind", ["generator", "returns", "reporter", "checkpoint_dir"])
def test_every_kind_of_function_can_be_wrapped(kind: str) -> None:
    def generator(config: dict[str, Any]) -> Any:
        yield {"n": 1}

    def returns(config: dict[str, Any]) -> Any:
        return {"n": 1}

    def reporter(config: dict[str, Any], reporter: Any) -> None:
        reporter(n=1)

    def checkpoint_dir(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        assert checkpoint_dir is None
        with tune.checkpoint_dir(step=1) as folder:
            Path(folder, "state").write_text(json.dumps({"n": 1}))
        tune.report(n=1)

    wrapped = wrap_function(locals()[kind])({})
    assert wrapped.train()["n"] == 1
    assert wrapped.train()["done"]
    wrapped.stop()


def test_what_the_function_raises_is_raised_by_train() -> None:
    def fails(config: dict[str, Any]) -> None:
        raise KeyError("lr")

    with pytest.raises(KeyError, match="lr"):
        wrap_function(fails)({}).train()


def test_a_wrapped_function_counts_as_the_function_in_trials() -> None:
    assert resolve_trainable(wrap_function(steps)) is steps


def test_a_restored_one_saves_what_it_was_given(tmp_path: Path) -> None:
    wrapped = wrap_function(steps)({"n": 9})
    wrapped.train()
    saved = wrapped.save(str(tmp_path / "first"))
    wrapped.train()
    wrapped.restore(saved)
    again = wrapped.save(str(tmp_path / "again"))
    wrapped.restore(again)
    assert wrapped.train()["n"] == 2
    wrapped.stop()


class TestAFunctionThatEndsLate:
    """It has been told to stop, and works on in a ``finally`` block when the next run begins."""

    def test_the_next_run_has_its_own_results(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TUNE_FUNCTION_THREAD_TIMEOUT_S", "0")
        threads: list[threading.Thread] = []
        resume = threading.Event()
        late: list[BaseException] = []

        def function(config: dict[str, Any]) -> None:
            if config["n"] == 2:
                resume.set()
                threads[0].join(10)
                tune.report(n=2)
            threads.append(threading.current_thread())
            try:
                tune.report(n=1)
            finally:
                resume.wait(10)
                try:
                    tune.report(n=99)
                except session.TrialStopped as error:
                    late.append(error)

        wrapped = wrap_function(function)({"n": 1})
        assert wrapped.train()["n"] == 1
        assert wrapped.reset({"n": 2})
        result = wrapped.train()
        assert (result["n"], result["done"], len(late)) == (2, False, 1)
        wrapped.stop()

    def test_it_removes_its_own_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TUNE_FUNCTION_THREAD_TIMEOUT_S", "0")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        threads: list[threading.Thread] = []
        resume = threading.Event()

        def function(config: dict[str, Any]) -> None:
            threads.append(threading.current_thread())
            try:
                tune.report({"n": 1}, checkpoint=tune.Checkpoint.from_dict({"n": 1}))
            finally:
                resume.wait(10)

        wrapped = wrap_function(function)({})
        wrapped.train()
        wrapped.stop()
        assert list(tmp_path.glob("trialpod-function-*"))
        resume.set()
        threads[0].join(10)
        assert not list(tmp_path.glob("trialpod-function-*"))


def test_no_folders_are_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wrapped = wrap_function(steps)({"n": 9})
    wrapped.train()
    saved = wrapped.save(str(tmp_path / "saved"))
    wrapped.restore(saved)
    wrapped.train()
    wrapped.reset({"n": 3})
    wrapped.restore(saved)
    with pytest.raises(CheckpointError):
        wrapped.load_checkpoint(str(tmp_path / "missing"))
    assert wrapped.train()["n"] == 2
    wrapped.stop()
    wrap_function(steps)({}).stop()
    assert not list(tmp_path.glob("trialpod-function-*"))
