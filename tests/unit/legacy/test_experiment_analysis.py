from __future__ import annotations

import json
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from memory_backend import MemoryBackend
from trialpod.errors import InvalidInputError, NotSupportedError
from trialpod.legacy.analysis import Analysis
from trialpod.protocol.messages import CheckpointInfo
from trialpod.tune import ExperimentAnalysis
from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome

Rows = list[dict[str, Any]]


def info(index: int, **metrics: Any) -> CheckpointInfo:
    return CheckpointInfo(
        name=f"checkpoint_{index:06d}", index=index, iteration=index + 1, metrics=metrics, attempt=1
    )


def outcome(tmp_path: Path, series: list[list[float]], **facts: Any) -> ExperimentOutcome:
    trials = []
    for number, values in enumerate(series):
        path = tmp_path / f"trial_{number}"
        path.mkdir(parents=True, exist_ok=True)
        rows = [
            {"score": value, "training_iteration": place + 1, "trial_id": str(number), "config": {"x": number}}
            for place, value in enumerate(values)
        ]
        (path / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        trials.append(
            TrialOutcome(
                trial_id=str(number),
                name=f"train_{number}",
                config={"x": number, "deep": {"y": 1}},
                status="TERMINATED",
                path=str(path),
                last_result=rows[-1] if rows else None,
                checkpoints=[info(place, score=value) for place, value in enumerate(values)],
            )
        )
    return ExperimentOutcome(name="exp", path=str(tmp_path), state="Succeeded", trials=trials, **facts)


@pytest.fixture
def analysis(tmp_path: Path) -> ExperimentAnalysis:
    # last: trial 1; all: trial 0; avg: trial 2
    return ExperimentAnalysis(
        outcome(tmp_path, [[9.0, 0.0, 0.0], [0.0, 0.0, 8.0], [5.0, 5.0, 5.0], []], metric="score", mode="max")
    )


def test_the_best_by_the_defaults(analysis: ExperimentAnalysis) -> None:
    assert analysis.best_trial.trial_id == "1"
    assert analysis.best_config == {"x": 1, "deep": {"y": 1}}
    assert analysis.best_result["score"] == 8.0
    assert analysis.best_logdir.endswith("trial_1")
    assert analysis.best_checkpoint is not None
    assert analysis.best_checkpoint.path.endswith("trial_1/checkpoint_000002")
    assert list(analysis.best_dataframe["score"]) == [0.0, 0.0, 8.0]
    assert analysis.best_result_df.loc["1", "config/deep/y"] == 1


@pytest.mark.parametrize(
    ("scope", "mode", "best"),
    [
        ("last", "max", "1"),
        ("last", "min", "0"),
        ("all", "max", "0"),
        ("all", "min", "0"),
        ("avg", "max", "2"),
        ("avg", "min", "1"),
        ("last-5-avg", "max", "2"),
        ("last-10-avg", "min", "1"),
    ],
)
def test_each_scope_looks_at_other_results(analysis: ExperimentAnalysis, scope: Any, mode: str, best: str) -> None:
    found = analysis.get_best_trial("score", mode, scope)
    assert found is not None
    assert found.trial_id == best
    assert analysis.get_best_config("score", mode, scope) == found.config
    assert analysis.get_best_logdir("score", mode, scope) == found.path


def test_a_metric_may_be_absent_from_last_results(tmp_path: Path) -> None:
    found = outcome(tmp_path, [[1.0, 5.0], [9.0, 3.0]], metric="score", mode="max")
    for trial in found.trials:
        trial.last_result = {"summary": 1, "training_iteration": 3, "trial_id": trial.trial_id}
        with Path(trial.path, "result.json").open("a") as stream:
            stream.write(json.dumps(trial.last_result) + "\n")
    analysis = ExperimentAnalysis(found)
    best = analysis.get_best_trial("score", "max")
    assert best is not None
    assert best.trial_id == analysis.best_trial.trial_id == "0"
    assert best.metric_analysis["score"]["last"] == 5.0
    assert analysis.get_best_config("score", "min") == analysis.trials[1].config


def test_nan_is_left_out_or_the_worst(tmp_path: Path) -> None:
    analysis = ExperimentAnalysis(outcome(tmp_path, [[math.nan], [math.inf], [1.0]]))
    for mode in ("max", "min"):
        best = analysis.get_best_trial("score", mode)
        assert best is not None
        assert best.trial_id == "2"
    unfiltered = analysis.get_best_trial("score", "max", filter_nan_and_inf=False)
    assert unfiltered is not None
    assert unfiltered.trial_id == "1"


def test_nothing_that_fits_is_none_with_a_warning(
    analysis: ExperimentAnalysis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert analysis.get_best_trial("scroe") is None
        assert analysis.get_best_config("scroe") is None
        assert analysis.get_best_checkpoint(analysis.trials[3]) is None
        assert ExperimentAnalysis(outcome(tmp_path / "b", [[math.nan]])).get_best_trial("score", "max") is None
    assert "Did you mean 'score'?" in caplog.text
    assert "is NaN or infinite" in caplog.text


def test_rays_name_takes_max_without_a_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bare = ExperimentAnalysis(outcome(tmp_path / "b", [[1.0], [3.0], [2.0]]))
    monkeypatch.setattr("trialpod.compat.ray.installed", lambda: True)
    with caplog.at_level(logging.WARNING):
        best = bare.get_best_trial("score")
    assert best is bare.trials[1]
    assert bare.get_best_config("score") == bare.trials[1].config
    assert "no mode; the best is taken to be the max" in caplog.text
    with pytest.raises(InvalidInputError, match="no metric"):
        _ = bare.best_config


def test_what_is_missing_or_unknown_is_said(analysis: ExperimentAnalysis, tmp_path: Path) -> None:
    bare = ExperimentAnalysis(outcome(tmp_path / "b", [[1.0]]))
    with pytest.raises(InvalidInputError, match=r"best_trial: no metric; pass metric=\.\.\."):
        _ = bare.best_trial
    with pytest.raises(InvalidInputError, match="no mode"):
        bare.get_best_trial("score")
    with pytest.raises(InvalidInputError, match="did you mean 'last-5-avg'"):
        analysis.get_best_trial(scope="last5avg")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="mode must be 'max' or 'min'"):
        analysis.get_best_trial("score", "best")
    with pytest.raises(InvalidInputError, match="pass metric"):
        analysis.dataframe(mode="max")
    with pytest.raises(InvalidInputError, match="is not a trial of the experiment"):
        analysis.get_last_checkpoint("other")
    with pytest.raises(NotSupportedError, match="a object is not supported"):
        ExperimentAnalysis("exp", storage_filesystem=object())


def test_tables_of_all_trials(analysis: ExperimentAnalysis) -> None:
    assert list(analysis.dataframe()["score"].dropna()) == [0.0, 8.0, 5.0]
    assert len(analysis.dataframe()) == 4
    assert list(analysis.dataframe("score", "max")["score"]) == [9.0, 8.0, 5.0]
    assert list(analysis.results_df.index) == ["0", "1", "2"]
    assert {key: len(frame) for key, frame in analysis.trial_dataframes.items()} == {"0": 3, "1": 3, "2": 3, "3": 0}
    assert analysis.results["1"]["score"] == 8.0
    assert {trial_id: config["x"] for trial_id, config in analysis.get_all_configs().items()} == {
        str(n): n for n in range(4)
    }
    assert all("config/x" in config for config in analysis.get_all_configs(prefix=True).values())


class TestLookUp:
    def test_by_trial_name_and_directory(self, analysis: ExperimentAnalysis) -> None:
        trial = analysis.trials[1]
        for key in (trial, trial.trial_id, trial.name, trial.path, f"{trial.path}/"):
            assert analysis.results[key]["score"] == 8.0
            assert analysis.get_all_configs()[key] == trial.config
            assert len(analysis.trial_dataframes[key]) == 3
            assert key in analysis.results
        assert analysis.results.get("nobody") is None
        assert "nobody" not in analysis.results
        with pytest.raises(KeyError):
            _ = analysis.results["nobody"]
        assert type(pickle.loads(pickle.dumps(analysis.results))) is dict

    def test_facts_of_the_experiment(self, analysis: ExperimentAnalysis) -> None:
        assert analysis.path == analysis.experiment_path
        assert analysis.stats()["trials"] == len(analysis.trials)
        assert analysis.runner_data()["checkpoint_dir"] == analysis.path
        assert analysis.set_filetype("csv")
        with pytest.raises(InvalidInputError, match="set_filetype"):
            analysis.set_filetype("xml")
        assert len(analysis._get_trial_paths()) == len(analysis.trials)


def test_checkpoints_of_a_trial_by_object_or_path(analysis: ExperimentAnalysis) -> None:
    first = analysis.trials[0]
    best = analysis.get_best_checkpoint(first.path, "score", "max", return_path=True)
    assert str(best).endswith("trial_0/checkpoint_000000")
    last = analysis.get_last_checkpoint(first)
    assert last is not None
    assert last.path.endswith("trial_0/checkpoint_000002")
    newest_of_best = analysis.get_last_checkpoint()
    assert newest_of_best is not None
    paths = analysis.get_trial_checkpoints_paths(first)
    assert [(path[-1], value) for path, value in paths] == [("0", 9.0), ("1", 0.0), ("2", 0.0)]


def test_a_trial_knows_its_statistics(analysis: ExperimentAnalysis) -> None:
    first = analysis.trials[0]
    assert first.metric_analysis["score"] == {
        "max": 9.0,
        "min": 0.0,
        "avg": 3.0,
        "last": 0.0,
        "last-5-avg": 3.0,
        "last-10-avg": 3.0,
    }
    assert str(first) == "train_0"
    assert first.trainable_name == "train"
    assert first.evaluated_params == {"x": 0, "deep/y": 1}
    assert (first.is_finished(), first.has_checkpoint(), first.get_error()) == (True, True, None)
    assert first == ExperimentAnalysis(analysis._outcome).trials[0]


class TestPath:
    def test_home_is_expanded_before_the_file_is_looked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: MemoryBackend
    ) -> None:
        directory = tmp_path / "ray_results" / "exp"
        directory.mkdir(parents=True)
        (directory / "experiment_state-2026-01-01_00-00-00.json").write_text("{}")
        backend.outcomes[str(directory)] = outcome(directory, [[1.0]])
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("", "/experiment_state-2026-01-01_00-00-00.json"):
            analysis = ExperimentAnalysis(f"~/ray_results/exp{name}", backend=backend)
            assert [trial.trial_id for trial in analysis.trials] == ["0"]

    def test_a_state_file_in_a_bucket_is_its_experiment(self, tmp_path: Path, backend: MemoryBackend) -> None:
        backend.outcomes["s3://bucket/exp"] = outcome(tmp_path, [[1.0]])
        path = "s3://bucket/exp/experiment_state-2026-01-01_00-00-00.json"
        assert len(ExperimentAnalysis(path, backend=backend).trials) == 1


