from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import InvalidInputError, TrainableError
from trialpod.tune import Trainable, utils
from trialpod.tune.utils.gpu import Gpu


class Counter(Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.n = 0

    def step(self) -> dict[str, Any]:
        self.n += 1
        return {"n": self.n}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        Path(checkpoint_dir, "n").write_text(str(self.n))
        return checkpoint_dir

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.n = int(Path(checkpoint, "n").read_text())


@pytest.mark.parametrize("use_object_store", [False, True])
def test_a_class_that_saves_and_restores_is_valid(use_object_store: bool) -> None:
    assert utils.validate_save_restore(Counter, config={"a": 1}, use_object_store=use_object_store)


def test_a_class_that_does_not_restore_is_not_valid() -> None:
    class Forgets(Counter):
        def load_checkpoint(self, checkpoint: Any) -> None:
            raise FileNotFoundError(Path(checkpoint, "other"))

    class Counts(Counter):
        def step(self) -> dict[str, Any]:
            return {"training_iteration": 1}

    with pytest.raises(FileNotFoundError):
        utils.validate_save_restore(Forgets)
    with pytest.raises(TrainableError, match="training_iteration 1, not 4"):
        utils.validate_save_restore(Counts)
    with pytest.raises(InvalidInputError, match="needs a subclass"):
        utils.validate_save_restore(dict)


def test_what_keeps_a_function_from_travelling_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    event = threading.Event()

    def waits(config: dict[str, Any]) -> None:
        event.wait()

    def makes(config: dict[str, Any]) -> None:
        threading.Event().wait()

    found = utils.diagnose_serialization(waits)
    assert isinstance(found, set)
    assert any("event" in str(culprit) for culprit in found)
    assert "cannot be sent to the trials" in capsys.readouterr().out
    assert utils.diagnose_serialization(makes) is True


class Gpus:
    def __init__(self, *used: float) -> None:
        self.used = list(used)
        self.slept: list[float] = []

    def __call__(self) -> list[Gpu]:
        used = self.used.pop(0)
        return [Gpu("0", "GPU-aaaa", used, 100.0), Gpu("1", "GPU-bbbb", 0.0, 100.0)]


def test_it_waits_until_the_memory_of_the_gpu_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = Gpus(50, 20, 1)
    assert utils.wait_for_gpu(delay_s=5, gpus=gpus, sleep=gpus.slept.append)
    assert gpus.slept == [5, 5]
    assert utils.wait_for_gpu("GPU-bbbb", gpus=Gpus(99))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert utils.wait_for_gpu(gpus=Gpus(99))
    assert utils.wait_for_gpu(0, gpu_memory_limit=50, gpus=Gpus(50))


def test_a_gpu_that_stays_busy_or_is_not_there_is_an_error() -> None:
    gpus = Gpus(90, 90, 90)
    with pytest.raises(RuntimeError, match="did not become free in 3 checks"):
        utils.wait_for_gpu(0, retry=3, gpus=gpus, sleep=gpus.slept.append)
    with pytest.raises(RuntimeError, match="there is no GPU '7'; there are 0"):
        utils.wait_for_gpu(7, gpus=Gpus(0))
    with pytest.raises(RuntimeError, match="has no GPU"):
        utils.wait_for_gpu(gpus=list)


def test_dicts_are_flattened_merged_and_looked_up() -> None:
    nested = {"a": {"b": {"c": 1}}, "d": {}, "e": [{"f": 2}]}
    flat = utils.flatten_dict(nested)
    assert flat == {"a/b/c": 1, "d": {}, "e": [{"f": 2}]}
    assert utils.unflatten_dict(flat) == nested
    assert utils.unflattened_lookup("e/0/f", nested) == 2
    assert utils.unflattened_lookup("e/9", nested, default=None) is None
    assert utils.merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    with pytest.raises(KeyError):
        utils.unflattened_lookup("x/y", nested)
    with pytest.raises(InvalidInputError, match="unknown key 'z'"):
        utils.deep_update({"a": 1}, {"z": 1})
    with pytest.raises(InvalidInputError, match="delimiter"):
        utils.flatten_dict({"a/b": 1}, prevent_delimiter=True)


def test_slow_blocks_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), utils.warn_if_slow("it", threshold=-1):
        pass
    assert "it took" in caplog.text


@pytest.mark.parametrize(
    ("points", "rewards", "message"),
    [
        ({"a": 1}, None, "must be a list"),
        ([5], None, r"points_to_evaluate\[0\]"),
        ([{"a": 1}], None, "has 1 values"),
        ([{"a": 1, "b": 2}], [1.0, 2.0], "2 evaluated_rewards for 1"),
        ([{"a": 1, "b": 2}], 5, None),
    ],
)
def test_a_warm_start_that_does_not_fit_is_refused(points: Any, rewards: Any, message: str | None) -> None:
    with pytest.raises((InvalidInputError, TypeError), match=message):
        utils.validate_warmstart(["a", "b"], points, rewards)


def test_a_warm_start_that_fits_passes() -> None:
    utils.validate_warmstart(["a", "b"], [{"a": 1, "b": 2}], [1.0])
    utils.validate_warmstart(["a"], [], None)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, which prints what is in a file and notes how it was called."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\ncat {tmp_path}/gpus\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "gpus"


def test_the_gpus_are_those_that_nvidia_smi_lists(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("0, GPU-aaaa, 79000, 81559\n1, GPU-bbbb, 4, 81559\n")
    assert utils.wait_for_gpu(1)
    assert utils.wait_for_gpu("GPU-bbbb")
    with pytest.raises(RuntimeError, match="GPU 0 did not become free in 2 checks"):
        utils.wait_for_gpu(retry=2, delay_s=0)
    asked = (nvidia_smi.parent / "called").read_text().split()
    assert asked == ["--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits"]


def test_an_nvidia_smi_that_fails_or_is_missing_is_named(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"nvidia-smi failed: .*gpus"):
        utils.wait_for_gpu()
    monkeypatch.setenv("PATH", str(nvidia_smi.parent))
    with pytest.raises(RuntimeError, match="comes with the NVIDIA driver"):
        utils.wait_for_gpu()


def test_signatures_are_distinguished() -> None:
    def plain(config: Any) -> None: ...

    def reports(config: Any, reporter: Any) -> None: ...

    def saves(config: Any, checkpoint_dir: Any = None) -> None: ...

    def more(config: Any, data: Any, checkpoint_dir: Any = None) -> None: ...

    functions = (plain, reports, saves, more)
    assert [utils.detect_config_single(each) for each in functions] == [True, False, True, False]
    assert [utils.detect_reporter(each) for each in functions] == [False, True, False, False]
    assert [utils.detect_checkpoint_function(each) for each in functions] == [False, False, True, False]
    assert utils.detect_checkpoint_function(more, partial=True)
    with pytest.raises(InvalidInputError, match=r"def plain\(config, checkpoint_dir=None\)"):
        utils.detect_checkpoint_function(plain, abort=True)
