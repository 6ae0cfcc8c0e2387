"""One run of an experiment on this machine, from its plan to its summary: what the command line and `Tuner` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.storage.base import Storage
from trialpod.storage.layout import TRIALPOD_DIR
from trialpod.storage.lock import ExperimentLock
from trialpod.storage.registry import open_storage
from trialpod.tune.plugins.state import allow_pickles
from trialpod.tune.shipping.package import sweep_trainables
from trialpod_operator.display.base import Display
from trialpod_operator.display.summary import Remedies
from trialpod_operator.experiment.definition import differences
from trialpod_operator.experiment.plan import ExperimentPlan, RemoteStorage
from trialpod_operator.experiment.replica.replica import Replica
from trialpod_operator.experiment.stored import read_stored, stored_in, write_stored
from trialpod_operator.experiment.writer import WriterClaim
from trialpod_operator.local.existing import FRESH, RESUME, Existing, notify
from trialpod_operator.local.fork_server import ForkServer
from trialpod_operator.local.machine_resources import Machine, MachineResources
from trialpod_operator.local.trial_output import OutputFollower

if TYPE_CHECKING:
    from trialpod_operator.local.callbacks import Callbacks
    from trialpod_operator.local.shell import RunOutcome

LOCK_TIMEOUT_S = 10.0
"""How long to wait for the processes of an earlier run to be gone."""

STORAGE_PATIENCE_S = 5.0
"""How long one operation on the storage is retried. What copies there tries forever, and tells the user."""

MakePlan = Callable[[Mapping[str, Any] | None], ExperimentPlan]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run, beside what to run.

    `cpus` and `gpus` replace what the machine has. `retry_errors` queues failed trials of an earlier run again
    ("scratch" = without their checkpoints), of `retry_trials` only where there are any; `drop_unfinished` stops those
    that an earlier run left unfinished.
    `retry_failed` queues the failed trials of an experiment again that failed as a whole. `callbacks` are the
    script's. `if_exists` says what becomes of results that are there already, `ways` what the user can do about them.
    `follow` says of which trials, by id and name, the display is shown what they print; None: of none. `wait` gets
    once when another process still holds the experiment.
    """

    cpus: float | None = None
    gpus: int | None = None
    retry_errors: str = ""
    retry_trials: Sequence[str] = ()
    drop_unfinished: bool = False
    retry_failed: bool = False
    if_exists: str = RESUME
    ways: Remedies = field(default_factory=Remedies)
    callbacks: Callbacks | None = None
    follow: Callable[[str, str], bool] | None = None
    wait: Callable[[str], None] = notify


def run_experiment(make_plan: MakePlan, directory: Path, display: Display, options: RunOptions) -> RunOutcome:
    """Run an experiment to its end, or continue with the one that is in `directory`.

    Args:
        make_plan: makes the plan, given what an earlier start stored.
        directory: the experiment's directory; made when it is missing.
        display: shows what happens.
        options: how to run.

    Raises:
        InvalidInputError: the plan cannot work on this machine or with what is in the directory.
        ExperimentLockedError: another process runs this experiment.
        TrialpodError: it cannot continue; what was received is safe.
    """
    allow_pickles()  # of states: this process runs the code of the same user
    machine_resources = MachineResources(Machine.detect(cpus=options.cpus, gpus=options.gpus))
    plan = _plan_of(make_plan, directory, machine_resources, options)
    remote = plan.remote
    storage = _opened(remote) if remote is not None else None
    lock = ExperimentLock(directory)
    lock.acquire(timeout_s=LOCK_TIMEOUT_S, on_wait=options.wait, for_orphans_only=True)
    claim = WriterClaim(storage) if storage is not None else None
    reachable = True
    try:
        if claim is not None:
            claim.acquire(options.wait)
            claim.keep()
        replica = Replica(directory, storage) if storage is not None else None
        if replica is not None and replica.pull():
            plan, stored = _checked_plan(make_plan, directory, machine_resources)
            if stored is not None and (found := differences(stored, plan.document)):
                Existing(directory, stored, options.ways, storage).refuse(found)
        # No process of an earlier run is left that could still read them.
        sweep_trainables(directory / TRIALPOD_DIR, plan.trainable)
        environment = {**os.environ, **machine_resources.thread_env(plan.resources), **plan.environment}
        fork_server = ForkServer(env=environment, keep_fd=lock.fileno())
        try:
            write_stored(directory, plan.document)
            # Imported while the fork server starts, which takes as long.
            from trialpod_operator.local.shell import LocalShell

            shell = LocalShell(
                plan,
                directory,
                lock.fileno(),
                machine_resources,
                display,
                retry_errors=options.retry_errors,
                retry_trials=options.retry_trials,
                drop_unfinished=options.drop_unfinished,
                retry_failed=options.retry_failed,
                ways=options.ways,
                replica=replica,
                fork_server=fork_server,
                callbacks=options.callbacks,
                output=OutputFollower(display.output, options.follow) if options.follow is not None else None,
            )
            outcome = shell.run()
            reachable = not outcome.uncopied
            return outcome
        finally:
            fork_server.end()
    finally:
        if claim is not None:
            claim.release(reachable=reachable)
        lock.release()


