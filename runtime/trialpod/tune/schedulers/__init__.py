"""Trial schedulers: which trials go on, which stop, which start next."""

from __future__ import annotations

from typing import Any

from trialpod.tune.registry import create
from trialpod.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialScheduler, TrialView

_ASHA = "trialpod.tune.schedulers.async_hyperband:AsyncHyperBandScheduler"
_SCHEDULERS = {
    "fifo": "trialpod.tune.schedulers.fifo:FIFOScheduler",
    "async_hyperband": _ASHA,
    "asynchyperband": _ASHA,
    "asha": _ASHA,
}


def create_scheduler(name: str, **kw: Any) -> TrialScheduler:
    """Make the scheduler called `name` (fifo, async_hyperband, asynchyperband, asha, or an installed one's).

    Raises:
        InvalidInputError: the name or an argument is unknown or cannot be used.
    """
    scheduler: TrialScheduler = create("scheduler", "trialpod.schedulers", _SCHEDULERS, name, kw)
    return scheduler


__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "ControllerView",
    "FIFOScheduler",
    "TrialScheduler",
    "TrialView",
    "create_scheduler",
]
