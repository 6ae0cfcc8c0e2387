"""The whole life of an attempt process: ask for an assignment, run it, say how it ended, and ask again if it may.

Invariants:

* How an attempt ended is reported last, after everything that it reported, and the process leaves only when that is
  durable.
* A process forked by user code never runs any of this.
* After `superseded` the process ends without another word.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeGuard

import msgspec

from trialpod import __version__, variables
from trialpod.compat.activation import under_ray
from trialpod.errors import TrainableError
from trialpod.protocol.attempt_link import AttemptLink, Superseded
from trialpod.protocol.client import RefusedError, ReportClient
from trialpod.protocol.command import CommandSpec
from trialpod.protocol.messages import (
    Assignment,
    AssignmentRequest,
    AttemptEnd,
    EndCause,
    TrainableRef,
)
from trialpod.protocol.output import attempt_mark
from trialpod.protocol.values import params_decoder, unreadable
from trialpod.runner.attempt import Attempt, SourceLostError
from trialpod.runner.class_runner import ClassRunner
from trialpod.runner.function_runner import check_signature, run_function
from trialpod.runner.load import Loaded, load_trainable
from trialpod.runner.preemption import PreemptionWatch, leave, margin_s
from trialpod.runner.ranks import NonReportingLink, WorkerAttempt, rank_of, set_environment
from trialpod.runner.streams import flush, write_stderr
from trialpod.storage.layout import TRIALPOD_DIR
from trialpod.tune.report_values import StopRuleError
from trialpod.tune.session import Outcome
from trialpod.tune.trainable.trainable import Trainable

log = logging.getLogger(__name__)


def run(
    *,
    runner: str,
    address: str,
    experiment: str,
    token_file: str | None = None,
    ca_file: str | None = None,
    node_ip: str = "",
    on_end: Callable[[AttemptEnd], None] | None = None,
    restart: Callable[[], None] | None = None,
    again: bool = False,
) -> int:
    """Run attempts until there is no more work.

    A trial that is to follow another one continues in this process when its object takes another config
    (`Trainable.reset_config`); the report service then hands out the trial's next attempt to the same runner.

    Args:
        runner: the identity that its parent gave to this process.
        address: of the report service, ``unix:/path``, ``http://host:port`` or ``https://host:port``.
        experiment: the experiment's name; "namespace/name" in a cluster.
        token_file: holds the token that identifies this process; None sends none.
        ca_file: certificates to trust for https instead of the system's.
        node_ip: address of the machine, where it is known.
        on_end: called with the end of each attempt, before the report service is.
        restart: puts a fresh process in the place of this one, which calls `run` with the same runner; used when the
            trial is to follow another one and cannot do so in place, and with reuse for the next trial, unless a
            class takes a new config. None: this process ends, and its parent starts another.
        again: whether `restart` has put this process in the place of another one.

    Returns:
        The exit status: 0 when every attempt has said how it ended, or there was no work; else 1.
    """
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)
    # What a pod was ended for stands in the pod.
    watch = PreemptionWatch(idle_status=None if restart is None else 0)
    if threading.current_thread() is threading.main_thread():
        watch.install()
    client = ReportClient(address, experiment, token_file=token_file, ca_file=ca_file)
    process = _Process(client, watch, on_end, restarts=restart is not None)
    request = AssignmentRequest(
        runner=runner,
        pid=os.getpid(),
        hostname=socket.gethostname(),
        release=__version__,
    )
    if node_ip:
        request.node_ip = node_ip
    request.rank = rank_of(os.environ)
    request.afresh = restart is not None
    request.again = again
    try:
        while True:
            assignment = process.client.assignment(request).assignment
            if assignment is None:
                process.discard_kept()
                return 0
            continues = process.carry_out(assignment)
            request.again = True
            if not continues or watch.is_terminated:
                return 0  # this process is to end, and may be ended at any moment
            if restart is not None and continues == "afresh":
                restart()
                return 0
    except (Superseded, RefusedError) as error:
        log.error("%s", error)
        return 1
    finally:
        process.client.close()


class _Process:
    """What outlives an attempt in one process."""

    def __init__(
        self,
        client: ReportClient,
        watch: PreemptionWatch,
        on_end: Callable[[AttemptEnd], None] | None,
        *,
        restarts: bool,
    ) -> None:
        self.client = client
        self._restarts = restarts
        self._on_end = on_end
        self._watch = watch
        self._kept: tuple[TrainableRef, ClassRunner] | None = None
        self._log_dir: str | None = None

    def carry_out(self, assignment: Assignment) -> Literal["", "here", "afresh"]:
        """Run one attempt and report how it ended; return where the next one is to run, "" for nowhere."""
        pid = os.getpid()
        if self._shares_pod(assignment):
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.write(attempt_mark(assignment.trial_id, assignment.attempt))
            flush()
        if assignment.storage_options.get("credentials_from"):
            _supply_keys(self.client, assignment)
        set_environment(assignment, os.environ)
        link: AttemptLink
        if assignment.rank:
            link = silent = NonReportingLink(self.client, assignment)
            attempt: Attempt = WorkerAttempt(assignment, silent)
        else:
            link = AttemptLink(
                self.client,
                assignment.trial_id,
                assignment.attempt,
                horizons=assignment.horizons,
                heartbeat_s=assignment.heartbeat_s,
                on_superseded=_leave_superseded,
            )
            attempt = Attempt(assignment, link)
        self._watch.begin(attempt)
        link.start()
        try:
            try:
                end = self._execute(assignment, attempt)
            except (Superseded, RefusedError):
                raise
            # SystemExit and KeyboardInterrupt of user code are ends of an attempt like any other.
            except BaseException as error:  # noqa: BLE001
                if os.getpid() != pid:
                    _leave_child(error)
                end = self._failed(error, attempt)
            if os.getpid() != pid:
                _leave_child(None)
            end = attempt.complete(end, spare_s=1.25 * margin_s(assignment.grace_s))
            attempt.ending.set()
            if self._shares_pod(assignment):
                # What failed may have left the pod unfit for others.
                end.asks = end.cause in ("completed", "stopped", "paused") and not (
                    attempt.cut_off or attempt.preempted
                )
            if self._on_end is not None:
                self._on_end(end)
            link.finish(end)
            if attempt.cut_off:
                leave(0)
            if assignment.rank:
                return ""
            if self._shares_pod(assignment):
                return self._resume(assignment) if end.asks else ""
            if attempt.preempted:
                return ""
            if assignment.reuse or self._kept is not None:
                return "here"
            return "afresh" if end.asks else ""
        finally:
            if os.getpid() == pid:
                attempt.ending.set()
                link.close()
                attempt.close()
                self._watch.end()

    def _shares_pod(self, assignment: Assignment) -> bool:
        """Return whether other trials may follow in this container."""
        return self._restarts and assignment.reuse and not assignment.rank

    def _resume(self, assignment: Assignment) -> Literal["here", "afresh"]:
        if self._kept is not None:
            return "here"
        if assignment.checkpoint_uri:
            # The next trials need the room, and all that counts of this one is stored.
            import shutil

            os.chdir(os.environ.get(variables.ORIG_WORKING_DIR, "/"))
            shutil.rmtree(assignment.trial_dir, ignore_errors=True)
        return "afresh"

    def discard_kept(self) -> None:
        """Stop the object that was kept for another trial."""
        if self._kept is not None:
            self._kept[1].discard()
            self._kept = None

    def _execute(self, assignment: Assignment, attempt: Attempt) -> AttemptEnd:
        ref = _absolute(assignment.trainable)
        self._enter(assignment.trial_dir)

        def load() -> tuple[Loaded, dict[str, Any]]:
            trainable = load_trainable(ref, assignment.storage_options)
            if not _is_class(trainable):
                check_signature(trainable)
            return trainable, _config(assignment)

        try:
            trainable, config = attempt.retry_while_unavailable(load, "the trial starts", denial_is_final=True)
            if under_ray() and not assignment.rank:
                from trialpod.storage.pickled_params import keep_params

                keep_params(assignment.trial_dir.removeprefix("file://"), config)
        except TrainableError as error:
            from trialpod.runner.failure import end_of

            return end_of(error, retry=False)
        if attempt.preempted:
            return AttemptEnd(cause="preempted")
        command = getattr(trainable, "command_spec", None)
        if command is not None:
            return self._run_command(command, attempt, config, ref.path[0] if ref.command and ref.path else "")
        if not _is_class(trainable):
            return self._end(run_function(trainable, attempt, config), assignment)
        kept = self._kept[1].trainable if self._kept is not None and self._kept[0] == ref else None
        if kept is None:
            self.discard_kept()
        self._kept = None
        runner = ClassRunner(attempt, config, kept)
        pid = os.getpid()
        keeps = False
        try:
            outcome = runner.run(trainable)
            reuses = assignment.reuse and (runner.is_reusable or not self._shares_pod(assignment))
            keeps = reuses or (outcome == "exploited" and runner.is_reusable)
        finally:
            if keeps:
                self._kept = (ref, runner)
            elif not attempt.link.superseded and os.getpid() == pid:
                runner.discard()
        return self._end(outcome, assignment)

    def _run_command(self, spec: CommandSpec, attempt: Attempt, config: dict[str, Any], folder: str) -> AttemptEnd:
        from trialpod.runner.command.command_runner import CommandFailedError, run_command
        from trialpod.runner.command.process import CommandNotFoundError

        base = folder or os.environ.get(variables.ORIG_WORKING_DIR, os.getcwd())
        try:
            return self._end(run_command(spec, attempt, config, base), attempt.assignment)
        except CommandFailedError as error:
            write_stderr(f"trialpod: {error.details}")
            cause: EndCause = "preempted" if attempt.preempted else "failed"
            return AttemptEnd(cause=cause, error=str(error)[:500], traceback=error.details, retry=error.retry)
        except CommandNotFoundError as error:  # nor does another attempt, or another trial, find it
            write_stderr(f"trialpod: {error}\n")
            return AttemptEnd(cause="failed", error=str(error), retry=False)

    def _end(self, outcome: Outcome, assignment: Assignment) -> AttemptEnd:
        if outcome != "exploited":
            return AttemptEnd(cause=outcome)
        return AttemptEnd(cause="paused", asks=assignment.reuse or self._kept is not None or self._restarts)

    def _failed(self, error: BaseException, attempt: Attempt) -> AttemptEnd:
        if isinstance(error, SourceLostError):
            return AttemptEnd(cause="damaged", error=str(error))
        from trialpod.runner.failure import end_of

        end = end_of(error, preempted=attempt.preempted, retry=not isinstance(error, StopRuleError))
        end.after_completion = attempt.exporting and end.cause == "failed"
        if end.traceback:
            write_stderr(end.traceback)
        folder = attempt.assignment.trial_dir.removeprefix("file://")
        if end.cause == "failed" and not attempt.assignment.rank and "://" not in folder:
            from trialpod.storage.pickled_error import keep_error

            keep_error(folder, error)
        return end

    def _enter(self, trial_dir: str) -> None:
        """Make a local trial directory the working directory, and its log file that of a reused process."""
        local = trial_dir.removeprefix("file://")
        if "://" in local:
            return
        original = os.environ.setdefault(variables.ORIG_WORKING_DIR, os.getcwd())
        os.environ.setdefault(variables.RAY_ORIG_WORKING_DIR, original)
        if original not in sys.path:
            sys.path.insert(0, original)
        os.makedirs(local, exist_ok=True)
        if os.environ.get(variables.RAY_CHDIR_TO_TRIAL_DIR) != "0":
            os.chdir(local)
        if self._log_dir is not None and self._log_dir != local:
            _move_log(os.path.join(self._log_dir, "log.txt"), os.path.join(local, "log.txt"))
        self._log_dir = local


def _supply_keys(client: ReportClient, assignment: Assignment) -> None:
    """Have the storage's keys for this attempt come from the report service."""
    from trialpod.protocol.http import TransportError
    from trialpod.protocol.messages import CredentialsRequest
    from trialpod.storage.base import StorageUnavailableError
    from trialpod.storage.s3.credentials import Credentials, SuppliedCredentials, Supply, supply

    request = CredentialsRequest(trial_id=assignment.trial_id, attempt=assignment.attempt)

    def ask() -> Supply:
        try:
            answer = client.credentials(request)
        except (TransportError, RefusedError) as error:
            raise StorageUnavailableError(f"there are no keys to the storage: {error}") from error
        if answer.problem or not answer.secret_key:
            raise StorageUnavailableError(f"there are no keys to the storage: {answer.problem}")
        return Supply(Credentials(answer.access_key, answer.secret_key, answer.token), answer.lifetime_s)

    supply(SuppliedCredentials(ask))


