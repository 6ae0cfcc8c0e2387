"""`Tuner`: describes an experiment, runs it, and resumes it later.

Invariants:

* Everything that can be checked is checked before anything is written or started.
* An existing experiment of the same name is resumed if it is the same one; otherwise `RunConfig(if_exists=...)` says
  what happens. It is not changed before that is decided.
* What a later `Tuner.restore` needs is in ``tuner.pkl`` in the experiment's directory before the first trial starts.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, MissingPathError, NotPicklableError, NotReadyError, refuse_stand_ins
from trialpod.legacy.run_options import run_options, with_run_options
from trialpod.protocol.messages import CheckpointRules, TrainableRef
from trialpod.protocol.packed import pack
from trialpod.storage.base import KeyMissingError
from trialpod.tune import script_errors
from trialpod.tune.arguments import names_nearest
from trialpod.tune.backends import Backend, ExperimentRequest, get_backend, prepare_storage
from trialpod.tune.callback_list import CallbackError
from trialpod.tune.command.command import Command
from trialpod.tune.config import RunConfig, TuneConfig, log_files, seconds, stop_numbers
from trialpod.tune.environment import Overrides
from trialpod.tune.location.experiment_names import RunNames, claim, default_name
from trialpod.tune.location.locations import (
    DEFAULT_STORAGE,
    Location,
    experiment_location,
    kept_at,
    resolve,
)
from trialpod.tune.outcomes import ExperimentOutcome
from trialpod.tune.registry import resolve_trainable
from trialpod.tune.resources import bundles_of, resources_of
from trialpod.tune.result import ExperimentFailedError, failure
from trialpod.tune.result_grid import ResultGrid
from trialpod.tune.shipping.package import FILE as TRAINABLE_FILE
from trialpod.tune.shipping.package import packed_trainable, pickled, unpickled, write_atomically, write_trainable
from trialpod.tune.shipping.stored_objects import MIN_STORED_BYTES, ObjectSet, ValueFiles, read_values_from
from trialpod.tune.trainable.checks import checkpoint_rules, inspect_trainable
from trialpod.tune.trial_config import CheckpointConfig, FailureConfig
from trialpod.tune.tuner_arguments import (
    check_same_keys,
    check_scheduler,
    checked_space,
    made_scheduler,
    made_search_alg,
    resume_flags,
    set_fields,
    storable,
    trial_namer,
)

if TYPE_CHECKING:
    from trialpod.tune.trial_config import ResumeConfig

logger = logging.getLogger(__name__)

TUNER_FILE = "tuner.pkl"
OUR_FOLDER = ".trialpod"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Resume:
    location: Location
    unfinished: bool = True
    errored: bool = False
    restart: bool = False
    retry_failed: bool = False


_run_names = RunNames()


@names_nearest
class Tuner:
    """One experiment: a Trainable, the space of its configs, and how to search it.

    Args:
        trainable: a function ``(config)`` or a subclass of `tune.Trainable`.
        param_space: the config of the trials, with distributions and grids in it.
        tune_config: how to search.
        run_config: how to run.
        backend: where to run: a backend's name or object. None takes the variable TRIALPOD_BACKEND, or else this
            machine.
        _tuner_kwargs: for libraries that were written for Ray: fields of `tune_config` and `run_config` by name.

    Raises:
        InvalidInputError: an argument cannot be used, or contradicts another one.
    """

    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        backend: Backend | str | None = None,
        _tuner_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        refuse_stand_ins(tune_config, run_config, param_space)
        _check_config("tune_config", tune_config, TuneConfig)
        _check_config("run_config", run_config, RunConfig)
        self._trainable = trainable = resolve_trainable(trainable)
        self._facts = inspect_trainable(trainable)
        self._param_space = checked_space(param_space)
        self._tune_config = copy.copy(tune_config) if tune_config is not None else TuneConfig()
        if isinstance(trainable, Command):
            # A search algorithm may have a space of its own.
            trainable.check(self._param_space if self._tune_config.search_alg is None else None)
        self._run_config = copy.copy(run_config) if run_config is not None else RunConfig()
        set_fields((self._tune_config, self._run_config), _tuner_kwargs or {})
        self._backend = backend
        self._resume: _Resume | None = None
        self._grid: ResultGrid | None = None
        self._begun: Location | None = (
            None  # where the latest `fit` runs; readable when `fit` raises an exception, too
        )
        self._unused_scheduler: Any = None  # a copy from before the first `fit`
        self._check()

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any = None,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        storage_filesystem: Any = None,
        _resume_config: ResumeConfig | None = None,
        *,
        overwrite_trainable: Any = None,
        backend: Backend | str | None = None,
    ) -> Tuner:
        """Return a Tuner whose `fit` continues with an experiment.

        Args:
            path: the experiment's directory, or where it is kept: ``s3://bucket/prefix/name``. Then `fit` works in
                ``~/trialpod-results/name``, or in the folder that the variable TRIALPOD_WORK_DIR names.
            trainable: the experiment's Trainable; its code may have changed, its name may not. None takes the one
                that is stored with the experiment.
            resume_unfinished: whether unfinished trials are resumed.
            resume_errored: whether failed trials resume from their newest checkpoints; goes before `restart_errored`.
            restart_errored: whether failed trials start again.
            param_space: the search space again, if objects in it must be replaced. The keys must be the same.
            storage_filesystem: as for RunConfig; `path` is in it.
            _resume_config: Ray Tune's newer form of the three arguments `resume_unfinished` to `restart_errored`.
            overwrite_trainable: the name that older scripts use for `trainable`.
            backend: as for `Tuner`.

        Raises:
            InvalidInputError: there is no experiment that a Tuner started, or the arguments do not fit it.
            TrainableError: its ``tuner.pkl`` cannot be read by this version of Python.
            StorageError: the storage cannot be read.
        """
        if storage_filesystem is not None:
            from trialpod.tune.location.filesystems import uri_of

            path = uri_of("Tuner.restore(storage_filesystem=...)", path, storage_filesystem)
        location = experiment_location(path)
        if _resume_config is not None:
            resume_unfinished, resume_errored, restart_errored = resume_flags(
                _resume_config, defaults=(resume_unfinished, resume_errored, restart_errored) == (True, False, False)
            )
        if trainable is not None and overwrite_trainable is not None:
            raise InvalidInputError(
                "Tuner.restore(trainable=..., overwrite_trainable=...): both are the Trainable; give trainable only"
            )
        prepare_storage(open_backend(backend), str(location))
        trainable = overwrite_trainable if trainable is None else trainable
        if trainable is None:
            trainable = stored_trainable(location, "Tuner.restore")
        trainable = resolve_trainable(trainable)
        saved = _saved(location, "Tuner.restore", inspect_trainable(trainable).name)
        if not run_options(trainable):
            trainable = with_run_options(trainable, **saved.get("run_options", {}))
        space = saved["param_space"] if param_space is None else checked_space(param_space)
        check_same_keys(saved["param_space"], space)
        tuner = cls(
            trainable,
            param_space=space,
            tune_config=saved["tune_config"],
            run_config=saved["run_config"],
            backend=backend,
        )
        if saved.get("left_out"):
            logger.warning(
                "%s could not be stored with the experiment, so this Tuner has none of them; set "
                "tuner.run_config.callbacks before fit() if they are needed",
                ", ".join(saved["left_out"]),
            )
        tuner._resume = _Resume(location, resume_unfinished, resume_errored, restart_errored and not resume_errored)
        return tuner

    @classmethod
    def can_restore(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: Any = None,
        *,
        backend: Backend | str | None = None,
    ) -> bool:
        """Return whether `restore` would find an experiment in the directory or at the URI `path`."""
        if storage_filesystem is not None:
            from trialpod.tune.location.filesystems import uri_of

            path = uri_of("Tuner.can_restore(storage_filesystem=...)", path, storage_filesystem)
        location = experiment_location(path)
        prepare_storage(open_backend(backend), str(location))
        stored = location.storage().exists(TUNER_FILE) or _file_here(location) is not None
        return stored and open_backend(backend).can_restore(str(location))

    @property
    def run_config(self) -> RunConfig:
        """How the experiment runs; may be changed until `fit`, on a restored Tuner too."""
        return self._run_config

    @property
    def tune_config(self) -> TuneConfig:
        """How the search space is explored; may be changed until `fit`, on a restored Tuner too."""
        return self._tune_config

    def _resume_by_name(
        self, *, unfinished: bool = True, errored: bool = False, restart: bool = False, must: bool = True
    ) -> None:
        """Have `fit` resume the experiment of the name in the RunConfig, with this Tuner's arguments."""
        overrides = Overrides.read()
        location = self._parent(overrides).named(str(overrides.run_name or self._run_config.name).rpartition("/")[2])
        if not open_backend(self._backend).can_restore(str(location)):
            if not must:
                return
            raise InvalidInputError(
                f"tune.run(resume=True): there is no experiment to resume at {location}; leave resume out, or give "
                "resume='AUTO', which starts one where there is none"
            )
        prepare_storage(open_backend(self._backend), str(location))
        saved = _saved(location, "tune.run", self._facts.name)
        check_same_keys(saved["param_space"], self._param_space)
        self._resume = _Resume(location, unfinished, errored, restart)

    def fit(self) -> ResultGrid:
        """Run the experiment to its end and return the results of its trials.

        Raises:
            InvalidInputError: an argument cannot be used; nothing was started.
            ExperimentFailedError: no trial reports the metric, or a scheduler, search algorithm or stopper raised
                an error. What was reported until then is in `get_results`.
            TrialFailedError: a trial failed and ``fail_fast="raise"`` was set.
            KeyboardInterrupt: it was interrupted; what was reported is in `get_results`, and `restore` continues.
            Exception: what a callback raised, as it was raised.
            TrialpodError: the experiment itself could not continue.
        """
        self._check()
        overrides = Overrides.read()
        backend = open_backend(self._backend)
        own_code = getattr(backend, "ships_code", False)
        objects = ObjectSet()
        code = packed_trainable(self._trainable, name=self._facts.name, own_code=own_code, objects=objects)
        state = self._state()
        location, resume = self._place(overrides, backend)
        location.check_directory()
        request = self._request(location, overrides)
        if resume is not None and not self._continues(request, backend, overrides):
            resume = None
            if location.uri and backend.can_restore(str(location)):  # it was not moved aside
                location = _free(location, backend)
        if resume is None:
            new = not os.path.lexists(location.directory)
            location = claim(location, exact=self._is_named(overrides))
        folder = Path(location.directory, OUR_FOLDER)
        os.makedirs(folder, exist_ok=True)
        if len(state) >= MIN_STORED_BYTES:
            state = self._state(ValueFiles(folder))  # the backend brings them to a bucket
        write_atomically(Path(location.directory, TUNER_FILE), state)
        request = replace(
            request,
            name=os.path.basename(location.directory),
            storage_path=os.path.dirname(location.directory),
            storage_uri=location.uri,
            trainable=write_trainable(code, folder, objects),
            callbacks=[*request.callbacks, *self._syncing(location, own_code=own_code)],
            resume=resume is not None,
            resume_unfinished=resume is None or resume.unfinished,
            resume_errored=resume is not None and resume.errored,
            restart_errored=resume is not None and resume.restart,
            retry_failed=resume is not None and resume.retry_failed,
        )
        self._grid, self._begun = None, location
        started = time.time()
        try:
            outcome = backend.run(request)
        except CallbackError as error:
            raise error.original() from None
        except KeyboardInterrupt as error:
            script_errors.mark_handled(error)
            raise
        except InvalidInputError:
            if resume is None and new and kept_at(location.directory) is None:
                shutil.rmtree(location.directory, ignore_errors=True)  # nothing of an experiment is in it
                self._begun = None
            raise
        self._grid = self._results(outcome)
        if under_ray():
            from trialpod.tune.location.experiment_state import write_state

            write_state(outcome, started, time.time())
        if outcome.broken:
            raise ExperimentFailedError(f"the experiment in {outcome.path} was ended: {outcome.broken}")
        if self._failure.fail_fast == "raise":
            _raise_first_error(outcome)
        return self._grid

    def _scheduler_of_fit(self, scheduler: Any) -> Any:
        """Return a scheduler that has learned nothing yet, for one `fit`.

        The first `fit` takes an object of the script's own class itself: the script may read afterwards what it
        has collected.
        """
        if type(scheduler).__module__.partition(".")[0] == "trialpod" or scheduler is None:
            return copy.deepcopy(scheduler)
        if self._unused_scheduler is None:
            self._unused_scheduler = copy.deepcopy(scheduler)
            return scheduler
        return copy.deepcopy(self._unused_scheduler)

    def get_results(self) -> ResultGrid:
        """Return the results of the experiment, after `fit` or on a restored Tuner.

        When `fit` was interrupted or raised an error they are those up to then.

        Raises:
            NotReadyError: the experiment has not run.
        """
        if self._grid is not None:
            return self._grid
        location = self._begun or (self._resume.location if self._resume is not None else None)
        if location is None:
            raise NotReadyError("Tuner.get_results(): the experiment has not run yet; call Tuner.fit() first")
        return self._results(open_backend(self._backend).load(str(location)))

    def resources_for(self, config: dict[str, Any]) -> dict[str, float]:
        """Return the resources that a trial with this config needs, by name: cpu, gpu, memory and so on."""
        fixed, computed = resources_of(self._trainable)
        return computed(config) if computed is not None else fixed

    def _results(self, outcome: ExperimentOutcome) -> ResultGrid:
        # Not the mode that the backend used: where the user named none, the best result needs one.
        tuning = self._tune_config
        objectives = tuning.objectives
        metric, mode = (objectives[0].name, objectives[0].mode) if objectives else (tuning.metric, tuning.mode)
        return ResultGrid(replace(outcome, metric=metric, mode=mode, objectives=objectives))

    @property
    def _failure(self) -> FailureConfig:
        return self._run_config.failure_config or FailureConfig()

    def _check(self) -> None:
        self._tune_config.validate()
        self._run_config.validate()
        checkpoint_rules(self._run_config.checkpoint_config or CheckpointConfig(), self._facts)
        resources_of(self._trainable)
        config = self._tune_config
        check_scheduler(made_scheduler(config.scheduler), config)
        made_search_alg(config.search_alg)

    def _parent(self, overrides: Overrides) -> Location:
        sync = self._run_config.sync_config
        storage = self._run_config.storage_path or (sync.upload_dir if sync is not None else None)
        if self._copies_to:
            storage = None if storage == self._copies_to else storage
        found = resolve(overrides.storage_path or storage or overrides.default_storage or DEFAULT_STORAGE)
        above = "" if overrides.run_name else (self._run_config.name or "").rpartition("/")[0]
        return resolve(str(found.named(above))) if above else found

    @property
    def _copies_to(self) -> str:
        """Where the script's own syncer copies experiments to; "" when there is none, or it cannot be used."""
        sync = self._run_config.sync_config
        if sync is None or sync.own_syncer is None or getattr(open_backend(self._backend), "ships_code", False):
            return ""
        storage = str(self._run_config.storage_path or "")
        return sync.upload_dir or (storage if "://" in storage else "")

    def _syncing(self, location: Location, *, own_code: bool) -> list[Any]:
        """Return the callback that has the script's own syncer copy the experiment."""
        sync = self._run_config.sync_config
        if sync is None or sync.own_syncer is None:
            return []
        from trialpod.tune.location.syncing import SyncerCallback

        if own_code:
            logger.warning(
                "SyncConfig(syncer=%s(...)) is not used in a cluster: pods share no folder that it could copy; "
                "trials write to %s directly",
                type(sync.own_syncer).__name__,
                location,
            )
            return []
        remote = f"{self._copies_to.rstrip('/')}/{os.path.basename(location.directory)}" if self._copies_to else ""
        return [SyncerCallback(sync.own_syncer, location.directory, remote)] if remote else []

    def _is_named(self, overrides: Overrides) -> bool:
        return bool(overrides.run_name or self._run_config.name)

    def _place(self, overrides: Overrides, backend: Backend) -> tuple[Location, _Resume | None]:
        if self._resume is not None:
            return self._resume.location, self._resume
        if overrides.run_name:
            name = _run_names.next(overrides.run_name)
        else:
            namer = getattr(backend, "default_name", default_name)
            name = (self._run_config.name or "").rpartition("/")[2] or namer(self._facts.name, time.time())
            nearest_name = getattr(backend, "nearest_name", None)
            if under_ray() and nearest_name is not None and (near := nearest_name(name)) != name:
                logger.warning("RunConfig(name=%r): the experiment is called %r, as a cluster allows it", name, near)
                name = near
        location = self._parent(overrides).named(name)
        if not self._is_named(overrides):
            if overrides.resume:
                raise InvalidInputError(
                    "TRIALPOD_RESUME=1: the experiment has no name to find it by; give the one to continue with, in "
                    "RunConfig(name=...) or the variable TRIALPOD_RUN_NAME"
                )
            return location, None
        if not backend.can_restore(str(location)):
            return location, None
        attaches = getattr(backend, "attaches", None)
        resume = overrides.resume or overrides.if_exists == "resume"
        if attaches is not None and not resume and not attaches(str(location)):
            raise InvalidInputError(
                f"{location} holds an experiment already. Continue it: Tuner.restore({str(location)!r}, trainable)"
                ".fit() or the variable TRIALPOD_RESUME=1. Or choose another RunConfig(name=...)"
            )
        return location, _Resume(location, retry_failed=True)

    def _continues(self, request: ExperimentRequest, backend: Backend, overrides: Overrides) -> bool:
        """Decide what happens to the existing experiment; return whether `fit` continues it."""
        wanted: str = "resume"
        if self._resume is None and not overrides.resume:
            wanted = overrides.if_exists or self._run_config.if_exists or _default_if_exists()
        resolve_existing = getattr(backend, "resolve_existing", None)
        if resolve_existing is None:
            if wanted in ("fresh", "error"):
                raise InvalidInputError(
                    f"RunConfig(if_exists={wanted!r}): there is an experiment of the name {request.name!r}; choose "
                    "another RunConfig(name=...)"
                )
            return True
        if wanted == "add" and request.storage_uri:
            return False  # under a name of its own: in a bucket nothing can be renamed
        return bool(resolve_existing(request, wanted))

    def _request(self, location: Location, overrides: Overrides) -> ExperimentRequest:
        tuning, running, facts = self._tune_config, self._run_config, self._facts
        resources, resources_fn = resources_of(self._trainable)
        stop: Any = running.stop
        if isinstance(stop, Mapping):
            stop = stop_numbers("RunConfig", stop) or None
        elif isinstance(stop, (list, tuple)):
            stop = copy.deepcopy(list(stop)) or None
        elif stop is not None:
            stop = copy.deepcopy(stop)
        return ExperimentRequest(
            name=os.path.basename(location.directory),
            storage_path=os.path.dirname(location.directory),
            storage_uri=location.uri,
            trainable=TrainableRef(),  # written once nothing speaks against the experiment any more
            command=self._trainable.command_spec if isinstance(self._trainable, Command) else None,
            trainable_name=facts.name,
            is_class=facts.is_class,
            param_space=self._param_space,
            metric=tuning.objectives[0].name if tuning.objectives else tuning.metric,
            mode=tuning.objectives[0].mode if tuning.objectives else tuning.mode,
            objectives=tuning.objectives,
            num_samples=tuning.num_samples,
            max_concurrent=overrides.max_concurrent or max(tuning.max_concurrent_trials or 0, 0) or None,
            time_budget_s=seconds(tuning.time_budget_s),
            max_trial_hours=tuning.max_trial_hours,
            max_gpu_hours=tuning.max_gpu_hours,
            repeats=tuning.repeats,
            warm_start=tuning.warm_start,
            stop_when_not_worth=tuning.stop_when_not_worth,
            seed=tuning.seed,
            algorithm=tuning.algorithm,
            search_alg=made_search_alg(tuning.search_alg),
            scheduler=self._scheduler_of_fit(made_scheduler(tuning.scheduler)),
            stop=stop,
            checkpoint_rules=self._checkpoint_rules(location),
            max_failures=self._failure.max_failures,
            fail_fast=bool(self._failure.fail_fast),
            resources=resources,
            bundles=bundles_of(self._trainable),
            resources_fn=resources_fn,
            reuse=tuning.reuse_actors,
            trial_name=trial_namer(tuning.trial_name_creator, facts.name, "trial_name_creator"),
            trial_dirname=trial_namer(tuning.trial_dirname_creator, facts.name, "trial_dirname_creator"),
            chdir=tuning.chdir_to_trial_dir is not False,
            log_files=log_files(running.log_to_file),
            verbose=1 if running.verbose is None else min(max(int(running.verbose), 0), 3),
            strict_metric=overrides.strict_metric,
            callbacks=[*(running.callbacks or ()), *overrides.made_callbacks()],
            progress_reporter=running.progress_reporter,
        )

    def _checkpoint_rules(self, location: Location) -> CheckpointRules:
        running = self._run_config
        rules = checkpoint_rules(running.checkpoint_config or CheckpointConfig(), self._facts)
        artifacts = bool(location.uri) and running.sync_config is not None and running.sync_config.sync_artifacts
        return msgspec.structs.replace(rules, artifacts=artifacts)

    def _state(self, values: ValueFiles | None = None) -> bytes:
        """Return the contents of ``tuner.pkl``; large values of the search space are stored in `values`."""
        from cloudpickle import __version__ as cloudpickle_version

        run_config, left_out = storable(self._run_config)
        saved = {
            "format": _FORMAT,
            "trainable_name": self._facts.name,
            "param_space": self._param_space if values is None else values.referring(self._param_space),
            "tune_config": self._tune_config,
            "run_config": run_config,
            "left_out": left_out,
            "run_options": run_options(self._trainable),
        }
        try:
            body = pickled(saved, "the experiment's configuration", "tuner", travels=False)
        except NotPicklableError:
            pickled(self._param_space, "the search space", "config")  # says where in it, if it is there
            raise
        return pack(body, name=self._facts.name, cloudpickle=cloudpickle_version)


