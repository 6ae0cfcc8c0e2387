"""MLflow against the real library with a file or SQLite store where it is installed; Weights & Biases and Comet
against fakes that record the documented calls."""

from __future__ import annotations

import math
import sys
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune import session as sessions
from trialpod.tune.logger import (
    AimLoggerCallback,
    CometLoggerCallback,
    MLflowLoggerCallback,
    WandbLoggerCallback,
    setup_mlflow,
    setup_wandb,
)
from trialpod.tune.logger.library import numbers, step_of
from trialpod.tune.outcomes import TrialOutcome
from trialpod.tune.session import Session, TrialInfo, TuneContext
from trialpod.tune.trial import Trial


def trial(path: Path, number: int = 0, **facts: Any) -> Trial:
    return Trial(
        TrialOutcome(
            trial_id=f"abcde_{number:05d}",
            name=f"train_abcde_{number:05d}",
            config={"lr": 0.1, "layers": {"width": 3}, "optimizer": "adam"},
            status="RUNNING",
            path=str(path),
            **facts,
        )
    )


RESULT = {"loss": 0.5, "eval/acc": 0.9, "note": "x", "done": False, "training_iteration": 2, "config": {"lr": 0.1}}


class Recorder:
    """Records calls of itself and of whatever is taken from it."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], name: str = "") -> None:
        self._calls, self._name = calls, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Recorder(self._calls, f"{self._name}.{name}" if self._name else name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls.append((self._name, args, kwargs))
        return Recorder(self._calls, self._name.rpartition(".")[2] + "()")

    def __str__(self) -> str:
        return self._name


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    recorded: list[Any] = []
    for name in ("wandb", "comet_ml"):
        module: Any = types.ModuleType(name)
        module.__getattr__ = lambda attribute, name=name: getattr(Recorder(recorded), attribute)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("WANDB_GROUP_NAME", raising=False)
    monkeypatch.delenv("WANDB_PROJECT_NAME", raising=False)
    return recorded


@pytest.mark.parametrize(
    ("make", "module", "package"),
    [
        (MLflowLoggerCallback, "mlflow", "mlflow"),
        (WandbLoggerCallback, "wandb", "wandb"),
        (CometLoggerCallback, "comet_ml", "comet-ml"),
        (setup_mlflow, "mlflow", "mlflow"),
    ],
)
def test_missing_library_names_the_install_command(
    make: Any, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInputError, match=f"install it with: pip install {package}$"):
        make()


class Together:
    """MLflow's store at the moment in which another trial makes the experiment first."""

    def __init__(self) -> None:
        self.asked = 0
        self.runs: list[str] = []

    def get_experiment_by_name(self, name: str) -> Any:
        self.asked += 1
        return types.SimpleNamespace(experiment_id="7") if self.asked > 1 and name != "refused" else None

    def create_experiment(self, name: str, _location: str | None = None) -> str:
        raise sys.modules["mlflow.exceptions"].MlflowException(f"RESOURCE_ALREADY_EXISTS: {name}")

    def start_run(self, experiment_id: str, **_options: Any) -> None:
        self.runs.append(experiment_id)

    def log_params(self, params: dict[str, Any]) -> None:
        pass


class TestSetupMlflow:
    @pytest.fixture
    def mlflow(self, monkeypatch: pytest.MonkeyPatch) -> Together:
        store = Together()
        module: Any = types.ModuleType("mlflow")
        module.__getattr__ = lambda name: getattr(store, name)
        errors: Any = types.ModuleType("mlflow.exceptions")
        errors.MlflowException = type("MlflowException", (Exception,), {})
        monkeypatch.setitem(sys.modules, "mlflow", module)
        monkeypatch.setitem(sys.modules, "mlflow.exceptions", errors)
        return store

    def test_trials_that_start_together_share_the_experiment(self, mlflow: Together) -> None:
        setup_mlflow({}, experiment_name="heights", create_experiment_if_not_exists=True)
        assert mlflow.runs == ["7"]

    def test_refusal_that_nobody_else_explains_is_raised(self, mlflow: Together) -> None:
        with pytest.raises(Exception, match="RESOURCE_ALREADY_EXISTS"):
            setup_mlflow({}, experiment_name="refused", create_experiment_if_not_exists=True)

    @pytest.mark.usefixtures("calls")
    def test_only_the_first_pod_of_a_trial_logs(self, mlflow: Together, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TuneContext, "get_world_rank", lambda _self: 1)
        for module in (setup_mlflow({}, experiment_name="heights"), setup_wandb({})):
            module.log_metric("height", 1.0, step=1)
            with module.start_run() as run:
                run.log({"height": 1.0})
        assert mlflow.asked == 0
        assert setup_wandb({}, rank_zero_only=False) is not None


