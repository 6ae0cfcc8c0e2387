from __future__ import annotations

import types
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from trialpod.errors import InvalidInputError, NotSupportedError
from trialpod.tune import (
    Callback,
    CheckpointConfig,
    CLIReporter,
    FailureConfig,
    ResumeConfig,
    RunConfig,
    Stopper,
    SyncConfig,
    TuneConfig,
)
from trialpod.tune.config import log_files, seconds, stop_numbers


def test_the_defaults_are_rays() -> None:
    checkpoint, failure, run, tune = CheckpointConfig(), FailureConfig(), RunConfig(), TuneConfig()
    assert (checkpoint.num_to_keep, checkpoint.checkpoint_score_order) == (None, "max")
    assert (checkpoint.checkpoint_frequency, checkpoint.checkpoint_at_end) == (0, None)
    assert (failure.max_failures, failure.fail_fast) == (0, False)
    assert FailureConfig(fail_fast="RAISE").fail_fast == "raise"  # type: ignore[arg-type]
    assert (run.name, run.stop, run.log_to_file) == (None, None, False)
    assert (tune.num_samples, tune.mode, tune.metric, tune.reuse_actors) == (1, None, None, False)


def test_arguments_can_be_positional_in_rays_order() -> None:
    config = TuneConfig("min", "loss", None, None, 7, 2, 60.0, True)
    assert (config.num_samples, config.max_concurrent_trials, config.time_budget_s) == (7, 2, 60.0)
    assert CheckpointConfig(2, "loss", "min", 3, True).checkpoint_frequency == 3


