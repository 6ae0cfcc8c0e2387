"""BOHB's model: kernel densities of good and bad configs, at the largest budget that has enough results.

Source: Falkner, Klein, Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018. The
budget of a result is its training iteration; results count where a scheduler stopped or paused a trial, and at its
end, so this goes with HyperBand.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.library import require, seeded
from trialpod.tune.search.library_searcher import Ending, LibrarySearcher
from trialpod.tune.search.spaces.flat_space import Dimension, Values
from trialpod.tune.search.spaces.native_spaces import converted

_PACKAGE = ("hpbandster.optimizers.config_generators.bohb", "hpbandster>=0.7.4", "TuneBOHB")
_SPACES = ("ConfigSpace", "ConfigSpace>=1.2", "TuneBOHB")
_OPTIONS = (
    "min_points_in_model",
    "top_n_percent",
    "num_samples",
    "random_fraction",
    "bandwidth_factor",
    "min_bandwidth",
)
_MOST_SAMPLES = 100_000
"""The model draws and compares so many for a suggestion, 64 by default; other experiments wait meanwhile."""


@algorithm("bohb")
class TuneBOHB(LibrarySearcher):
    """Searches with the model of BOHB; use it with the scheduler HyperBandForBOHB.

    Args:
        space: the search space, when the experiment has none; also a ConfigurationSpace of ConfigSpace.
        bohb_config: arguments of the model: min_points_in_model, top_n_percent, num_samples, random_fraction,
            bandwidth_factor, min_bandwidth.
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first.
        seed: None takes the experiment's.
        max_concurrent: trials at a time; 0 means unlimited.
        evaluated_rewards: the metric of each of `points_to_evaluate`, when it is known.
        warm_start: the directory or URI of an earlier experiment to learn from.

    Raises:
        InvalidInputError: an argument cannot be used, or hpbandster or ConfigSpace is not installed.
    """

    ABOUT = ("`pip install 'trialpod[bohb]'`", "together with HyperBand")

    LIBRARY: ClassVar = (_SPACES[:2], _PACKAGE[:2])
    _OBJECTS: ClassVar = ("_model", "_live", "_learned")

    COUNTS_PAUSED: ClassVar = False  # a bracket fills with trials that wait at its first rung
    _learned: set[tuple[int, int]]  # numbers and steps that the model has

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> Any:
        """Return a search space in the terms of the library."""
        return converted("TuneBOHB", spec)

    def __init__(
        self,
        space: Any = None,
        bohb_config: dict[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        max_concurrent: int = 0,
        *,
        evaluated_rewards: list[Any] | None = None,
        warm_start: str | None = None,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards, seed, warm_start, max_concurrent)
        for name in bohb_config or {}:
            if name not in _OPTIONS:
                guess = nearest(name, _OPTIONS)
                hint = f" Did you mean {guess!r}?" if guess else ""
                raise InvalidInputError(
                    f"TuneBOHB: bohb_config has no {name!r}.{hint} It takes {', '.join(_OPTIONS)}",
                    parameter="bohb_config",
                )
        samples = (bohb_config or {}).get("num_samples")
        if isinstance(samples, (int, float)) and samples > _MOST_SAMPLES:
            raise InvalidInputError(
                f"TuneBOHB: num_samples of bohb_config must be at most {_MOST_SAMPLES}, got {samples!r}",
                parameter="bohb_config",
            )
        self._options = dict(bohb_config or {})

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Keep at most so many trials unfinished, beside the paused ones."""
        self._max_concurrent = max_concurrent
        return True

    def _open(self) -> None:
        self._learned = set()
        spaces, module = require(*_SPACES), require(*_PACKAGE)
        quiet = logging.getLogger("trialpod.bohb")
        quiet.setLevel(logging.CRITICAL)
        with seeded(self._seed_of("start")):
            space = spaces.ConfigurationSpace(seed=self._seed_of("start"))
            for d in self.flat.dimensions:
                space.add(_hyperparameter(spaces, d))
            try:
                self._model = module.BOHB(space, logger=quiet, **self._options)
            except (TypeError, ValueError) as error:
                raise InvalidInputError(
                    f"TuneBOHB: bohb_config {self._options!r} cannot be used: {error}", parameter="bohb_config"
                ) from error

    def _ask(self, number: int, seed: int) -> Values | None:
        with seeded(seed):
            self._model.configspace.seed(seed)
            found, _ = self._model.get_config(None)
        return self.flat.canonical({d.name: found[d.name] for d in self.flat.dimensions})

    def _take(self, number: int, values: Values) -> None:
        """Nothing: the model learns from results only."""

    def _tell(self, number: int, values: Values, ending: Ending) -> None:
        self._learn(number, values, self._loss(ending), ending.step)

    def _park(self, number: int, scores: tuple[float, ...] | None, step: int) -> None:
        if scores is not None:
            self._learn(number, self._values[number], self._loss(Ending("stopped", scores)), step)

    def _learn(self, number: int, values: Values, loss: float | None, step: int) -> None:
        if loss is None or (number, step) in self._learned:
            return  # it was paused at that step, and then given up
        self._learned.add((number, step))
        job = SimpleNamespace(
            id=(number, 0, 0),
            kwargs={"budget": float(step), "config": self.flat.complete(values), "config_info": {}},
            result={"loss": loss},
            exception=None,
            timestamps={},
        )
        with seeded(self._seed_of(f"tell/{number}/{step}")):
            self._model.new_result(job)


def _hyperparameter(spaces: Any, d: Dimension) -> Any:
    if d.kind == "choice":
        return spaces.CategoricalHyperparameter(d.name, choices=list(range(len(d.options))))
    made = spaces.UniformIntegerHyperparameter if d.kind == "whole" else spaces.UniformFloatHyperparameter
    return made(d.name, lower=d.low, upper=d.high, log=d.log)