def _saved(location: Location, where: str, name: str) -> dict[str, Any]:
    """Return what was stored of an experiment, whose Trainable must have that name."""
    try:
        state = location.storage().read(TUNER_FILE)
    except KeyMissingError:
        here = _file_here(location)
        if here is None:
            raise MissingPathError(
                f"{where}(path={str(location)!r}): no {TUNER_FILE} there, so no Tuner started an experiment; "
                "path must be the experiment's directory or URI, {storage_path}/{name}"
            ) from None
        state = here.read_bytes()
    if location.uri:
        read_values_from(f"{location.uri}/{OUR_FOLDER}")
    read_values_from(str(Path(location.directory, OUR_FOLDER)))
    saved: dict[str, Any] = unpickled(state, f"{location}/{TUNER_FILE}")
    if name != saved["trainable_name"]:
        raise InvalidInputError(
            f"{where}(trainable={name}): the experiment in {location} is of the Trainable "
            f"{saved['trainable_name']!r}; pass that one (its code may have changed)"
        )
    return saved


def stored_trainable(location: Location, where: str) -> Any:
    """Return the Trainable that is stored with an experiment, which must be the user's own: its code is run.

    Raises:
        InvalidInputError: there is none.
        TrainableError: it cannot be loaded here.
    """
    files = sorted(Path(location.directory, OUR_FOLDER).glob("trainable*.pkl"), key=lambda file: file.stat().st_mtime)
    if files:
        return unpickled(files[-1].read_bytes(), str(files[-1]), objects=str(files[-1].parent))
    folder = f"{location.uri}/{OUR_FOLDER}"
    try:
        data = location.storage().read(f"{OUR_FOLDER}/{TRAINABLE_FILE}")
    except KeyMissingError:
        raise InvalidInputError(
            f"{where}(path={str(location)!r}): the experiment's Trainable is not stored there; pass trainable=..."
        ) from None
    return unpickled(data, f"{folder}/{TRAINABLE_FILE}", objects=folder)


