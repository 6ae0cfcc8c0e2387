"""What a `Tuner` hands to a backend, and what it gets back.

A backend runs experiments somewhere: as processes on this machine, as pods in a cluster. Backends are found through
the entry-point group ``trialpod.backends``; the entry point is a class (made without arguments) or an object.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trialpod import variables
from trialpod.errors import InvalidInputError, nearest
from trialpod.missing import install_command
from trialpod.protocol.command import CommandSpec
from trialpod.protocol.messages import CheckpointRules, TrainableRef
from trialpod.tune.outcomes import ExperimentOutcome
from trialpod.tune.plugins.objectives import Objective

if TYPE_CHECKING:
    from trialpod.tune.callback import Callback
    from trialpod.tune.progress_reporter import ProgressReporter
    from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
    from trialpod.tune.stopper.stopper import Stopper

GROUP = "trialpod.backends"
DEFAULT = "local"

StopFunction = Callable[[str, dict[str, Any]], bool]
TrialNamer = Callable[[str, str, dict[str, Any]], str]
"""(trial_id, experiment_tag, config) -> name."""


@dataclass(kw_only=True)
class ExperimentRequest:
    """One experiment to run, checked: a backend needs to refuse only what it cannot do itself.

    The directory ``{storage_path}/{name}`` exists when a backend is given this, with ``tuner.pkl`` and the file that
    `trainable` names inside. With `resume` the backend continues with the experiment that it finds there, and the
    budget (`num_samples`, `max_concurrent`, `time_budget_s`, `max_trial_hours`, `max_gpu_hours`,
    `stop_when_not_worth`, `max_failures`, `fail_fast`) may differ from before.
    """

    name: str
    storage_path: str  # absolute local path, without the experiment's name
    storage_uri: str = ""  # "s3://bucket/prefix/name": the experiment is kept there, its directory is a copy
    trainable: TrainableRef
    trainable_name: str
    is_class: bool
    command: CommandSpec | None = None  # what the Trainable starts, if it is a program
    param_space: dict[str, Any] = field(default_factory=dict)
    metric: str | None = None
    objectives: list[Objective] = field(default_factory=list)  # of a list of metrics; the first is `metric`, too
    mode: Literal["max", "min"] | None = None
    num_samples: int = 1  # -1 = without limit
    max_concurrent: int | None = None  # None = as many as the resources allow
    time_budget_s: float | None = None
    max_trial_hours: float | None = None  # of all trials together
    max_gpu_hours: float | None = None
    repeats: dict[str, Any] | None = None  # "top", "times" and perhaps "seed_parameter"
    warm_start: dict[str, Any] | None = None  # "experiments" or "auto"
    stop_when_not_worth: float | None = None  # least expected gain of the metric per hour
    seed: int | None = None
    algorithm: Literal["auto"] | None = None  # instead of search_alg and scheduler
    search_alg: Any = None  # None = random and grid search over param_space
    scheduler: TrialScheduler | None = None  # untouched by set_search_properties; None = first in, first out
    stop: dict[str, float] | Stopper | StopFunction | list[Stopper | StopFunction] | None = None
    checkpoint_rules: CheckpointRules = field(default_factory=CheckpointRules)
    max_failures: int = 0  # -1 = without limit
    fail_fast: bool = False
    resources: dict[str, float] = field(default_factory=dict)  # of one trial; "cpu", "gpu", "memory" (bytes), ...
    bundles: list[dict[str, float]] = field(default_factory=list)  # their parts, where each may be a pod of its own
    resources_fn: Callable[[dict[str, Any]], dict[str, float]] | None = None  # of a config; instead of `resources`
    reuse: bool = False
    trial_name: TrialNamer | None = None
    trial_dirname: TrialNamer | None = None
    log_files: tuple[str, str] | None = None  # names for stdout and stderr in the trial's directory
    verbose: int = 1
    strict_metric: bool = True  # a trial that never reports `metric` has failed
    callbacks: list[Callback] = field(default_factory=list)  # run in this process
    progress_reporter: ProgressReporter | None = None
    chdir: bool = True  # trials run in their own directories
    resume: bool = False
    resume_unfinished: bool = True  # False: unfinished trials stay as they are
    resume_errored: bool = False  # failed trials resume from their newest checkpoints
    restart_errored: bool = False  # failed trials start again
    retry_failed: bool = False  # failed trials run again if the experiment failed as a whole

    @property
    def directory(self) -> str:
        """The experiment's directory."""
        return os.path.join(self.storage_path, self.name)


class Backend(Protocol):
    """Where experiments run.

    A backend may have five things more, which a `Tuner` asks for: ``ships_code`` (True: trials run where the user's
    own modules are not, so their code travels with the Trainable), ``default_name(trainable_name, now)`` (the name of
    an experiment that was given none), ``attaches(path)`` (True: running a script again continues with the experiment
    of that name), ``prepare_storage(path)`` (called before anything is read from a path; it may register a route
    to its server) and ``resolve_existing(request, if_exists)``, which is called before anything is written for an
    experiment that is there already: it refuses what was changed and must not be, or moves the old results aside,
    and returns whether `run` resumes.
    """

    def run(self, request: ExperimentRequest) -> ExperimentOutcome:
        """Run the experiment to its end.

        A failed trial is part of the outcome; what keeps the experiment itself from running is raised as a
        TrialpodError.
        """
        ...

    def load(self, path: str) -> ExperimentOutcome:
        """Read what is known of the experiment in the directory or at the URI `path`, whether or not it has ended.

        Raises:
            TrialpodError: there is no experiment that can be read.
        """
        ...

    def can_restore(self, path: str) -> bool:
        """Return whether the directory or URI `path` holds an experiment that `run` could continue with."""
        ...


def prepare_storage(backend: Backend, path: str) -> None:
    """Have a backend make the storage at a path or URI reachable for this process, if it has a way to do so."""
    prepare = getattr(backend, "prepare_storage", None)
    if prepare is not None:
        prepare(path)


def get_backend(name: str | None = None, *, environ: Mapping[str, str] = os.environ) -> Backend:
    """Return a backend by its name.

    Args:
        name: None takes the variable TRIALPOD_BACKEND, or else "local".
        environ: where the variable is looked up.

    Raises:
        InvalidInputError: there is no backend of that name, or a package that it needs is not installed.
    """
    wanted = name or environ.get(variables.BACKEND) or DEFAULT
    loaded = load_backend(wanted, from_variable=not name and bool(environ.get(variables.BACKEND)))
    backend: Backend = loaded() if isinstance(loaded, type) else loaded
    return backend


def load_backend(wanted: str, *, from_variable: bool = False) -> Any:
    """Return what the entry point of a backend names, a class or an object; raises as `get_backend`."""
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    if wanted not in found:
        raise InvalidInputError(_unknown(wanted, found, from_variable=from_variable))
    try:
        return found[wanted].load()
    except ModuleNotFoundError as error:
        install = install_command(error.name or "") or f"pip install {error.name}"
        raise InvalidInputError(
            f"the backend {wanted!r} needs the package {error.name!r}, which is not installed; "
            f"install it with: {install}"
        ) from error


def _unknown(wanted: str, found: Iterable[str], *, from_variable: bool) -> str:
    names = sorted(found)
    guess = nearest(wanted, names)
    return (
        f"there is no backend {wanted!r}"
        + (f" (from the variable {variables.BACKEND})" if from_variable else "")
        + (f"; did you mean {guess!r}?" if guess else "")
        + (
            f" Installed: {', '.join(names)}"
            if names
            else "; none is installed, install one with: pip install trialpod"
        )
    )
