from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError, NotSupportedError
from trialpod.legacy.internals import RayTrialExecutor
from trialpod.legacy.run import TrialsFailedError
from trialpod.tune import CheckpointConfig, Experiment, ResumeConfig


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": 1.0})


@pytest.fixture
def used(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("trialpod.tune.tuner.get_backend", lambda name=None: backend)
    return backend


def test_every_argument_of_a_run_reaches_the_backend(used: Any, tmp_path: Path) -> None:
    callback, reporter = tune.Callback(), tune.CLIReporter()
    analysis = tune.run(
        train,
        name="exp",
        metric="loss",
        mode="min",
        stop={"training_iteration": 3},
        time_budget_s=timedelta(minutes=1),
        config={"lr": tune.uniform(0, 1)},
        resources_per_trial={"cpu": 2},
        num_samples=4,
        storage_path=tmp_path,
        scheduler=tune.schedulers.FIFOScheduler(),
        checkpoint_config=CheckpointConfig(num_to_keep=2),
        verbose=0,
        progress_reporter=reporter,
        log_to_file="out",
        max_failures=3,
        callbacks=[callback],
        max_concurrent_trials=2,
        reuse_actors=True,
    )
    (request,) = used.requests
    assert (request.name, request.metric, request.mode, request.stop) == (
        "exp",
        "loss",
        "min",
        {"training_iteration": 3.0},
    )
    assert (request.time_budget_s, request.num_samples, request.max_concurrent) == (60.0, 4, 2)
    assert (request.resources["cpu"], request.checkpoint_rules.num_to_keep) == (2, 2)
    assert (request.log_files, request.max_failures, request.reuse) == (("out", "out"), 3, True)
    assert (request.callbacks, request.progress_reporter) == ([callback], reporter)
    assert analysis.best_trial.last_result["loss"] == 1.0


def test_the_names_of_older_versions_mean_the_same(used: Any, tmp_path: Path) -> None:
    tune.run(
        train,
        name="exp",
        local_dir=str(tmp_path),
        keep_checkpoints_num=3,
        checkpoint_score_attr="min-loss",
        queue_trials=True,
        loggers=None,
        sync_on_checkpoint=False,
        chdir_to_trial_dir=True,
    )
    (request,) = used.requests
    rules = request.checkpoint_rules
    assert (rules.num_to_keep, rules.score_attribute, rules.score_order) == (3, "loss", "min")
    assert request.storage_path == str(tmp_path)


class TestLocalDir:
    """Of Ray 0.8 to 2.6, beside `upload_dir`: the experiment is kept in the latter."""

    @pytest.mark.parametrize(
        "older", [{"upload_dir": "s3://b/p"}, {"sync_config": tune.SyncConfig(upload_dir="s3://b/p")}]
    )
    def test_gives_way_to_upload_dir(
        self, used: Any, tmp_path: Path, older: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TRIALPOD_WORK_DIR", str(tmp_path))
        tune.run(train, name="exp", local_dir=str(tmp_path / "ray_results"), **older)
        tune.run_experiments(Experiment("more", train, local_dir=str(tmp_path / "ray_results"), **older))
        assert [request.storage_uri for request in used.requests] == ["s3://b/p/exp", "s3://b/p/more"]
        assert [request.directory for request in used.requests] == [str(tmp_path / "exp"), str(tmp_path / "more")]
        assert not (tmp_path / "ray_results").exists()
        assert caplog.text.count("is not used: the experiment is stored in upload_dir='s3://b/p'") == 2

    @pytest.mark.parametrize("older", [{"local_dir": "a"}, {"upload_dir": "s3://b/p"}])
    def test_storage_path_stays_alone(self, used: Any, older: Any) -> None:
        with pytest.raises(InvalidInputError, match="both mean the same"):
            tune.run(train, storage_path="c", **older)


@pytest.mark.parametrize(
    "arguments",
    [
        {"keep_checkpoints_num": 0},
        {"global_checkpoint_period": 30.5},
        {"global_checkpoint_period": np.inf},
        {"trial_executor": RayTrialExecutor(queue_trials=False, result_buffer_length=0, ray_auto_init=True)},
        {"with_server": False, "server_port": 7865},
        {"name": ""},
        {"time_budget_s": np.int64(5)},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_what_changes_nothing_here_is_accepted(used: Any, tmp_path: Path, arguments: dict[str, Any]) -> None:
    tune.run(train, storage_path=str(tmp_path), **arguments)
    (request,) = used.requests
    assert request.name.startswith("train_")
    assert request.checkpoint_rules.num_to_keep is None
    assert request.time_budget_s in (None, 5.0)


class TestFinalCheckpoint:
    """Of a class it is a default of `Tuner` only, as in Ray."""

    class Saves(tune.Trainable):
        def step(self) -> dict[str, Any]:
            return {"done": True}

        def save_checkpoint(self, checkpoint_dir: str) -> None: ...

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({}, False),
            ({"checkpoint_config": CheckpointConfig(num_to_keep=2)}, False),
            ({"checkpoint_freq": 2}, False),
            ({"checkpoint_at_end": True}, True),
            ({"checkpoint_config": CheckpointConfig(checkpoint_at_end=True)}, True),
        ],
    )
    def test_only_if_asked_for(self, used: Any, arguments: Any, expected: bool) -> None:
        tune.run(self.Saves, **arguments)
        tune.run_experiments(Experiment("exp", self.Saves, **arguments))
        assert [request.checkpoint_rules.at_end for request in used.requests] == [expected, expected]

    def test_default_of_a_tuner(self, used: Any) -> None:
        tune.Tuner(self.Saves).fit()
        assert used.requests[0].checkpoint_rules.at_end


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"local_dir": "a", "storage_path": "b"}, InvalidInputError, "both mean the same; give storage_path only"),
        (
            {"checkpoint_freq": 2, "checkpoint_config": CheckpointConfig()},
            InvalidInputError,
            r"give all of it in checkpoint_config",
        ),
        ({"resum": True}, InvalidInputError, "no argument 'resum'; did you mean 'resume'"),
        ({"loggers": ["x"]}, InvalidInputError, "pass classes of tune Loggers"),
        ({"storage_filesystem": 3, "storage_path": "a"}, NotSupportedError, "a int is not supported"),
        ({"trial_executor": 3}, NotSupportedError, "trial_executor is not supported"),
        ({"config": [1]}, InvalidInputError, "must be a dict of parameter names"),
        ({"resume": "PROMPT"}, NotSupportedError, "there is no prompt"),
        ({"resume": "AUT", "name": "x"}, InvalidInputError, "did you mean 'AUTO'"),
        ({"resume": True}, InvalidInputError, "pass name="),
        ({"resume_config": {}, "name": "x"}, InvalidInputError, r"must be a tune\.ResumeConfig, not dict"),
        ({"callbacks": [3]}, InvalidInputError, r"subclasses of tune\.Callback, not int"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    used: Any, arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tune.run(train, **arguments)
    assert used.requests == []


def test_resources_are_given_in_one_place(used: Any) -> None:
    with pytest.raises(InvalidInputError, match="give it in one place"):
        tune.run(tune.with_resources(train, {"cpu": 2}), resources_per_trial={"cpu": 3})


def test_failed_trials_raise_with_the_analysis_or_are_returned(used: Any, tmp_path: Path) -> None:
    used.errors = {0: "ValueError: no"}
    with pytest.raises(TrialsFailedError, match=r"1 of 1 trials in .* did not complete: train_abcde_00000") as caught:
        tune.run(train, storage_path=tmp_path)
    assert caught.value.analysis.trials[0].status == "ERROR"
    assert len(tune.run(train, storage_path=tmp_path, raise_on_failed_trial=False).trials) == 1


@pytest.mark.parametrize(
    ("resume", "flags"),
    [
        (True, (True, False, False)),
        ("AUTO+ERRORED", (True, True, False)),
        ("ERRORED_ONLY", (False, True, False)),
        ("local+restart_errored", (True, False, True)),
    ],
)
def test_resume_continues_with_the_experiment_of_the_name(
    used: Any, tmp_path: Path, resume: Any, flags: tuple[bool, bool, bool]
) -> None:
    tune.run(train, name="exp", storage_path=tmp_path, resume="AUTO")
    tune.run(train, name="exp", storage_path=tmp_path, resume=resume, num_samples=9)
    first, second = used.requests
    assert not first.resume
    assert second.resume
    assert (second.resume_unfinished, second.resume_errored, second.restart_errored) == flags
    assert second.num_samples == 9


def test_resume_needs_an_experiment_unless_auto(used: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"tune\.run\(resume=True\): there is no experiment"):
        tune.run(train, name="exp", storage_path=tmp_path, resume=True)
    tune.run(train, name="exp", storage_path=tmp_path, resume_config=ResumeConfig(errored="resume"))  # type: ignore[arg-type]
    tune.run(train, name="exp", storage_path=tmp_path, resume_config=ResumeConfig(errored="resume"))  # type: ignore[arg-type]
    assert [request.resume_errored for request in used.requests] == [False, True]


def test_experiments_run_one_after_another(used: Any, tmp_path: Path) -> None:
    spec = {"run": train, "config": {"x": 1}, "local_dir": str(tmp_path), "stop": {"training_iteration": 2}}
    trials = tune.run_experiments([{"a": spec}, Experiment("b", train, storage_path=str(tmp_path), num_samples=2)])
    assert [request.name for request in used.requests] == ["a", "b"]
    assert [request.num_samples for request in used.requests] == [1, 2]
    assert len(trials) == 2
    scheduler = tune.schedulers.ASHAScheduler(metric="loss", mode="min")
    tune.run_experiments({"a": spec}, scheduler)  # as in Ray, positionally
    assert used.requests[-1].scheduler is not None
    tune.run(Experiment("c", train, storage_path=str(tmp_path)), metric="loss", mode="min")
    assert (used.requests[-1].name, used.requests[-1].metric) == ("c", "loss")


class TestOlderArguments:
    """What calls with `Experiment` objects take of the arguments of older versions."""

    class Logger(tune.logger.Logger):
        pass

    @pytest.fixture
    def experiment(self, tmp_path: Path) -> Experiment:
        return Experiment("a", train, storage_path=str(tmp_path))

    @pytest.mark.parametrize("call", [tune.run, tune.run_experiments])
    def test_apply_to_experiments(self, used: Any, experiment: Experiment, call: Any) -> None:
        call(experiment, loggers=[self.Logger], chdir_to_trial_dir=False)
        (request,) = used.requests
        assert [type(callback).__name__ for callback in request.callbacks] == ["LegacyLoggerCallback"]
        assert request.chdir is False

    def test_of_the_experiment_come_first(self, used: Any, tmp_path: Path) -> None:
        experiment = Experiment("a", train, storage_path=str(tmp_path), chdir_to_trial_dir=True)
        tune.run(experiment, chdir_to_trial_dir=False)
        assert used.requests[0].chdir is True

    @pytest.mark.parametrize("older", [{"local_dir": "x"}, {"checkpoint_freq": 2}, {"upload_dir": "s3://b/x"}])
    def test_that_an_experiment_has_are_refused(
        self, used: Any, experiment: Experiment, older: dict[str, Any]
    ) -> None:
        (name,) = older
        with pytest.raises(InvalidInputError, match=rf"run_experiments\({name}=.*give it to the experiment"):
            tune.run_experiments(experiment, **older)
        assert not used.requests

    def test_without_a_value_are_left_out(self, used: Any, experiment: Experiment) -> None:
        tune.run_experiments(experiment, local_dir=None, checkpoint_freq=None, loggers=None)
        assert len(used.requests) == 1


@pytest.mark.parametrize(
    ("experiments", "message"),
    [
        ({"a": {"config": {}}}, "does not say what to run"),
        ({"a": {"run": train, "num_sample": 3}}, "no setting 'num_sample'; did you mean 'num_samples'"),
        ({"a": 5}, "must be a dict, not int"),
        (5, r"must be a tune\.Experiment"),
        ([], r"must be a tune\.Experiment"),
    ],
)
def test_an_experiment_that_is_none_is_refused(used: Any, experiments: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        tune.run_experiments(experiments)
