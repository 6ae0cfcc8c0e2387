"""One attempt: the channel between the user's Trainable on one side, report service and checkpoints on the other.

Invariants:

* Stop rules are judged before a result is encoded, so exactly the result that meets one says ``done``.
* A checkpoint is copied before its result is sent, and committed in the background after that; it is announced after
  its commit, and retention removes others only after that.
* A result at a horizon is judged together with its checkpoint: the commit is waited for, unless the storage cannot be
  reached.
* Another trial's checkpoint is only read, and only as long as the attempt lives.
* Storage is not touched once the attempt is superseded.
* The checkpoint store is opened only when there is a checkpoint to read or write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.attempt_link import AttemptLink
from trialpod.protocol.backoff import Backoff
from trialpod.protocol.client import RefusedError
from trialpod.protocol.messages import Assignment, AttemptEnd, CheckpointInfo, DecisionKind
from trialpod.protocol.readable import encodable, readable
from trialpod.protocol.values import results_decoder
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.report_values import StopRules, as_number, encode
from trialpod.tune.session import Outcome, TrialInfo

if TYPE_CHECKING:
    from trialpod.runner.artifacts import ArtifactCopies
    from trialpod.storage.base import Storage
    from trialpod.storage.checkpoints.commit_queue import CommitQueue
    from trialpod.storage.checkpoints.store import CheckpointStore

log = logging.getLogger(__name__)


_LOG_INTERVAL_S = 60.0
_MAX_ITERATION = 2.0**63
_OUTCOMES: dict[DecisionKind, Outcome] = {"stop": "stopped", "pause": "paused", "exploit": "exploited"}
_SCALARS = frozenset({bool, int, float, str, type(None)})
_Found = TypeVar("_Found")


class SourceLostError(CheckpointError):
    """Another trial's checkpoint, from which this one was to start, is damaged or missing."""


def _open_store(assignment: Assignment) -> CheckpointStore:
    return _open(assignment, assignment.trial_dir, assignment.checkpoint_uri, marked=assignment.place_marked)


def _open_source(assignment: Assignment) -> CheckpointStore:
    return _open(assignment, assignment.source_dir, assignment.source_uri)


def _open(assignment: Assignment, folder: str, uri: str, *, marked: bool = False) -> CheckpointStore:
    from trialpod.storage.checkpoints import open_checkpoints
    from trialpod.storage.registry import open_storage

    if not uri:
        return open_checkpoints(open_storage(folder))
    storage = _storage_at(assignment, uri)
    return open_checkpoints(storage, experiment=storage.parent() if marked else None)


def _artifacts_of(assignment: Assignment, stopped: Callable[[], bool]) -> ArtifactCopies | None:
    folder, uri = assignment.trial_dir.removeprefix("file://"), assignment.checkpoint_uri
    if not assignment.checkpoint_rules.artifacts or not uri or "://" in folder or assignment.rank:
        return None
    from trialpod.runner.artifacts import ArtifactCopies

    return ArtifactCopies(
        Path(folder), lambda: _storage_at(assignment, uri), marked=assignment.place_marked, stopped=stopped
    )


def _storage_at(assignment: Assignment, uri: str) -> Storage:
    from trialpod.storage.options import StorageOptions
    from trialpod.storage.registry import open_storage

    options = msgspec.convert(assignment.storage_options, StorageOptions) if assignment.storage_options else None
    return open_storage(uri, options)


