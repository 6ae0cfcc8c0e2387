"""The backend ``local``: runs what a `Tuner` is given as processes on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from trialpod import variables
from trialpod.errors import InvalidInputError
from trialpod.missing import PLAIN, install_command
from trialpod.protocol.messages import CheckpointRules
from trialpod.protocol.values import ParamsEncoder, open_leniently
from trialpod.storage.layout import EXPERIMENT_KEY, TRIALPOD_DIR
from trialpod.storage.registry import local_folder, open_storage
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.callback import Callback
from trialpod.tune.location.locations import experiment_location
from trialpod.tune.outcomes import ExperimentOutcome, TrialOutcome
from trialpod.tune.progress_reporter import CLIReporter
from trialpod.tune.shipping.stored_objects import FOLDER, ValueFiles, read_values_from
from trialpod_operator.display.base import Display, write_closing
from trialpod_operator.display.choose import can_move_the_cursor, choose_display, level_of
from trialpod_operator.display.summary import Remedies, RunCommand, command_ways, exit_status, summarize
from trialpod_operator.display.table_options import table_options
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.trial import ERROR, Trial
from trialpod_operator.engine.vocabulary import SCRIPT
from trialpod_operator.experiment.definition import describe
from trialpod_operator.experiment.plan import ExperimentPlan, plan_from_request
from trialpod_operator.experiment.stored import read_stored, stored_in
from trialpod_operator.experiment.trial_files import complete_result
from trialpod_operator.local.callbacks import Callbacks, LogLinks
from trialpod_operator.local.existing import Existing
from trialpod_operator.local.experiment_run import RunOptions, run_experiment
from trialpod_operator.local.machine_resources import Machine, MachineResources
from trialpod_operator.local.trial_output import FollowedTrials, follow_all

_PROCESS = ("pid", "hostname", "node_ip")


@dataclass
class ScriptRun:
    """What `trialpod run SCRIPT` passes to the backend inside the script, and what it learns from it."""

    json: bool = False
    verbose: int | None = None
    command: RunCommand | None = None
    cpus: float | None = None
    gpus: int | None = None
    follow: FollowedTrials | None = None
    retry_errors: str = ""
    retry_trials: Sequence[str] = ()
    statuses: list[int] = field(default_factory=list)


script_run: ScriptRun | None = None
"""Set while a script is run by `trialpod run`."""


class LocalBackend:
    """Runs experiments on this machine and reads them from its directories."""

    def run(self, request: ExperimentRequest) -> ExperimentOutcome:
        """Run the experiment to its end.

        Raises:
            KeyboardInterrupt: the user stopped it; everything is kept, and `Tuner.restore` continues.
            TrialpodError: it cannot run.
        """
        directory = Path(request.directory)
        encode_params = _value_encoder(request, directory)
        script = script_run or ScriptRun()
        verbose = script.verbose if script.verbose is not None else level_of(request.verbose)
        callbacks = _callbacks(request, directory)
        display = _display(request, script.json, verbose, callbacks)

        def plan(stored: Mapping[str, Any] | None) -> ExperimentPlan:
            if stored is not None and not request.resume:
                location = request.storage_uri or str(directory)
                raise InvalidInputError(
                    f"{location} holds an experiment already; continue with it by "
                    f"Tuner.restore({location!r}, ...), or choose another name: RunConfig(name=...)"
                )
            return replace(plan_from_request(request, stored), encode_params=encode_params)

        retry = "scratch" if request.restart_errored else "resume" if request.resume_errored else script.retry_errors
        options = RunOptions(
            cpus=script.cpus,
            gpus=script.gpus,
            retry_errors=retry,
            retry_trials=script.retry_trials,
            drop_unfinished=request.resume and not request.resume_unfinished,
            retry_failed=request.retry_failed,
            ways=_ways(script),
            callbacks=callbacks,
            follow=script.follow or (follow_all if verbose >= 0 and not script.json and _shows_output() else None),
        )
        try:
            outcome = run_experiment(plan, directory, display, options)
        except ModuleNotFoundError as error:
            if error.name not in PLAIN:
                raise
            raise InvalidInputError(
                f"running experiments needs the package {error.name!r}, which is not installed; "
                f"install it with: {install_command(error.name)}"
            ) from error
        if script_run is not None:
            script_run.statuses.append(exit_status(outcome.view, interrupted=False, uncopied=outcome.uncopied))
        if not script.json and verbose >= -1:
            write_closing(sys.stdout, summarize(outcome.view, script.command))
        if outcome.interrupted:
            raise KeyboardInterrupt
        return self.load(str(directory))

    def resolve_existing(self, request: ExperimentRequest, if_exists: str) -> bool:
        """Decide what happens to an existing experiment; return whether `run` resumes it.

        Raises:
            ExperimentChangedError: it is another experiment.
            InvalidInputError: it cannot run, or what is there cannot be moved aside.
        """
        script = script_run or ScriptRun()
        directory = Path(request.directory)
        stored = read_stored(directory)
        storage = open_storage(request.storage_uri) if request.storage_uri else None
        if stored is None and storage is not None:
            stored = stored_in(storage)
        if stored is None:
            return True
        if request.resources_fn is None:
            MachineResources(Machine.detect(cpus=script.cpus, gpus=script.gpus), vocabulary=SCRIPT).check(
                request.resources
            )
        existing = Existing(directory, stored, _ways(script), storage)
        return existing.resolve({"definition": describe(request)}, if_exists)

    def load(self, path: str) -> ExperimentOutcome:
        """Read what is known of the experiment in the directory or at the URI `path`."""
        from trialpod_operator.view.reading import reading

        folder = local_folder(path)
        read_values_from(str(folder / TRIALPOD_DIR) if folder is not None else f"{path}/{TRIALPOD_DIR}")
        with reading(path) as experiment:
            state = experiment.engine.state
            settings = state.settings
            return ExperimentOutcome(
                name=experiment.name,
                path=experiment.location,
                uri=experiment.storage_uri,
                state=state.flags.state,
                message=state.flags.message,
                metric=settings.metric if settings else None,
                mode=settings.mode if settings else None,
                objectives=settings.objectives if settings else [],
                broken=_broken(experiment.engine),
                trials=[
                    TrialOutcome(
                        trial_id=trial.trial_id,
                        name=experiment.trial_name(trial),
                        config=cast("dict[str, Any]", open_leniently(trial.params)),
                        status=trial.status,
                        path=experiment.path(trial),
                        last_result=_last_result(trial),
                        error=trial.error,
                        traceback=trial.traceback,
                        checkpoints=trial.checkpoints,
                        checkpoint_uri=experiment.checkpoint_uri(trial),
                        checkpoint_rules=settings.checkpoint_rules if settings else CheckpointRules(),
                        experiment_tag=trial.tag,
                        trainable_name=settings.trainable_name if settings else "",
                        failures=trial.failures,
                        created_at=trial.created_at,
                        process={key: value for key, value in trial.attempt_fields.items() if key in _PROCESS},
                        ended_at=trial.ended_at,
                    )
                    for trial in state.trials.values()
                ],
            )

    def can_restore(self, path: str) -> bool:
        """Return whether there is an experiment that `run` could continue with.

        Raises:
            StorageError: the storage cannot be read.
        """
        folder = local_folder(path)
        if folder is None:
            # Of one whose first run ended at once only this machine has anything.
            stored = open_storage(path).exists(EXPERIMENT_KEY)
            return stored or experiment_location(path).begun_here
        return (folder / TRIALPOD_DIR).is_dir() and read_stored(folder) is not None


def _shows_output() -> bool:
    """Return whether the output of trials is shown when no trials to follow are named."""
    return not variables.is_off(variables.TRIAL_OUTPUT, os.environ.get(variables.TRIAL_OUTPUT, ""))


def _callbacks(request: ExperimentRequest, directory: Path) -> Callbacks | None:
    """Return the callbacks to call, None when there are none."""
    callbacks: list[Callback] = list(request.callbacks)
    if request.log_files is not None:  # last: what a callback has stored is found again by its place
        callbacks.append(LogLinks(request.log_files))
    if not callbacks and request.progress_reporter is None:
        return None
    return Callbacks(
        callbacks,
        directory,
        stop=request.stop,
        num_samples=request.num_samples,
        time_budget_s=request.time_budget_s,
    )


def _ways(script: ScriptRun) -> Remedies:
    return Remedies() if script.command is None else command_ways(script.command, Remedies().budget)


def _display(request: ExperimentRequest, json: bool, verbose: int, callbacks: Callbacks | None) -> Display:
    """Return the display for a request: the script's reporter has a say where people look at lines or a table."""
    reporter = request.progress_reporter
    if reporter is None or callbacks is None or json or verbose < 0:
        return choose_display(sys.stdout, json=json, verbose=verbose)
    if type(reporter) is CLIReporter and can_move_the_cursor(sys.stdout):
        return choose_display(sys.stdout, json=json, verbose=verbose, table=table_options(reporter))
    from trialpod_operator.display.reporter import ReporterDisplay

    return ReporterDisplay(sys.stdout, reporter, callbacks.trials)


