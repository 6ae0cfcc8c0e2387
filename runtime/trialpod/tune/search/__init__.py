"""Search algorithms: what proposes trials, and the search space that they draw from.

Everything is imported when it is first used; an adapter imports its library when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.tune.plugins.catalogue import SEARCHERS
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.prepare import as_search_algorithm, prepare
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod.tune.search.search_generator import SearchGenerator
from trialpod.tune.search.searcher import Searcher

if TYPE_CHECKING:
    from trialpod.tune.search.auto.auto_search import AutoSearch
    from trialpod.tune.search.ax_search import AxSearch
    from trialpod.tune.search.bayesopt_search import BayesOptSearch
    from trialpod.tune.search.bohb_search import TuneBOHB
    from trialpod.tune.search.concurrency_limiter import ConcurrencyLimiter
    from trialpod.tune.search.hebo_search import HEBOSearch
    from trialpod.tune.search.hyperopt_search import HyperOptSearch
    from trialpod.tune.search.nevergrad_search import NevergradSearch
    from trialpod.tune.search.optuna.optuna_search import OptunaSearch
    from trialpod.tune.search.repeater import Repeater
    from trialpod.tune.search.zoopt_search import ZOOptSearch

_WRAPPERS = {
    "ConcurrencyLimiter": "trialpod.tune.search.concurrency_limiter",
    "Repeater": "trialpod.tune.search.repeater",
}


def create_searcher(name: str, **kw: Any) -> SearchAlgorithm | Searcher:
    """Make the search algorithm called `name`; `prepare` makes it ready for an experiment.

    Args:
        name: variant_generator (random, grid), optuna, hyperopt, bayesopt, ax, nevergrad, hebo, bohb, zoopt, or that
            of an installed package. Case, "-" and "_" are ignored.
        **kw: its arguments.

    Raises:
        InvalidInputError: the name or an argument is unknown or cannot be used, or a library is not installed.
    """
    searcher: SearchAlgorithm | Searcher = SEARCHERS.create(name, kw)
    return searcher


def searcher_name(searcher: Any) -> str | None:
    """Return the name by which `create_searcher` makes search algorithms of this one's class; None if it has none."""
    return SEARCHERS.name_of(searcher)


def __getattr__(name: str) -> Any:
    home = _WRAPPERS.get(name) or (SEARCHERS.homes().get(name) if name[0].isupper() else None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


__all__ = [
    "AutoSearch",
    "AxSearch",
    "BasicVariantGenerator",
    "BayesOptSearch",
    "ConcurrencyLimiter",
    "HEBOSearch",
    "HyperOptSearch",
    "NevergradSearch",
    "OptunaSearch",
    "Repeater",
    "SearchAlgorithm",
    "SearchGenerator",
    "Searcher",
    "Suggestion",
    "TuneBOHB",
    "ZOOptSearch",
    "as_search_algorithm",
    "create_searcher",
    "prepare",
    "searcher_name",
]
