from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from memory_storage import MemoryStorage

from trialpod import tune
from trialpod.errors import ExperimentLockedError, InvalidInputError, StorageError
from trialpod.protocol.messages import TrainableRef
from trialpod.storage.aside import move_aside, move_journal_aside
from trialpod.storage.lock import ExperimentLock
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from trialpod.tune.search import create_searcher
from trialpod_operator.display.summary import Remedies
from trialpod_operator.experiment.definition import describe, differences
from trialpod_operator.local.existing import Existing, ExperimentChangedError


def request(**changes: Any) -> ExperimentRequest:
    return ExperimentRequest(
        name="exp",
        storage_path="/nowhere",
        trainable=TrainableRef(),
        trainable_name="train",
        is_class=False,
        **{"param_space": {"x": tune.uniform(0, 1)}, "metric": "loss", "mode": "min", **changes},
    )


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    documents = (json.loads(json.dumps({"definition": describe(request(**each))})) for each in (before, now))
    return [str(difference) for difference in differences(*documents)]


class TestDefinition:
    @pytest.mark.parametrize(
        ("before", "now", "reported"),
        [
            ({}, {"num_samples": 4, "stop": {"loss": 1.0}, "max_failures": 2, "seed": 3}, []),
            (
                {},
                {"param_space": {"x": tune.uniform(0, 2)}},
                ["param_space.x: uniform(0, 1) -> uniform(0, 2)"],
            ),
            (
                {"param_space": {"a": {"b": 1}, "c": 2}},
                {"param_space": {"a": {"b": tune.choice([1, "x"])}, "d": tune.grid_search([1, 2])}},
                [
                    "param_space.a.b: 1 -> choice([1, 'x'])",
                    "param_space.c: 2 -> none",
                    "param_space.d: none -> {grid_search: [1, 2]}",
                ],
            ),
            ({}, {"metric": "score", "mode": "max"}, ["metric: loss -> score", "mode: min -> max"]),
            (
                {"scheduler": ASHAScheduler(max_t=3)},
                {"scheduler": ASHAScheduler(max_t=4)},
                ["scheduler: AsyncHyperBandScheduler(max_t=3) -> AsyncHyperBandScheduler(max_t=4)"],
            ),
            (
                {"scheduler": PopulationBasedTraining(hyperparam_mutations={"x": lambda: 1})},
                {"scheduler": PopulationBasedTraining(hyperparam_mutations={"x": lambda: 1})},
                [],
            ),
            (
                {"search_alg": create_searcher("optuna")},
                {"search_alg": create_searcher("random")},
                ["search_alg: OptunaSearch() -> BasicVariantGenerator()"],
            ),
            (
                {"param_space": {"x": tune.sample_from(lambda spec: spec.config.y * 2)}},
                {"param_space": {"x": tune.sample_from(lambda spec: spec.config.y * 3)}},
                ["param_space.x: sample_from(<lambda>) -> other code of that name"],
            ),
        ],
    )
    def test_compares(
        self, before: dict[str, Any], now: dict[str, Any], reported: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trialpod_operator.experiment.definition._script", lambda: None)
        assert changed(before, now) == reported

    def test_constants_of_an_unedited_script_may_differ(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before, now = {"param_space": {"x": tune.uniform(0, 1), "at": 1}}, {"param_space": {"x": 3, "at": 2}}
        monkeypatch.setattr("trialpod_operator.experiment.definition._script", lambda: "a")
        assert changed(before, now) == ["param_space.x: uniform(0, 1) -> 3"]
        monkeypatch.setattr("trialpod_operator.experiment.definition._script", lambda: None)
        assert changed(before, now) == ["param_space.x: uniform(0, 1) -> 3", "param_space.at: 1 -> 2"]

    def test_other_python_is_no_change(self) -> None:
        document = {"definition": {"param_space": {"x": "sample_from(f [py3.11:00000000])"}}}
        other = {"definition": {"param_space": {"x": "sample_from(f [py3.13:11111111])"}}}
        assert differences(document, other) == []

    def test_older_document_has_none(self) -> None:
        assert differences({"name": "exp"}, {"definition": describe(request())}) == []

    def test_source_and_stop_of_a_manifest_may_change(self) -> None:
        def document(**spec: Any) -> dict[str, Any]:
            return {"manifest": {"spec": spec}}

        before = document(trainable={"source": "a"}, stop={}, metric="loss", numSamples=3)
        now = document(trainable={"source": "b"}, stop={"loss": 1}, metric="loss", numSamples=4)
        assert differences(before, now) == []
        assert [each.field for each in differences(before, document(trainable={"entrypoint": "a:b"}))] == [
            "spec.trainable",
            "spec.metric",
        ]


class TestExisting:
    def experiment(self, tmp_path: Path, **changes: Any) -> Existing:
        (tmp_path / "exp" / ".trialpod").mkdir(parents=True)
        return Existing(
            tmp_path / "exp", {"definition": describe(request())}, Remedies(), tell=self.told.append, **changes
        )

    def setup_method(self) -> None:
        self.told: list[str] = []

    def test_same_continues(self, tmp_path: Path) -> None:
        assert self.experiment(tmp_path).resolve({"definition": describe(request(num_samples=7))})

    def test_fresh_moves_aside(self, tmp_path: Path) -> None:
        existing = self.experiment(tmp_path)
        (tmp_path / "exp.1").mkdir()
        assert not existing.resolve({}, "fresh")
        assert not (tmp_path / "exp").exists()
        assert self.told == [f"the results that were in {tmp_path / 'exp'} are in {tmp_path / 'exp.2'} now"]

    def test_fresh_moves_aside_in_a_bucket(self, tmp_path: Path) -> None:
        kept = {
            "exp/.trialpod/experiment.json": b'{"version": 1, "storage": "memory://exp"}',
            "exp/t/log.txt": b"log",
        }
        values = {**kept, "exp.1/t/log.txt": b"of another one"}
        directory = self.experiment(tmp_path).directory
        existing = Existing(directory, {}, Remedies(), MemoryStorage(values, "exp/"), self.told.append)
        assert not existing.resolve({}, "fresh")
        assert sorted(values) == ["exp.1/t/log.txt", "exp.2/.trialpod/experiment.json", "exp.2/t/log.txt"]
        assert json.loads(values["exp.2/.trialpod/experiment.json"])["storage"] == "memory://exp.2"
        assert self.told[-1] == "the results that were in memory://exp are in memory://exp.2 now"
        assert (tmp_path / "exp.1").is_dir()
        assert not directory.exists()

    def test_failed_copy_in_a_bucket_removes_nothing(self, tmp_path: Path) -> None:
        kept = {"exp/.trialpod/experiment.json": b'{"version": 1}', "exp/t/a": b"a", "exp/t/b": b"b"}
        values = dict(kept)
        storage = MemoryStorage(values, "exp/")
        parent = storage.parent

        def failing() -> MemoryStorage:
            def fail(name: str, key: str) -> None:
                if (name, key) == ("copy", "exp/t/b"):
                    raise StorageError("too large")

            found = parent()
            found.before = fail
            return found

        storage.parent = failing  # type: ignore[method-assign]
        with pytest.raises(StorageError, match="too large"):
            Existing(tmp_path / "exp", {}, Remedies(), storage, self.told.append).resolve({}, "fresh")
        assert values == kept

    def test_add_keeps_trials(self, tmp_path: Path) -> None:
        existing = self.experiment(tmp_path)
        (tmp_path / "exp" / "train_1").mkdir()
        assert not existing.resolve({}, "add")
        assert sorted(path.name for path in (tmp_path / "exp").iterdir()) == [".trialpod.1", "train_1"]

    def test_error_and_bucket_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="holds an experiment already"):
            self.experiment(tmp_path).resolve({}, "error")
        storage = MemoryStorage(prefix="exp/")
        bucket = Existing(tmp_path / "exp", {"definition": describe(request())}, Remedies(), storage)
        with pytest.raises(ExperimentChangedError, match="start over") as caught:
            bucket.resolve({"definition": describe(request(metric="other"))})
        assert [each.field for each in caught.value.differences] == ["metric"]

    def test_nothing_is_moved_while_it_runs(self, tmp_path: Path) -> None:
        self.experiment(tmp_path)
        with ExperimentLock(tmp_path / "exp"):
            for move in (move_aside, move_journal_aside):
                with pytest.raises(ExperimentLockedError):
                    move(tmp_path / "exp")
