from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import CheckpointError, InvalidInputError, TrainableError
from trialpod.tune.trainable.trainable import Trainable


class Counter(Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.count = config.get("start", 0)
        self.cleaned = False

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"count": self.count, "timesteps_this_iter": 10}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = checkpoint["count"]

    def cleanup(self) -> None:
        self.cleaned = True


def test_each_step_is_one_complete_result() -> None:
    trainable = Counter({"start": 5})
    trainable.train()
    result = trainable.train()
    assert (result["count"], result["training_iteration"], result["iterations_since_restore"]) == (7, 2, 2)
    assert (result["timesteps_total"], result["done"], result["config"]) == (20, False, {"start": 5})
    assert (result["trial_id"], result["pid"]) == ("default", os.getpid())
    assert result["time_total_s"] >= result["time_this_iter_s"] >= 0
    assert (trainable.iteration, trainable.training_iteration) == (2, 2)


@pytest.mark.parametrize("value", ["x", float("nan"), True])
@pytest.mark.parametrize("name", ["time_this_iter_s", "timesteps_this_iter", "episodes_this_iter"])
def test_what_a_step_adds_up_is_a_finite_number(name: str, value: Any) -> None:
    class Returns(Counter):
        def step(self) -> dict[str, Any]:
            return {name: self.count}

    trainable = Returns({"start": value})
    with pytest.raises(InvalidInputError, match=name):
        trainable.train()
    trainable.count = 2
    assert trainable.train()[name.replace("_this_iter", "_total")] == 2


def test_setup_gets_a_copy_of_the_config() -> None:
    class Changes(Counter):
        def setup(self, config: dict[str, Any]) -> None:
            config["nested"]["x"] = 2

    assert Changes({"nested": {"x": 1}}).config == {"nested": {"x": 1}}


@pytest.mark.parametrize("saved_as", ["result", "checkpoint", "path"])
def test_a_restored_object_continues_where_the_other_was(tmp_path: Path, saved_as: str) -> None:
    first = Counter()
    for _ in range(3):
        first.train()
    saved = first.save(str(tmp_path / "c"))
    assert (tmp_path / "c" / "_dict_checkpoint.pkl").exists()
    second = Counter()
    second.restore({"result": saved, "checkpoint": saved.checkpoint, "path": str(tmp_path / "c")}[saved_as])  # type: ignore[arg-type]
    result = second.train()
    assert (result["count"], result["training_iteration"], result["iterations_since_restore"]) == (4, 4, 1)
    assert (result["timesteps_total"], result["timesteps_since_restore"]) == (40, 10)
    assert result["time_total_s"] > result["time_since_restore"]


def test_a_directory_checkpoint_is_loaded_from_its_directory(tmp_path: Path) -> None:
    class OnDisk(Counter):
        def save_checkpoint(self, checkpoint_dir: str) -> str:
            (Path(checkpoint_dir) / "n").write_text(str(self.count))
            return checkpoint_dir

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.count = int((Path(checkpoint) / "n").read_text())

    first = OnDisk()
    first.train()
    first.save(str(tmp_path / "c"))
    moved = tmp_path / "elsewhere"
    (tmp_path / "c").rename(moved)
    second = OnDisk()
    second.restore(str(moved))
    assert second.train()["count"] == 2


@pytest.mark.parametrize("value", ["/somewhere/else", 3])
def test_what_save_checkpoint_may_return(tmp_path: Path, value: Any) -> None:
    class Wrong(Counter):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            return value

    with pytest.raises(InvalidInputError, match=r"save_checkpoint\(\) returned"):
        Wrong().save(str(tmp_path))


def test_restoring_from_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        Counter().restore(str(tmp_path / "none"))


def test_a_step_without_a_dict_names_what_it_returned() -> None:
    class Wrong(Trainable):
        def step(self) -> Any:
            return None

    with pytest.raises(TrainableError, match=r"Wrong.step\(\) returned None of type NoneType"):
        Wrong().train()


def test_a_class_without_step_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match=r"step\(\)"):
        Trainable().train()


def test_reset_takes_a_new_config_and_zeroes_the_counters() -> None:
    class Resets(Counter):
        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.count = 0
            return True

    trainable = Resets({"a": 1})
    trainable.train()
    assert trainable.reset({"a": 2})
    result = trainable.train()
    assert (result["training_iteration"], result["count"], result["config"]) == (1, 1, {"a": 2})
    assert not Counter().reset({})


def test_stop_cleans_up() -> None:
    trainable = Counter()
    trainable.stop()
    assert trainable.cleaned


def test_the_user_may_override_iteration_and_time() -> None:
    class Overrides(Trainable):
        def step(self) -> dict[str, Any]:
            return {"training_iteration": 50, "time_this_iter_s": 4.0, "done": True}

    result = Overrides().train()
    assert (result["training_iteration"], result["time_total_s"], result["done"]) == (50, 4.0, True)


