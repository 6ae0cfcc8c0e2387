"""Search algorithms: what proposes trials, and the search space that they draw from."""

from __future__ import annotations

from typing import Any

from trialpod.tune.registry import create
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion

_BASIC = "trialpod.tune.search.basic_variant:BasicVariantGenerator"
_SEARCHERS = {"variant_generator": _BASIC, "random": _BASIC, "grid": _BASIC}


def create_searcher(name: str, **kw: Any) -> SearchAlgorithm:
    """Make the search algorithm called `name` (variant_generator, random, grid, or an installed one's).

    Raises:
        InvalidInputError: the name or an argument is unknown or cannot be used.
    """
    searcher: SearchAlgorithm = create("search algorithm", "trialpod.searchers", _SEARCHERS, name, kw)
    return searcher


__all__ = ["BasicVariantGenerator", "SearchAlgorithm", "Suggestion", "create_searcher"]
