"""`algorithm: auto`: the scheduler `auto` and the search `auto`, made as one choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.tune.plugins.auto import AUTO

if TYPE_CHECKING:
    from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
    from trialpod.tune.search.search_algorithm import SearchAlgorithm

_SHARE = 27
"""The first rung is this part of a full training: three steps of a factor of 3 below it."""


def first_rung(full_training: float | None) -> int | None:
    """Return the iteration of the first rung; None, which is the first iteration, when the full training is open.

    Args:
        full_training: the iteration at which a stop rule ends a trial.
    """
    return None if full_training is None or full_training < 1 else max(1, round(full_training / _SHARE))


def scheduler(rung: int | None, seed: int) -> TrialScheduler:
    """Return a new scheduler with the first rung at an iteration."""
    from trialpod.tune.schedulers.auto import AutoScheduler

    return AutoScheduler(grace_period=rung, seed=seed)


def prepare_search(
    space: dict[str, Any], num_samples: int, metric: str | None, mode: str | None, seed: int
) -> SearchAlgorithm:
    """Return a new search, ready for an experiment.

    Raises:
        InvalidInputError: the search space cannot be searched, or NumPy or threadpoolctl is not installed.
    """
    from trialpod.tune.search import create_searcher
    from trialpod.tune.search.prepare import prepare

    return prepare(create_searcher(AUTO), space=space, num_samples=num_samples, metric=metric, mode=mode, seed=seed)
