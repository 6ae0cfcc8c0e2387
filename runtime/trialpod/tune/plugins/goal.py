"""A metric and a mode that are given both to an experiment and to its scheduler or search algorithm.

Equal values are one value; values that contradict each other are refused, and the message names both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.objectives import Objective


def own_goal(owner: Any) -> tuple[Any, Any]:
    """Return the metric and the mode that a scheduler or a searcher was given itself; None for what it was not."""
    metric, mode = (getattr(owner, name, None) or getattr(owner, f"_{name}", None) for name in ("metric", "mode"))
    return metric, mode


def not_known_yet(owner: Any, metric: str | None, mode: str | None) -> tuple[str | None, str | None]:
    """Return what the experiment says of the metric and the mode, without what `owner` was given as well."""
    own_metric, own_mode = own_goal(owner)
    for what, own, given in (("metric", own_metric, metric), ("mode", own_mode, mode)):
        if own and given and _listed(own) != _listed(given):
            raise InvalidInputError(
                f"{_name(owner)}({what}={own!r}) contradicts the experiment's {what}, {given!r}; give both the same "
                f"value, or leave {what} out of {_name(owner)}",
                parameter=what,
            )
    return (None if own_metric else metric), (None if own_mode else mode)


def check_several(scheduler: Any, objectives: Sequence[Objective]) -> None:
    """Refuse a scheduler that compares trials by one metric where the experiment has a list of them."""
    if objectives and getattr(scheduler, "needs_metric", True) and not getattr(scheduler, "several_metrics", False):
        raise InvalidInputError(
            f"{_name(scheduler)} compares trials by one metric, and the experiment has metrics: "
            f"{', '.join(map(str, objectives))}. Take the scheduler async_hyperband, none, or metric and mode in "
            "place of metrics",
            parameter="metrics",
        )
    own = [name for name, value in zip(("metric", "mode"), own_goal(scheduler), strict=True) if value]
    if objectives and own and getattr(scheduler, "several_metrics", False) and not scheduler.objectives:
        raise InvalidInputError(
            f"{_name(scheduler)} has a {own[0]} of its own, and the experiment has metrics; remove one of them",
            parameter=own[0],
        )


def introduce_scheduler(
    scheduler: Any, metric: str | None, mode: str | None, objectives: Sequence[Objective] = ()
) -> None:
    """Tell a scheduler what the experiment optimises."""
    if objectives:
        check_several(scheduler, objectives)
        if getattr(scheduler, "several_metrics", False):
            scheduler.set_objectives(objectives)
            return
    metric, mode = not_known_yet(scheduler, metric, mode)
    if scheduler.set_search_properties(metric, mode) is False and (metric or mode):
        raise InvalidInputError(
            f"{_name(scheduler)}.set_search_properties(metric={metric!r}, mode={mode!r}) returned False: it takes no "
            "metric from the experiment. Leave metric and mode out of the experiment, or have it return True"
        )


def _name(owner: Any) -> str:
    while hasattr(owner, "searcher"):
        owner = owner.searcher
    return type(owner).__name__


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
