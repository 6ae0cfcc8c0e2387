"""What `tune.run` says of how trials begin and end, and of several Trainables at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.legacy.run_options import export_formats, restore_path, with_run_options
from trialpod.tune.logger import LegacyLoggerCallback, Logger
from trialpod.tune.resources import resources_of
from trialpod.tune.shipping.package import unpickled


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": 1.0})


class Steps(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"loss": 1.0}


class Mine(Logger):
    pass


@pytest.fixture
def used(backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr("trialpod.tune.tuner.get_backend", lambda name=None: backend)
    monkeypatch.setenv("TUNE_RESULT_DIR", str(tmp_path))
    return backend


class TestRestore:
    def test_travels_with_functions_and_classes(self) -> None:
        for trainable in (train, Steps, tune.with_parameters(train), tune.with_resources(Steps, {"cpu": 1})):
            marked = with_run_options(trainable, restore="/somewhere")
            assert restore_path(marked) == "/somewhere"
            assert restore_path(tune.with_resources(marked, {"cpu": 2})) == "/somewhere"
            assert restore_path(trainable) is None
        assert with_run_options(train) is train

    @pytest.mark.parametrize("wrong", ["nowhere", 5])
    def test_a_checkpoint_that_is_not_there_is_refused(self, used: Any, wrong: Any) -> None:
        with pytest.raises(InvalidInputError, match=r"tune\.run\(restore="):
            tune.run(train, restore=wrong)
        assert not used.requests

    def test_file_that_save_returned(self, used: Any, tmp_path: Path) -> None:
        """`save` returns the path that `save_checkpoint` returned, which may be a file in the checkpoint."""

        class Writes(Steps):
            def save_checkpoint(self, checkpoint_dir: str) -> str:
                Path(checkpoint_dir, "model.pth").write_text("x")
                return str(Path(checkpoint_dir, "model.pth"))

        saved = Writes().save(str(tmp_path / "checkpoint"))
        assert saved.endswith("model.pth")
        tune.run(Writes, restore=saved)
        code = unpickled(Path(used.requests[0].trainable.pickle).read_bytes(), "code")
        assert restore_path(code) == str(tmp_path / "checkpoint")

    def test_any_other_file_is_refused(self, used: Any, tmp_path: Path) -> None:
        Path(tmp_path, "model.pth").write_text("x")
        with pytest.raises(InvalidInputError, match="is a file; give the directory"):
            tune.run(Steps, restore=tmp_path / "model.pth")


class TestExport:
    def test_formats_travel_with_the_class(self) -> None:
        assert export_formats(with_run_options(Steps, export_formats=["onnx", "h5"])) == ["onnx", "h5"]
        assert export_formats(Steps) == []

    @pytest.mark.parametrize(
        ("trainable", "formats", "message"),
        [(train, ["h5"], "only class Trainables"),
         (Steps, "h5", "must be a list of formats")],
    )  # fmt: skip
    def test_that_cannot_be_is_refused(self, used: Any, trainable: Any, formats: Any, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            tune.run(trainable, export_formats=formats)
        assert not used.requests

    def test_is_kept_for_the_code_that_continues(self, used: Any, tmp_path: Path) -> None:
        tune.run(Steps, export_formats=["onnx"], name="e", storage_path=tmp_path)
        tune.Tuner.restore(tmp_path / "e", Steps).fit()
        for request in used.requests:
            assert export_formats(unpickled(Path(request.trainable.pickle).read_bytes(), "code")) == ["onnx"]


class TestOlderLoggers:
    def test_become_callbacks(self, used: Any) -> None:
        callback = tune.Callback()
        tune.run(train, loggers=[Mine], callbacks=[callback])
        first, second = used.requests[0].callbacks
        assert first is callback
        assert isinstance(second, LegacyLoggerCallback)
        assert second.logger_classes == [Mine]

    def test_must_be_a_list(self, used: Any) -> None:
        with pytest.raises(InvalidInputError, match=r"tune\.run\(loggers='x'\): must be a list"):
            tune.run(train, loggers="x")


class TestSeveralExperiments:
    def test_run_one_after_another_and_are_analysed_together(self, used: Any) -> None:
        experiment = tune.Experiment("second", Steps, num_samples=2)
        analysis = tune.run([train, experiment, train], name="first", metric="loss", mode="min")
        assert [request.name for request in used.requests] == ["first", "second", "first_3"]
        one = tune.run(train, metric="loss", mode="min")
        assert len(analysis.trials) == 3 * len(one.trials)
        assert analysis.best_trial.last_result["loss"] == 1.0

    def test_all_are_checked_before_the_first_starts(self, used: Any) -> None:
        with pytest.raises(InvalidInputError):
            tune.run([train, 5])
        with pytest.raises(InvalidInputError, match="at least one"):
            tune.run([])
        assert not used.requests


class TestResourcesBesideTheClass:
    class Asks(tune.Trainable):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> Any:
            return tune.PlacementGroupFactory([{"CPU": 3}]) if config.get("asks") else None

    def test_count_where_the_class_leaves_it_open(self, used: Any) -> None:
        class Open(self.Asks):  # type: ignore[name-defined, misc]
            def step(self) -> dict[str, Any]:
                return {}

        tune.run(Open, resources_per_trial={"cpu": 2})
        ask = used.requests[0].resources_fn
        assert ask({})["cpu"] == 2
        with pytest.raises(InvalidInputError, match="give it in one place"):
            ask({"asks": True})

    def test_are_refused_beside_with_resources(self, used: Any) -> None:
        for resources in ({"cpu": 2}, lambda config: {"cpu": 2}):
            asked = tune.with_resources(Steps, resources)
            assert resources_of(asked)
            with pytest.raises(InvalidInputError, match="give it in one place"):
                tune.run(asked, resources_per_trial={"cpu": 1})