def test_a_trial_is_one_run_of_wandb(calls: list[Any], tmp_path: Path) -> None:
    callback = WandbLoggerCallback(project="p", api_key="k", excludes=["eval"], log_config=True, entity="me")
    callback.setup()
    one = trial(tmp_path)
    callback.log_trial_start(one)
    callback.log_trial_start(one)  # a retry
    callback.log_trial_result(1, one, dict(RESULT))
    callback.log_trial_end(one, failed=True)
    names = [name for name, _, _ in calls]
    assert names == ["login", "init", "init().config.update", "init().log", "init().finish"]
    options = calls[1][2]
    assert options["id"].startswith("abcde_00000_")
    assert (options["project"], options["group"], options["entity"]) == ("p", "train", "me")
    assert (options["resume"], options["reinit"], options["name"]) == ("allow", "create_new", "train_abcde_00000")
    assert calls[2][1][0] == {"lr": 0.1}
    assert calls[3][1][0] == {"loss": 0.5, "training_iteration": 2}
    assert calls[4][2] == {"exit_code": 1}


class TestSameSeed:
    """Experiments with the same seed have the same trial ids, and runs of their own."""

    @staticmethod
    def run_ids(calls: list[Any]) -> list[str]:
        return [options["id"] for name, _, options in calls if name == "init"]

    def test_wandb_has_a_run_for_each_experiment(self, calls: list[Any], tmp_path: Path) -> None:
        WandbLoggerCallback().log_trial_start(trial(tmp_path / "first" / "t0", created_at=1.5))
        WandbLoggerCallback().log_trial_start(trial(tmp_path / "second" / "t0", created_at=1.5))
        WandbLoggerCallback().log_trial_start(trial(tmp_path / "first" / "t0", created_at=2.5))
        assert len(set(self.run_ids(calls))) == 3

    def test_wandb_continues_with_the_run_after_restore(self, calls: list[Any], tmp_path: Path) -> None:
        before, after = WandbLoggerCallback(), WandbLoggerCallback()
        before.log_trial_start(trial(tmp_path / "first" / "t0", created_at=1.5))
        WandbLoggerCallback().log_trial_start(trial(tmp_path / "first" / "t0", created_at=1.5))
        after.setup()
        after.set_state(before.get_state())
        after.log_trial_start(trial(tmp_path / "moved" / "t0", created_at=1.5))
        assert len(set(self.run_ids(calls))) == 1

    def test_setup_wandb_tells_experiments_apart(self, calls: list[Any]) -> None:
        for experiment in ("first", "second", "first"):
            info = TrialInfo(experiment=experiment, trial_name="t", trial_id="abcde_00000", created_at=1.5)
            sessions.install(Session(info, types.SimpleNamespace()))  # type: ignore[arg-type]
            try:
                setup_wandb({})
            finally:
                sessions.install(None)
        first, second, again = self.run_ids(calls)
        assert first == again != second
        assert first.startswith("abcde_00000_")

    def test_one_callback_in_two_experiments(self, calls: list[Any], tmp_path: Path) -> None:
        wandb, comet = WandbLoggerCallback(), CometLoggerCallback()
        for name in ("first", "second"):
            for callback in (wandb, comet):
                callback.setup()
                callback.log_trial_start(trial(tmp_path / name / "t0", created_at=1.5))
                callback.log_trial_end(trial(tmp_path / name / "t0", created_at=1.5))
        assert len(set(self.run_ids(calls))) == 2
        assert [name for name, _, _ in calls if name.endswith("Experiment")] == ["Experiment", "Experiment"]


