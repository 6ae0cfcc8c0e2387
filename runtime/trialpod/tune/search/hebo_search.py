"""HEBO: Gaussian processes with warped inputs and outputs, and several acquisition functions at once.

Source: Cowen-Rivers et al., "HEBO: Pushing The Limits of Sample-Efficient Hyperparameter Optimisation", JAIR 2022. A
stopped trial counts with its last value; one that failed like the worst.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.library import require, seeded
from trialpod.tune.search.refit_searcher import RefitSearcher
from trialpod.tune.search.spaces.flat_space import Dimension, Values
from trialpod.tune.search.spaces.native_spaces import converted

_PACKAGE = ("hebo.optimizers.hebo", "HEBO>=0.3.6", "HEBOSearch")


@algorithm("hebo")
class HEBOSearch(RefitSearcher):
    """Searches with HEBO.

    Args:
        space: the search space, when the experiment has none; also a DesignSpace of HEBO.
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first.
        evaluated_rewards: the metric of each of these, when it is known.
        random_state_seed: None takes the experiment's seed.
        max_concurrent: trials at a time; 0 means unlimited.
        initial: results of random points before the model begins; 4 or more.
        warm_start: the directory or URI of an earlier experiment to learn from.

    Raises:
        InvalidInputError: an argument cannot be used, or HEBO is not installed.
    """

    ABOUT = ("`pip install HEBO` (does not build on every machine)", "few, expensive trials")

    LIBRARY: ClassVar = (_PACKAGE[:2],)

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> Any:
        """Return a search space in the terms of the library."""
        return converted("HEBOSearch", spec)

    def __init__(
        self,
        space: Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        evaluated_rewards: list[Any] | None = None,
        random_state_seed: int | None = None,
        max_concurrent: int = 8,
        *,
        initial: int = 8,
        warm_start: str | None = None,
    ) -> None:
        super().__init__(
            space, metric, mode, points_to_evaluate, evaluated_rewards, random_state_seed, warm_start, max_concurrent
        )
        if isinstance(initial, bool) or not isinstance(initial, int) or initial < 4:
            raise InvalidInputError(f"HEBOSearch: initial must be 4 or more, got {initial!r}", parameter="initial")
        self.initial = initial

    def _propose(self, points: list[Values], losses: list[float], pending: list[Values], seed: int) -> Values:
        import numpy as np

        pandas: Any = require("pandas", "pandas", "HEBOSearch")
        spaces = require("hebo.design_space.design_space", *_PACKAGE[1:])
        optimizers = require(*_PACKAGE)
        evolution = require("hebo.acq_optimizers.evolution_optimizer", *_PACKAGE[1:])
        names = [f"p{i}" for i in range(len(self.flat.dimensions))]
        with seeded(seed), _seeded_evolution(evolution, seed):
            space = spaces.DesignSpace().parse(
                [_parameter(n, d) for n, d in zip(names, self.flat.dimensions, strict=True)]
            )
            optimizer = optimizers.HEBO(space, rand_sample=2, scramble_seed=seed % 2**31)
            rows = [[values[d.name] for d in self.flat.dimensions] for values in points]
            optimizer.observe(pandas.DataFrame(rows, columns=names), np.array(losses).reshape(-1, 1))
            found = optimizer.suggest(n_suggestions=1).iloc[0]
        return {d.name: found[name] for name, d in zip(names, self.flat.dimensions, strict=True)}


@contextmanager
def _seeded_evolution(module: Any, seed: int) -> Iterator[None]:
    """Seed pymoo, which draws from a generator of its own since 0.6.2, and to which HEBO gives no seed."""
    minimize = module.minimize
    module.minimize = partial(minimize, seed=seed % 2**32)
    try:
        yield
    finally:
        module.minimize = minimize


def _parameter(name: str, d: Dimension) -> dict[str, Any]:
    if d.kind == "choice":
        return {"name": name, "type": "cat", "categories": list(range(len(d.options)))}
    kind = {("real", False): "num", ("real", True): "pow", ("whole", False): "int", ("whole", True): "pow_int"}
    return {"name": name, "type": kind[d.kind, d.log], "lb": d.low, "ub": d.high}
