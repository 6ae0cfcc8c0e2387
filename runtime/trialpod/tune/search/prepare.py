"""Makes whatever a user gave as search algorithm ready for an experiment."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Container, Sequence
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.catalogue import SEARCHERS
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.search_algorithm import SearchAlgorithm
from trialpod.tune.search.search_generator import SearchGenerator
from trialpod.tune.search.searcher import Searcher

_SEEDS = ("random_state", "seed", "random_state_seed")


def as_search_algorithm(given: Any) -> SearchAlgorithm:
    """Return a search algorithm for one, or for a searcher."""
    if isinstance(given, SearchAlgorithm):
        return given
    if not isinstance(given, type) and callable(getattr(given, "suggest", None)):
        return SearchGenerator(given)
    if not isinstance(given, type) and callable(getattr(given, "next_suggestion", None)):
        return given  # type: ignore[no-any-return]  # of another package, which did not derive from ours
    raise InvalidInputError(f"{given!r} is not a search algorithm; pass an object of a class of trialpod.tune.search")


def prepare(
    given: Any,
    *,
    space: dict[str, Any],
    num_samples: int,
    metric: str | None = None,
    mode: str | None = None,
    objectives: Sequence[Objective] = (),
    seed: int | None = None,
    chosen_seed: bool = True,
) -> SearchAlgorithm:
    """Return a search algorithm that is configured; `objectives` go before `metric` and `mode`.

    `chosen_seed` says whether the user chose the seed, or it was drawn for the experiment.
    """
    if given is None:
        given = BasicVariantGenerator()
    search = as_search_algorithm(given)
    goal: dict[str, Any] = {"metric": metric, "mode": mode}
    if objectives:
        _set_thresholds(search, objectives)
    if len(objectives) > 1:
        goal = {"metric": [each.name for each in objectives], "mode": [each.mode for each in objectives]}
    configure = getattr(search, "configure", None)
    if configure is None:
        search.set_num_samples(num_samples)
        return search
    known = _parameters(getattr(configure, "__func__", None)) or inspect.signature(configure).parameters
    further = {**goal, "seed": seed, "chosen_seed": chosen_seed}
    configure(space, num_samples, **{name: value for name, value in further.items() if name in known})
    return search


@functools.lru_cache(maxsize=64)
def _parameters(method: Any) -> Container[str]:
    """Return the names of a method's parameters, of None none: to find them takes longer than to call it."""
    return () if method is None else frozenset(inspect.signature(method).parameters)


def _set_thresholds(search: Any, objectives: Sequence[Objective]) -> None:
    while search is not None:
        if take := getattr(search, "set_thresholds", None):
            take(objectives)
        search = getattr(search, "searcher", None)


def with_seed(parameters: dict[str, Any], name: str, seed: int) -> dict[str, Any]:
    """Return the parameters of the built-in search algorithm `name` with the experiment's seed, where it needs it."""
    if SEARCHERS.find(name) is BasicVariantGenerator and not any(each in parameters for each in _SEEDS):
        return {**parameters, "seed": seed}
    return parameters


def needs_metric(search: Any) -> bool:
    """Return whether a search algorithm learns from a metric and does not know which."""
    searcher = search.searcher if isinstance(search, SearchGenerator) else search
    return isinstance(searcher, Searcher) and not searcher.metric