@pytest.mark.parametrize(
    "made",
    [
        lambda: WandbLoggerCallback(api_key="secret"),
        lambda: CometLoggerCallback(api_key="secret"),
        lambda: MLflowLoggerCallback(tracking_token="secret"),
    ],
    ids=["wandb", "comet", "mlflow"],
)
def test_keys_are_not_stored_with_the_experiment(
    calls: list[Any], made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cloudpickle

    monkeypatch.setattr("trialpod.tune.logger.mlflow.require", lambda *_: None)
    callback = made()
    assert b"secret" not in cloudpickle.dumps(callback)
    assert "secret" in repr(vars(callback))


@pytest.mark.parametrize("steps", [math.nan, math.inf, "ten", None, 0])
def test_a_step_is_a_finite_number(steps: Any) -> None:
    assert step_of({"timesteps_total": steps, "training_iteration": 3}) == 3
    assert step_of({"timesteps_total": steps}) == 0


class TestNumbers:
    def test_numpy_scalars_are_numbers(self) -> None:
        result = {
            "a": np.float32(0.5),
            "b": np.int64(3),
            "c": np.bool_(True),
            "d": np.array(4.0),
            "e": Fraction(1, 2),
        }
        found = numbers(result)
        assert found == {"a": 0.5, "b": 3, "d": 4.0, "e": 0.5}
        assert {type(value) for value in found.values()} == {int, float}

    def test_numpy_scalars_are_steps(self) -> None:
        assert step_of({"timesteps_total": np.int64(7), "training_iteration": 3}) == 7
        assert step_of({"timesteps_total": np.float64("nan"), "training_iteration": np.int32(3)}) == 3


def test_a_key_file_that_is_missing_or_given_twice_is_refused(calls: list[Any], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("abc\n")
    assert WandbLoggerCallback(api_key_file=tmp_path / "key")._api_key == "abc"
    with pytest.raises(InvalidInputError, match="No such file"):
        WandbLoggerCallback(api_key_file=tmp_path / "none")
    with pytest.raises(InvalidInputError, match="give one of them"):
        WandbLoggerCallback(api_key="a", api_key_file="b")


def test_a_trial_is_one_experiment_of_comet_and_is_found_again(calls: list[Any], tmp_path: Path) -> None:
    callback = CometLoggerCallback(tags=["t"], workspace="w")
    one = trial(tmp_path)
    callback.log_trial_start(one)
    callback.log_trial_result(1, one, dict(RESULT))
    callback.log_trial_end(one)
    by_name = {name: (args, kwargs) for name, args, kwargs in calls}
    assert by_name["Experiment"][1] == {"disabled": False, "workspace": "w"}
    assert by_name["Experiment().log_parameters"][0][0] == {"lr": 0.1, "layers/width": 3, "optimizer": "adam"}
    assert by_name["Experiment().log_metrics"] == (
        ({"loss": 0.5, "eval/acc": 0.9, "training_iteration": 2},),
        {"step": 2},
    )
    assert "Experiment().end" in by_name
    again = CometLoggerCallback()
    again.set_state(callback.get_state())
    again.log_trial_start(one)
    assert calls[-6][0] == "ExistingExperiment"


def mlflow_client(uri: str) -> Any:
    return pytest.importorskip("mlflow").MlflowClient(tracking_uri=uri)


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_mlflow_has_a_run_for_each_trial(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow_client(uri)
    callback = MLflowLoggerCallback(tracking_uri=uri, experiment_name="exp", tags={"team": "a"})
    callback.setup()
    trials = [trial(tmp_path, 0), trial(tmp_path, 1)]
    for one in trials:
        callback.log_trial_start(one)
        for iteration in (1, 2):
            result = {**RESULT, "loss": 1 / iteration, "training_iteration": iteration, "odd:name": 1, "bad": "nan"}
            callback.log_trial_result(iteration, one, result)
    callback.log_trial_end(trials[0])
    callback.log_trial_end(trials[1], failed=True)
    experiment = client.get_experiment_by_name("exp")
    runs = {run.data.tags["trial_name"]: run for run in client.search_runs([experiment.experiment_id])}
    first, second = runs["train_abcde_00000"], runs["train_abcde_00001"]
    assert first.data.params == {"lr": "0.1", "layers/width": "3", "optimizer": "adam"}
    assert first.data.metrics["loss"] == 0.5
    assert first.data.metrics["odd_name"] == 1
    history = client.get_metric_history(first.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5)]
    assert (first.info.status, second.info.status) == ("FINISHED", "FAILED")
    assert (first.data.tags["team"], first.info.run_name) == ("a", "train_abcde_00000")


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_a_restored_mlflow_callback_continues_with_the_same_run(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow_client(uri)
    before = MLflowLoggerCallback(tracking_uri=uri, log_params_on_trial_end=True)
    before.setup()
    before.log_trial_start(trial(tmp_path))
    import cloudpickle

    after = cloudpickle.loads(cloudpickle.dumps(before))
    after._runs = {}
    after.setup()
    after.set_state(before.get_state())
    after.log_trial_start(trial(tmp_path))
    after.log_trial_result(1, trial(tmp_path), RESULT)
    after.log_trial_end(trial(tmp_path))
    (run,) = client.search_runs(["0"])
    assert run.data.metrics["eval/acc"] == 0.9
    assert run.data.params["lr"] == "0.1"


class WriteOnce:
    """MLflow's client with one run, whose parameters cannot be changed."""

    def __init__(self) -> None:
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.ends: list[str] = []

    def get_experiment_by_name(self, _name: str) -> Any:
        return types.SimpleNamespace(experiment_id="0")

    def create_run(self, **_options: Any) -> Any:
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="run"))

    def get_run(self, _run: str) -> Any:
        return types.SimpleNamespace(data=types.SimpleNamespace(params=dict(self.params), tags=dict(self.tags)))

    def log_batch(self, _run: str, params: Any = ()) -> None:
        for key, value in params:
            if self.params.setdefault(key, value) != value:
                raise ValueError(f"Changing param values is not allowed: {key}")

    def set_tag(self, _run: str, key: str, value: str) -> None:
        self.tags[key] = value

    def set_terminated(self, _run: str, status: str) -> None:
        self.ends.append(status)


class TestMlflowParams:
    """Parameters that are logged at a trial's end, when it ends again with another config."""

    @pytest.fixture
    def client(self, monkeypatch: pytest.MonkeyPatch) -> WriteOnce:
        client = WriteOnce()
        for name, content in {
            "mlflow": {"MlflowClient": lambda **_options: client},
            "mlflow.entities": {"Param": lambda *pair: pair},
        }.items():
            module: Any = types.ModuleType(name)
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, name, module)
        return client

    def end(self, path: Path, state: dict[str, Any] | None, *, failed: bool = False, **config: Any) -> dict[str, Any]:
        callback = MLflowLoggerCallback(log_params_on_trial_end=True)
        callback.setup()
        if state is not None:
            callback.set_state(state)
        one = trial(path)
        one.config.update(config)
        callback.log_trial_start(one)
        callback.log_trial_end(one, failed=failed)
        return callback.get_state()

    def test_that_changed_become_tags(self, client: WriteOnce, tmp_path: Path) -> None:
        state = self.end(tmp_path, None, failed=True)
        self.end(tmp_path, state, lr=0.2, momentum=0.9)
        assert client.ends == ["FAILED", "FINISHED"]
        assert client.params == {"lr": "0.1", "layers/width": "3", "optimizer": "adam", "momentum": "0.9"}
        assert client.tags == {"param.lr": "0.2"}

    def test_that_stayed_are_logged_once(self, client: WriteOnce, tmp_path: Path) -> None:
        self.end(tmp_path, self.end(tmp_path, None, failed=True))
        assert client.tags == {}

    def test_that_changed_back_are_the_latest_in_tags(self, client: WriteOnce, tmp_path: Path) -> None:
        state = self.end(tmp_path, self.end(tmp_path, None, failed=True), failed=True, lr=0.2)
        self.end(tmp_path, state)
        assert client.tags == {"param.lr": "0.1"}


