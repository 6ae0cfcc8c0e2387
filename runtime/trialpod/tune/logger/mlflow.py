"""MLflow: one run for each trial, with its config as parameters and its results as metrics.

Invariant: a trial has one run, also when it is retried or the experiment continues later.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod.tune.logger.library import Nothing, is_worker, numbers, require, step_of
from trialpod.tune.logger.logger_callback import LoggerCallback
from trialpod.tune.results import flattened

if TYPE_CHECKING:
    from trialpod.tune.trial import Trial

_FORBIDDEN = re.compile(r"[^\w\-. /]")
_PARAMS_AT_ONCE = 100  # limits of MLflow's REST API
_METRICS_AT_ONCE = 1000
_LONGEST_PARAM = 6000


class MLflowLoggerCallback(LoggerCallback):
    """Logs each trial as a run in MLflow.

    Args:
        tracking_uri: where the runs go; None takes MLflow's own setting.
        registry_uri: of the model registry.
        experiment_name: MLflow's experiment, made when there is none of the name; None takes the variable
            MLFLOW_EXPERIMENT_NAME, or else "Default".
        tags: for every run, besides ``trial_name``.
        tracking_token: for MLflow's HTTP authentication. It is not stored with the experiment: one that is restored
            takes the variable MLFLOW_TRACKING_TOKEN.
        save_artifact: upload each trial's directory when it has ended.
        log_params_on_trial_end: log the parameters at the end, when a scheduler changes them on the way. MLflow keeps
            the first value of a parameter; if a trial is resumed after its end and ends with another one, that is in
            the tag ``param.NAME``.

    Raises:
        InvalidInputError: mlflow is not installed.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
    ) -> None:
        require("mlflow", "mlflow", "MLflowLoggerCallback")
        self.tracking_uri = tracking_uri
        self.registry_uri = registry_uri
        self.experiment_name = experiment_name
        self.tags = dict(tags or {})
        self.tracking_token = tracking_token
        self.should_save_artifact = save_artifact
        self.log_params_on_trial_end = log_params_on_trial_end
        self._runs: dict[str, str] = {}  # trial_id -> run_id
        self._client: Any = None
        self._experiment_id = ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "tracking_token": None}

    def setup(self, *args: Any, **info: Any) -> None:
        """Connect, and find or make the experiment there; the runs of another experiment of ours stay its own."""
        self._runs = {}
        mlflow = require("mlflow", "mlflow", "MLflowLoggerCallback")
        if self.tracking_token:
            os.environ["MLFLOW_TRACKING_TOKEN"] = self.tracking_token
        self._client = mlflow.MlflowClient(tracking_uri=self.tracking_uri, registry_uri=self.registry_uri)
        name = self.experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._experiment_id = _made_experiment(self._client, name)

    def log_trial_start(self, trial: Trial) -> None:
        """Begin a run, unless the trial has one."""
        if trial.trial_id in self._runs:
            return
        tags = {**self.tags, "trial_name": str(trial), "mlflow.runName": str(trial)}
        run = self._client.create_run(experiment_id=self._experiment_id, tags=tags)
        self._runs[trial.trial_id] = run.info.run_id
        if not self.log_params_on_trial_end:
            self._log_params(trial, {}, {})

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Log the numbers of a result."""
        metric: Any = require("mlflow.entities", "mlflow", "MLflowLoggerCallback").Metric
        step, now = step_of(result), int(time.time() * 1000)
        metrics = [metric(_key(name), float(value), now, step) for name, value in numbers(result).items()]
        for part in _parts(metrics, _METRICS_AT_ONCE):
            self._client.log_batch(self._runs[trial.trial_id], metrics=part)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """End the run."""
        if trial.trial_id not in self._runs:
            return  # it never began
        run = self._runs[trial.trial_id]
        if self.log_params_on_trial_end:
            logged = self._client.get_run(run).data
            self._log_params(trial, logged.params, logged.tags)
        if self.should_save_artifact:
            self._client.log_artifacts(run, trial.path)
        self._client.set_terminated(run, status="FAILED" if failed else "FINISHED")

    def get_state(self) -> dict[str, Any]:
        """Return which run belongs to which trial."""
        return {"runs": dict(self._runs)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with the runs of an earlier time."""
        self._runs = dict(state["runs"])

    def _log_params(self, trial: Trial, logged: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Log what the run does not have yet; `logged` are its parameters, which cannot be changed."""
        entities: Any = require("mlflow.entities", "mlflow", "MLflowLoggerCallback")
        values = {_key(name): str(value)[:_LONGEST_PARAM] for name, value in flattened(trial.config).items()}
        params = [entities.Param(key, value) for key, value in values.items() if key not in logged]
        changed = {
            f"param.{key}": values[key]
            for key in logged
            if key in values and values[key] != tags.get(f"param.{key}", logged[key])
        }
        for part in _parts(params, _PARAMS_AT_ONCE):
            self._client.log_batch(self._runs[trial.trial_id], params=part)
        for tag, value in changed.items():
            self._client.set_tag(self._runs[trial.trial_id], tag, value)


def setup_mlflow(
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, Any] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Begin an MLflow run in a trial's own process, and return the module ``mlflow``, ready to log with.

    Args:
        config: the trial's config, logged as parameters.
        tracking_uri: where the run goes; None takes MLflow's own setting.
        registry_uri: of the model registry.
        experiment_id: MLflow's experiment.
        experiment_name: the same by its name.
        tracking_token: for MLflow's HTTP authentication.
        artifact_location: where artifacts of an experiment that is made here go.
        run_name: None takes the trial's name.
        create_experiment_if_not_exists: make an experiment that is missing.
        tags: of the run.
        rank_zero_only: of a trial of several pods only the first one logs; what the others get does nothing.

    Raises:
        InvalidInputError: mlflow is not installed, or there is no such experiment.
    """
    mlflow: Any = require("mlflow", "mlflow", "setup_mlflow")
    if rank_zero_only and is_worker():
        return Nothing()
    if tracking_token:
        os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
    if tracking_uri:
        mlflow.set_tracking_uri(tracking_uri)
    if registry_uri:
        mlflow.set_registry_uri(registry_uri)
    if experiment_id is None and experiment_name is not None:
        if create_experiment_if_not_exists:
            experiment_id = _made_experiment(mlflow, experiment_name, artifact_location)
        elif (found := mlflow.get_experiment_by_name(experiment_name)) is not None:
            experiment_id = found.experiment_id
        else:
            raise InvalidInputError(
                f"setup_mlflow(experiment_name={experiment_name!r}): there is no such experiment; make it first, or "
                "pass create_experiment_if_not_exists=True"
            )
    from trialpod.tune.session import get_context

    name = run_name or get_context().get_trial_name()
    mlflow.start_run(experiment_id=experiment_id, run_name=name, tags=dict(tags or {}) or None)
    mlflow.log_params({_key(key): value for key, value in flattened(config or {}).items()})
    return mlflow


def _made_experiment(client: Any, name: str, artifact_location: str | None = None) -> Any:
    """Return the id of an experiment, made where there is none; trials that start together make it together."""
    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    refused: Any = require("mlflow.exceptions", "mlflow", "setup_mlflow").MlflowException
    try:
        return client.create_experiment(name, artifact_location)
    except refused:
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return found.experiment_id


def _key(name: str) -> str:
    """Return a name that MLflow takes."""
    return _FORBIDDEN.sub("_", name)


def _parts(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
