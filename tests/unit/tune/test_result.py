from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import InvalidInputError, StorageError
from trialpod.protocol.messages import CheckpointInfo, CheckpointRules
from trialpod.storage.pickled_error import keep_error
from trialpod.tune import Result
from trialpod.tune.outcomes import TrialOutcome
from trialpod.tune.result import Metrics, NoResultError, TrialFailedError, failure
from trialpod.tune.results import read_rows, score, without_rolled_back
from trialpod.tune.trial import Trial


def write_results(directory: Path, rows: list[dict[str, Any]], tail: str = "") -> None:
    (directory / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def row(iteration: int, since: int, loss: float) -> dict[str, Any]:
    return {"training_iteration": iteration, "iterations_since_restore": since, "loss": loss}


def outcome(path: Path, **changes: Any) -> TrialOutcome:
    values: dict[str, Any] = {
        "trial_id": "a_00000",
        "name": "train_a_00000",
        "config": {"lr": 0.1},
        "status": "TERMINATED",
        "path": str(path),
    }
    return TrialOutcome(**{**values, **changes})


def test_nan_and_infinity_are_read(tmp_path: Path) -> None:
    write_results(tmp_path, [row(1, 1, math.nan), row(2, 2, math.inf)])
    first, second = read_rows(str(tmp_path))
    assert math.isnan(first["loss"])
    assert second["loss"] == math.inf


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    write_results(tmp_path, [row(1, 1, 1.0)], tail='{"training_iter')
    assert [r["training_iteration"] for r in read_rows(str(tmp_path))] == [1]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write_results(tmp_path, [row(1, 1, 1.0)], tail="garbage\n" + json.dumps(row(2, 2, 1.0)) + "\n")
    with pytest.raises(StorageError, match=r"result\.json, line 2"):
        read_rows(str(tmp_path))


def test_a_retried_attempt_supersedes_what_it_reported_again() -> None:
    rows = [row(1, 1, 0.1), row(2, 2, 0.2), row(3, 3, 0.3), row(4, 4, 0.4), row(2, 1, 2.2), row(3, 2, 3.3)]
    kept = without_rolled_back(rows)
    assert [(r["training_iteration"], r["loss"]) for r in kept] == [(1, 0.1), (2, 2.2), (3, 3.3)]


class TestAnAttemptThatEndsBeforeTheCrashedOne:
    ROWS = tuple(row(n, n, n / 10) for n in range(1, 11)) + tuple(row(n, n - 5, n) for n in (6, 7, 8))

    def test_the_last_result_is_of_the_later_attempt(self, tmp_path: Path) -> None:
        write_results(tmp_path, list(self.ROWS))
        metrics = Result.from_path(tmp_path).metrics
        assert (metrics["training_iteration"], metrics["loss"]) == (8, 8.0)

    def test_what_the_crashed_one_reported_beyond_is_left_out(self) -> None:
        kept = [each["loss"] for each in without_rolled_back(self.ROWS)]
        assert kept == [0.1, 0.2, 0.3, 0.4, 0.5, 6, 7, 8]

    def test_a_third_attempt_may_go_back_further(self) -> None:
        kept = without_rolled_back([*self.ROWS, row(3, 1, 30.0)])
        assert [each["loss"] for each in kept] == [0.1, 0.2, 30.0]

    def test_an_exploit_leaves_what_it_does_not_report_again(self) -> None:
        rows = [{**each, "config": {"lr": 0.1}} for each in self.ROWS[:10]]
        rows += [{**row(n, n - 5, n), "config": {"lr": 0.2}} for n in (6, 7)]
        assert [each["loss"] for each in without_rolled_back(rows)][4:] == [0.5, 6, 7, 0.8, 0.9, 1.0]

    def test_a_later_start_leaves_all_before_it(self) -> None:
        rows = [row(1, 1, 0.1), row(2, 2, 0.2), row(9, 1, 0.9)]
        assert without_rolled_back(rows) == rows


def test_rows_of_one_attempt_never_supersede_each_other() -> None:
    rows = [row(7, 1, 0.1), row(7, 2, 0.2)]
    assert without_rolled_back(rows) == rows


def test_the_last_of_three_attempts_counts() -> None:
    rows = [row(1, 1, 0.1), row(1, 1, 0.2), row(1, 1, 0.3)]
    assert without_rolled_back(rows) == [rows[2]]


def test_data_frame_has_rows_and_config_columns(tmp_path: Path) -> None:
    rows = [row(1, 1, 0.1), row(2, 2, math.nan), row(2, 1, 0.3)]
    write_results(tmp_path, [{**r, "config": {"lr": 0.1, "net": {"n": 2}}} for r in rows])
    frame = Result.from_trial(outcome(tmp_path)).metrics_dataframe
    assert frame is not None
    assert list(frame["loss"]) == [0.1, 0.3]
    assert list(frame["config/net/n"]) == [2, 2]


class TestWithoutResults:
    def test_metrics_are_what_is_known_of_the_trial(self, tmp_path: Path) -> None:
        result = Result.from_trial(outcome(tmp_path))
        assert result.metrics["trial_id"] == "a_00000"
        assert result.metrics.get("loss") is None
        assert (result.checkpoint, result.error, result.config) == (None, None, {"lr": 0.1})
        assert result.log_dir / "params.json" == Path(result.path, "params.json")

    def test_the_data_frame_is_empty(self, tmp_path: Path) -> None:
        assert len(Result.from_trial(outcome(tmp_path)).metrics_dataframe) == 0


def test_checkpoint_asked_for_in_a_result_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Callbacks of scripts for Ray set ``result["should_checkpoint"]``, which has no effect here."""
    monkeypatch.setattr("trialpod.tune.result._warned", [])
    copied = pickle.loads(pickle.dumps(Metrics({"should_checkpoint": True, "a/b": 1})))
    assert (type(copied), copied["a"]) == (Metrics, {"b": 1})
    copied["loss"] = 1.0
    copied["should_checkpoint"] = False
    assert not caplog.records
    copied["should_checkpoint"] = True
    copied["should_checkpoint"] = True
    assert [record.getMessage()[:42] for record in caplog.records] == ["result['should_checkpoint'] = True in a ca"]


def test_metrics_can_be_read_flat_and_nested(tmp_path: Path) -> None:
    metrics = Result.from_trial(outcome(tmp_path, last_result={"loss/train": 1, "loss/val/a": 2, "x": 3})).metrics
    assert metrics["loss/val/a"] == 2
    assert metrics["loss"] == {"train": 1, "val": {"a": 2}}
    assert metrics["loss"]["val"]["a"] == 2
    assert metrics.get("los") is None
    with pytest.raises(KeyError):
        metrics["los"]
    assert "loss" in metrics and "loss/train" in metrics and "los" not in metrics  # noqa: PT018
    assert metrics.copy()["loss"]["train"] == 1
    assert (metrics.pop("los", 5), metrics.pop("x")) == (5, 3)
    assert metrics.pop("loss") == {"train": 1, "val": {"a": 2}}
    assert "loss/train" not in metrics
    with pytest.raises(KeyError):
        metrics.pop("loss")


def test_an_error_has_the_trial_and_its_traceback(tmp_path: Path) -> None:
    error = Result.from_trial(
        outcome(tmp_path, status="ERROR", error="ValueError: no", traceback="Traceback...\nValueError: no\n")
    ).error
    assert isinstance(error, TrialFailedError)
    assert str(error) == "trial train_a_00000: ValueError: no\n\nTraceback...\nValueError: no"


def saved(index: int, **metrics: Any) -> CheckpointInfo:
    name = f"checkpoint_{index:06d}"
    return CheckpointInfo(name=name, index=index, iteration=index, metrics=metrics, attempt=1)


def test_the_newest_checkpoint_and_the_best_one(tmp_path: Path) -> None:
    infos = [saved(2, loss=math.nan), saved(0, loss=1.0), saved(1, loss=3.0), saved(3)]
    result = Result.from_trial(outcome(tmp_path, checkpoints=infos))
    assert result.checkpoint is not None
    assert result.checkpoint.path == str(tmp_path / "checkpoint_000003")
    assert [Path(c.path).name[-1] for c, _ in result.best_checkpoints] == ["0", "1", "2", "3"]
    for mode, index in (("min", 0), ("max", 1)):
        best = result.get_best_checkpoint("loss", mode)
        assert best is not None
        assert best.path.endswith(f"checkpoint_00000{index}")


class TestBestCheckpoints:
    INFOS = (saved(0, loss=2.0), saved(1, loss=1.0), saved(2, loss=math.nan), saved(3, loss=3.0))

    @pytest.mark.parametrize(
        ("rules", "expected"),
        [
            (CheckpointRules(score_attribute="loss", score_order="min"), "2301"),
            (CheckpointRules(score_attribute="loss", score_order="min", num_to_keep=2), "01"),
            (CheckpointRules(score_attribute="loss"), "2103"),
            (CheckpointRules(num_to_keep=2), "23"),
            (CheckpointRules(num_to_keep=1), "3"),
            (CheckpointRules(), "0123"),
        ],
    )
    def test_are_ordered_from_worst_to_best(self, tmp_path: Path, rules: CheckpointRules, expected: str) -> None:
        trial = outcome(tmp_path, checkpoints=self.INFOS, checkpoint_rules=rules)
        for result in (Result.from_trial(trial), Trial(trial).as_result()):
            assert "".join(checkpoint.path[-1] for checkpoint, _ in result.best_checkpoints) == expected
            assert result.checkpoint is not None
            assert result.checkpoint.path[-1] == "3"

    def test_score_that_is_no_number(self, tmp_path: Path) -> None:
        rules = CheckpointRules(score_attribute="loss")
        trial = outcome(tmp_path, checkpoints=[saved(0, loss="x"), saved(1, loss=1.0)], checkpoint_rules=rules)
        assert len(Result.from_trial(trial).best_checkpoints) == 2


class TestResultInBucket:
    def test_path_is_the_uri_and_rows_are_read_locally(self, tmp_path: Path) -> None:
        write_results(tmp_path, [row(1, 1, 0.5)])
        trial = outcome(tmp_path, checkpoint_uri="s3://bucket/exp/trial")
        for result in (Result.from_trial(trial), Trial(trial).as_result()):
            assert result.path == "s3://bucket/exp/trial"
            assert result.local_path == str(result.log_dir) == str(tmp_path)
            assert list(result.metrics_dataframe["loss"]) == [0.5]

    def test_from_path_takes_a_file_system(self, tmp_path: Path) -> None:
        class LocalFileSystem: ...  # known by its name, as that of pyarrow

        write_results(tmp_path, [row(1, 1, 0.5)])
        result = Result.from_path(str(tmp_path), storage_filesystem=LocalFileSystem())
        assert (result.metrics["loss"], result.path) == (0.5, str(tmp_path))


def test_its_file_system_opens_its_path(tmp_path: Path) -> None:
    write_results(tmp_path, [row(1, 1, 0.5)])
    result = Result.from_trial(outcome(tmp_path))
    with result.filesystem.open_input_stream(f"{result.path}/result.json") as stream:
        assert json.loads(stream.read())["loss"] == 0.5


def test_a_best_checkpoint_that_cannot_be_found_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoResultError, match="no checkpoint exists"):
        Result.from_trial(outcome(tmp_path)).get_best_checkpoint("loss", "min")
    result = Result.from_trial(outcome(tmp_path, checkpoints=[saved(0, loss=1.0)]))
    with pytest.raises(InvalidInputError, match=r"'los'\. Did you mean 'loss'"):
        result.get_best_checkpoint("los", "min")
    with pytest.raises(InvalidInputError, match="mode must be"):
        result.get_best_checkpoint("loss", "best")


def test_a_result_is_read_from_a_directory_alone(tmp_path: Path) -> None:
    from trialpod.storage.checkpoints import open_checkpoints
    from trialpod.storage.registry import open_storage

    write_results(tmp_path, [row(1, 1, 0.5), row(2, 2, 0.25)])
    (tmp_path / "params.json").write_text('{"lr": 0.1}')
    (tmp_path / "error.txt").write_text("Failure # 1\nTraceback\nValueError: no\n")
    store = open_checkpoints(open_storage(str(tmp_path)))
    (store.begin(0) / "model").write_text("weights")
    store.commit(0, iteration=2, metrics={"loss": 0.25}, attempt=1, time=1.0)
    (tmp_path / "checkpoint_000001").mkdir()  # never committed

    result = Result.from_path(tmp_path)
    assert result.metrics == row(2, 2, 0.25)
    assert result.config == {"lr": 0.1}
    assert str(result.error).startswith(f"trial {tmp_path.name}: ValueError: no")
    assert result.checkpoint is not None
    assert (Path(result.checkpoint.path) / "model").read_text() == "weights"
    assert len(result.best_checkpoints) == 1


def test_a_directory_that_is_no_trials_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="the directory of one trial"):
        Result.from_path(tmp_path)


@pytest.mark.parametrize(
    ("scope", "mode", "expected"),
    [
        ("last", "max", 12.0),
        ("all", "max", 12.0),
        ("all", "min", 1.0),
        ("avg", "max", 6.5),
        ("last-5-avg", "max", 10.0),
        ("last-10-avg", "max", 7.5),
    ],
)
def test_scopes_sum_up_as_rays_do(scope: str, mode: str, expected: float) -> None:
    assert score([float(n) for n in range(1, 13)], scope, mode, finite_only=True) == expected


def test_the_best_of_all_ignores_nan_and_a_mean_does_not() -> None:
    values = [1.0, math.nan, 3.0, math.inf]
    assert score(values, "all", "max", finite_only=True) == 3.0
    assert score(values, "all", "max", finite_only=False) == math.inf
    assert score(values, "avg", "max", finite_only=True) is None
    assert score([], "all", "max", finite_only=False) is None


class TestErrorsOfTrials:
    @staticmethod
    def of(folder: Path, raised: BaseException, line: str) -> TrialFailedError:
        keep_error(str(folder), raised)
        return failure(line, "t", "Traceback", str(folder))

    def test_are_instances_of_what_was_raised(self, tmp_path: Path) -> None:
        error = self.of(tmp_path, KeyError("lr"), "KeyError: 'lr' (train.py:3, in train)")
        assert isinstance(error, KeyError)
        assert isinstance(error, TrialFailedError)
        assert error.args[0] == "KeyError: 'lr' (train.py:3, in train)"
        assert repr(error.cause) == "KeyError('lr')"
        assert "trial t: KeyError: 'lr'" in str(error)

    def test_of_an_earlier_failure_count_for_nothing(self, tmp_path: Path) -> None:
        error = self.of(tmp_path, KeyError("lr"), "the process was killed by signal 9")
        assert type(error) is TrialFailedError

    def test_of_a_class_that_wants_arguments(self, tmp_path: Path) -> None:
        import subprocess

        error = self.of(tmp_path, subprocess.CalledProcessError(1, "make"), "CalledProcessError: Command 'make'")
        assert isinstance(error, TrialFailedError)
        assert isinstance(error.cause, subprocess.CalledProcessError)

    def test_that_cannot_be_pickled_leave_no_file(self, tmp_path: Path) -> None:
        import threading

        assert type(self.of(tmp_path, ValueError(threading.Lock()), "ValueError: <lock>")) is TrialFailedError
        assert not (tmp_path / "error.pkl").exists()

    def test_of_several_failures_are_all_in_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "result.json").write_text("")
        (tmp_path / "params.json").write_text("{}")
        text = "Failure # 1 (occurred at x)\nKeyError: 1\nFailure # 2 (occurred at y)\nValueError: no\n"
        (tmp_path / "error.txt").write_text(text)
        error = Result.from_path(tmp_path).error
        assert str(error).startswith(f"trial {tmp_path.name}: ValueError: no")
        assert "KeyError" not in str(error)
