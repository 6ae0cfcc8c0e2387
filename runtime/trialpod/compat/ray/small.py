"""Small names of Ray Tune with nowhere else to be."""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable
from typing import Any

import cloudpickle

from trialpod import tune
from trialpod.tune import schedulers, session
from trialpod.tune.plugins.catalogue import SCHEDULERS, SEARCHERS

__all__ = ["cloudpickle", "session", "tune"]

logger = logging.getLogger("ray")

UNRESOLVED_SEARCH_SPACE = (
    "{par} of {cls} has to be resolved before the search: it still has search-space objects in it"
)
UNDEFINED_SEARCH_SPACE = "{cls} has no search space; give it one, or param_space to the Tuner"
UNDEFINED_METRIC_MODE = "{cls} has no metric or mode ({metric}, {mode}); give it both, or TuneConfig"


def _importers(known: dict[str, str]) -> dict[str, Callable[[], Any]]:
    from importlib import import_module

    def importer(target: str) -> Callable[[], Any]:
        home, _, attribute = target.partition(":")
        return lambda: getattr(import_module(home), attribute)

    return {name: importer(target) for name, target in known.items()}


def __getattr__(name: str) -> Any:
    """Return Ray's tables of names: what imports the class of each scheduler, and of each search algorithm."""
    if name == "SCHEDULER_IMPORT":
        return _importers(SCHEDULERS.builtin())
    if name == "SEARCH_ALG_IMPORT":
        return _importers(SEARCHERS.builtin())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Verbosity(enum.IntEnum):
    """The levels of `verbose` by name."""

    V0_MINIMAL = 0
    V1_EXPERIMENT = 1
    V2_TRIAL_NORM = 2
    V3_TRIAL_DETAILS = 3


class AirVerbosity(enum.IntEnum):
    """The same as Ray's newer output names them."""

    SILENT = 0
    DEFAULT = 1
    VERBOSE = 2


def evenly_distribute_cpus_gpus(tune_controller: Any, trial: Any, result: dict[str, Any], scheduler: Any) -> Any:
    """Share what is free evenly among the trials: `DistributeResources` as it was in 1.x."""
    return schedulers.DistributeResources()(tune_controller, trial, result, scheduler)


def function(func: Any) -> Any:
    """Return the function: nothing has to be marked any more."""
    return func


def durable(trainable: Any) -> Any:
    """Return the Trainable: every one's checkpoints are in the experiment's storage."""
    return trainable


def get_current_placement_group() -> None:
    """Return None: nothing runs in a placement group."""
    return


def is_ray_cluster() -> bool:
    """Return False: there is no Ray cluster."""
    return False


_is_ray_cluster = is_ray_cluster


def pretty_print(result: dict[str, Any], exclude: set[str] | None = None) -> str:
    """Return a result as YAML, without the config and empty values."""
    import yaml

    left_out = {"config", "hist_stats", *(exclude or ())}
    shown = {key: value for key, value in result.items() if key not in left_out and value is not None}
    plain = json.loads(json.dumps(shown, default=_plain))
    return yaml.safe_dump(plain, default_flow_style=False)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a number or a list of NumPy as Python's, anything else as its text."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else str(value)