@pytest.mark.parametrize(
    ("make", "argument", "given"),
    [
        (lambda: CheckpointConfig(num_to_keep=0), "num_to_keep", "0"),
        (lambda: CheckpointConfig(num_to_keep=True), "num_to_keep", "True"),
        (lambda: CheckpointConfig(checkpoint_frequency=-1), "checkpoint_frequency", "-1"),
        (lambda: CheckpointConfig(checkpoint_frequency=1.5), "checkpoint_frequency", "1.5"),  # type: ignore[arg-type]
        (lambda: CheckpointConfig(checkpoint_score_order="maximum"), "checkpoint_score_order", "maximum"),  # type: ignore[arg-type]
        (lambda: CheckpointConfig(checkpoint_at_end="yes"), "checkpoint_at_end", "yes"),  # type: ignore[arg-type]
        (lambda: FailureConfig(max_failures=-2), "max_failures", "-2"),
        (lambda: FailureConfig(fail_fast="rise"), "fail_fast", "rise"),  # type: ignore[arg-type]
        (lambda: RunConfig(name="a/b"), "name", "a/b"),
        (lambda: RunConfig(name=""), "name", "''"),
        (lambda: RunConfig(storage_path=3), "storage_path", "3"),  # type: ignore[arg-type]
        (lambda: RunConfig(verbose=7), "verbose", "7"),
        (lambda: RunConfig(failure_config={"max_failures": 1}), "failure_config", "FailureConfig(...)"),  # type: ignore[arg-type]
        (lambda: RunConfig(stop=5), "stop", "5"),  # type: ignore[arg-type]
        (lambda: RunConfig(stop={"loss": "low"}), "stop['loss']", "low"),
        (lambda: RunConfig(stop={"a": {"b": None}}), "stop['a/b']", "None"),
        (lambda: RunConfig(stop=[{"loss": 1}]), "stop", "loss"),  # type: ignore[list-item]
        (lambda: RunConfig(log_to_file=("a", "b", "c")), "log_to_file", "'c'"),  # type: ignore[arg-type]
        (lambda: RunConfig(log_to_file="../x"), "log_to_file", "../x"),
        (lambda: TuneConfig(mode="maximize"), "mode", "maximize"),  # type: ignore[arg-type]
        (lambda: TuneConfig(metric=""), "metric", "''"),
        (lambda: TuneConfig(num_samples=0), "num_samples", "0"),
        (lambda: TuneConfig(num_samples=-2), "num_samples", "-2"),
        (lambda: TuneConfig(max_concurrent_trials=-1), "max_concurrent_trials", "-1"),
        (lambda: TuneConfig(time_budget_s=0), "time_budget_s", "0"),
        (lambda: TuneConfig(max_trial_hours=0), "max_trial_hours", "0"),
        (lambda: TuneConfig(max_gpu_hours=float("inf")), "max_gpu_hours", "inf"),
        (lambda: TuneConfig(max_gpu_hours="2h"), "max_gpu_hours", "2h"),  # type: ignore[arg-type]
        (lambda: TuneConfig(metric="a", repeats={"top": 1}), "repeats", "{'top': 1}"),
        (lambda: TuneConfig(metric="a", repeats={"top": 1, "times": 0}), "repeats", "0"),
        (lambda: TuneConfig(metric="a", stop_when_not_worth=0), "stop_when_not_worth", "0"),
        (lambda: TuneConfig(time_budget_s="2h"), "time_budget_s", "2h"),  # type: ignore[arg-type]
        (lambda: TuneConfig(trial_name_creator="x"), "trial_name_creator", "x"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_value_is_refused_by_name_and_value(make: Any, argument: str, given: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert argument in str(caught.value)
    assert given in str(caught.value)
    assert "must be" in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("callbacks", [object()], "subclasses of tune.Callback, not object"),
        ("callbacks", [Callback], r"pass objects, not classes: Callback\(...\)"),
        ("callbacks", Callback(), "must be a list of tune.Callback objects"),
        ("progress_reporter", CLIReporter, r"pass an object: CLIReporter\(\)"),
        ("progress_reporter", 5, "must be a tune.ProgressReporter"),
        ("sync_config", {"sync_period": 5}, r"write sync_config=SyncConfig\(...\)"),
        ("failure_config", {"max_failures": 5}, r"write failure_config=FailureConfig\(...\)"),
        ("checkpoint_config", 3, "must be a CheckpointConfig or None"),
    ],
)
def test_an_object_of_another_class_is_refused_by_name(argument: str, value: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        RunConfig(**{argument: value})  # type: ignore[arg-type]


def test_two_places_to_store_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="leave upload_dir out"):
        RunConfig(storage_path="a", sync_config=SyncConfig(upload_dir="b"))


class TestLocalDir:
    def test_gives_way_to_the_upload_dir(self, caplog: pytest.LogCaptureFixture) -> None:
        config = RunConfig(local_dir="~/ray_results", sync_config=SyncConfig(upload_dir="s3://b/p"))
        assert (config.local_dir, config.storage_path) == (None, None)
        assert caplog.text.count("RunConfig(local_dir='~/ray_results') is not used") == 1
        config.validate()

    def test_is_the_storage_that_a_syncer_copies(self) -> None:
        syncer = types.SimpleNamespace(sync_up=print)
        config = RunConfig(local_dir="here", sync_config=SyncConfig(upload_dir="mine://b", syncer=syncer))
        assert config.storage_path == "here"

    def test_is_refused_beside_a_storage_path(self) -> None:
        with pytest.raises(InvalidInputError, match="local_dir is an older name of storage_path"):
            RunConfig(local_dir="a", storage_path="b", sync_config=SyncConfig(upload_dir="s3://b/p"))


def test_integers_of_numpy_become_plain_ones() -> None:
    eight = np.int64(8)
    tune = TuneConfig(num_samples=eight, max_concurrent_trials=eight, seed=eight, reuse_actors=None)  # type: ignore[arg-type]
    kept = CheckpointConfig(num_to_keep=eight, checkpoint_frequency=eight)  # type: ignore[arg-type]
    failure = FailureConfig(max_failures=eight)  # type: ignore[arg-type]
    given = (tune.num_samples, tune.max_concurrent_trials, tune.seed, kept.num_to_keep, kept.checkpoint_frequency)
    assert [type(value) for value in (*given, failure.max_failures)] == [int] * 6
    assert tune.reuse_actors is False
    with pytest.raises(InvalidInputError, match="must be an integer"):
        FailureConfig(max_failures=True)


@pytest.mark.parametrize("argument", ["sync_to_driver", "sync_to_cloud"])
def test_a_sync_config_of_ray_1_changes_nothing(argument: str) -> None:
    for value in (None, False, True):
        assert SyncConfig(**{argument: value, "node_sync_period": 60}).own_syncer is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"sync_period": 0}, InvalidInputError),
        ({"sync_timeout": "long"}, InvalidInputError),
        ({"syncer": object()}, InvalidInputError),
        ({"sync_to_driver": "rsync {source} {target}"}, InvalidInputError),
    ],
)
def test_a_sync_config_says_what_has_no_effect_by_refusing_it(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="SyncConfig"):
        SyncConfig(**arguments)


