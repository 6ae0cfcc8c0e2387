"""Gaussian processes as the package bayesian-optimization has them.

Source: Snoek, Larochelle, Adams, "Practical Bayesian Optimization of Machine Learning Algorithms", NeurIPS 2012. A
trial that still runs is taken to reach the mean of the results so far (a "constant liar": Ginsbourger, Le Riche,
Carraro 2010), which keeps parallel suggestions apart. Whole numbers and choices are searched as continuous numbers
(a choice as one for each option, of which the largest is taken), because the package is slow otherwise. A stopped
trial counts with its last value; one that failed like the worst.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.library import require, seeded
from trialpod.tune.search.refit_searcher import RefitSearcher
from trialpod.tune.search.spaces.flat_space import Dimension, Values
from trialpod.tune.search.spaces.native_spaces import converted

_RANDOM, _STARTS = 2000, 3
"""Points at which the acquisition is evaluated, and from which it is climbed: a tenth of the package's own effort,
which takes seconds for a suggestion."""

_ACQUISITIONS = {"ucb": "kappa", "ei": "xi", "poi": "xi"}
_DEFAULTS = {"kappa": 2.576, "xi": 0.01}
_CLASSES = {"ucb": "UpperConfidenceBound", "ei": "ExpectedImprovement", "poi": "ProbabilityOfImprovement"}


@algorithm("bayesopt")
class BayesOptSearch(RefitSearcher):
    """Searches with a Gaussian process.

    Args:
        space: the search space, when the experiment has none; also bounds, ``{"x": (0, 20)}``.
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first.
        utility_kwargs: ``{"kind": "ucb", "kappa": 2.576}``, or kind "ei" or "poi" with "xi".
        random_state: None takes the experiment's seed.
        random_search_steps: results of random points before the model begins.
        verbose: accepted for compatibility, unused.
        patience: suggestions in a row that repeat an earlier point before the search is over.
        skip_duplicate: never suggest a point twice.
        analysis: an `ExperimentAnalysis` to learn from, as by `add_evaluated_trials`.
        repeat_float_precision: accepted for compatibility, unused: a repeated point is an equal one.
        evaluated_rewards: the metric of each of `points_to_evaluate`, when it is known.
        warm_start: the directory or URI of an earlier experiment to learn from.
        max_concurrent: how many trials may be unfinished at a time.

    Raises:
        InvalidInputError: an argument cannot be used, or the package is not installed.
    """

    ABOUT = ("`pip install 'trialpod[bayesopt]'`", "few, expensive trials over real numbers")

    LIBRARY: ClassVar = (("bayes_opt", "bayesian-optimization>=3"),)

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> Any:
        """Return a search space in the terms of the library."""
        return converted("BayesOptSearch", spec)

    def __init__(
        self,
        space: dict[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        utility_kwargs: dict[str, Any] | None = None,
        random_state: int | None = None,
        random_search_steps: int = 10,
        verbose: int = 0,
        patience: int = 5,
        skip_duplicate: bool = True,
        analysis: Any = None,
        repeat_float_precision: int = 5,
        *,
        evaluated_rewards: list[Any] | None = None,
        warm_start: str | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        super().__init__(
            space, metric, mode, points_to_evaluate, evaluated_rewards, random_state, warm_start, max_concurrent
        )
        if require("bayes_opt", "bayesian-optimization>=3", "BayesOptSearch").__version__.startswith(
            ("0.", "1.", "2.")
        ):
            raise InvalidInputError("BayesOptSearch needs a newer release: pip install 'bayesian-optimization>=3'")
        for name, value in (("random_search_steps", random_search_steps), ("patience", patience)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInputError(f"BayesOptSearch: {name} must be 1 or more, got {value!r}", parameter=name)
        self.initial = random_search_steps
        self.patience = patience if skip_duplicate else None
        self._utility = _checked_utility(utility_kwargs)
        if analysis is not None:
            self.add_evaluated_trials(analysis, metric or getattr(analysis, "default_metric", None))

    def _propose(self, points: list[Values], losses: list[float], pending: list[Values], seed: int) -> Values:
        bayes_opt = require("bayes_opt", "bayesian-optimization>=3", "BayesOptSearch")
        kind, amount = self._utility
        acquisition = getattr(bayes_opt.acquisition, _CLASSES[kind])(**{_ACQUISITIONS[kind]: amount})
        acquisition.suggest = functools.partial(acquisition.suggest, n_random=_RANDOM, n_smart=_STARTS)
        with seeded(seed):
            optimizer = bayes_opt.BayesianOptimization(
                f=None,
                pbounds=dict(bound for d in self.flat.dimensions for bound in _bounds(d)),
                acquisition_function=acquisition,
                random_state=seed,
                verbose=0,
                allow_duplicate_points=True,
            )
            optimizer.set_gp_params(n_restarts_optimizer=1)
            lie = sum(losses) / len(losses)
            observed = [*zip(points, losses, strict=True), *((values, lie) for values in pending)]
            for values, loss in observed:
                inward = dict(pair for d in self.flat.dimensions for pair in _inward(d, values[d.name]))
                optimizer.register(inward, -loss)
            found = optimizer.suggest()
        return {d.name: _outward(d, found) for d in self.flat.dimensions}


def _bounds(d: Dimension) -> list[tuple[str, tuple[float, float]]]:
    """Return a dimension as continuous ones between 0 and 1."""
    return [(name, (0.0, 1.0)) for name, _ in _inward(d, d.middle)]


def _inward(d: Dimension, value: Any) -> list[tuple[str, float]]:
    if d.kind == "choice":
        return [(f"{d.name}={position}", float(position == value)) for position in range(len(d.options))]
    low, high, at = (math.log(d.low), math.log(d.high), math.log(value)) if d.log else (d.low, d.high, value)
    return [(d.name, (at - low) / (high - low))]


def _outward(d: Dimension, found: dict[str, Any]) -> Any:
    if d.kind == "choice":
        return max(range(len(d.options)), key=lambda position: found[f"{d.name}={position}"])
    share = float(found[d.name])
    if d.log:
        return math.exp(math.log(d.low) + share * (math.log(d.high) - math.log(d.low)))
    return d.low + share * (d.high - d.low)


def _checked_utility(given: dict[str, Any] | None) -> tuple[str, float]:
    options = dict(given or {})
    kind = options.pop("kind", "ucb")
    if kind not in _ACQUISITIONS:
        guess = nearest(str(kind), _ACQUISITIONS)
        hint = f" Did you mean {guess!r}?" if guess else ""
        raise InvalidInputError(
            f"BayesOptSearch: utility_kwargs: kind {kind!r} is unknown.{hint} Known are {', '.join(_ACQUISITIONS)}",
            parameter="utility_kwargs",
        )
    name = _ACQUISITIONS[kind]
    amount = options.pop(name, _DEFAULTS[name])
    unknown = [key for key in options if key not in _DEFAULTS]
    if unknown:
        raise InvalidInputError(
            f"BayesOptSearch: utility_kwargs has no {unknown[0]!r}; {kind} takes {name}", parameter="utility_kwargs"
        )
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or amount < 0:
        raise InvalidInputError(
            f"BayesOptSearch: utility_kwargs: {name} must be 0 or more, got {amount!r}", parameter="utility_kwargs"
        )
    return kind, float(amount)