def _opened(remote: RemoteStorage) -> Storage:
    return open_storage(remote.uri, msgspec.structs.replace(remote.options, retry_s=STORAGE_PATIENCE_S))


def _plan_of(
    make_plan: MakePlan, directory: Path, machine_resources: MachineResources, options: RunOptions
) -> ExperimentPlan:
    """Make the plan, and decide what becomes of results that are there already."""
    plan, stored = _checked_plan(make_plan, directory, machine_resources)
    storage = _opened(plan.remote) if plan.remote is not None else None
    if stored is None and storage is not None and options.if_exists == FRESH:
        stored = stored_in(storage)  # of an experiment that another machine began
    if stored is None:
        return plan
    existing = Existing(directory, stored, options.ways, storage, options.wait)
    if existing.resolve(plan.document, options.if_exists):
        return plan
    return _checked_plan(make_plan, directory, machine_resources)[0]


def _checked_plan(
    make_plan: MakePlan, directory: Path, machine_resources: MachineResources
) -> tuple[ExperimentPlan, Mapping[str, Any] | None]:
    """Make the plan for what is in the directory, and return that too; refuse what cannot work on this machine."""
    stored = read_stored(directory)
    plan = make_plan(stored)
    machine_resources.vocabulary = plan.settings.vocabulary
    if plan.resources_of is None:
        machine_resources.check(plan.resources)
    _refuse_shared_files(plan, machine_resources)
    if stored is not None:
        refuse_other_location(directory, stored, str(plan.document.get("storage", "")))
    return plan, stored


def _refuse_shared_files(plan: ExperimentPlan, machine_resources: MachineResources) -> None:
    """Raise InvalidInputError when trials of a command that run at once would use one file for their own data."""
    command = plan.trainable.command
    if command is None or plan.settings.max_concurrent == 1 or plan.search.total == 1:
        return
    if plan.resources_of is None and machine_resources.concurrency(plan.resources) == 1:
        return
    from trialpod.tune.command.template import shared_files

    vocabulary = plan.settings.vocabulary
    for name, template in shared_files(command):
        in_manifest = f"spec.trainable.{name.replace('metrics.', 'metricsFrom.')}"
        where = in_manifest if vocabulary.yaml else f"Command(...): {name}"
        own = f"{{trial_dir}}/{os.path.basename(template.rstrip('/'))}"
        raise InvalidInputError(
            f"{where}: {template!r} is the same for all trials, and several run at once on this machine; write "
            f"{own!r}, which the program must use too, or set {vocabulary.field('maxConcurrentTrials')} to 1"
        )


def refuse_other_location(directory: Path, stored: Mapping[str, Any], now: str) -> None:
    """Raise InvalidInputError when the experiment in a directory is kept in another storage than `now`."""
    before = stored.get("storage", "")
    if before != now:
        kept, wanted = (f"in {uri}" if uri else "only there" for uri in (before, now))
        raise InvalidInputError(
            f"{directory} holds an experiment of this name that is kept {kept}, not {wanted}; "
            "give this one another name (--name), or move the other away"
        )
