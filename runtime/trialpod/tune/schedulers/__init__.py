"""Trial schedulers: which trials go on, which stop, which start next.

Only what nearly every experiment uses is imported with the package; the other classes when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.tune.registry import create
from trialpod.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import ControllerView, Exploit, TrialScheduler, TrialView

if TYPE_CHECKING:
    from trialpod.tune.schedulers.asha_promotion import PromotionASHAScheduler
    from trialpod.tune.schedulers.hb_bohb import HyperBandForBOHB
    from trialpod.tune.schedulers.hyperband import HyperBandScheduler
    from trialpod.tune.schedulers.median_stopping_rule import MedianStoppingRule
    from trialpod.tune.schedulers.pb2 import PB2
    from trialpod.tune.schedulers.pbt import PopulationBasedTraining
    from trialpod.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay
    from trialpod.tune.schedulers.resource_changing_scheduler import ResourceChangingScheduler
    from trialpod.tune.schedulers.resource_distribution import DistributeResources, DistributeResourcesToTopJob

_HOMES = {
    "PromotionASHAScheduler": "asha_promotion",
    "HyperBandForBOHB": "hb_bohb",
    "HyperBandScheduler": "hyperband",
    "MedianStoppingRule": "median_stopping_rule",
    "PB2": "pb2",
    "PopulationBasedTraining": "pbt",
    "PopulationBasedTrainingReplay": "pbt_replay",
    "ResourceChangingScheduler": "resource_changing_scheduler",
    "DistributeResources": "resource_distribution",
    "DistributeResourcesToTopJob": "resource_distribution",
}
_CLASSES = {
    "fifo": "fifo:FIFOScheduler",
    "async_hyperband": "async_hyperband:AsyncHyperBandScheduler",
    "asynchyperband": "async_hyperband:AsyncHyperBandScheduler",
    "asha": "async_hyperband:AsyncHyperBandScheduler",
    "asha_promotion": "asha_promotion:PromotionASHAScheduler",
    "hyperband": "hyperband:HyperBandScheduler",
    "hb_bohb": "hb_bohb:HyperBandForBOHB",
    "median_stopping_rule": "median_stopping_rule:MedianStoppingRule",
    "medianstopping": "median_stopping_rule:MedianStoppingRule",
    "pbt": "pbt:PopulationBasedTraining",
    "pbt_replay": "pbt_replay:PopulationBasedTrainingReplay",
    "pb2": "pb2:PB2",
    "resource_changing": "resource_changing_scheduler:ResourceChangingScheduler",
}
_SCHEDULERS = {name: f"trialpod.tune.schedulers.{home}" for name, home in _CLASSES.items()}


def create_scheduler(name: str, **kw: Any) -> TrialScheduler:
    """Make the scheduler called `name`: one of ours (docs/schedulers.md lists them) or an installed one's.

    Raises:
        InvalidInputError: the name or an argument is unknown or cannot be used.
    """
    scheduler: TrialScheduler = create("scheduler", "trialpod.schedulers", _SCHEDULERS, name, kw)
    return scheduler


def scheduler_name(scheduler: TrialScheduler) -> str | None:
    """Return the name by which `create_scheduler` makes schedulers of this one's class; None when it has none."""
    from trialpod.tune.plugins.described import name_of

    return name_of(scheduler, _SCHEDULERS, "trialpod.schedulers")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "ControllerView",
    "DistributeResources",
    "DistributeResourcesToTopJob",
    "Exploit",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "PromotionASHAScheduler",
    "ResourceChangingScheduler",
    "TrialScheduler",
    "TrialView",
    "create_scheduler",
    "scheduler_name",
]
