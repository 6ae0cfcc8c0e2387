from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError, NotSupportedError, TrainableError
from trialpod.protocol.packed import read_packed
from trialpod.tune import (
    CheckpointConfig,
    FailureConfig,
    ResultGrid,
    ResumeConfig,
    RunConfig,
    TuneConfig,
    Tuner,
    tuner,
)
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.environment import Overrides
from trialpod.tune.location import experiment_names
from trialpod.tune.result import ExperimentFailedError, TrialFailedError
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler


def train(config: dict[str, Any]) -> None: ...


class Saves(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}


def make(backend: Any, storage: Path, trainable: Any = train, name: str | None = "exp", **kwargs: Any) -> Tuner:
    run = kwargs.pop("run", {})
    return Tuner(trainable, run_config=RunConfig(name=name, storage_path=storage, **run), backend=backend, **kwargs)


def test_fit_hands_everything_to_the_backend(backend: Any, tmp_path: Path) -> None:
    stop = {"loss": {"train": 1}}
    results = make(
        backend,
        tmp_path,
        Saves,
        param_space={"lr": 0.1},
        tune_config=TuneConfig(
            "min",
            "loss",
            num_samples=4,
            max_concurrent_trials=0,
            time_budget_s=60,
            seed=7,
            max_trial_hours=12,
            max_gpu_hours=1.5,
        ),
        run={
            "stop": stop,
            "failure_config": FailureConfig(max_failures=3),
            "checkpoint_config": CheckpointConfig(num_to_keep=2),
            "log_to_file": True,
            "verbose": 0,
        },
    ).fit()
    assert isinstance(results, ResultGrid)
    (request,) = backend.requests
    assert (request.name, request.storage_path) == ("exp", str(tmp_path))
    assert (request.trainable_name, request.is_class) == ("Saves", True)
    assert (request.metric, request.mode, request.num_samples, request.seed) == ("loss", "min", 4, 7)
    assert (request.max_concurrent, request.time_budget_s) == (None, 60.0)
    assert (request.max_trial_hours, request.max_gpu_hours) == (12, 1.5)
    assert request.stop == {"loss/train": 1.0}
    assert (request.max_failures, request.fail_fast) == (3, False)
    assert (request.checkpoint_rules.at_end, request.checkpoint_rules.num_to_keep) == (True, 2)
    assert (request.resources, request.resources_fn) == ({"cpu": 1.0}, None)
    assert (request.log_files, request.verbose) == (("stdout", "stderr"), 0)
    assert (request.scheduler, request.search_alg, request.resume) == (None, None, False)
    assert results[0].config == {"lr": 0.1}


def test_the_files_are_there_before_the_backend_runs(backend: Any, tmp_path: Path) -> None:
    def check(request: ExperimentRequest) -> None:
        assert request.trainable.pickle == str(tmp_path / "exp" / ".trialpod" / "trainable.pkl")
        header, body = read_packed(Path(request.trainable.pickle).read_bytes())
        assert header["name"] == "train"
        assert pickle.loads(body).__name__ == "train"
        assert (tmp_path / "exp" / "tuner.pkl").is_file()

    backend.before = check
    make(backend, tmp_path).fit()
    assert len(backend.requests) == 1


