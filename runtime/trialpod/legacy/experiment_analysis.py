"""`ExperimentAnalysis`: what `tune.run` returns, with Ray Tune's questions to an experiment.

Invariants: it reads files only when it is asked for what is in them, and changes none. Where Ray answers None with a
warning because nothing fits, so does this.
"""

from __future__ import annotations

import fnmatch
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError
from trialpod.tune.outcomes import ExperimentOutcome
from trialpod.tune.result import Result, check_mode, frame_of, unknown_metric
from trialpod.tune.result_keys import DEFAULT_METRIC
from trialpod.tune.results import Scope, best_index, check_scope, flattened, lookup, metrics_of, number, read_rows
from trialpod.tune.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

    from trialpod.tune.backends import Backend
    from trialpod.tune.checkpoints.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


class ByTrial(dict[str, Any]):
    """Something of each trial, by its id; the trial itself, its name and its directory find it as well.

    Args:
        values: by trial id.
        ids: the trial ids by those other names.
    """

    def __init__(self, values: Mapping[str, Any], ids: Mapping[Any, str]) -> None:
        super().__init__(values)
        self._ids = ids

    def __missing__(self, key: Any) -> Any:
        """Look it up by another name of the trial."""
        found = self._id(key)
        if found is None or not super().__contains__(found):
            raise KeyError(key)
        return self[found]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or super().__contains__(self._id(key))

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what is there of a trial, else `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a plain dict."""
        return dict, (dict(self),)

    def _id(self, key: Any) -> str | None:
        if isinstance(key, Trial):
            return key.trial_id
        return self._ids.get(key.rstrip("/")) if isinstance(key, str) else None


def _directory_of(path: str | os.PathLike[str]) -> str:
    """Return the directory or URI of an experiment, which may be given by a file in it."""
    text = os.fspath(path)
    if "://" not in text:
        text = os.path.expanduser(text)
        return os.path.dirname(text) if os.path.isfile(text) else text
    parent, _, name = text.rpartition("/")
    return parent if fnmatch.fnmatch(name, "experiment_state*.json") else text


class ExperimentAnalysis:
    """Answers questions about the trials of an experiment.

    Args:
        experiment_checkpoint_path: the experiment's directory, a file in it, or its URI; or what a backend returned.
        default_metric: for the methods that are given none.
        default_mode: "max" or "min", the same.
        trials: for scripts that give it; the trials are read from the experiment.
        storage_filesystem: as for RunConfig; the path is in it.
        backend: what reads the experiment; None as for `Tuner`.

    Raises:
        InvalidInputError: there is no experiment, or the mode is another one.
        NotSupportedError: `storage_filesystem` is none of S3 or of this machine.
    """

    # Of a subclass with an __init__ of its own, which sets `trials`.
    _outcome = ExperimentOutcome(name="", path="", state="")
    _trials: list[Trial] | None = None
    _frames: dict[str, pd.DataFrame] | None = None
    default_metric: str | None = None
    default_mode: str | None = None

    def __init__(
        self,
        experiment_checkpoint_path: str | os.PathLike[str] | ExperimentOutcome,
        *,
        trials: Sequence[Any] | None = None,
        storage_filesystem: Any = None,
        default_metric: str | None = None,
        default_mode: str | None = None,
        backend: Backend | str | None = None,
    ) -> None:
        given = experiment_checkpoint_path
        if storage_filesystem is not None:
            from trialpod.tune.location.filesystems import uri_of

            given = uri_of("ExperimentAnalysis(storage_filesystem=...)", given, storage_filesystem)
        if isinstance(given, (str, os.PathLike)):
            from trialpod.tune.location.locations import experiment_location
            from trialpod.tune.tuner import open_backend

            experiment = open_backend(backend).load(str(experiment_location(_directory_of(given))))
        else:
            experiment = given
        if default_mode is not None:
            check_mode("ExperimentAnalysis", default_mode)
        self._outcome = experiment
        # Ray does not read them from the experiment.
        known = experiment if experiment is given or not under_ray() else None
        self.default_metric = default_metric or getattr(known, "metric", None)
        self.default_mode = default_mode or getattr(known, "mode", None)
        if self.default_metric is None and self.default_mode is not None:
            self.default_metric = DEFAULT_METRIC  # what `return 0.3` and `reporter(0.3)` report

    @property
    def experiment_path(self) -> str:
        """Where the experiment is stored: its directory, or its URI in a bucket."""
        return self._outcome.uri or self._outcome.path

    @property
    def path(self) -> str:
        """Another name of `experiment_path`."""
        return self.experiment_path

    @property
    def trials(self) -> list[Trial]:
        """The trials, in the order in which they were made."""
        if self._trials is None:
            self._trials = [Trial(outcome) for outcome in self._outcome.trials]
        return self._trials

    @trials.setter
    def trials(self, trials: Sequence[Any]) -> None:
        self._outcome = ExperimentOutcome(name="", path="", state="", trials=trials)
        self._trials, self._frames = list(trials), None

    # -- the best trial by the default metric and mode --

    @property
    def best_trial(self) -> Trial:
        """The trial whose last value of the default metric is best.

        Raises:
            InvalidInputError: there is no default metric or mode, or no trial reported the metric.
        """
        metric, mode = self._defaults("best_trial", None, None)
        index, measured = best_index(self._outcome.trials, metric, mode, "last", finite_only=True)
        if index is None:
            raise InvalidInputError(f"ExperimentAnalysis.best_trial: {self._why_none(metric, measured)}")
        return self.trials[index]

    @property
    def best_config(self) -> dict[str, Any]:
        """The config of `best_trial`."""
        return self.best_trial.config

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The best checkpoint of `best_trial`, by the default metric."""
        return cast("Checkpoint | None", self.get_best_checkpoint(self.best_trial))

    @property
    def best_logdir(self) -> str:
        """The directory of `best_trial`."""
        return self.best_trial.path

    @property
    def best_result(self) -> dict[str, Any]:
        """The last result of `best_trial`."""
        return self.best_trial.last_result

    @property
    def best_result_df(self) -> pd.DataFrame:
        """The last result of `best_trial` as a pandas DataFrame of one row, ``trial_id`` as its index."""
        return self._frame([self._last_row(self.best_trial)])

    @property
    def best_dataframe(self) -> pd.DataFrame:
        """All results of `best_trial` as a pandas DataFrame."""
        return self.trial_dataframes[self.best_trial.trial_id]

    # -- all trials --

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last result of each trial, by its id (or by the trial itself)."""
        return self._by_trial({trial.trial_id: trial.last_result for trial in self.trials})

    @property
    def results_df(self) -> pd.DataFrame:
        """The last results as a pandas DataFrame, ``trial_id`` as its index."""
        return self._frame([self._last_row(trial) for trial in self.trials if trial.last_result])

    @property
    def trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """All results of each trial as a pandas DataFrame, by the trial's id; its directory finds them, too."""
        return self.fetch_trial_dataframes() if self._frames is None else self._frames

    def fetch_trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """Read the results of all trials again, and return `trial_dataframes`."""
        rows = {trial.trial_id: read_rows(trial.path) for trial in self.trials}
        self._frames = self._by_trial({trial_id: frame_of(found) for trial_id, found in rows.items()})
        return self._frames

    def set_filetype(self, file_type: str | None = None) -> bool:
        """Read the results again; whatever the format, they are those of ``result.json``.

        Raises:
            InvalidInputError: the format is neither "json" nor "csv" nor None.
        """
        if file_type not in (None, "json", "csv"):
            raise InvalidInputError(f"ExperimentAnalysis.set_filetype({file_type!r}): must be 'json', 'csv' or None")
        self.fetch_trial_dataframes()
        return True

    def stats(self) -> dict[str, Any]:
        """Return how many trials there are in which state, and when the experiment began."""
        states = [trial.status for trial in self.trials]
        started = [trial.start_time for trial in self.trials if trial.start_time]
        counts = {state.lower(): states.count(state) for state in sorted(set(states))}
        return {"start_time": min(started, default=None), "trials": len(states), **counts}

    def runner_data(self) -> dict[str, Any]:
        """Return what is known of the experiment as a whole."""
        outcome = self._outcome
        return {
            "name": outcome.name,
            "checkpoint_dir": outcome.path,
            "state": outcome.state,
            "message": outcome.message,
            "metric": outcome.metric,
            "mode": outcome.mode,
        }

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """Return one row for each trial; with a metric, for each that reported something.

        Args:
            metric: None takes the last result of each trial; a metric takes the result in which it was best.
            mode: "max" or "min"; None takes the experiment's, and under the name ``ray`` the last result.

        Raises:
            InvalidInputError: a mode without a metric or the reverse, another mode, or a metric that no trial
                reported.
        """
        from trialpod.tune.result_grid import ResultGrid

        if mode is not None:
            check_mode("ExperimentAnalysis.dataframe", mode)
            if metric is None:
                raise InvalidInputError(f"ExperimentAnalysis.dataframe(mode={mode!r}): pass metric=... with it")
        if mode is None and under_ray():
            metric = None  # as Ray: without a mode the last result of each trial
        return ResultGrid(self._outcome).get_dataframe(metric, mode)

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """Return the config of each trial, by its id (or its directory); with `prefix`, as ``config/lr``."""
        if not prefix:
            return self._by_trial({trial.trial_id: trial.config for trial in self.trials})
        return self._by_trial({trial.trial_id: flattened({"config": trial.config}) for trial in self.trials})

    # -- the best by a metric --

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: Scope = "last",
        filter_nan_and_inf: bool = True,
    ) -> Trial | None:
        """Return the best trial, the first of equals; None, with a warning, when no trial has the metric.

        Args:
            metric: what to compare; None takes the default.
            mode: "max" or "min"; None takes the default.
            scope: as for `ResultGrid.get_best_result`.
            filter_nan_and_inf: leave out trials whose number is NaN or infinite.

        Raises:
            InvalidInputError: metric or mode is missing, or an argument has a value that it cannot have.
        """
        where = "get_best_trial"
        metric, mode = self._defaults(where, metric, mode)
        check_scope(f"ExperimentAnalysis.{where}", scope)
        index, measured = best_index(self._outcome.trials, metric, mode, scope, finite_only=filter_nan_and_inf)
        if index is None:
            logger.warning("ExperimentAnalysis.%s: %s", where, self._why_none(metric, measured))
            return None
        return self.trials[index]

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: Scope = "last"
    ) -> dict[str, Any] | None:
        """Return the config of `get_best_trial`, or None."""
        best = self.get_best_trial(metric, mode, scope)
        return best.config if best is not None else None

    def get_best_logdir(
        self, metric: str | None = None, mode: str | None = None, scope: Scope = "last"
    ) -> str | None:
        """Return the directory of `get_best_trial`, or None."""
        best = self.get_best_trial(metric, mode, scope)
        return best.path if best is not None else None

    # -- checkpoints --

    def get_best_checkpoint(
        self,
        trial: Trial | str,
        metric: str | None = None,
        mode: str | None = None,
        return_path: bool = False,
    ) -> Checkpoint | str | None:
        """Return the checkpoint of a trial whose result was best; None, with a warning, when there is none.

        Args:
            trial: a trial, or its directory.
            metric: what to compare; None takes the default, or else ``training_iteration``.
            mode: "max" or "min"; None takes the default.
            return_path: return its path instead.

        Raises:
            InvalidInputError: there is no such trial, or another mode.
        """
        metric = metric or self.default_metric or "training_iteration"
        mode = mode or self.default_mode or ("max" if metric == "training_iteration" else None)
        if mode is None:
            self._defaults("get_best_checkpoint", metric, mode)
        result = self._result(trial)
        try:
            best = result.get_best_checkpoint(metric, mode or "max") if result.best_checkpoints else None
        except InvalidInputError as error:
            if mode not in ("max", "min"):
                raise
            logger.warning("ExperimentAnalysis.get_best_checkpoint: %s", error)
            best = None
        if best is None:
            logger.warning("ExperimentAnalysis.get_best_checkpoint: no checkpoint fits in %s", result.path)
            return None
        return best.path if return_path else best

    def get_last_checkpoint(
        self, trial: Trial | str | None = None, metric: str = "training_iteration", mode: str = "max"
    ) -> Checkpoint | None:
        """Return the newest checkpoint of a trial, or None when it has none.

        Args:
            trial: a trial, or its directory; None takes the best trial by `metric` and `mode`.
            metric: for the best trial.
            mode: for the best trial.
        """
        if trial is None:
            trial = self.get_best_trial(metric, mode)
            if trial is None:
                return None
        return self._result(trial).checkpoint

    def get_trial_checkpoints_paths(
        self, trial: Trial | str, metric: str | None = None
    ) -> list[tuple[str, float | None]]:
        """Return the path of each checkpoint of a trial, with the metric of its result.

        Args:
            trial: a trial, or its directory.
            metric: None takes the default, or else ``training_iteration``.
        """
        name = metric or self.default_metric or "training_iteration"
        saved = self._result(trial).best_checkpoints
        return [(checkpoint.path, number(lookup(metrics, name))) for checkpoint, metrics in saved]

    # -- inside --

    def _by_trial(self, values: Mapping[str, Any]) -> ByTrial:
        names = ((trial.trial_id, getattr(trial, name, None)) for trial in self.trials for name in ("name", "path"))
        ids = {alias: trial_id for trial_id, alias in names if alias}
        return ByTrial(values, ids)

    def _get_trial_paths(self) -> list[str]:
        return [trial.path for trial in self.trials]

    def _result(self, trial: Trial | str) -> Result:
        if isinstance(trial, Trial):
            return trial.as_result()
        wanted = os.fspath(trial).rstrip("/")
        for known in self.trials:
            if wanted in (known.path, known.remote_path, known.trial_id, known.name):
                return known.as_result()
        raise InvalidInputError(
            f"{trial!r} is not a trial of the experiment in {self.experiment_path}; pass one of .trials, or its path"
        )

    def _defaults(self, where: str, metric: str | None, mode: str | None) -> tuple[str, str]:
        given = metric
        metric, mode = metric or self.default_metric, mode or self.default_mode
        if given and not mode and under_ray():
            mode = "max"  # the default of Ray 0.8, of whose time such a script is
            logger.warning("ExperimentAnalysis.%s(metric=%r): no mode; the best is taken to be the max", where, given)
        for name, value in (("metric", metric), ("mode", mode)):
            if not value:
                raise InvalidInputError(
                    f"ExperimentAnalysis.{where}: no {name}; pass {name}=... to tune.run, or to the method"
                )
        check_mode(f"ExperimentAnalysis.{where}", mode)
        return str(metric), str(mode)

    def _why_none(self, metric: str, measured: bool) -> str:
        if measured:
            return f"every trial's value of {metric!r} is NaN or infinite"
        names = metrics_of(self._outcome.trials)
        if not names:
            return f"no trial in {self.experiment_path} reported a result"
        return unknown_metric(metric, names)

    def _last_row(self, trial: Trial) -> dict[str, Any]:
        return {**trial.last_result, "config": trial.config, "trial_id": trial.trial_id}

    def _frame(self, rows: list[dict[str, Any]]) -> pd.DataFrame:
        frame = frame_of(rows)
        return frame.set_index("trial_id") if rows else frame

    def __repr__(self) -> str:
        return f"ExperimentAnalysis({len(self._outcome.trials)} trials in {self.experiment_path!r})"