def test_aim_has_a_run_for_each_trial_and_continues_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs: list[Any] = []

    class Run(dict[str, Any]):
        def __init__(self, run_hash: str | None = None, **arguments: Any) -> None:
            self.hash, self.arguments, self.tracked, self.open = run_hash or "h1", arguments, [], True
            runs.append(self)

        def track(self, value: float, **what: Any) -> None:
            self.tracked.append((what["name"], value, what["step"]))

        def close(self) -> None:
            self.open = False

    aim: Any = types.ModuleType("aim")
    aim.Run = Run
    monkeypatch.setitem(sys.modules, "aim", aim)
    callback = AimLoggerCallback("repo", "exp", metrics=["loss"], log_system_params=False)
    one = trial(tmp_path)
    callback.log_trial_start(one)
    callback.log_trial_result(1, one, dict(RESULT))
    callback.log_trial_end(one)
    again = AimLoggerCallback()
    again.set_state(callback.get_state())
    again.log_trial_start(one)
    again.on_experiment_end([one])
    assert runs[0]["hparams"]["layers/width"] == 3
    assert runs[0].tracked == [("loss", 0.5, 2)]
    assert runs[0].arguments == {"repo": "repo", "experiment": "exp", "log_system_params": False}
    assert [run.hash for run in runs] == ["h1", "h1"]
    assert not any(run.open for run in runs)


def test_aim_that_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aim", None)
    with pytest.raises(InvalidInputError, match="pip install aim"):
        AimLoggerCallback()
