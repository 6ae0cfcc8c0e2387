"""`ResultGrid`: the results of an experiment's trials, in the order in which the trials were made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.objectives import Objective, pareto_front, parse_objectives, point_of
from trialpod.tune.result import (
    NoResultError,
    NoSuchResultError,
    Result,
    check_mode,
    facts_of,
    frame_of,
    unknown_metric,
)
from trialpod.tune.results import (
    RepeatStatistics,
    Scope,
    best_index,
    best_row,
    check_scope,
    latest,
    metrics_of,
    read_rows,
    repeat_statistics,
)

if TYPE_CHECKING:
    import pandas as pd

    from trialpod.tune.outcomes import ExperimentOutcome
    from trialpod.tune.presentation.figures import Plots


class ResultGrid(Sequence[Result]):
    """The results of an experiment's trials. Each is made when it is first asked for.

    Args:
        outcome: what a backend returned.
    """

    def __init__(self, outcome: ExperimentOutcome) -> None:
        self._outcome = outcome
        self._results: dict[int, Result] = {}

    def __len__(self) -> int:
        return len(self._outcome.trials)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        if isinstance(index, slice):
            return [self._result(place) for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"ResultGrid[{index}]: there are {len(self)} trials")
        return self._result(index % len(self))

    def __iter__(self) -> Iterator[Result]:
        return (self._result(place) for place in range(len(self)))

    def _result(self, place: int) -> Result:
        if place not in self._results:
            self._results[place] = Result.from_trial(self._outcome.trials[place])
        return self._results[place]

    @property
    def experiment_path(self) -> str:
        """Where the experiment is stored: its directory, or its URI in a bucket."""
        return self._outcome.uri or self._outcome.path

    @property
    def local_path(self) -> str:
        """The experiment's directory on this machine, also when it is stored in a bucket."""
        return self._outcome.path

    @property
    def outcome(self) -> ExperimentOutcome:
        """What the backend returned."""
        return self._outcome

    @property
    def _experiment_analysis(self) -> Any:
        """The same trials in the older form: what libraries that were written for Ray take from a ResultGrid."""
        older = import_module("trialpod.legacy.experiment_analysis")  # which imports this module
        return older.ExperimentAnalysis(self._outcome)

    @property
    def errors(self) -> list[Exception]:
        """The errors of the trials that failed."""
        failed = (place for place, trial in enumerate(self._outcome.trials) if trial.status == "ERROR" or trial.error)
        return [error for place in failed if (error := self._result(place).error) is not None]

    @property
    def filesystem(self) -> Any:
        """The file system of pyarrow that `experiment_path` is in.

        Raises:
            InvalidInputError: pyarrow is not installed.
        """
        from trialpod.tune.location.filesystems import arrow_filesystem

        return arrow_filesystem(self.experiment_path)

    @property
    def plot(self) -> Plots:
        """Figures of the trials: ``plot.curves()``, ``parallel()``, ``importance()`` and ``slices()``."""
        from trialpod.tune.presentation.figures import Plots

        return Plots(self._outcome)

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return sum(trial.status == "ERROR" for trial in self._outcome.trials)

    @property
    def num_terminated(self) -> int:
        """How many trials ended without failing, by themselves or stopped."""
        return sum(trial.status == "TERMINATED" for trial in self._outcome.trials)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: Scope = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the result of the best trial; the first of equals.

        With several metrics (`TuneConfig(metrics=...)`) it is the trial of the Pareto front that is best in the first
        one, see `get_pareto_front`.

        Where the best configs were repeated (`TuneConfig(repeats=...)`) and the last values are compared, it is the
        trial whose repeats have the best mean, see `get_repeats`.

        Args:
            metric: what to compare ("a/b" for nested metrics); None takes the experiment's.
            mode: "max" or "min"; None takes the experiment's.
            scope: what of a trial counts: "last" the last value that it reported, "all" its best one, "avg" the mean
                over all, "last-5-avg" and "last-10-avg" the mean over the last 5 or 10.
            filter_nan_and_inf: leave out trials whose number is NaN or infinite; of their last values the latest
                finite one counts, so that NaN does not void what a trial found before. Otherwise NaN is
                worse than every number.

        Raises:
            InvalidInputError: metric or mode is missing or wrong, or no trial reported the metric.
            NoResultError: no trial reported anything, or nothing but NaN and infinities.
        """
        where = "ResultGrid.get_best_result"
        if len(self) == 1 and metric is None:
            return self[0]
        if self._outcome.objectives and metric is None and mode is None and scope == "last":
            front = self._front(self._outcome.objectives)
            if not front:
                wanted = ", ".join(map(str, self._outcome.objectives))
                raise NoResultError(
                    f"{where}(): no trial reported a finite number of each metric and met every threshold: {wanted}"
                )
            return self[front[0]]
        metric, mode = metric or self._outcome.metric, mode or self._outcome.mode
        if not metric:
            raise InvalidInputError(f"{where}(): no metric; pass metric=... here, or to TuneConfig")
        if not mode:
            raise InvalidInputError(f"{where}(): no mode; pass mode='max' or mode='min' here, or to TuneConfig")
        check_mode(where, mode)
        check_scope(where, scope)
        best, measured = best_index(self._outcome.trials, metric, mode, scope, finite_only=filter_nan_and_inf)
        if best is None and len(self) == 1 and measured and under_ray():
            return self[0]  # Ray returns the only trial before it looks at its numbers
        if best is None:
            raise self._nothing_best(where, metric, measured)
        return self[best]

    def get_pareto_front(self, metrics: list[dict[str, Any]] | None = None) -> list[Result]:
        """Return the results that no other one dominates, the best in the first metric first.

        Of each trial the last result that has a finite number of each metric is compared. Trials that miss a
        threshold are not among them, nor those without such a result.

        Args:
            metrics: as in `TuneConfig(metrics=...)`; None takes the experiment's.

        Raises:
            InvalidInputError: there are no metrics, or one cannot be used.
        """
        objectives = self._outcome.objectives if metrics is None else parse_objectives(metrics)
        if not objectives:
            raise InvalidInputError(
                "ResultGrid.get_pareto_front(): no metrics; pass metrics=[...] here, or to TuneConfig"
            )
        return [self[place] for place in self._front(objectives)]

    def _front(self, objectives: Sequence[Objective]) -> list[int]:
        found = latest(self._outcome.trials, objectives[0].name, lambda result: point_of(objectives, result))
        points = [(place, point) for place, point in enumerate(found) if point is not None]
        return [points[each][0] for each in pareto_front(objectives, [point for _, point in points])]

    def get_repeats(self, metric: str | None = None) -> dict[str, RepeatStatistics]:
        """Return mean, spread and number of the best configs' repeats, by trial id; see `TuneConfig(repeats=...)`.

        Args:
            metric: None takes the experiment's.

        Raises:
            InvalidInputError: there is no metric.
        """
        metric = metric or self._outcome.metric
        if not metric:
            raise InvalidInputError("ResultGrid.get_repeats(): no metric; pass metric=... here, or to TuneConfig")
        return repeat_statistics(self._outcome.trials, metric)

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> pd.DataFrame:
        """Return one row for each trial, as a pandas DataFrame; with a filter, for each that reported something.

        Args:
            filter_metric: None takes the last result of each trial; a metric takes the result in which it was best.
            filter_mode: "max" or "min"; None takes the experiment's.

        Raises:
            InvalidInputError: a mode without a metric or the reverse, a metric that no trial reported, or pandas is
                not installed.
        """
        where = "ResultGrid.get_dataframe"
        if filter_mode is not None:
            check_mode(where, filter_mode)
            if filter_metric is None:
                raise InvalidInputError(f"{where}(filter_mode={filter_mode!r}): pass filter_metric=... with it")
        mode = filter_mode or self._outcome.mode
        if filter_metric is not None and mode is None:
            raise InvalidInputError(
                f"{where}(filter_metric={filter_metric!r}): pass filter_mode='max' or 'min' with it"
            )
        rows: list[dict[str, Any]] = []
        measured = False
        for trial in self._outcome.trials:
            if not trial.last_result and (filter_metric is not None or under_ray()):
                continue
            row = trial.last_result or facts_of(trial)
            if filter_metric is not None:
                found = best_row(read_rows(trial.path), filter_metric, mode or "max")
                measured = measured or found is not None
                row = found or row
            row = {key: value for key, value in row.items() if key != "experiment_tag"}
            rows.append({**row, "config": trial.config, "logdir": trial.path})
        if filter_metric is not None and rows and not measured:
            raise self._nothing_best(f"{where}(filter_metric=...)", filter_metric, False)
        return frame_of(rows)

    def _nothing_best(self, where: str, metric: str, measured: bool) -> Exception:
        reported = metrics_of(self._outcome.trials)
        if not self._outcome.trials:
            return NoResultError(f"{where}: the experiment in {self.experiment_path} has no trials")
        if not reported:
            failed = f", {self.num_errors} of them failed (see .errors)" if self.num_errors else ""
            return NoResultError(
                f"{where}: none of the {len(self)} trials in {self.experiment_path} reported a result{failed}"
            )
        if measured:
            return NoResultError(
                f"{where}: every trial's value of {metric!r} is NaN or infinite; pass filter_nan_and_inf=False "
                "to choose among them nevertheless"
            )
        return NoSuchResultError(f"{where}: {unknown_metric(metric, reported)}")

    def __repr__(self) -> str:
        return "ResultGrid<[\n" + ",\n".join(result.described(indent=2) for result in self) + "\n]>"

    def _repr_html_(self) -> str:
        from trialpod.tune.presentation.html import experiment_html

        return experiment_html(self._outcome)