def test_resume_config_takes_names() -> None:
    assert ResumeConfig(errored="restart").errored is ResumeConfig.ResumeType.RESTART  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="did you mean RESUME"):
        ResumeConfig(errored="resum")  # type: ignore[arg-type]
    with pytest.raises(NotSupportedError, match="cannot run again"):
        ResumeConfig(finished=ResumeConfig.ResumeType.RESTART)
    with pytest.raises(NotSupportedError, match="RESUME or SKIP"):
        ResumeConfig(unfinished=ResumeConfig.ResumeType.RESTART)


def test_empty_callbacks_are_the_default() -> None:
    assert RunConfig(callbacks=[]).callbacks == []


def test_fail_fast_and_retries_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="cannot retry trials"):
        FailureConfig(max_failures=2, fail_fast=True)


def test_stop_takes_dicts_stoppers_functions_and_lists() -> None:
    def function(trial_id: str, result: dict[str, Any]) -> bool:
        return False

    for stop in ({"training_iteration": 5}, Stopper(), function, [Stopper(), function], None):
        assert RunConfig(stop=stop).stop is stop  # type: ignore[arg-type]


def test_a_stop_function_with_another_signature_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"called with \(trial_id, result\)"):
        RunConfig(stop=lambda result: True)  # type: ignore[misc, arg-type]


def test_stop_dicts_are_flattened_to_floats() -> None:
    assert stop_numbers("x", {"a": {"b": 1, "c": {"d": 2.5}}, "done": True}) == {
        "a/b": 1.0,
        "a/c/d": 2.5,
        "done": 1.0,
    }


def test_the_unit_of_a_limit_is_named() -> None:
    with pytest.raises(InvalidInputError, match="max_trial_hours must be a positive number of hours, or None"):
        TuneConfig(max_trial_hours=-1)
    with pytest.raises(
        InvalidInputError, match="stop_when_not_worth must be a positive improvement of the metric, or"
    ):
        TuneConfig(metric="a", stop_when_not_worth=-1)


def test_time_budgets_are_seconds_or_timedeltas() -> None:
    assert seconds(90) == 90.0
    assert seconds(timedelta(minutes=2)) == 120.0
    assert seconds(None) is None


def test_log_to_file_names_two_files() -> None:
    assert log_files(False) is None
    assert log_files(True) == ("stdout", "stderr")
    assert log_files("both.log") == ("both.log", "both.log")
    assert log_files(("o", "e")) == ("o", "e")


def test_a_change_after_construction_is_checked_by_validate() -> None:
    config = TuneConfig()
    config.num_samples = -5
    with pytest.raises(InvalidInputError, match="num_samples"):
        config.validate()


class TestSyncers:
    def test_an_object_with_sync_up_is_taken(self) -> None:
        class Copies:
            def sync_up(self, local_dir: str, remote_dir: str) -> bool:
                return True

        syncer = Copies()
        assert SyncConfig(syncer=syncer).own_syncer is syncer
        assert SyncConfig().own_syncer is None
        assert SyncConfig(syncer=None).own_syncer is None
        RunConfig(storage_path="here", sync_config=SyncConfig(upload_dir="mine://there", syncer=syncer))