def _scalars(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint's manifest has of a result: numbers and texts, in their readable form."""
    shown = {key: readable(value) for key, value in result.items()}
    return {
        key: encodable(value) if value.__class__ is str else value
        for key, value in shown.items()
        if value.__class__ in _SCALARS and not (value.__class__ is int and not -(2**63) <= value < 2**64)
    }


class Attempt:
    """Carries out the assignment's rules for one attempt.

    Args:
        assignment: what to run.
        link: the attempt's link to the report service.
        open_store: opens the checkpoints of the assignment's trial.
        clock: monotonic seconds.
        wall: seconds since the epoch.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        assignment: Assignment,
        link: AttemptLink,
        *,
        open_store: Callable[[Assignment], CheckpointStore] = _open_store,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.assignment = assignment
        self.link = link
        self.nested = link.nested
        self.info = TrialInfo(
            experiment=assignment.experiment,
            trial_name=assignment.trial_name,
            trial_id=assignment.trial_id,
            experiment_tag=assignment.experiment_tag,
            trial_dir=assignment.trial_dir,
            resources=assignment.resources,
            rank=assignment.rank,
            world_size=assignment.world_size,
            created_at=assignment.created_at,
        )
        self.preempted = False
        """Whether the process was asked to end (SIGTERM)."""
        self.exporting = False
        """Whether the trial is complete and its model is being exported."""
        self.ending = threading.Event()
        """Set when user code has ended and only the report of that is outstanding."""
        self.on_preempted: Callable[[], None] | None = None
        """Called once, in any thread, when the process is asked to end; for what cannot wait until a step ends."""
        self._killed_at: float | None = None
        self._first_preemption = threading.Lock()  # taken by the first call of `preempt`, and kept
        self._clock = clock
        self._wall = wall
        self._open_store = open_store
        self.cut_off = False
        """Whether time ran out during the upload of a checkpoint: the process has to exit without waiting for it."""
        self._sleep = sleep
        self._store_or_none: CheckpointStore | None = None
        self._source: CheckpointStore | None = None
        self._commit_queue_or_none: CommitQueue | None = None
        self._index: int | None = None
        self._rules = StopRules(assignment.stop_rules)
        self._keeps_types = assignment.keeps_types
        self._artifacts = _artifacts_of(assignment, lambda: link.superseded)

    # Preemption.

    def preempt(self) -> None:
        """Note that the process will be killed when the grace period is over; the first call counts."""
        # The signal's handler and the thread that watches for it call this at the same time.
        if self._killed_at is None:
            self._killed_at = self._clock() + self.assignment.grace_s
        self.preempted = True
        if self._first_preemption.acquire(blocking=False) and self.on_preempted is not None:
            self.on_preempted()

    def time_left_s(self) -> float | None:
        """Seconds until the process is killed, None while it is not preempted."""
        return None if self._killed_at is None else max(0.0, self._killed_at - self._clock())

    # Results.

    def judge_alone(self) -> None:
        """Note that only the stop rules, a scheduler or a stopper end the trial: its Trainable steps forever."""
        self._rules.must_end = not self.link.horizons

    def judge(self, result: dict[str, Any]) -> bool:
        """Whether a flat result meets a stop rule.

        Raises:
            StopRuleError: a rule can never be met.
        """
        return self._rules.met(result)

    def is_trained(self, restored: CheckpointInfo) -> bool:
        """Whether the trial's own checkpoint that was restored belongs to a result which met a stop rule.

        That happens when a worker failed before rank 0 sent the last result: the attempt counted as failed, and this
        one has nothing left to train. From another trial's checkpoint, an exploit continues to train.
        """
        assignment = self.assignment
        foreign = assignment.source_dir or assignment.source_uri
        return not foreign and self._rules.were_met(restored.metrics)

    def send(self, result: dict[str, Any], checkpoint: CheckpointInfo | None, done: bool) -> Outcome | None:
        """Send one complete flat result, and commit its snapshot; at a horizon, wait for the decision.

        Returns:
            How the trial is over for this process, None if it continues.

        Raises:
            InvalidInputError: the result cannot be encoded.
            Superseded: another attempt has taken over.
            RefusedError: the server refused for good.
            CheckpointError, StorageError: a checkpoint cannot be stored.
        """
        link = self.link
        waits = not done and self.at_horizon(result)
        if waits and checkpoint is not None:
            link.publish(encode(result, keeps_types=self._keeps_types), None, wake=False, hold=checkpoint.index)
        else:
            link.publish(encode(result, keeps_types=self._keeps_types), None, wake=not waits)
        if link.ended:
            return "preempted"  # the grace period is over: this result came too late
        if checkpoint is not None:
            self._commits.submit(checkpoint)
            if waits:
                self._commits.wait_committed_or_unavailable(checkpoint.index)
        elif self._commit_queue_or_none is not None:
            self._commit_queue_or_none.check()
        if done:
            return "completed"
        decision = link.wait_decision() if waits else link.decision
        if decision is not None:
            return _OUTCOMES[decision]
        # Only user code knows when a checkpoint makes sense; a class Trainable is asked for one by its runner.
        return "preempted" if self.preempted and checkpoint is not None else None

    @property
    def decided(self) -> Outcome | None:
        """How the trial is over for this process by a decision that came with a heartbeat, None if it continues."""
        decision = self.link.decision
        return None if decision is None else _OUTCOMES[decision]

    def at_horizon(self, result: dict[str, Any]) -> bool:
        """Whether a flat result has to wait for a decision."""
        for attribute, at in self.link.horizons:
            value = result.get(attribute)
            if value.__class__ is not int and value.__class__ is not float:
                value = as_number(value)
            if value is not None and not value < at:  # NaN meets every horizon
                return True
        return False

    # Checkpoints.

    @property
    def _store(self) -> CheckpointStore:
        if self._store_or_none is None:
            self._store_or_none = self.retry_while_unavailable(
                lambda: self._open_store(self.assignment), "the storage is opened"
            )
        return self._store_or_none

    @property
    def _commits(self) -> CommitQueue:
        if self._commit_queue_or_none is None:
            from trialpod.storage.checkpoints.commit_queue import CommitQueue

            assignment, link = self.assignment, self.link
            self._commit_queue_or_none = CommitQueue(
                self._store,
                attempt=assignment.attempt,
                rules=assignment.checkpoint_rules,
                known=assignment.checkpoints,
                announce=link.announce,
                deleted=link.deleted_as_allowed if assignment.asks_to_delete else link.deleted,
                check=link.check,
                ask=link.ask_to_delete if assignment.asks_to_delete else None,
            )
        return self._commit_queue_or_none

    def restore(self) -> tuple[CheckpointInfo, Path] | None:
        """Return the checkpoint to start from and a local directory with it, and remove unfinished ones.

        A damaged checkpoint is skipped with a warning, and the one before it is used. While the storage cannot be
        reached, this waits: the checkpoints may be valid.

        Raises:
            SourceLostError: it is another trial's, and damaged or missing.
        """
        assignment = self.assignment
        start = assignment.checkpoint
        if start is not None and (assignment.source_dir or assignment.source_uri):
            return self.retry_while_unavailable(lambda: self._restore_from(start), "the trial starts")
        infos = [info for info in assignment.checkpoints if start is None or info.index <= start.index]
        if start is not None and all(info.name != start.name for info in infos):
            infos.append(start)
        if not infos and assignment.attempt <= 1:
            return None
        names = {info.name for info in assignment.checkpoints} | {info.name for info in infos}
        names.update(assignment.pinned)
        return self.retry_while_unavailable(lambda: self._restore(infos, names), "the trial starts")

    def _restore_from(self, start: CheckpointInfo) -> tuple[CheckpointInfo, Path]:
        from trialpod.storage.base import StorageUnavailableError

        assignment = self.assignment
        self._clear_away({info.name for info in assignment.checkpoints} | set(assignment.pinned))
        if self._source is None:
            self._source = _open_source(assignment)
        try:
            return start, self._source.fetch(start)
        except StorageUnavailableError:
            raise
        except CheckpointError as error:
            raise SourceLostError(f"the checkpoint to resume from cannot be restored: {error}") from error

    def _clear_away(self, names: set[str]) -> None:
        assignment = self.assignment
        for name in self._store.sweep(names, attempt=assignment.attempt):
            log.info("removed the unfinished checkpoint %s", name)
        if self._index is None:
            self._index = self._store.reserve(assignment.next_checkpoint_index, assignment.attempt)

    def _restore(self, infos: list[CheckpointInfo], names: set[str]) -> tuple[CheckpointInfo, Path] | None:
        self._clear_away(names)
        found, warnings = self._store.latest_valid(infos)
        for warning in warnings:
            log.warning("%s", warning)
        if found is None:
            if infos:
                log.warning("no checkpoint of the trial is valid; it starts from the beginning")
            return None
        return found, self._store.fetch(found)

    def begin_checkpoint(self) -> Path:
        """Return an empty folder to write the next checkpoint in; waits when too many are not stored yet."""
        self.link.check()
        self._commits.wait_for_room()
        return self._store.begin(self._next_index())

    def snapshot(self, source: str | None, result: dict[str, Any]) -> CheckpointInfo:
        """Copy what is to become the next checkpoint and put its name into `result`; `send` commits it.

        Args:
            source: the directory to copy; None takes what is in `begin_checkpoint`'s folder.
            result: the flat result that it belongs to.

        Raises:
            CheckpointError: the directory is missing or holds what cannot be copied; or an earlier checkpoint cannot
                be stored.
            StorageError: the local disk is full; or an earlier checkpoint cannot be stored.
        """
        self.link.check()
        if source is not None:
            self._commits.wait_for_room()
        from trialpod.storage.layout import checkpoint_name

        index = self._next_index()
        metrics = _scalars(results_decoder.decode(encode(result)))
        folder = None if source is None else Path(source)
        try:
            size = self._store.snapshot(index, folder)
        except StorageError as error:
            if folder is None or not self._commits.pending:
                raise
            log.warning("%s; training waits until earlier checkpoints are stored, then tries again", error)
            self._commits.wait_committed(index - 1)
            size = self._store.snapshot(index, folder)
        info = CheckpointInfo(
            name=checkpoint_name(index),
            index=index,
            iteration=iteration_of(result),
            metrics=metrics,
            attempt=self.assignment.attempt,
            size=size,
            time=self._wall(),
        )
        result["checkpoint_dir_name"] = metrics["checkpoint_dir_name"] = info.name
        self._index = index + 1
        if self._artifacts is not None:
            self._artifacts.request()
        return info

    def announce(self, checkpoint: CheckpointInfo) -> None:
        """Commit a snapshot that was made after its result had been sent."""
        self._commits.submit(checkpoint)

    def reported(self, checkpoint: CheckpointInfo) -> Checkpoint:
        """Return the checkpoint of a snapshot; readers wait until it is stored."""
        from trialpod.tune.checkpoints.reported_checkpoint import ReportedCheckpoint

        def locate() -> Path:
            self._commits.wait_committed(checkpoint.index)
            return self._store.fetch(checkpoint)

        return ReportedCheckpoint(checkpoint.name, locate)

    def complete(self, end: AttemptEnd, spare_s: float) -> AttemptEnd:
        """Wait until every checkpoint is stored, as long as there is time, and return how the attempt ends now.

        Args:
            end: how user code has ended.
            spare_s: seconds before the kill that are needed for what comes after.

        Raises:
            Superseded: another attempt has taken over.
            RefusedError: the server refused for good.
        """
        writer = self._commit_queue_or_none
        if writer is None:
            self._finish_artifacts(spare_s)
            return end

        def left() -> float | None:
            seconds = self.time_left_s()
            return None if seconds is None else seconds - spare_s

        try:
            if writer.drain(left):
                self._finish_artifacts(spare_s)
                return end
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - a checkpoint's score that is not a number, for one: the trial's end
            self._finish_artifacts(spare_s)
            if end.cause == "failed":
                log.warning("%s", error)
                return end
            from trialpod.runner.failure import end_of

            return end_of(error, preempted=self.preempted)
        self.cut_off = True
        if end.cause not in ("completed", "preempted"):
            return end
        lost = " and ".join(info.name for info in writer.pending)
        grace_s = self.assignment.grace_s
        return AttemptEnd(
            cause="preempted", error=f"{lost} could not be stored within the grace period of {grace_s:g} s"
        )

    def _finish_artifacts(self, spare_s: float) -> None:
        def left() -> float | None:
            seconds = self.time_left_s()
            return None if seconds is None else seconds - spare_s

        if self._artifacts is not None:
            self._artifacts.finish(left)

    def close(self) -> None:
        """End the writing of checkpoints, and remove local copies."""
        if self._commit_queue_or_none is not None:
            self._commit_queue_or_none.close()
        if self._store_or_none is not None and not self.cut_off:
            self._store_or_none.close()
        if self._source is not None:
            self._source.close()
        if self._artifacts is not None:
            self._artifacts.finish(lambda: 0.0)  # the process may run other trials

    def _next_index(self) -> int:
        if self._index is None:
            from trialpod.storage.base import StorageUnavailableError

            at_least = self.assignment.next_checkpoint_index
            try:
                self._index = self._store.reserve(at_least, self.assignment.attempt)
            except StorageUnavailableError:
                # Training continues; the owner of that index makes the commit fail.
                self._index = at_least
        return self._index

    def retry_while_unavailable(
        self, call: Callable[[], _Found], then: str, *, denial_is_final: bool = False
    ) -> _Found:
        """Return what `call` returns, called again for as long as the storage cannot be reached.

        Args:
            call: what uses the storage.
            then: what happens once it answers, for the log.
            denial_is_final: do not wait for permissions or for other keys.

        Raises:
            StorageUnavailableError: the storage cannot be reached, and the process is to end.
        """
        backoff = Backoff(base_s=0.5)
        logged: float | None = None
        while True:
            try:
                return call()
            except StorageError as error:
                from trialpod.storage.base import (  # with other things that a light start does without
                    StorageCredentialsError,
                    StorageDeniedError,
                    StorageUnavailableError,
                )

                if not isinstance(error, StorageUnavailableError):
                    raise
                self.link.check()
                denied = isinstance(error, StorageDeniedError | StorageCredentialsError)
                if self.preempted or (denied and denial_is_final):
                    raise
                if logged is None or self._clock() - logged >= _LOG_INTERVAL_S:
                    logged = self._clock()
                    log.warning("%s; %s when the storage answers", error, then)
                self._sleep(backoff.failed())


def iteration_of(result: dict[str, Any]) -> int:
    """Return the iteration of a result as a checkpoint keeps it: 0 where the user reports one that it cannot be."""
    found = as_number(result.get("training_iteration"))
    return int(found) if found is not None and abs(found) < _MAX_ITERATION else 0