def test_without_a_name_experiments_never_share_a_directory(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trialpod.tune.tuner.time.time", lambda: 0.0)
    first, second = (make(backend, tmp_path, name=None).fit().experiment_path for _ in range(2))
    assert os.path.basename(first) == experiment_names.default_name("train", 0.0)
    assert second == f"{first}_2"


def test_the_default_storage_is_in_the_home_directory(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Tuner(train, run_config=RunConfig(name="exp"), backend=backend).fit()
    assert backend.requests[0].directory == str(tmp_path / "trialpod-results" / "exp")


class TestIfExists:
    def test_resumes(self, backend: Any, tmp_path: Path) -> None:
        make(backend, tmp_path).fit()
        assert not backend.requests[-1].resume
        make(backend, tmp_path).fit()
        assert (backend.requests[-1].resume, backend.requests[-1].retry_failed) == (True, True)

    def test_refusal_changes_nothing(self, backend: Any, tmp_path: Path) -> None:
        make(backend, tmp_path).fit()
        before = (tmp_path / "exp" / "tuner.pkl").read_bytes()

        def resolve_existing(request: Any, if_exists: str) -> bool:
            assert (request.param_space, if_exists) == ({"new": 1}, "resume")
            raise InvalidInputError("it was changed")

        backend.resolve_existing = resolve_existing
        with pytest.raises(InvalidInputError, match="it was changed"):
            make(backend, tmp_path, param_space={"new": 1}).fit()
        assert (tmp_path / "exp" / "tuner.pkl").read_bytes() == before
        assert len(backend.requests) == 1

    def test_default_under_ray_adds(self, backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        backend.resolve_existing = lambda _request, if_exists: asked.append(if_exists) or False
        make(backend, tmp_path).fit()
        monkeypatch.setattr("trialpod.compat.ray.installed", lambda: True)
        make(backend, tmp_path).fit()
        monkeypatch.setenv("TRIALPOD_IF_EXISTS", "fresh")
        make(backend, tmp_path).fit()
        assert asked == ["add", "fresh"]
        assert not backend.requests[-1].resume

    def test_unknown_value_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InvalidInputError, match="'resume' or 'add' or 'fresh' or 'error'"):
            RunConfig(if_exists="replace")  # type: ignore[arg-type]
        monkeypatch.setenv("TRIALPOD_IF_EXISTS", "yes")
        with pytest.raises(InvalidInputError, match="TRIALPOD_IF_EXISTS='yes': must be one of resume"):
            Overrides.read()


def test_a_directory_without_an_experiment_can_be_used(backend: Any, tmp_path: Path) -> None:
    (tmp_path / "exp").mkdir()
    assert len(make(backend, tmp_path).fit()) == 1


def test_a_file_in_the_way_is_refused(backend: Any, tmp_path: Path) -> None:
    (tmp_path / "exp").touch()
    with pytest.raises(InvalidInputError, match="there is a file of that name"):
        make(backend, tmp_path).fit()


def test_unpicklable_stops_fit_before_writing(backend: Any, tmp_path: Path) -> None:
    class Data:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    data = Data()

    def uses(config: dict[str, Any]) -> None:
        print(data)

    with pytest.raises(InvalidInputError, match=r"closure variable 'data' of uses, at data.lock: _thread.lock"):
        make(backend, tmp_path, uses).fit()
    with pytest.raises(InvalidInputError, match=r"the search space.*\n  - config\['d'\]\.lock: _thread\.lock"):
        make(backend, tmp_path, param_space={"d": data}).fit()
    assert list(tmp_path.iterdir()) == []
    assert backend.requests == []


def test_a_stop_function_stays_here_also_when_refused(backend: Any, tmp_path: Path) -> None:
    lock = threading.Lock()

    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        return lock.locked()

    with pytest.raises(InvalidInputError, match=r"closure variable 'lock' of stop: _thread.lock") as refused:
        make(backend, tmp_path, run={"stop": stop}).fit()
    assert "cannot be stored with the experiment" in str(refused.value)
    assert "Create it where it is used" in str(refused.value)
    assert "Trainable" not in str(refused.value)
    assert "sent to the trials" not in str(refused.value)


class TestOwnSyncer:
    class Copies:
        def sync_up(self, local_dir: str, remote_dir: str) -> bool:
            return True

    def fit(self, backend: Any, tmp_path: Path, **sync: Any) -> ExperimentRequest:
        run = {"sync_config": tune.SyncConfig(syncer=self.Copies(), **sync)}
        make(backend, tmp_path / "here", run=run).fit()
        return backend.requests[-1]  # type: ignore[no-any-return]

    def test_copies_beside_the_callbacks_of_the_script(self, backend: Any, tmp_path: Path) -> None:
        request = self.fit(backend, tmp_path, upload_dir="mine://there")
        (callback,) = request.callbacks
        assert (callback._folder, callback._remote) == (request.directory, "mine://there/exp")
        assert request.storage_path == str(tmp_path / "here")

    def test_without_a_place_elsewhere_has_nothing_to_copy_to(self, backend: Any, tmp_path: Path) -> None:
        assert self.fit(backend, tmp_path).callbacks == []

    def test_in_a_cluster_is_named_as_unused(
        self, backend: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        backend.ships_code = True
        assert self.fit(backend, tmp_path).callbacks == []
        assert caplog.text.count("SyncConfig(syncer=Copies(...)) is not used in a cluster") == 1


def test_a_config_that_contains_itself_is_named_with_both_places(backend: Any, tmp_path: Path) -> None:
    layers: list[Any] = [64]
    layers.append(layers)
    with pytest.raises(InvalidInputError, match=r"param_space\['net'\]\['layers'\]\[1\] is .*\['layers'\] again"):
        make(backend, tmp_path, param_space={"net": {"layers": layers}})


class Scheduler(FIFOScheduler):
    """One that wants a metric."""

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        self.metric, self.mode = metric, mode

    def set_search_properties(self, metric: str | None, mode: str | None, **_spec: Any) -> bool:
        return TrialScheduler.set_search_properties(self, metric, mode)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trainable": lambda: None}, "the config"),
        ({"param_space": [1]}, "must be a dict"),
        ({"param_space": {1: 2}}, "the key 1 is not a string"),
        ({"param_space": {"net": {"lr": tune.uniform}}}, r"\['net'\]\['lr'\] is the function tune.uniform itself"),
        ({"param_space": {"l": [1, (tune.choice,)]}}, r"\['l'\]\[1\]\[0\] is the function tune.choice itself"),
        ({"tune_config": {"num_samples": 3}}, "must be a tune.TuneConfig, not dict"),
        ({"run_config": TuneConfig()}, "must be a tune.RunConfig, not TuneConfig"),
        ({"run_config": RunConfig(checkpoint_config=CheckpointConfig(checkpoint_at_end=True))}, "with the function"),
        ({"tune_config": TuneConfig(scheduler=FIFOScheduler)}, "pass an object, not the class"),  # type: ignore[arg-type]
        ({"tune_config": TuneConfig(scheduler=5)}, "must be a TrialScheduler"),  # type: ignore[arg-type]
        ({"tune_config": TuneConfig(search_alg=5)}, "must be a search algorithm"),
        (
            {"tune_config": TuneConfig("min", "loss", scheduler=Scheduler("loss", "max"))},
            "mode='max'.* contradicts .*'min'",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_tuner_is_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Tuner(arguments.pop("trainable", train), **arguments)


def test_backend_gets_an_untouched_scheduler(backend: Any, tmp_path: Path) -> None:
    scheduler, used = Scheduler(), list[TrialScheduler]()

    def use(request: ExperimentRequest) -> None:
        assert request.scheduler is not None
        used.append(request.scheduler)
        assert request.scheduler.set_search_properties(request.metric, request.mode)

    backend.before = use
    run = make(backend, tmp_path, name=None, tune_config=TuneConfig("min", "loss", scheduler=scheduler))
    run.fit()
    run.fit()
    assert used[0] is scheduler  # its user may read what it has collected
    assert used[1] is not scheduler


def test_fail_fast_raise_raises_the_trials_error(backend: Any, tmp_path: Path) -> None:
    backend.results = [[], []]
    backend.errors = {1: "ValueError: no"}
    assert make(backend, tmp_path, name="a").fit().num_errors == 1
    run = make(backend, tmp_path, name="b", run={"failure_config": FailureConfig(fail_fast="raise")})
    with pytest.raises(TrialFailedError, match="ValueError: no"):
        run.fit()
    assert backend.requests[1].fail_fast is True
    assert run.get_results().num_errors == 1


def test_resources_of_the_trainable_reach_the_backend(backend: Any, tmp_path: Path) -> None:
    make(backend, tmp_path, tune.with_resources(train, {"gpu": 0.5}), name="a").fit()
    make(backend, tmp_path, tune.with_resources(train, lambda c: {"cpu": c["n"]}), name="b").fit()
    assert backend.requests[0].resources == {"gpu": 0.5}
    assert backend.requests[1].resources_fn({"n": 2}) == {"cpu": 2.0}


def test_functions_that_name_trials_see_the_trial(backend: Any, tmp_path: Path) -> None:
    config = TuneConfig(
        trial_name_creator=lambda trial: f"{trial}/{trial.config['x']}-{trial.evaluated_params['deep/y']}",
        trial_dirname_creator=lambda trial: f"{trial.trial_id}/{trial.experiment_tag}",
    )
    make(backend, tmp_path, tune_config=config).fit()
    (request,) = backend.requests
    assert request.trial_name("abc_1", "1_x=2", {"x": 2, "deep": {"y": 3}}) == "train_abc_1/2-3"
    with pytest.raises(InvalidInputError, match=r"trial_dirname_creator=\.\.\.\) returned 'abc_1/1_x=2'"):
        request.trial_dirname("abc_1", "1_x=2", {"x": 2})


def test_results_before_fit_are_refused(backend: Any, tmp_path: Path) -> None:
    run = make(backend, tmp_path)
    with pytest.raises(InvalidInputError, match=r"call Tuner\.fit\(\) first"):
        run.get_results()
    assert run.fit() is run.get_results()


def test_a_mode_that_the_user_left_open_is_not_guessed(backend: Any, tmp_path: Path) -> None:
    backend.results = [[{"loss": 1.0}], [{"loss": 2.0}]]

    def guess(request: ExperimentRequest) -> None:
        request.mode = "max"

    backend.before = guess
    results = make(backend, tmp_path, tune_config=TuneConfig(metric="loss")).fit()
    with pytest.raises(InvalidInputError, match="no mode"):
        results.get_best_result()


def test_a_restored_tuner_continues_with_the_same_configuration(backend: Any, tmp_path: Path) -> None:
    make(backend, tmp_path, param_space={"lr": 0.1}, tune_config=TuneConfig("min", "loss", num_samples=9)).fit()
    directory = tmp_path / "exp"
    assert Tuner.can_restore(directory, backend=backend)
    restored = Tuner.restore(directory, train, restart_errored=True, resume_unfinished=False, backend=backend)
    assert len(restored.get_results()) == 1
    restored.fit()
    request = backend.requests[1]
    assert request.resume
    assert (request.resume_unfinished, request.resume_errored, request.restart_errored) == (False, False, True)
    assert (request.directory, request.num_samples, request.param_space) == (str(directory), 9, {"lr": 0.1})


def test_under_ray_a_name_is_one_that_the_backend_can_have(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.nearest_name = lambda name: name.replace("_", "-")
    run = RunConfig(name="my_digits", storage_path=str(tmp_path), verbose=0)
    Tuner(train, run_config=run, backend=backend).fit()
    monkeypatch.setattr("trialpod.tune.tuner.under_ray", lambda: True)
    Tuner(train, run_config=run, backend=backend).fit()
    assert [request.name for request in backend.requests] == ["my_digits", "my-digits"]


def test_restore_needs_a_space_with_the_same_keys(backend: Any, tmp_path: Path) -> None:
    make(backend, tmp_path, param_space={"a": 1, "net": {"n": 2}}).fit()
    directory = tmp_path / "exp"
    given = {"a": 5, "net": {"n": 6}}
    Tuner.restore(directory, train, param_space=given, backend=backend).fit()
    assert backend.requests[1].param_space == given
    with pytest.raises(InvalidInputError, match="missing: net/n; new: b"):
        Tuner.restore(directory, train, param_space={"a": 5, "b": 6}, backend=backend)


def test_restore_refuses_what_does_not_fit(backend: Any, tmp_path: Path) -> None:
    make(backend, tmp_path).fit()
    directory = tmp_path / "exp"
    with pytest.raises(InvalidInputError, match="is of the Trainable 'train'"):
        Tuner.restore(directory, Saves, backend=backend)
    with pytest.raises(InvalidInputError, match=r"no tuner\.pkl there"):
        Tuner.restore(tmp_path, train, backend=backend)
    assert not Tuner.can_restore(tmp_path, backend=backend)
    (directory / "tuner.pkl").write_bytes(b"garbage")
    with pytest.raises(TrainableError):
        Tuner.restore(directory, train, backend=backend)


def test_the_environment_wins_over_the_script(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_run_names", experiment_names.RunNames())
    monkeypatch.setenv("TRIALPOD_RUN_NAME", "other")
    monkeypatch.setenv("TRIALPOD_STORAGE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("TRIALPOD_MAX_CONCURRENT", "3")
    run = make(backend, tmp_path, tune_config=TuneConfig(max_concurrent_trials=8))
    run.fit()
    make(backend, tmp_path, Saves).fit()
    assert backend.requests[0].directory == str(tmp_path / "elsewhere" / "other")
    assert backend.requests[0].max_concurrent == 3
    assert backend.requests[1].name == "other_2"


def test_the_environment_can_resume_an_unchanged_script(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIALPOD_RESUME", "1")
    make(backend, tmp_path).fit()
    make(backend, tmp_path).fit()
    assert [request.resume for request in backend.requests] == [False, True]
    assert backend.requests[1].resume_unfinished


def test_an_experiment_without_a_name_cannot_be_resumed(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIALPOD_RESUME", "1")
    with pytest.raises(InvalidInputError, match="no name to find it by"):
        make(backend, tmp_path, name=None).fit()


def test_later_changes_of_a_config_have_no_effect(backend: Any, tmp_path: Path) -> None:
    config = TuneConfig(num_samples=2)
    run = make(backend, tmp_path, tune_config=config)
    config.num_samples = -7
    run.fit()
    assert backend.requests[0].num_samples == 2


def test_broken_experiment_raises_and_keeps_results(backend: Any, tmp_path: Path) -> None:
    run = make(backend, tmp_path)
    original = backend.run

    def broken(request: ExperimentRequest) -> Any:
        outcome = original(request)
        outcome.broken = "Searcher.suggest raised ValueError: no"
        return outcome

    backend.run = broken
    with pytest.raises(ExperimentFailedError, match=r"was ended: Searcher\.suggest raised ValueError: no"):
        run.fit()
    assert len(run.get_results()) == 1


def test_a_resume_config_is_another_form_of_the_older_arguments(backend: Any, tmp_path: Path) -> None:
    make(backend, tmp_path).fit()
    config = ResumeConfig(unfinished=ResumeConfig.ResumeType.SKIP, errored=ResumeConfig.ResumeType.RESTART)
    Tuner.restore(tmp_path / "exp", train, _resume_config=config, backend=backend).fit()
    request = backend.requests[-1]
    assert (request.resume_unfinished, request.resume_errored, request.restart_errored) == (False, False, True)
    with pytest.raises(InvalidInputError, match="give one of the two"):
        Tuner.restore(tmp_path / "exp", train, _resume_config=config, resume_errored=True, backend=backend)
    with pytest.raises(NotSupportedError, match="a object is not supported"):
        Tuner.restore(tmp_path / "exp", train, storage_filesystem=object(), backend=backend)


def test_callbacks_and_reporter_survive_restore(backend: Any, tmp_path: Path) -> None:
    callback, reporter = tune.Callback(), tune.CLIReporter(max_progress_rows=7)
    make(backend, tmp_path, run={"callbacks": [callback], "progress_reporter": reporter}).fit()
    assert backend.requests[0].callbacks == [callback]
    assert backend.requests[0].progress_reporter is reporter
    restored = Tuner.restore(tmp_path / "exp", train, backend=backend)
    assert [type(one) for one in restored.run_config.callbacks or ()] == [tune.Callback]
    assert isinstance(restored.run_config.progress_reporter, tune.CLIReporter)
    assert restored.run_config.progress_reporter.max_progress_rows == 7


def test_the_older_place_of_the_storage_is_used(backend: Any, tmp_path: Path) -> None:
    sync = tune.SyncConfig(upload_dir=str(tmp_path / "old"))
    Tuner(train, run_config=RunConfig(name="exp", sync_config=sync), backend=backend).fit()
    assert backend.requests[0].storage_path == str(tmp_path / "old")


def test_the_metric_check_can_be_switched_off(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(backend, tmp_path, name="strict").fit()
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    make(backend, tmp_path, name="loose").fit()
    assert [request.strict_metric for request in backend.requests] == [True, False]


class TestSelfReference:
    @pytest.mark.parametrize("wrap", [lambda loop: loop, lambda loop: (loop,), lambda loop: tune.choice([1, loop])])
    def test_is_refused_with_its_path(self, wrap: Any) -> None:
        loop: list[Any] = [1]
        loop.append({"again": wrap(loop)})
        with pytest.raises(
            InvalidInputError, match=r"param_space\['x'\]\[1\]\['again'\].* is param_space\['x'\] again"
        ):
            tune.Tuner(lambda config: None, param_space={"x": loop})
        same = [1]
        tune.Tuner(lambda config: None, param_space={"x": [same, same]})