def test_every_complete_result_is_logged() -> None:
    class Logs(Counter):
        seen: list[dict[str, Any]] = []  # noqa: RUF012

        def log_result(self, result: dict[str, Any]) -> None:
            self.seen.append(result)

    result = Logs().train()
    assert Logs.seen == [result]


def test_exporting_is_asked_of_the_class_in_any_format(tmp_path: Path) -> None:
    class Exports(Counter):
        def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
            return dict.fromkeys(export_formats, export_dir)

    assert Exports().export_model("zip", str(tmp_path)) == {"zip": str(tmp_path)}
    assert Counter().export_model(["onnx"], str(tmp_path)) == {}


def test_defaults_outside_a_trial() -> None:
    trainable = Counter()
    assert (trainable.trial_name, trainable.trial_id, trainable.trial_resources) == ("default", "default", None)
    assert os.path.isdir(trainable.logdir)
    assert trainable.logdir == trainable.logdir


def test_auto_filled_metrics_can_be_asked_for() -> None:
    metrics = Counter({"a": 1}).get_auto_filled_metrics(timestamp=7, debug_metrics_only=True)
    assert metrics["timestamp"] == 7
    assert "time_total_s" not in metrics


class TestOlderParts:
    def test_metrics_of_a_moment(self) -> None:
        moment = datetime(2024, 5, 6, 7, 8, 9)
        metrics = Trainable().get_auto_filled_metrics(now=moment)
        assert metrics["timestamp"] == int(moment.timestamp())
        assert metrics["date"] == "2024-05-06_07-08-09"

    def test_log_files_are_opened_and_closed_without_effect(self) -> None:
        trainable: Any = Trainable()
        trainable._open_logfiles("out", "err")
        trainable._close_logfiles()

    def test_checkpoints_go_into_the_directory_of_the_trainable(self) -> None:
        trainable = Counts()
        saved = trainable.save()
        assert os.path.dirname(saved) == trainable.logdir
        assert os.path.basename(saved) == "checkpoint_000000"

    def test_paths_below_its_directory_are_known_elsewhere(self) -> None:
        trainable = Counts(remote_checkpoint_dir="s3://bucket/there")
        path = os.path.join(trainable.logdir, "checkpoint_000000", "model")
        assert trainable._storage_path(path) == "s3://bucket/there/checkpoint_000000/model"
        with pytest.raises(InvalidInputError, match="there is no remote_checkpoint_dir; give it"):
            Counts()._storage_path(path)

    def test_a_remote_directory_may_be_a_plain_path(self, tmp_path: Path) -> None:
        trainable = Counts(remote_checkpoint_dir=str(tmp_path / "remote"))
        trainable.n = 7
        saved = trainable.save()
        assert (tmp_path / "remote" / "checkpoint_000000").is_dir()
        shutil.rmtree(saved)
        other = Counts(remote_checkpoint_dir=str(tmp_path / "remote"))
        other.restore(str(saved))
        assert other.n == 7

    @pytest.mark.parametrize("there", [True, False])
    def test_restoring_leaves_no_copy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
        trainable = Counts(remote_checkpoint_dir=str(tmp_path / "remote"))
        saved = trainable.save()
        shutil.rmtree(saved)
        if not there:
            shutil.rmtree(tmp_path / "remote")
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        with contextlib.nullcontext() if there else pytest.raises(CheckpointError):
            trainable.restore(str(saved))
        assert os.listdir(tmp_path / "temporary") == []

    def test_a_syncer_of_the_script_copies(self, tmp_path: Path) -> None:
        class Copies:
            waited = 0

            def sync_up(self, local_dir: str, remote_dir: str) -> bool:
                shutil.copytree(local_dir, remote_dir.removeprefix("mine://"))
                return True

            def sync_down(self, remote_dir: str, local_dir: str) -> bool:
                shutil.copytree(remote_dir.removeprefix("mine://"), local_dir, dirs_exist_ok=True)
                return True

            def wait(self) -> None:
                self.waited += 1

        syncer = Copies()
        trainable = Counts(remote_checkpoint_dir=f"mine://{tmp_path}/there", custom_syncer=syncer)
        trainable.n = 3
        saved = trainable.save()
        shutil.rmtree(saved)
        trainable.n = 0
        trainable.restore(str(saved))
        assert (trainable.n, syncer.waited) == (3, 2)

    def test_a_timeout_that_does_nothing_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        Counts(sync_timeout=5)
        assert "sync_timeout=5 has no effect" in caplog.text


class Counts(Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.n = 0

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"n": self.n}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.n = checkpoint["n"]
