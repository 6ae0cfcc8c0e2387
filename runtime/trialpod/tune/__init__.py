"""The public API: ``from trialpod import tune``.

Every name is imported when it is first used, so that importing this module costs next to nothing: a trial process
never pays for what only the script needs, and the other way round.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing typing would be most of this module's cost

if TYPE_CHECKING:
    from typing import Any

    from trialpod.errors import TrialpodError as TuneError
    from trialpod.legacy import track
    from trialpod.legacy.checkpoint_dir import checkpoint_dir, make_checkpoint_dir, save_checkpoint
    from trialpod.legacy.durable import DurableTrainable
    from trialpod.legacy.experiment import Experiment
    from trialpod.legacy.experiment_analysis import ExperimentAnalysis
    from trialpod.legacy.run import run, run_experiments
    from trialpod.legacy.status_reporter import StatusReporter
    from trialpod.tune import logger, schedulers, search, stopper, utils
    from trialpod.tune.callback import Callback
    from trialpod.tune.checkpoints.checkpoint import Checkpoint
    from trialpod.tune.command.command import Command
    from trialpod.tune.config import RunConfig, TuneConfig
    from trialpod.tune.placement_groups import PlacementGroupFactory, Resources
    from trialpod.tune.progress_reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
    from trialpod.tune.registry import register_env, register_trainable
    from trialpod.tune.resources import with_resources
    from trialpod.tune.result import Result
    from trialpod.tune.result_grid import ResultGrid
    from trialpod.tune.schedulers import create_scheduler
    from trialpod.tune.search import create_searcher
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
    from trialpod.tune.session import (
        TuneContext,
        get_checkpoint,
        get_context,
        get_experiment_name,
        get_trial_dir,
        get_trial_id,
        get_trial_name,
        get_trial_resources,
        is_session_enabled,
        report,
    )
    from trialpod.tune.shipping.parameters import with_parameters
    from trialpod.tune.stopper.stopper import Stopper
    from trialpod.tune.sync_config import SyncConfig
    from trialpod.tune.trainable.trainable import Trainable
    from trialpod.tune.trial_config import CheckpointConfig, FailureConfig, ResumeConfig
    from trialpod.tune.tuner import Tuner

__all__ = [
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "Command",
    "DurableTrainable",
    "Experiment",
    "ExperimentAnalysis",
    "FailureConfig",
    "JupyterNotebookReporter",
    "PlacementGroupFactory",
    "ProgressReporter",
    "Resources",
    "Result",
    "ResultGrid",
    "ResumeConfig",
    "RunConfig",
    "StatusReporter",
    "Stopper",
    "SyncConfig",
    "Trainable",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "checkpoint_dir",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "get_experiment_name",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "grid_search",
    "is_session_enabled",
    "logger",
    "lograndint",
    "loguniform",
    "make_checkpoint_dir",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_env",
    "register_trainable",
    "report",
    "run",
    "run_experiments",
    "sample_from",
    "save_checkpoint",
    "schedulers",
    "search",
    "stopper",
    "track",
    "uniform",
    "utils",
    "with_parameters",
    "with_resources",
]

_HOMES = {
    "trialpod.tune.callback": ("Callback",),
    "trialpod.tune.checkpoints.checkpoint": ("Checkpoint",),
    "trialpod.tune.command.command": ("Command",),
    "trialpod.tune.config": ("RunConfig", "TuneConfig"),
    "trialpod.legacy.experiment": ("Experiment",),
    "trialpod.legacy.experiment_analysis": ("ExperimentAnalysis",),
    "trialpod.legacy.checkpoint_dir": ("checkpoint_dir", "make_checkpoint_dir", "save_checkpoint"),
    "trialpod.tune.shipping.parameters": ("with_parameters",),
    "trialpod.tune.placement_groups": ("PlacementGroupFactory", "Resources"),
    "trialpod.tune.progress_reporter": ("CLIReporter", "JupyterNotebookReporter", "ProgressReporter"),
    "trialpod.tune.registry": ("register_env", "register_trainable"),
    "trialpod.tune.resources": ("with_resources",),
    "trialpod.tune.result": ("Result",),
    "trialpod.tune.result_grid": ("ResultGrid",),
    "trialpod.tune.schedulers": ("create_scheduler",),
    "trialpod.tune.search": ("create_searcher",),
    "trialpod.tune.search.sample": (
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
    "trialpod.tune.session": (
        "TuneContext",
        "get_checkpoint",
        "get_context",
        "get_experiment_name",
        "get_trial_dir",
        "get_trial_id",
        "get_trial_name",
        "get_trial_resources",
        "is_session_enabled",
        "report",
    ),
    "trialpod.legacy.status_reporter": ("StatusReporter",),
    "trialpod.tune.stopper.stopper": ("Stopper",),
    "trialpod.legacy.durable": ("DurableTrainable",),
    "trialpod.tune.trainable.trainable": ("Trainable",),
    "trialpod.tune.sync_config": ("SyncConfig",),
    "trialpod.legacy.run": ("run", "run_experiments"),
    "trialpod.tune.trial_config": ("CheckpointConfig", "FailureConfig", "ResumeConfig"),
    "trialpod.tune.tuner": ("Tuner",),
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {
    "logger": "trialpod.tune.logger",
    "registry": "trialpod.tune.registry",
    "result": "trialpod.tune.result",
    "schedulers": "trialpod.tune.schedulers",
    "search": "trialpod.tune.search",
    "session": "trialpod.tune.session",
    "stopper": "trialpod.tune.stopper",
    "track": "trialpod.legacy.track",
    "utils": "trialpod.tune.utils",
}


_OF_TRIALS = (
    None,
    "trialpod.tune.session",
    "trialpod.tune.checkpoints.checkpoint",
    "trialpod.tune.trainable.trainable",
)
"""What code in a trial uses; everything else is for scripts, whose refusals are shown as sentences."""


def __getattr__(name: str) -> Any:
    if name == "TuneError":
        from trialpod.errors import TrialpodError

        globals()[name] = TrialpodError
        return TrialpodError
    home = _NAMES.get(name)
    if home is None and name not in _MODULES:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from trialpod.errors import nearest

        guess = nearest(name, __all__)
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
    from importlib import import_module

    if home not in _OF_TRIALS:
        from trialpod.tune.script_errors import install

        install()
    value = getattr(import_module(home), name) if home is not None else import_module(_MODULES[name])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
