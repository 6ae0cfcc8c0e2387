"""Progress reporters: what is printed while an experiment runs, with Ray Tune's classes and options.

A plain `CLIReporter` on a terminal sets up trialpod's own live table; everywhere else, and for subclasses that
override something, `should_report` and `report` are called as Ray Tune does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError
from trialpod.tune.arguments import names_nearest

if TYPE_CHECKING:
    from trialpod.tune.trial import Trial

Names = Sequence[str] | Mapping[str, str]

DEFAULT_COLUMNS = {
    "training_iteration": "iter",
    "time_total_s": "total time (s)",
    "timesteps_total": "ts",
    "mean_accuracy": "acc",
    "mean_loss": "loss",
    "episode_reward_mean": "reward",
}


class ProgressReporter:
    """Base class: implement `should_report` and `report`. Its exceptions end the experiment, as a callback's do."""

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Called once, before the first report.

        Args:
            start_time: seconds since the epoch.
            total_samples: how many trials there will be; None when that is open.
            metric: the experiment's.
            mode: the experiment's.
            kwargs: more, in later versions.
        """

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Return whether `report` is to be called now; asked about once a second, and at the end with `done`."""
        raise NotImplementedError

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        """Show how things stand.

        Args:
            trials: all trials so far.
            done: the experiment has ended.
            sys_info: lines about the experiment.
        """
        raise NotImplementedError


