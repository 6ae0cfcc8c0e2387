"""PB2: Population Based Training whose exploration is chosen by a Gaussian process instead of at random.

Source: Parker-Holder et al., "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits"
(2020). The model, in `pb2_gaussian_process`, learns from all trials how much they improved from one perturbation time
to the next, and picks what is expected to improve most.

Invariants:

* Those of `PopulationBasedTraining`; every chosen value lies within its bounds.
* A whole number in the trial's config stays one.
* Until the source trial has improved over one interval there is nothing to learn from: values are then drawn evenly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.schedulers.metric_scheduler import decoded, encoded, is_number
from trialpod.tune.schedulers.pb2_gaussian_process import next_point, require_numpy
from trialpod.tune.schedulers.pbt import PopulationBasedTraining
from trialpod.tune.schedulers.trial_scheduler import TrialView
from trialpod.tune.search.sample import uniform
from trialpod.tune.utils.dicts import unflatten_dict

MAX_ROWS = 1000
"""Observations that are kept; the model uses the latest of them."""

Row = tuple[str, float, list[float], float]  # trial_id, time, coordinates, score


@algorithm("pb2")
class PB2(PopulationBasedTraining):
    """Lets poor trials copy good ones and chooses their parameters by what helped so far."""

    ABOUT = ("as with `pbt`", "a small population")

    NAME = "pb2"

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: dict[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        """Make a scheduler.

        Args:
            time_attr: the result key that measures progress; it must grow.
            metric: the result key to compare; None takes the experiment's.
            mode: "min" or "max"; None takes the experiment's.
            perturbation_interval: how often a trial is ranked, in units of `time_attr`; greater than 0.
            hyperparam_bounds: for each parameter its lowest and highest value, ``{"lr": [1e-4, 1e-1]}``; a dict for a
                nested config.
            quantile_fraction: the share of trials that copy, and that are copied; from 0 to 0.5.
            log_config: whether `policy_log` keeps the history of exploits.
            require_attrs: whether a result without metric or time is an error.
            synch: whether all trials wait for each other before they are ranked.
            custom_explore_fn: changes the config further, after the model (Python only).
            seed: for the choice of sources and all exploration.

        Raises:
            InvalidInputError: a value cannot be used, or NumPy is not installed.
        """
        require_numpy()
        self._bounds = _flat_bounds(hyperparam_bounds)
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            hyperparam_mutations=unflatten_dict({key: uniform(*bound) for key, bound in self._bounds.items()}),
            quantile_fraction=quantile_fraction,
            resample_probability=0,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
            seed=seed,
            compatible=False,  # nothing that it draws leaves its bounds
        )
        self._rows: list[Row] = []
        self._batch: list[list[float]] = []  # chosen for the latest time
        self._batch_time = 0.0

    def get_state(self) -> dict[str, Any]:
        """Return the population, the history and the observations."""
        state = super().get_state()
        rows = [[trial_id, time, point, encoded(score)] for trial_id, time, point, score in self._rows]
        return {**state, "rows": rows, "batch": self._batch, "batch_time": self._batch_time}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the population, the history and the observations."""
        super().set_state(state)
        self._rows = [(trial_id, time, point, decoded(score)) for trial_id, time, point, score in state["rows"]]
        self._batch, self._batch_time = [list(point) for point in state["batch"]], state["batch_time"]

    def _take_in(self, trial: TrialView, time: float, score: float) -> None:
        point = [_value_at(trial.config, key) for key in self._bounds]
        if all(is_number(value) for value in point):
            self._rows.append((trial.trial_id, time, [float(value) for value in point], score))
            del self._rows[:-MAX_ROWS]

    def _new_config(
        self, trial: TrialView, source: TrialView, rng: random.Random
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        latest = max((time for _, time, _, _ in self._rows), default=0.0)
        if latest > self._batch_time:
            self._batch, self._batch_time = [], latest
        rows, targets, fixed = self._improvements(source.trial_id)
        bounds = list(self._bounds.values())
        if fixed is None:
            chosen, how = [rng.uniform(*bound) for bound in bounds], "drawn"
        else:
            chosen, how = next_point(rows, targets, fixed, bounds, self._batch, rng), "chosen by the model"
        self._batch.append(chosen)
        config: Any = source.config
        operations: dict[str, Any] = {}
        for key, value, (low, high) in zip(self._bounds, chosen, bounds, strict=True):
            old = _value_at(config, key)
            whole = isinstance(old, int) and not isinstance(old, bool)
            new = _whole_within(value, low, high) if whole else value
            config = _with_value(config, key.split("/"), new)
            operations[key] = how
        # From here on the trial has the source's score and the new parameters.
        last = next((row for row in reversed(self._rows) if row[0] == source.trial_id), None)
        if last is not None:
            self._rows.append(
                (trial.trial_id, last[1], [float(_value_at(config, key)) for key in self._bounds], last[3])
            )
        return config, operations

    def _improvements(
        self, source_id: str
    ) -> tuple[list[tuple[float, float, list[float]]], list[float], tuple[float, float] | None]:
        """Return what was observed from one perturbation time to the next, by time."""
        previous: dict[tuple[str, tuple[float, ...]], tuple[float, float]] = {}
        found: list[tuple[float, float, list[float], float]] = []
        fixed: tuple[float, float] | None = None
        for trial_id, time, point, score in self._rows:
            key = (trial_id, tuple(point))
            before = previous.get(key)
            previous[key] = (time, score)
            if before is None or not time > before[0] or not abs(score) + abs(before[1]) < math.inf:
                continue
            found.append((time, before[1], point, (score - before[1]) / (time - before[0])))
            if trial_id == source_id:
                fixed = (time, score)
        found.sort(key=lambda row: row[0])
        return [row[:3] for row in found], [row[3] for row in found], fixed


def _flat_bounds(given: Any, prefix: str = "") -> dict[str, tuple[float, float]]:
    """Return the bounds by path, "a/b" for nested ones."""
    where = f"hyperparam_bounds[{prefix.rstrip('/')!r}]" if prefix else "hyperparam_bounds"
    if not isinstance(given, Mapping) or not given:
        raise InvalidInputError(
            f"{where} must give bounds for at least one parameter, such as {{'lr': [1e-4, 1e-1]}}",
            parameter="hyperparam_bounds",
        )
    flat: dict[str, tuple[float, float]] = {}
    for key, bound in given.items():
        if not isinstance(key, str) or not key:
            raise InvalidInputError(
                f"{where}: names of parameters are strings, got {key!r}", parameter="hyperparam_bounds"
            )
        if isinstance(bound, Mapping):
            flat.update(_flat_bounds(bound, f"{prefix}{key}/"))
            continue
        pair = bound if isinstance(bound, (list, tuple)) and len(bound) == 2 else (None, None)
        low, high = pair
        if not is_number(low) or not is_number(high) or not -math.inf < low < high < math.inf:
            raise InvalidInputError(
                f"hyperparam_bounds[{prefix + key!r}] must be the lowest and the highest value, such as [1e-4, 0.1], "
                f"got {bound!r}",
                parameter="hyperparam_bounds",
            )
        flat[prefix + key] = (float(low), float(high))
    return flat


def _value_at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _with_value(config: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    if not rest:
        return {**config, first: value}
    inner = config.get(first)
    return {**config, first: _with_value(inner if isinstance(inner, Mapping) else {}, rest, value)}


def _whole_within(value: float, low: float, high: float) -> int:
    return min(max(round(value), math.ceil(low)), math.floor(high))
