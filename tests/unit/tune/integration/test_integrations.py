"""Callbacks for training libraries, against stand-ins that call them as these do."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trialpod.compat import ray
from trialpod.errors import CheckpointError, InvalidInputError
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.integration import reporting
from trialpod.tune.logger.library import MissingLibraryError
from trialpod.tune.trainable.function_trainable import wrap_function

Report = tuple[dict[str, Any], list[str] | None]


class Model:
    def save_model(self, path: str) -> None:
        Path(path).write_text("model")

    save = save_checkpoint = save_model


class KerasCallback:
    """Keras's base class of callbacks."""


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    seen: list[Report] = []

    def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
        files = None if checkpoint is None else [path.name for path in Path(checkpoint.path).iterdir()]
        seen.append((metrics, files))

    monkeypatch.setattr(reporting, "report", report)
    return seen


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Install a stand-in and import the integration with it."""
    imported: list[str] = []

    def install(integration: str, **modules: dict[str, Any]) -> Any:
        for name, contents in modules.items():
            module = types.ModuleType(name)
            module.__dict__.update(contents, __spec__=importlib.machinery.ModuleSpec(name, None))
            monkeypatch.setitem(sys.modules, name, module)
        imported.append(f"trialpod.tune.integration.{integration}")
        sys.modules.pop(imported[-1], None)
        return importlib.import_module(imported[-1])

    yield install
    for name in imported:
        sys.modules.pop(name, None)


def test_xgboost_reports_each_round_and_the_model_as_asked(library: Any, reports: list[Report]) -> None:
    callbacks = types.SimpleNamespace(TrainingCallback=object)
    module = library("xgboost", xgboost={"callback": callbacks})
    made = module.TuneReportCheckpointCallback(metrics={"loss": "eval-logloss"}, frequency=2)
    log: dict[str, dict[str, list[Any]]] = {"eval": {"logloss": []}}
    for epoch in range(3):
        log["eval"]["logloss"].append((epoch / 2, 0.1))
        assert made.after_iteration(Model(), epoch, log) is False
    model = Model()
    assert made.after_training(model) is model
    assert reports == [
        ({"loss": 0.0}, None),
        ({"loss": 0.5}, ["model.ubj"]),
        ({"loss": 1.0}, None),
        ({"loss": 1.0}, ["model.ubj"]),
    ]
    with pytest.raises(InvalidInputError, match="no metric 'auc'; there are eval-logloss"):
        module.TuneReportCallback("auc").after_iteration(Model(), 0, log)
    with pytest.raises(InvalidInputError, match="frequency=-1"):
        module.TuneReportCheckpointCallback(frequency=-1)


def test_lightgbm_reports_each_round_and_the_model_at_the_end(library: Any, reports: list[Report]) -> None:
    module = library("lightgbm", lightgbm={})
    made = module.TuneReportCheckpointCallback()
    for iteration in range(2):
        results = [("eval", "auc", 0.5 + iteration, True), ("cv", "auc", 0.25, True, 0.125)]
        env = types.SimpleNamespace(
            iteration=iteration, end_iteration=2, model=Model(), evaluation_result_list=results
        )
        made(env)
    metrics = {"cv-auc-mean": 0.25, "cv-auc-stdv": 0.125}
    assert reports == [({"eval-auc": 0.5, **metrics}, None), ({"eval-auc": 1.5, **metrics}, ["model.txt"])]


@pytest.mark.parametrize(
    ("options", "rounds", "kept"),
    [({}, 2, "2"), ({"frequency": 2}, 3, "3"), ({"frequency": 2}, 4, "4"), ({"checkpoint_at_end": False}, 2, None)],
)
def test_lightgbm_keeps_the_model_after_early_stopping(
    library: Any, tmp_path: Path, options: dict[str, Any], rounds: int, kept: str | None
) -> None:
    module = library("lightgbm", lightgbm={})

    class Booster:
        rounds = 0

        def save_model(self, path: str) -> None:
            Path(path).write_text(str(self.rounds))

    def train(config: dict[str, Any]) -> None:
        made, model = module.TuneReportCheckpointCallback(**options), Booster()
        for iteration in range(rounds):
            model.rounds += 1
            results = [("eval", "auc", 0.5, True)]
            made(types.SimpleNamespace(
                iteration=iteration, end_iteration=100, model=model, evaluation_result_list=results
            ))  # fmt: skip

    wrapped = wrap_function(train)({})
    while not wrapped.train()["done"]:
        pass
    if kept is None:
        with pytest.raises(CheckpointError, match="has not reported a checkpoint"):
            wrapped.save(str(tmp_path))
    else:
        wrapped.save(str(tmp_path))
        assert (tmp_path / "model.txt").read_text() == kept
    wrapped.stop()


class TestPostprocessing:
    """`results_postprocessing_fn` gets flat, chosen and renamed values, as in Ray."""

    def test_xgboost(self, library: Any, reports: list[Report]) -> None:
        module = library("xgboost", xgboost={"callback": types.SimpleNamespace(TrainingCallback=object)})
        given: list[dict[str, Any]] = []

        def process(metrics: dict[str, Any]) -> dict[str, Any]:
            given.append(metrics)
            return {"error": 1 - metrics["acc"]}

        made = module.TuneReportCallback({"acc": "eval-acc"}, results_postprocessing_fn=process)
        made.after_iteration(Model(), 0, {"eval": {"acc": [0.25, 0.75], "auc": [0.5, 0.5]}})
        assert given == [{"acc": 0.75}]
        assert reports == [({"error": 0.25}, None)]

    def test_xgboost_cv(self, library: Any, reports: list[Report]) -> None:
        """In `xgboost.cv` values are tuples of mean and deviation, and the model cannot be saved."""
        module = library("xgboost", xgboost={"callback": types.SimpleNamespace(TrainingCallback=object)})
        log = {"test": {"rmse": [(2.0, 0.5), (1.0, 0.25)]}}
        module.TuneReportCallback().after_iteration(object(), 0, log)
        made = module.TuneReportCheckpointCallback(
            results_postprocessing_fn=lambda found: {f"{name}-std": pair[1] for name, pair in found.items()}
        )
        made.after_iteration(object(), 0, log)
        assert reports == [({"test-rmse": 1.0}, None), ({"test-rmse-std": 0.25}, None)]

    def test_lightgbm(self, library: Any, reports: list[Report]) -> None:
        module = library("lightgbm", lightgbm={})
        made = module.TuneReportCallback(
            ["valid-auc"], results_postprocessing_fn=lambda found: {"loss": 1 - found["valid-auc"], "n": len(found)}
        )
        results = [("valid", "auc", 0.75, True), ("train", "auc", 1.0, True)]
        made(types.SimpleNamespace(iteration=0, end_iteration=2, model=Model(), evaluation_result_list=results))
        assert reports == [({"loss": 0.25, "n": 1}, None)]


def test_lightning_warns_once_of_each_missing_metric(
    library: Any, reports: list[Report], caplog: pytest.LogCaptureFixture
) -> None:
    module = library("pytorch_lightning", pytorch_lightning={"Callback": object})
    trainer = types.SimpleNamespace(callback_metrics={"loss": 0.5}, sanity_checking=False)
    made = module.TuneReportCallback(["loss", "acc"])
    made.on_validation_end(trainer, None)
    made.on_validation_end(trainer, None)
    trainer.callback_metrics = {"acc": 1.0}
    made.on_validation_end(trainer, None)
    made.on_validation_end(trainer, None)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["acc", "loss"]
    assert len(reports) == 4


def test_lightning_reports_what_was_logged_at_the_hook(library: Any, reports: list[Report]) -> None:
    module = library("pytorch_lightning", pytorch_lightning={"Callback": object})
    trainer = Model()
    trainer.__dict__.update(callback_metrics={"loss": types.SimpleNamespace(item=lambda: 0.5)}, sanity_checking=True)
    made = module.TuneReportCheckpointCallback(["loss"], on=["validation_end", "on_train_epoch_end"])
    made.on_validation_end(trainer, None)
    trainer.__dict__["sanity_checking"] = False
    made.on_train_epoch_end(trainer, None)
    module.TuneReportCallback().on_validation_end(trainer, None)
    # What is logged once an epoch comes after the first validation.
    module.TuneReportCallback({"loss": "loss", "acc": "train_acc"}, on="test_end").on_test_end(trainer, None)
    module.TuneReportCallback(["train_acc"]).on_validation_end(trainer, None)
    assert reports == [({"loss": 0.5}, ["checkpoint"]), ({"loss": 0.5}, None), ({"loss": 0.5}, None)]
    with pytest.raises(InvalidInputError, match="did you mean 'validation_end'"):
        module.TuneReportCallback(on="validation_edn")


def test_keras_reports_logs_and_the_model(library: Any, reports: list[Report]) -> None:
    module = library("keras", keras={"callbacks": types.SimpleNamespace(Callback=object)})
    made = module.ReportCheckpointCallback(checkpoint_on="train_end", metrics="loss")
    made.model = Model()
    made.on_epoch_end(0, {"loss": 1.0, "acc": 0.5})
    made.on_epoch_end(1, logs={"loss": 0.5, "acc": 0.5})
    made.on_train_end()
    assert reports == [({"loss": 1.0}, None), ({"loss": 0.5}, None), ({"loss": 0.5}, ["model.keras"])]
    with pytest.raises(InvalidInputError, match="did you mean 'epoch_end'"):
        module.TuneReportCallback(on="epohc_end")


class TestOlderKerasCallbacks:
    @pytest.fixture
    def module(self, library: Any) -> Any:
        return library("keras", keras={"callbacks": types.SimpleNamespace(Callback=KerasCallback)})

    @pytest.mark.parametrize(
        "made",
        [
            lambda module: module.TuneReportCheckpointCallback("loss", "model.keras", 2),
            lambda module: module.TuneReportCheckpointCallback("loss", frequency=[2], on=["epoch_end"]),
            lambda module: module.Callback("loss", "epoch_end", 2),
        ],
    )
    def test_save_as_often_as_asked(self, module: Any, reports: list[Report], made: Any) -> None:
        callback = made(module)
        callback.model = Model()
        for epoch in range(4):
            callback.on_epoch_end(epoch, {"loss": float(epoch), "acc": 0.5})
        saved = ["model.keras"]
        assert reports == [
            ({"loss": 0.0}, None),
            ({"loss": 1.0}, saved),
            ({"loss": 2.0}, None),
            ({"loss": 3.0}, saved),
        ]

    def test_count_each_hook_alone(self, module: Any, reports: list[Report]) -> None:
        callback = module.Callback(on=["epoch_end", "test_end"], frequency=[2, 0])
        callback.model = Model()
        for epoch in range(2):
            callback.on_test_end({"loss": 1.0})
            callback.on_epoch_end(epoch, {"loss": 1.0})
        assert [files for _, files in reports] == [None, None, None, ["model.keras"]]
        with pytest.raises(InvalidInputError, match="a list of one for each hook"):
            module.TuneReportCheckpointCallback(frequency=[1, 2])

    def test_report_what_ray_0_8_did(self, module: Any, reports: list[Report]) -> None:
        module.TuneReporterCallback(freq="epoch").on_epoch_end(0, {"loss": 1.0, "accuracy": 0.5})
        module.TuneReporterCallback().on_batch_end(0, logs={"val_loss": 2.0})
        assert reports == [
            ({"keras_info": {"loss": 1.0, "accuracy": 0.5, "neg_loss": -1.0}, "mean_accuracy": 0.5}, None),
            ({"keras_info": {"val_loss": 2.0, "neg_val_loss": -2.0}}, None),
        ]
        with pytest.raises(InvalidInputError, match="must be 'batch' or 'epoch'"):
            module.TuneReporterCallback(freq="step")

    def test_have_the_names_of_ray(self, module: Any) -> None:
        ray.install(replace=True)
        try:
            for name in (
                "ray.tune.integration.keras.TuneReporterCallback",
                "ray.tune.integration.keras.TuneReportCheckpointCallback",
                "ray.air.integrations.keras.Callback",
                "ray.air.callbacks.keras.Callback",
            ):
                home, _, attribute = name.rpartition(".")
                assert issubclass(getattr(importlib.import_module(home), attribute), KerasCallback)
        finally:
            ray.uninstall()


@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "pytorch_lightning", "keras"])
def test_missing_library_says_what_to_install(name: str, library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("xgboost", "lightgbm", "pytorch_lightning", "lightning", "keras", "tensorflow"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match="pip install") as caught:
        library(name)
    assert isinstance(caught.value, ImportError)
