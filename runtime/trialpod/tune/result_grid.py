"""`ResultGrid`: the results of an experiment's trials, in the order in which the trials were made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.result import (
    NoResultError,
    Result,
    check_mode,
    import_pandas,
    lookup,
    unknown_metric,
)
from trialpod.tune.result_rows import SCOPES, Scope, number, read_rows, score

if TYPE_CHECKING:
    import pandas as pd

    from trialpod.tune.backends import ExperimentOutcome, TrialOutcome


class ResultGrid(Sequence[Result]):
    """The results of an experiment's trials.

    Args:
        outcome: what a backend returned.
    """

    def __init__(self, outcome: ExperimentOutcome) -> None:
        self._outcome = outcome
        self._results = [Result.from_trial(trial) for trial in outcome.trials]

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        return self._results[index]

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @property
    def experiment_path(self) -> str:
        """The experiment's directory."""
        return self._outcome.path

    @property
    def errors(self) -> list[Exception]:
        """The errors of the trials that failed."""
        return [result.error for result in self._results if result.error is not None]

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

        Args:
            metric: what to compare ("a/b" for nested metrics); None takes the experiment's.
            mode: "max" or "min"; None takes the experiment's.
            scope: what of a trial counts: "last" its last result, "all" its best one, "avg" the mean over all,
                "last-5-avg" and "last-10-avg" the mean over the last 5 or 10.
            filter_nan_and_inf: leave out trials whose number is NaN or infinite. Otherwise NaN is worse than every
                number.

        Raises:
            InvalidInputError: metric or mode is missing or wrong, or no trial reported the metric.
            NoResultError: no trial reported anything, or nothing but NaN and infinities.
        """
        where = "ResultGrid.get_best_result"
        if len(self._results) == 1 and metric is None:
            return self._results[0]
        metric, mode = metric or self._outcome.metric, mode or self._outcome.mode
        if not metric:
            raise InvalidInputError(f"{where}(): no metric; pass metric=... here, or to TuneConfig")
        if not mode:
            raise InvalidInputError(f"{where}(): no mode; pass mode='max' or mode='min' here, or to TuneConfig")
        check_mode(where, mode)
        if scope not in SCOPES:
            guess = nearest(str(scope), SCOPES)
            raise InvalidInputError(
                f"{where}(scope={scope!r}): scope must be one of {', '.join(SCOPES)}"
                + (f" (did you mean {guess!r}?)" if guess else "")
            )
        best: tuple[float, Result] | None = None
        measured = False
        for trial, result in zip(self._outcome.trials, self._results, strict=True):
            values = _values(trial, metric, scope)
            measured = measured or bool(values)
            value = score(values, scope, mode, finite_only=filter_nan_and_inf)
            if value is None:
                continue
            rank = -math.inf if math.isnan(value) else value if mode == "max" else -value
            if best is None or rank > best[0]:
                best = (rank, result)
        if best is None:
            raise self._nothing_best(where, metric, measured)
        return best[1]

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> pd.DataFrame:
        """Return one row for each trial that reported something, as a pandas DataFrame.

        Args:
            filter_metric: None takes the last result of each trial; a metric takes the result in which it was best.
            filter_mode: "max" or "min"; None takes the experiment's.

        Raises:
            InvalidInputError: a mode without a metric or the reverse, a metric that nobody reported, or pandas is
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
            if not trial.last_result:
                continue
            row = trial.last_result
            if filter_metric is not None:
                found = _best_row(trial, filter_metric, mode or "max")
                measured = measured or found is not None
                row = found or row
            rows.append({**row, "config": trial.config, "logdir": trial.path})
        if filter_metric is not None and rows and not measured:
            raise self._nothing_best(f"{where}(filter_metric=...)", filter_metric, False)
        library = import_pandas()
        frame: pd.DataFrame = library.json_normalize(rows, sep="/") if rows else library.DataFrame()
        return frame

    def _nothing_best(self, where: str, metric: str, measured: bool) -> Exception:
        reported = sorted({name for trial in self._outcome.trials for name in trial.last_result or {}})
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
        return InvalidInputError(f"{where}: {unknown_metric(metric, [n for n in reported if n != 'config'])}")

    def __repr__(self) -> str:
        ended = f"{self.num_terminated} terminated, {self.num_errors} failed"
        return f"ResultGrid({len(self)} trials: {ended}; experiment_path={self.experiment_path!r})"


def _values(trial: TrialOutcome, metric: str, scope: str) -> list[float]:
    # The last result is known without reading a file.
    rows = [trial.last_result or {}] if scope == "last" else read_rows(trial.path)
    numbers = (number(lookup(row, metric)) for row in rows)
    return [value for value in numbers if value is not None]


def _best_row(trial: TrialOutcome, metric: str, mode: str) -> dict[str, Any] | None:
    best: tuple[float, dict[str, Any]] | None = None
    for row in read_rows(trial.path):
        value = number(lookup(row, metric))
        if value is None or math.isnan(value):
            continue
        rank = value if mode == "max" else -value
        if best is None or rank > best[0]:
            best = (rank, row)
    return best[1] if best is not None else None
