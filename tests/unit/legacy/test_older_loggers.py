"""Ray Tune's older loggers, one object for each trial."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.logger import (
    CSVLogger,
    CSVLoggerCallback,
    JsonLogger,
    JsonLoggerCallback,
    LegacyLoggerCallback,
    Logger,
    NoopLogger,
    TBXLogger,
    UnifiedLogger,
)
from trialpod.tune.outcomes import TrialOutcome
from trialpod.tune.trial import Trial

RESULTS = [{"loss": 0.5, "eval": {"acc": np.float32(0.25)}, "n": 1}, {"loss": 0.25, "eval": {"acc": 1.0}, "n": 2}]


class Counts(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"n": self.iteration}


def test_results_are_written_as_json_and_csv(tmp_path: Path) -> None:
    logger = UnifiedLogger({"lr": 0.1}, str(tmp_path))
    for result in RESULTS:
        logger.on_result(result)
    logger.update_config({"lr": 0.2})
    logger.flush()
    logger.close()
    rows = [json.loads(line) for line in (tmp_path / "result.json").read_text().splitlines()]
    assert [row["eval"]["acc"] for row in rows] == [0.25, 1.0]
    assert json.loads((tmp_path / "params.json").read_text()) == {"lr": 0.2}
    assert (tmp_path / "progress.csv").read_text().split() == ["loss,eval/acc,n", "0.5,0.25,1", "0.25,1.0,2"]


def test_a_table_that_is_there_continues_with_its_columns(tmp_path: Path) -> None:
    for result in ({"a": 1, "b": 2}, {"b": 4, "a": 3, "c": 5}):
        logger = CSVLogger({}, str(tmp_path))
        logger.on_result(result)
        logger.close()
    assert (tmp_path / "progress.csv").read_text().split() == ["a,b", "1,2", "3,4"]


def test_scalars_go_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("google_crc32c")
    logger = TBXLogger({}, str(tmp_path))
    logger.on_result({"training_iteration": 1, "loss": 0.5})
    logger.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    assert b"ray/tune/loss" in file.read_bytes() or b"loss" in file.read_bytes()


class TestTensorBoard:
    def test_numpy_scalars_are_written_as_plain_numbers(self, tmp_path: Path) -> None:
        pytest.importorskip("google_crc32c")
        plain = {"training_iteration": 1, "timestamp": 5, "loss": 0.5, "n": 3}
        typed = {**plain, "training_iteration": np.int64(1), "loss": np.float32(0.5), "n": np.array(3)}
        written = []
        for place, result in enumerate((plain, typed)):
            logger = TBXLogger({}, str(tmp_path))
            start = logger._stream.tell()
            logger.on_result(result)
            logger.close()
            (file,) = tmp_path.glob("events.out.tfevents.*")
            written.append(file.read_bytes()[start:])
            file.rename(tmp_path / f"{place}.events")
        assert written[0] == written[1] != b""


def test_a_trainable_made_by_hand_writes_with_one(tmp_path: Path) -> None:
    made = Counts({}, logger_creator=lambda config: JsonLogger(config, str(tmp_path)))
    made.train()
    assert made.logdir == str(tmp_path)
    made.stop()
    assert json.loads((tmp_path / "result.json").read_text())["training_iteration"] == 1


class Notes(Logger):
    made: ClassVar[list[Notes]] = []

    def _init(self) -> None:
        self.seen: list[Any] = [self.config]
        Notes.made.append(self)

    def on_result(self, result: dict[str, Any]) -> None:
        self.seen.append(result["n"])

    def update_config(self, config: dict[str, Any]) -> None:
        self.seen.append(config)

    def close(self) -> None:
        self.seen.append("closed")


def test_an_experiment_has_one_for_each_trial(tmp_path: Path) -> None:
    callback = LegacyLoggerCallback([JsonLogger, Notes, NoopLogger])
    trials = [
        Trial(
            TrialOutcome(
                trial_id=f"a_{n}", name=f"t{n}", config={"n": n}, status="RUNNING", path=str(tmp_path / f"{n}")
            )
        )
        for n in range(2)
    ]
    for trial in trials:
        callback.log_trial_start(trial)
        callback.log_trial_result(1, trial, {"n": trial.config["n"]})
    callback.log_trial_start(trials[0])
    callback.log_trial_end(trials[0])
    callback.on_experiment_end(trials)
    assert [made.seen for made in Notes.made] == [[{"n": 0}, 0, {"n": 0}, "closed"], [{"n": 1}, 1, "closed"]]
    assert not (tmp_path / "0" / "result.json").exists()  # the experiment writes it
    with pytest.raises(InvalidInputError, match="pass classes"):
        LegacyLoggerCallback([NoopLogger({}, "")])  # type: ignore[list-item]
    with pytest.raises(NotImplementedError, match="does not define on_result"):
        Logger({}, "").on_result({})


class TestFileCallbacksByHand:
    class OwnTrial:
        config: ClassVar[dict[str, Any]] = {"lr": 0.1}

        def __init__(self, folder: Path) -> None:
            self.logdir = str(folder)

    def test_write_their_files_and_continue_them(self, tmp_path: Path) -> None:
        trial: Any = self.OwnTrial(tmp_path / "t")
        for number, result in enumerate(RESULTS):
            for callback in (JsonLoggerCallback(), CSVLoggerCallback()):
                callback.on_trial_result(number, [], trial, {**result, "config": trial.config})
                callback.on_trial_complete(number, [], trial)
        rows = [json.loads(line) for line in (tmp_path / "t" / "result.json").read_text().splitlines()]
        assert [(row["eval"]["acc"], row["config"]) for row in rows] == [(0.25, trial.config), (1.0, trial.config)]
        assert json.loads((tmp_path / "t" / "params.json").read_text()) == trial.config
        assert pickle.loads((tmp_path / "t" / "params.pkl").read_bytes()) == trial.config
        table = (tmp_path / "t" / "progress.csv").read_text().split()
        assert table == ["loss,eval/acc,n", "0.5,0.25,1", "0.25,1.0,2"]

    def test_write_nothing_in_an_experiment(self, tmp_path: Path) -> None:
        view = Trial(TrialOutcome(trial_id="a", name="t", config={}, status="RUNNING", path=str(tmp_path / "t")))
        set_up = JsonLoggerCallback()
        set_up.setup()
        other: Any = self.OwnTrial(tmp_path / "t")
        for callback, trial in ((CSVLoggerCallback(), view), (JsonLoggerCallback(), view), (set_up, other)):
            callback.on_trial_start(0, [], trial)
            callback.on_trial_result(1, [], trial, {"n": 1})
            callback.on_trial_complete(2, [], trial)
        assert not (tmp_path / "t").exists()