def _value_encoder(request: ExperimentRequest, directory: Path) -> Callable[[Any], bytes]:
    """Return what encodes configs; their large values are stored once, and in the bucket if there is one."""
    ours = directory / TRIALPOD_DIR

    def upload(file: Path, name: str) -> None:
        storage, key = open_storage(request.storage_uri), f"{TRIALPOD_DIR}/{FOLDER}/{name}"
        if not storage.exists(key):
            storage.put_file(file, key)

    store = ValueFiles(ours, upload if request.storage_uri else None)
    if request.storage_uri:
        read_values_from(f"{request.storage_uri}/{TRIALPOD_DIR}")
    read_values_from(str(ours))
    store.keep(request.param_space)
    return ParamsEncoder(store).encode


def _broken(engine: Engine) -> str:
    """Return why an experiment that has ended could not continue as one; empty when it could."""
    flags, settings = engine.state.flags, engine.state.settings
    stopping = flags.stopping or {}
    if stopping.get("source") in ("metric", "algorithm"):
        return str(stopping.get("message"))
    if settings is not None and settings.strict_metric and flags.finished and flags.unmeasured and not flags.measured:
        failed = (trial.error for trial in engine.state.trials.values() if trial.status == ERROR)
        return next(failed, "")
    return ""


def _last_result(trial: Trial) -> dict[str, Any] | None:
    if not trial.result:
        return None
    return complete_result(trial)