@names_nearest
class TuneReporterBase(ProgressReporter):
    """What `CLIReporter` and `JupyterNotebookReporter` have in common.

    Args:
        metric_columns: names of metrics, or a dict of names to titles; None takes the usual ones.
        parameter_columns: names of parameters ("a/b" for nested ones), or a dict; None takes those that vary.
        total_samples: how many trials there will be; None finds it out.
        max_progress_rows: the most trials that are shown.
        max_error_rows: the most failed trials that are listed.
        max_column_length: characters of a cell.
        max_report_frequency: seconds from one report to the next.
        infer_limit: how many numbers that the trials report are added when `metric_columns` is None.
        print_intermediate_tables: show the table before the end too; None means yes.
        metric: for the best trial; None takes the experiment's.
        mode: for the best trial; None takes the experiment's.
        sort_by_metric: show the best trials first.
        time_col: for scripts that give it.
        x_max: for scripts that give it.

    Raises:
        InvalidInputError: an argument has a value that it cannot have.
    """

    DEFAULT_COLUMNS = DEFAULT_COLUMNS

    def __init__(
        self,
        metric_columns: Names | None = None,
        *,
        parameter_columns: Names | None = None,
        total_samples: int | None = None,
        max_progress_rows: int = 20,
        max_error_rows: int = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: bool | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sort_by_metric: bool = False,
        time_col: str | None = None,
        x_max: float | None = None,
    ) -> None:
        where = type(self).__name__
        for name, number in (
            ("max_progress_rows", max_progress_rows),
            ("max_error_rows", max_error_rows),
            ("max_column_length", max_column_length),
            ("max_report_frequency", max_report_frequency),
            ("infer_limit", infer_limit),
        ):
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0:
                raise InvalidInputError(f"{where}({name}={number!r}): must be a number that is not negative")
        if mode not in (None, "max", "min") and not under_ray():
            raise InvalidInputError(f"{where}(mode={mode!r}): mode must be 'max' or 'min'")
        if sort_by_metric and metric is not None and mode is None:
            raise InvalidInputError(f"{where}(sort_by_metric=True, metric={metric!r}): pass mode='max' or 'min' too")
        self.metric_columns = _titles(where, "metric_columns", metric_columns)
        self._listed = isinstance(metric_columns, (list, tuple))
        self.parameter_columns = _titles(where, "parameter_columns", parameter_columns)
        self.total_samples = total_samples
        self.max_progress_rows = min(max_progress_rows, sys.maxsize)  # infinity is all of them
        self.max_error_rows = min(max_error_rows, sys.maxsize)
        self.max_column_length = min(max_column_length, sys.maxsize)
        self.max_report_frequency = max_report_frequency
        self.infer_limit = min(infer_limit, sys.maxsize)
        self.print_intermediate_tables = print_intermediate_tables
        self.metric = metric
        self.mode = mode
        self.sort_by_metric = sort_by_metric
        self._start_time = time.time()
        self._last_report: float | None = None
        self._finished: dict[str, float | None] = {}

    def setup(  # noqa: D102
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._start_time = start_time if start_time is not None else time.time()
        self.total_samples = self.total_samples or total_samples
        self.metric = self.metric or metric
        self.mode = self.mode or mode

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:
        """Take the experiment's metric and mode.

        Raises:
            InvalidInputError: the reporter has its own.
        """
        where = type(self).__name__
        for what, own, given in (("metric", self.metric, metric), ("mode", self.mode, mode)):
            if own and given:
                raise InvalidInputError(f"{where}({what}={own!r}) and TuneConfig({what}={given!r}): give one of them")
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        return True

    def set_total_samples(self, total_samples: int) -> None:
        """Take the number of trials that there will be."""
        self.total_samples = total_samples

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Add a column for a metric, with `representation` as its title.

        Raises:
            InvalidInputError: there is one.
        """
        if self.metric_columns is None:
            self.metric_columns = dict(DEFAULT_COLUMNS)
        if under_ray() and self._listed and representation not in (None, metric):
            raise InvalidInputError(
                f"{type(self).__name__}.add_metric_column({metric!r}, {representation!r}): the columns were given as "
                "a list, which has no titles; give a dict"
            )
        _add(self.metric_columns, f"{type(self).__name__}.add_metric_column", metric, representation)

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Add a column for a parameter, with `representation` as its title.

        Raises:
            InvalidInputError: there is one.
        """
        if self.parameter_columns is None:
            self.parameter_columns = {}
        _add(self.parameter_columns, f"{type(self).__name__}.add_parameter_column", parameter, representation)

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Return True at the end, and when `max_report_frequency` seconds have passed since the last True."""
        now = time.monotonic()
        if not done and self._last_report is not None and now - self._last_report < self.max_report_frequency:
            return False
        self._last_report = now
        return True

    def _lines(self, trials: list[Trial], done: bool, sys_info: Sequence[str]) -> list[str]:
        from trialpod.tune.progress_table import best_of, counts_line

        now = time.time()
        date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        lines = [
            f"Current time: {date} (running for {_clock(now - self._start_time)})",
            *(line for line in sys_info if line),
            counts_line(trials, self.total_samples),
        ]
        best = best_of(trials, self.metric, self.mode, self._finished)
        if best is not None:
            trial, value = best
            lines.append(f"Current best trial: {trial} with {self.metric}={value:.6g} and config={trial.config}")
        return lines

    def _tables(self, trials: list[Trial], done: bool) -> list[list[list[str]]]:
        from trialpod.tune.progress_table import chosen, columns_of, error_rows, rows_of

        tables = []
        if trials and (done or self.print_intermediate_tables is not False):
            shown = chosen(
                trials,
                None if done else int(self.max_progress_rows),
                metric=self.metric,
                mode=self.mode,
                by_metric=self.sort_by_metric,
            )
            inferred = self.metric_columns is None
            metrics = DEFAULT_COLUMNS if self.metric_columns is None else self.metric_columns
            columns = columns_of(shown, metrics, self.parameter_columns, int(self.infer_limit) if inferred else 0)
            tables.append(rows_of(shown, *columns, int(self.max_column_length)))
        failed = error_rows(trials, int(self.max_error_rows))
        return [*tables, failed] if len(failed) > 1 else tables

    def _progress_str(
        self, trials: list[Trial], done: bool, *sys_info: str, fmt: str = "psql", delim: str = "\n"
    ) -> str:
        from trialpod.tune.progress_table import as_html, as_text

        draw = as_html if fmt == "html" else as_text
        hidden = len(trials) - int(self.max_progress_rows)
        more = [f"... {hidden} more trials not shown"] if hidden > 0 and not done else []
        return delim.join(
            [*self._lines(trials, done, sys_info), *(draw(table) for table in self._tables(trials, done)), *more]
        )


class CLIReporter(TuneReporterBase):
    """Prints to standard output. The arguments are those of `TuneReporterBase`."""

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        """Print how things stand."""
        _print(self._progress_str(trials, done, *sys_info))


class JupyterNotebookReporter(TuneReporterBase):
    """Shows a table in a notebook's cell; elsewhere it prints as `CLIReporter` does.

    Args:
        overwrite: replace the last report instead of adding to it.
        metric_columns: as of `TuneReporterBase`.
        arguments: the others of `TuneReporterBase`.
    """

    def __init__(self, overwrite: bool = True, metric_columns: Names | None = None, **arguments: Any) -> None:
        super().__init__(metric_columns, **arguments)
        self.overwrite = overwrite

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        """Show how things stand."""
        try:
            notebook: Any = import_module("IPython").get_ipython()
        except ModuleNotFoundError:
            notebook = None
        if notebook is None:
            _print(self._progress_str(trials, done, *sys_info))
            return
        screen: Any = import_module("IPython.display")
        if self.overwrite:
            screen.clear_output(wait=True)
        screen.display(screen.HTML(self._progress_str(trials, done, *sys_info, fmt="html", delim="<br>")))


def check_reporter(where: str, reporter: object) -> None:
    """Raise InvalidInputError unless it is a progress reporter or None."""
    if reporter is None or isinstance(reporter, ProgressReporter):
        return
    hint = f"; pass an object: {reporter.__name__}()" if isinstance(reporter, type) else ""
    raise InvalidInputError(
        f"{where}(progress_reporter={reporter!r}): must be a tune.ProgressReporter, such as tune.CLIReporter(){hint}"
    )


def _titles(where: str, argument: str, names: Names | None) -> dict[str, str] | None:
    if names is None:
        return None
    if isinstance(names, Mapping):
        return dict(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(
            f"{where}({argument}={names!r}): must be a list of names, or a dict of names to titles"
        )
    return {name: name for name in names}


def _add(columns: dict[str, str], where: str, name: str, title: str | None) -> None:
    if name in columns:
        raise InvalidInputError(f"{where}({name!r}): there is such a column already")
    columns[name] = title or name


def _print(text: str) -> None:
    sys.stdout.write(f"== Status ==\n{text}\n\n")
    sys.stdout.flush()


def _clock(seconds: float) -> str:
    total = int(seconds)
    return f"{total // 3600:02d}:{total % 3600 // 60:02d}:{total % 60:02d}"