def _file_here(location: Location) -> Path | None:
    """Return the Tuner's file on this machine, of an experiment of which the storage may have nothing yet."""
    here = Path(location.directory, TUNER_FILE)
    return here if location.begun_here and here.exists() else None


def open_backend(backend: Backend | str | None) -> Backend:
    """Return the backend that a name stands for; None as in `get_backend`."""
    return get_backend(backend) if backend is None or isinstance(backend, str) else backend


def _free(location: Location, backend: Backend) -> Location:
    """Return a place below the same parent that no experiment has: NAME_2, NAME_3, ..."""
    number = 2
    while backend.can_restore(str(other := Location(f"{location.directory}_{number}", f"{location.uri}_{number}"))):
        number += 1
    logger.warning("%s holds an experiment already; the new one is %s", location, other)
    return other


def _default_if_exists() -> str:
    """Return what happens to existing results when the script does not say it: under Ray's name what Ray does."""
    from trialpod.compat import ray

    return "add" if ray.installed() else "resume"


def _check_config(argument: str, value: object, expected: type) -> None:
    if value is not None and not isinstance(value, expected):
        raise InvalidInputError(
            f"Tuner({argument}={value!r}): must be a tune.{expected.__name__}, not {type(value).__name__}"
        )


def _raise_first_error(outcome: ExperimentOutcome) -> None:
    for trial in outcome.trials:
        if trial.status == "ERROR":
            raise failure(trial.error or "failed without an error", trial.name, trial.traceback, trial.path)
