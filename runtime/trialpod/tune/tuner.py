"""`Tuner`: describes an experiment, runs it, goes on with it later.

Invariants:

* Everything that can be checked is checked before anything is written or started.
* `fit` never touches an experiment that exists already; only a restored Tuner goes on with one.
* What a later `Tuner.restore` needs is in ``tuner.pkl`` in the experiment's directory before the first trial starts.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.packed import pack
from trialpod.storage.base import KeyMissingError
from trialpod.tune.backends import Backend, ExperimentOutcome, ExperimentRequest, get_backend
from trialpod.tune.config import (
    CheckpointConfig,
    FailureConfig,
    RunConfig,
    TuneConfig,
    log_files,
    seconds,
    stop_numbers,
)
from trialpod.tune.environment import Overrides
from trialpod.tune.places import DEFAULT_STORAGE, Place, experiment_place, resolve
from trialpod.tune.resources import resources_of
from trialpod.tune.result import TrialFailedError
from trialpod.tune.result_grid import ResultGrid
from trialpod.tune.shipping import packed_trainable, pickled, unpickled, write_atomically, write_trainable
from trialpod.tune.trainable_checks import checkpoint_rules, inspect_trainable
from trialpod.tune.tuner_arguments import (
    check_same_keys,
    check_scheduler,
    checked_space,
    made_scheduler,
    made_search_alg,
    trial_namer,
)

TUNER_FILE = "tuner.pkl"
OUR_FOLDER = ".trialpod"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Resume:
    place: Place
    unfinished: bool = True
    errored: bool = False
    restart: bool = False


@dataclass(slots=True)
class _RunNames:
    """Numbers the experiments of a script to which the environment gives one name: "x", "x_2", "x_3", ..."""

    used: dict[str, int] = field(default_factory=dict)

    def next(self, name: str) -> str:
        self.used[name] = self.used.get(name, 0) + 1
        return name if self.used[name] == 1 else f"{name}_{self.used[name]}"


_run_names = _RunNames()


class Tuner:
    """One experiment: a Trainable, the space of its configs, and how to search it.

    Args:
        trainable: a function ``(config)`` or a subclass of `tune.Trainable`.
        param_space: the config of the trials, with distributions and grids in it.
        tune_config: how to search.
        run_config: how to run.
        backend: where to run: a backend's name or object. None takes the variable TRIALPOD_BACKEND, or else this
            machine.

    Raises:
        InvalidInputError: something in it cannot work.
    """

    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        backend: Backend | str | None = None,
    ) -> None:
        _check_config("tune_config", tune_config, TuneConfig)
        _check_config("run_config", run_config, RunConfig)
        self._trainable = trainable
        self._facts = inspect_trainable(trainable)
        self._param_space = checked_space(param_space)
        self._tune_config = copy.copy(tune_config) if tune_config is not None else TuneConfig()
        self._run_config = copy.copy(run_config) if run_config is not None else RunConfig()
        self._backend = backend
        self._resume: _Resume | None = None
        self._grid: ResultGrid | None = None
        self._check()

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any,
        *,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        backend: Backend | str | None = None,
    ) -> Tuner:
        """Return a Tuner whose `fit` goes on with an experiment.

        Args:
            path: the experiment's directory, or where it is kept: ``s3://bucket/prefix/name``. Then `fit` works in
                ``~/trialpod-results/name``, or in the folder that the variable TRIALPOD_WORK_DIR names.
            trainable: the experiment's Trainable; its code may have changed, its name may not.
            resume_unfinished: whether trials that had not ended go on.
            resume_errored: whether failed trials go on from their newest checkpoints.
            restart_errored: whether failed trials start anew.
            param_space: the search space again, if objects in it must be replaced. The keys must be the same.
            backend: as for `Tuner`.

        Raises:
            InvalidInputError: there is no experiment that a Tuner started, or the arguments do not fit it.
            TrainableError: its ``tuner.pkl`` cannot be read by this version of Python.
            StorageError: the storage cannot be read.
        """
        place = experiment_place(path)
        if resume_errored and restart_errored:
            raise InvalidInputError(
                "Tuner.restore(resume_errored=True, restart_errored=True): failed trials can go on from their "
                "checkpoints or start anew, not both; choose one"
            )
        try:
            state = place.storage().read(TUNER_FILE)
        except KeyMissingError:
            raise InvalidInputError(
                f"Tuner.restore(path={str(place)!r}): no {TUNER_FILE} there, so no Tuner started an experiment; "
                "path must be the experiment's directory or URI, {storage_path}/{name}"
            ) from None
        saved = unpickled(state, f"{place}/{TUNER_FILE}")
        name = inspect_trainable(trainable).name
        if name != saved["trainable_name"]:
            raise InvalidInputError(
                f"Tuner.restore(trainable={name}): the experiment in {place} is of the Trainable "
                f"{saved['trainable_name']!r}; pass that one (its code may have changed)"
            )
        space = saved["param_space"] if param_space is None else checked_space(param_space)
        check_same_keys(saved["param_space"], space)
        tuner = cls(
            trainable,
            param_space=space,
            tune_config=saved["tune_config"],
            run_config=saved["run_config"],
            backend=backend,
        )
        tuner._resume = _Resume(place, resume_unfinished, resume_errored, restart_errored)
        return tuner

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], *, backend: Backend | str | None = None) -> bool:
        """Return whether `restore` would find an experiment in the directory or at the URI `path`."""
        place = experiment_place(path)
        return place.storage().exists(TUNER_FILE) and _backend(backend).can_restore(str(place))

    def fit(self) -> ResultGrid:
        """Run the experiment to its end and return the results of its trials.

        Raises:
            InvalidInputError: something cannot work; nothing has been started.
            TrialFailedError: a trial failed and ``fail_fast="raise"`` was set.
            TrialpodError: the experiment itself could not go on.
        """
        self._check()
        overrides = Overrides.read()
        backend = _backend(self._backend)
        code, state = packed_trainable(self._trainable, name=self._facts.name), self._state()
        place, resume = self._place(overrides, backend)
        place.check_directory()
        if not resume:
            place = _claim(place, exact=self._is_named(overrides))
        os.makedirs(os.path.join(place.directory, OUR_FOLDER), exist_ok=True)
        write_atomically(Path(place.directory, TUNER_FILE), state)
        outcome = backend.run(self._request(place, code, overrides, resume))
        self._grid = self._results(outcome)
        if self._failure.fail_fast == "raise":
            _raise_first_error(outcome)
        return self._grid

    def get_results(self) -> ResultGrid:
        """Return the results of the experiment, after `fit` or on a restored Tuner.

        Raises:
            InvalidInputError: the experiment has not run.
        """
        if self._grid is not None:
            return self._grid
        if self._resume is None:
            raise InvalidInputError("Tuner.get_results(): the experiment has not run yet; call Tuner.fit() first")
        return self._results(_backend(self._backend).load(str(self._resume.place)))

    def _results(self, outcome: ExperimentOutcome) -> ResultGrid:
        # Of what the user left open nothing is guessed: a backend may need a mode, the best result must not.
        return ResultGrid(replace(outcome, metric=self._tune_config.metric, mode=self._tune_config.mode))

    @property
    def _failure(self) -> FailureConfig:
        return self._run_config.failure_config or FailureConfig()

    def _check(self) -> None:
        self._tune_config.validate()
        self._run_config.validate()
        checkpoint_rules(self._run_config.checkpoint_config or CheckpointConfig(), self._facts)
        resources_of(self._trainable)
        config = self._tune_config
        if config.reuse_actors and not self._facts.resets:
            raise InvalidInputError(
                f"TuneConfig(reuse_actors=True): {self._facts.name} does not implement reset_config(), which takes "
                "a new config and returns True; implement it or leave reuse_actors out"
            )
        check_scheduler(made_scheduler(config.scheduler), config)
        made_search_alg(config.search_alg)

    def _is_named(self, overrides: Overrides) -> bool:
        return bool(overrides.run_name or self._run_config.name)

    def _place(self, overrides: Overrides, backend: Backend) -> tuple[Place, _Resume | None]:
        if self._resume is not None:
            return self._resume.place, self._resume
        if overrides.run_name:
            name = _run_names.next(overrides.run_name)
        else:
            name = self._run_config.name or default_name(self._facts.name, time.time())
        place = resolve(overrides.storage_path or self._run_config.storage_path or DEFAULT_STORAGE).named(name)
        if not self._is_named(overrides):
            if overrides.resume:
                raise InvalidInputError(
                    "TRIALPOD_RESUME=1: the experiment has no name to find it by; give the one to go on with, in "
                    "RunConfig(name=...) or the variable TRIALPOD_RUN_NAME"
                )
            return place, None
        if not backend.can_restore(str(place)):
            return place, None
        if overrides.resume:
            return place, _Resume(place)
        raise InvalidInputError(
            f"{place} holds an experiment already. Go on with it: Tuner.restore({str(place)!r}, trainable).fit(), "
            "or the variable TRIALPOD_RESUME=1. Or choose another RunConfig(name=...), or remove it"
        )

    def _request(self, place: Place, code: bytes, overrides: Overrides, resume: _Resume | None) -> ExperimentRequest:
        tuning, running, facts = self._tune_config, self._run_config, self._facts
        resources, resources_fn = resources_of(self._trainable)
        stop: Any = running.stop
        if isinstance(stop, Mapping):
            stop = stop_numbers("RunConfig", stop) or None
        elif isinstance(stop, (list, tuple)):
            stop = copy.deepcopy(list(stop)) or None
        elif stop is not None:
            stop = copy.deepcopy(stop)
        resume_flags: dict[str, Any] = {}
        if resume is not None:
            resume_flags = {
                "resume": True,
                "resume_unfinished": resume.unfinished,
                "resume_errored": resume.errored,
                "restart_errored": resume.restart,
            }
        return ExperimentRequest(
            name=os.path.basename(place.directory),
            storage_path=os.path.dirname(place.directory),
            storage_uri=place.uri,
            trainable=write_trainable(code, Path(place.directory, OUR_FOLDER)),
            trainable_name=facts.name,
            is_class=facts.is_class,
            param_space=self._param_space,
            metric=tuning.metric,
            mode=tuning.mode,
            num_samples=tuning.num_samples,
            max_concurrent=overrides.max_concurrent or tuning.max_concurrent_trials or None,
            time_budget_s=seconds(tuning.time_budget_s),
            seed=tuning.seed,
            search_alg=made_search_alg(tuning.search_alg),
            # A scheduler learns while it runs; the next `fit` of this Tuner must start with one that has not.
            scheduler=copy.deepcopy(made_scheduler(tuning.scheduler)),
            stop=stop,
            checkpoint_rules=checkpoint_rules(running.checkpoint_config or CheckpointConfig(), facts),
            max_failures=self._failure.max_failures,
            fail_fast=bool(self._failure.fail_fast),
            resources=resources,
            resources_fn=resources_fn,
            reuse=tuning.reuse_actors,
            trial_name=trial_namer(tuning.trial_name_creator, facts.name, "trial_name_creator"),
            trial_dirname=trial_namer(tuning.trial_dirname_creator, facts.name, "trial_dirname_creator"),
            log_files=log_files(running.log_to_file),
            verbose=1 if running.verbose is None else int(running.verbose),
            **resume_flags,
        )

    def _state(self) -> bytes:
        """Return the contents of ``tuner.pkl``."""
        from cloudpickle import __version__ as cloudpickle_version

        pickled(self._param_space, "the search space", "config")
        saved = {
            "format": _FORMAT,
            "trainable_name": self._facts.name,
            "param_space": self._param_space,
            "tune_config": self._tune_config,
            "run_config": self._run_config,
        }
        body = pickled(saved, "the experiment's configuration", "tuner")
        return pack(body, name=self._facts.name, cloudpickle=cloudpickle_version)


def default_name(trainable: str, now: float) -> str:
    """Return the name of an experiment that was given none; `now` is in seconds since the epoch."""
    return f"{trainable}_{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(now))}"


def _backend(backend: Backend | str | None) -> Backend:
    return get_backend(backend) if backend is None or isinstance(backend, str) else backend


def _check_config(argument: str, value: object, expected: type) -> None:
    if value is not None and not isinstance(value, expected):
        raise InvalidInputError(
            f"Tuner({argument}={value!r}): must be a tune.{expected.__name__}, not {type(value).__name__}"
        )


def _claim(place: Place, *, exact: bool) -> Place:
    """Make the experiment's directory; a generated name gets a number when another experiment has it."""
    number = 1
    while True:
        ending = "" if number == 1 else f"_{number}"
        path = place.directory + ending
        try:
            os.makedirs(path, exist_ok=exact)
        except FileExistsError:
            if exact:
                raise InvalidInputError(
                    f"{path} cannot be an experiment's directory: there is a file of that name"
                ) from None
            number += 1
            continue
        except OSError as error:
            raise InvalidInputError(
                f"the experiment's directory {path} cannot be made: {error.strerror}; "
                f"choose another {'TRIALPOD_WORK_DIR' if place.uri else 'RunConfig(storage_path=...)'}"
            ) from error
        return Place(path, place.uri and place.uri + ending)


def _raise_first_error(outcome: ExperimentOutcome) -> None:
    for trial in outcome.trials:
        if trial.status == "ERROR":
            raise TrialFailedError(trial.error or "failed without an error", trial.name, trial.traceback)