class TestAnalysis:
    @pytest.mark.parametrize(
        "made",
        [
            lambda place: Analysis(place, "score", "max", "json"),
            lambda place: Analysis(experiment_dir=place, default_metric="score", default_mode="max", file_type="csv"),
        ],
    )
    def test_takes_a_directory_as_in_ray_1(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: MemoryBackend, made: Any
    ) -> None:
        monkeypatch.setattr("trialpod.tune.tuner.get_backend", lambda name=None: backend)
        backend.outcomes[str(tmp_path)] = outcome(tmp_path, [[1.0], [2.0]])
        analysis = made(str(tmp_path))
        assert analysis.best_config["x"] == 1
        assert len(analysis.dataframe()) == 2

    def test_is_the_class_of_all_as_in_ray(self, analysis: ExperimentAnalysis) -> None:
        assert isinstance(analysis, Analysis)
        assert not isinstance(3, Analysis)


class TestSubclass:
    def test_may_set_its_trials_itself(self) -> None:
        """As FLAML's does, whose trials are objects of its own."""

        class Trial:
            def __init__(self, trial_id: str, loss: float) -> None:
                self.trial_id, self.config = trial_id, {"x": loss * 2}
                self.last_result = {"loss": loss, "config": self.config}

        class Analysis(ExperimentAnalysis):
            def __init__(self, trials: list[Trial]) -> None:
                self.trials = trials
                self.default_metric, self.default_mode = "loss", "min"

        trials = [Trial("a", 2.0), Trial("b", 1.0)]
        analysis = Analysis(trials)
        assert analysis.best_trial is trials[1]
        assert analysis.best_config == {"x": 2.0}
        assert [each["loss"] for each in analysis.results.values()] == [2.0, 1.0]
