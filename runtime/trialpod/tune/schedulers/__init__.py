"""Trial schedulers: which trials continue, which stop, which start next.

Only what nearly every experiment uses is imported with the package; the other classes when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.compat.activation import under_ray
from trialpod.tune.plugins.catalogue import SCHEDULERS
from trialpod.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import ControllerView, Exploit, TrialScheduler, TrialView

if TYPE_CHECKING:
    from trialpod.tune.schedulers.asha_promotion import PromotionASHAScheduler
    from trialpod.tune.schedulers.auto import AutoScheduler
    from trialpod.tune.schedulers.hb_bohb import HyperBandForBOHB
    from trialpod.tune.schedulers.hyperband import HyperBandScheduler
    from trialpod.tune.schedulers.median_stopping_rule import MedianStoppingRule
    from trialpod.tune.schedulers.pb2 import PB2
    from trialpod.tune.schedulers.pbt import PopulationBasedTraining
    from trialpod.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay
    from trialpod.tune.schedulers.resource_changing_scheduler import ResourceChangingScheduler
    from trialpod.tune.schedulers.resource_distribution import DistributeResources, DistributeResourcesToTopJob

_HELPERS = dict.fromkeys(
    ("DistributeResources", "DistributeResourcesToTopJob"), "trialpod.tune.schedulers.resource_distribution"
)


def create_scheduler(name: str, **kw: Any) -> TrialScheduler:
    """Make the scheduler called `name`: one of ours (docs/schedulers.md lists them) or an installed one's.

    Under the name ``ray`` arguments that it does not have are left out, with a warning.

    Raises:
        InvalidInputError: the name or an argument is unknown or cannot be used.
    """
    if under_ray():
        kw = SCHEDULERS.fitting(name, kw)
    scheduler: TrialScheduler = SCHEDULERS.create(name, kw)
    return scheduler


def scheduler_name(scheduler: TrialScheduler) -> str | None:
    """Return the name by which `create_scheduler` makes schedulers of this one's class; None when it has none."""
    return SCHEDULERS.name_of(scheduler)


def __getattr__(name: str) -> Any:
    home = _HELPERS.get(name) or (SCHEDULERS.homes().get(name) if name[0].isupper() else None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "AutoScheduler",
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