def _is_class(trainable: Loaded) -> TypeGuard[type[Trainable]]:
    return isinstance(trainable, type)


def _absolute(ref: TrainableRef) -> TrainableRef:
    """Return `ref` with paths that stay right when the working directory changes."""
    original = os.environ.get(variables.ORIG_WORKING_DIR, os.getcwd())
    pickle = ref.pickle
    if pickle is not None and "://" not in pickle:
        pickle = os.path.join(original, pickle)
    folders = [os.path.normpath(os.path.join(original, folder)) for folder in ref.path]
    return msgspec.structs.replace(ref, pickle=pickle, path=folders)


def _config(assignment: Assignment) -> dict[str, Any]:
    from trialpod.storage.base import StorageUnavailableError
    from trialpod.tune.shipping.stored_objects import read_values_from

    for place in _value_places(assignment):
        read_values_from(place, assignment.storage_options)
    try:
        config = params_decoder.decode(assignment.params)
    except StorageUnavailableError:
        raise
    # Unpickling a parameter runs user code.
    except Exception as error:
        found = unreadable(assignment.params)
        path, cause = found if found is not None else ("a parameter of the trial", error)
        raise TrainableError(f"{path} cannot be unpickled here: {type(cause).__name__}: {cause}") from error
    if not isinstance(config, dict):
        raise TrainableError(f"the trial's parameters are a {type(config).__name__}, not a dict")
    return config


def _value_places(assignment: Assignment) -> list[str]:
    """Return where the large values of the config may be, the most likely place last."""
    places = []
    if assignment.checkpoint_uri:
        places.append(f"{assignment.checkpoint_uri.rpartition('/')[0]}/{TRIALPOD_DIR}")
    pickle = _absolute(assignment.trainable).pickle
    if pickle is not None:
        places.append(pickle.rpartition("/")[0])
    return places


def _move_log(old: str, new: str) -> None:
    """Send stdout and stderr to `new`, if they went to `old`."""
    flush()
    for descriptor in (1, 2):
        try:
            if not os.path.samestat(os.fstat(descriptor), os.stat(old)):
                continue
            target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:
            continue
        os.dup2(target, descriptor)
        os.close(target)


def _leave_superseded() -> None:
    leave(1)


def _leave_child(error: BaseException | None) -> None:
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        from trialpod.runner.failure import user_traceback

        write_stderr(user_traceback(error))
        status = 1
    leave(status)
