"""The public API: ``from trialpod import tune``.

Every name is imported when it is first used, so that importing this module costs next to nothing: a trial process
never pays for what only the script needs, and the other way round.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing typing would be most of this module's cost

if TYPE_CHECKING:
    from typing import Any

    from trialpod.tune import schedulers, search, stopper
    from trialpod.tune.checkpoint import Checkpoint
    from trialpod.tune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
    from trialpod.tune.parameters import with_parameters
    from trialpod.tune.placement_groups import PlacementGroupFactory
    from trialpod.tune.resources import with_resources
    from trialpod.tune.result import Result
    from trialpod.tune.result_grid import ResultGrid
    from trialpod.tune.search.sample import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
    )
    from trialpod.tune.session import TuneContext, get_checkpoint, get_context, report
    from trialpod.tune.stopper.stopper import Stopper
    from trialpod.tune.trainable.trainable import Trainable
    from trialpod.tune.tuner import Tuner

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "PlacementGroupFactory",
    "Result",
    "ResultGrid",
    "RunConfig",
    "Stopper",
    "Trainable",
    "TuneConfig",
    "TuneContext",
    "Tuner",
    "choice",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "report",
    "sample_from",
    "schedulers",
    "search",
    "stopper",
    "uniform",
    "with_parameters",
    "with_resources",
]

_HOMES = {
    "checkpoint": ("Checkpoint",),
    "config": ("CheckpointConfig", "FailureConfig", "RunConfig", "TuneConfig"),
    "parameters": ("with_parameters",),
    "placement_groups": ("PlacementGroupFactory",),
    "resources": ("with_resources",),
    "result": ("Result",),
    "result_grid": ("ResultGrid",),
    "search.sample": (
        "choice",
        "grid_search",
        "lograndint",
        "loguniform",
        "qlograndint",
        "qloguniform",
        "qrandint",
        "qrandn",
        "quniform",
        "randint",
        "randn",
        "sample_from",
        "uniform",
    ),
    "session": ("TuneContext", "get_checkpoint", "get_context", "report"),
    "stopper.stopper": ("Stopper",),
    "trainable.trainable": ("Trainable",),
    "tuner": ("Tuner",),
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = frozenset({"schedulers", "search", "stopper"})


def __getattr__(name: str) -> Any:
    home = _NAMES.get(name)
    if home is None and name not in _MODULES:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from trialpod.errors import nearest

        guess = nearest(name, __all__)
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
    from importlib import import_module

    module = import_module(f"{__name__}.{home or name}")
    value = getattr(module, name) if home is not None else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
