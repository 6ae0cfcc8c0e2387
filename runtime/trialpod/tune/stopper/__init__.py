"""Stoppers: rules that end a trial, or the whole experiment, by its results."""

from __future__ import annotations

from typing import Any

from trialpod.tune.plugins.catalogue import STOPPERS
from trialpod.tune.stopper.combined import CombinedStopper
from trialpod.tune.stopper.experiment_plateau import ExperimentPlateauStopper
from trialpod.tune.stopper.function import FunctionStopper
from trialpod.tune.stopper.maximum_iteration import MaximumIterationStopper
from trialpod.tune.stopper.noop import NoopStopper
from trialpod.tune.stopper.stopper import Stopper
from trialpod.tune.stopper.timeout import TimeoutStopper
from trialpod.tune.stopper.trial_plateau import TrialPlateauStopper


def create_stopper(name: str, **kw: Any) -> Stopper:
    """Make the stopper called `name`.

    Ours are maximum_iteration, trial_plateau, experiment_plateau and timeout; installed packages add theirs.

    Raises:
        InvalidInputError: the name or an argument is unknown or cannot be used.
    """
    stopper: Stopper = STOPPERS.create(name, kw)
    return stopper


def stopper_name(stopper: Stopper) -> str | None:
    """Return the name by which `create_stopper` makes stoppers of this one's class; None when it has none."""
    return STOPPERS.name_of(stopper)


__all__ = [
    "CombinedStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
    "create_stopper",
    "stopper_name",
]
