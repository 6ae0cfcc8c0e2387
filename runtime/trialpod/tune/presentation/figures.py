"""Figures of an experiment's results, made by matplotlib: ``results.plot.curves()``.

Each method returns a new ``matplotlib.figure.Figure``, which a notebook shows and `savefig` writes. None of them
touches pyplot, so no window opens and no state of a script's own figures changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod.tune.presentation.importance import MIN_TRIALS, importance
from trialpod.tune.results import flattened, latest_numbers, lookup, metrics_of, number, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome

BEST = 8
"""Number of trials that `curves` draws in colour."""


class Plots:
    """The figures of one experiment.

    Args:
        outcome: what a backend returned.
    """

    def __init__(self, outcome: ExperimentOutcome) -> None:
        self._outcome = outcome

    def curves(self, metric: str | None = None) -> Figure:
        """Return the metric of every trial over the training iteration; the best `BEST` in colour, the others grey.

        Args:
            metric: None takes the experiment's.

        Raises:
            InvalidInputError: there is no such metric, or matplotlib is not installed.
        """
        metric, ranked = self._ranked("curves", metric)
        figure, axes = _figure(1)
        best = {trial.name for trial, _ in ranked[:BEST]}
        for trial in self._outcome.trials:
            points = [(row.get("training_iteration"), number(lookup(row, metric))) for row in read_rows(trial.path)]
            usable = [(x, y) for x, y in points if isinstance(x, (int, float)) and y is not None]
            if not usable:
                continue
            style: dict[str, Any] = {"color": "0.8", "zorder": 1}
            if trial.name in best:
                style = {"linewidth": 1.8, "label": trial.name}
            axes[0].plot(*zip(*usable, strict=True), **style)
        axes[0].set(
            xlabel="training iteration", ylabel=metric, title=f"{metric} of {len(self._outcome.trials)} trials"
        )
        if best:
            axes[0].legend(fontsize="x-small")
        return figure

    def slices(self, metric: str | None = None) -> Figure:
        """Return the metric over each parameter that differs between trials, one small chart each.

        Args:
            metric: None takes the experiment's.

        Raises:
            InvalidInputError: there is no such metric, no parameter differs, or matplotlib is not installed.
        """
        metric, ranked = self._ranked("slices", metric)
        names = self._parameters("slices", [trial for trial, _ in ranked])
        figure, axes = _figure(len(names))
        for name, axis in zip(names, axes, strict=True):
            pairs = [(flattened(trial.config)[name], y) for trial, y in ranked if name in flattened(trial.config)]
            xs, ys = [x if _is_number(x) else str(x) for x, _ in pairs], [y for _, y in pairs]
            axis.scatter(xs, ys, s=14, alpha=0.7)
            if _is_logarithmic(xs):
                axis.set_xscale("log")
            axis.set(xlabel=name, ylabel=metric)
        return figure

    def parallel(self, metric: str | None = None) -> Figure:
        """Return parallel coordinates: an axis for each parameter and the metric, "none" where a trial has no value.

        Args:
            metric: None takes the experiment's.

        Raises:
            InvalidInputError: there is no such metric, no parameter differs, or matplotlib is not installed.
        """
        metric, ranked = self._ranked("parallel", metric)
        names = self._parameters("parallel", [trial for trial, _ in ranked])
        columns = [[flattened(trial.config).get(name) for trial, _ in ranked] for name in names]
        columns.append([value for _, value in ranked])
        figure, (axis,) = _figure(1, width=max(6.4, 1.6 * len(columns)))
        from matplotlib import colormaps

        heights = [_heights(column) for column in columns]
        for row in reversed(range(len(ranked))):
            share = heights[-1][0][row]
            axis.plot(
                [height[0][row] for height in heights], color=colormaps["viridis"](share), alpha=0.6, linewidth=1
            )
        for x, (_, ticks) in enumerate(heights):
            axis.axvline(x, color="0.3", linewidth=0.8)
            for y, words in ticks:
                axis.annotate(
                    words, (x, y), xytext=(4, 0), textcoords="offset points", fontsize="x-small", va="center"
                )
        axis.set_xticks(range(len(columns)), [*names, metric])
        axis.set_yticks([])
        return figure

    def importance(self, metric: str | None = None) -> Figure:
        """Return how much each parameter matters for the metric, as bars: PED-ANOVA of the package optuna.

        Args:
            metric: None takes the experiment's.

        Raises:
            InvalidInputError: there is no such metric, too few trials have a value, or optuna or matplotlib is not
                installed.
        """
        metric, ranked = self._ranked("importance", metric)
        names = self._parameters("importance", [trial for trial, _ in ranked])
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise InvalidInputError(
                "results.plot.importance() needs optuna: pip install 'trialpod[optuna]'"
            ) from error
        shared = [name for name in names if all(name in flattened(trial.config) for trial, _ in ranked)]
        if len(ranked) < MIN_TRIALS or not shared:
            raise InvalidInputError(
                f"results.plot.importance(): {len(ranked)} trials have a value of {metric!r} and share "
                f"{len(shared)} parameters that differ; it needs {MIN_TRIALS} trials and a parameter"
            )
        configs = [flattened(trial.config) for trial, _ in ranked]
        spaces = {name: _distribution(optuna, [config[name] for config in configs]) for name in shared}
        params = [
            {name: config[name] if _is_number(config[name]) else str(config[name]) for name in shared}
            for config in configs
        ]
        found = importance(params, [value for _, value in ranked], spaces, self._outcome.mode or "max")
        figure, (axis,) = _figure(1)
        listed = found.shares[::-1]
        errors = [
            (share.value - share.low, share.high - share.value)
            if share.low is not None and share.high is not None
            else (0.0, 0.0)
            for share in listed
        ]
        axis.barh(
            [share.name for share in listed],
            [share.value for share in listed],
            xerr=[list(side) for side in zip(*errors, strict=True)] if any(map(any, errors)) else None,
            ecolor="0.35",
            capsize=3,
        )
        axis.set(xlabel=f"importance for {metric} (PED-ANOVA)", title=found.remark)
        axis.title.set_fontsize("small")
        return figure

    def _ranked(self, method: str, metric: str | None) -> tuple[str, list[tuple[TrialOutcome, float]]]:
        """Return the metric, and the trials whose last value of it is finite, the best first."""
        metric = metric or self._outcome.metric
        if not metric:
            raise InvalidInputError(f"results.plot.{method}(): the experiment has no metric; pass metric=...")
        trials = list(self._outcome.trials)
        values = latest_numbers(trials, metric)
        reported = metrics_of(trials)
        if metric not in reported and all(value is None for value in values):
            raise InvalidInputError(
                f"results.plot.{method}(): no trial reported {metric!r}; reported: {', '.join(reported) or 'nothing'}"
            )
        pairs = zip(trials, values, strict=True)
        usable = [(trial, value) for trial, value in pairs if value is not None and math.isfinite(value)]
        sign = 1 if self._outcome.mode == "min" else -1
        return metric, sorted(usable, key=lambda each: sign * each[1])

    def _parameters(self, method: str, trials: Sequence[TrialOutcome]) -> list[str]:
        configs = [flattened(trial.config) for trial in trials]
        names = dict.fromkeys(name for config in configs for name in config)
        found = [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]
        if not found:
            raise InvalidInputError(f"results.plot.{method}(): no parameter differs between the trials")
        return found


def _figure(charts: int, width: float = 6.4) -> tuple[Figure, list[Axes]]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InvalidInputError("results.plot needs matplotlib: pip install 'trialpod[plots]'") from error
    columns = min(3, charts)
    rows = math.ceil(charts / columns)
    size = (width, 4.0) if charts == 1 else (3.4 * columns, 2.8 * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(charts)]
    return figure, axes


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_logarithmic(values: Sequence[Any]) -> bool:
    """Return whether numbers span so much that only a logarithmic axis shows them."""
    return all(_is_number(value) and value > 0 for value in values) and max(values) / min(values) >= 1000


def _heights(column: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return where the values of a column lie between 0 and 1, below 0 without one, and the ticks of its axis."""
    none = -0.08
    ticks = [(none, "none")] if None in column else []
    known = [value for value in column if value is not None]
    if all(_is_number(value) for value in known):
        low, high = min(known), max(known)
        log = _is_logarithmic(known)
        scale = math.log if log else float
        span = (scale(high) - scale(low)) or 1.0
        heights = [none if value is None else (scale(value) - scale(low)) / span for value in column]
        return heights, [(0.0, f"{low:.3g}"), (1.0, f"{high:.3g}"), *ticks]
    names = sorted({str(value) for value in known})
    places = {name: index / max(1, len(names) - 1) for index, name in enumerate(names)}
    return [none if value is None else places[str(value)] for value in column], [
        *((place, name) for name, place in places.items()),
        *ticks,
    ]


def _distribution(optuna: Any, values: Sequence[Any]) -> Any:
    """Return the space that values lie in, as Optuna knows it."""
    if not all(_is_number(value) for value in values):
        return optuna.distributions.CategoricalDistribution(sorted({str(value) for value in values}))
    low, high = min(values), max(values)
    if all(isinstance(value, int) for value in values):
        return optuna.distributions.IntDistribution(low, high)
    return optuna.distributions.FloatDistribution(low, high, log=_is_logarithmic(values))
