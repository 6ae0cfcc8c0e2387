"""One attempt: the channel between the user's Trainable on one side, report service and checkpoints on the other.

Invariants:

* Stop rules are judged before a result is encoded, so exactly the result that meets one says ``done``.
* A checkpoint is announced together with the result that it belongs to, after it was committed; retention removes
  others only after that.
* Storage is not touched once the attempt is superseded.
* The checkpoint store is opened only when there is a checkpoint to read or write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trialpod.errors import CheckpointError, StorageError
from trialpod.protocol.attempt_link import AttemptLink
from trialpod.protocol.messages import Assignment, CheckpointInfo
from trialpod.tune.report_values import StopRules, as_number, encode
from trialpod.tune.session import Outcome, TrialInfo

if TYPE_CHECKING:
    from trialpod.storage.checkpoints import CheckpointStore

log = logging.getLogger(__name__)


def _open_store(trial_dir: str) -> CheckpointStore:
    from trialpod.storage.base import open_storage
    from trialpod.storage.checkpoints import CheckpointStore

    return CheckpointStore(open_storage(trial_dir))


class Attempt:
    """Carries out the assignment's rules for one attempt.

    Args:
        assignment: what to run.
        link: the attempt's link to the report service.
        open_store: opens the checkpoints of a trial directory.
        clock: monotonic seconds.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        assignment: Assignment,
        link: AttemptLink,
        *,
        open_store: Callable[[str], CheckpointStore] = _open_store,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.assignment = assignment
        self.link = link
        self.info = TrialInfo(
            experiment=assignment.experiment,
            trial_name=assignment.trial_name,
            trial_id=assignment.trial_id,
            experiment_tag=assignment.experiment_tag,
            trial_dir=assignment.trial_dir,
            resources=assignment.resources,
        )
        self.preempted = False
        """Whether the process is being taken away (SIGTERM)."""
        self.ending = threading.Event()
        """Set when user code has come to its end and only the report of that is outstanding."""
        self._killed_at: float | None = None
        self._clock = clock
        self._wall = wall
        self._open_store = open_store
        self._store_or_none: CheckpointStore | None = None
        self._index: int | None = None
        self._known = list(assignment.checkpoints)
        self._rules = StopRules(assignment.stop_rules)

    # Preemption.

    def preempt(self) -> None:
        """Note that the process will be killed when the grace period is over; the first call counts."""
        if not self.preempted:
            self._killed_at = self._clock() + self.assignment.grace_s
            self.preempted = True

    def time_left_s(self) -> float | None:
        """Seconds until the process is killed, None while it is not preempted."""
        return None if self._killed_at is None else max(0.0, self._killed_at - self._clock())

    # Results.

    def judge(self, result: dict[str, Any]) -> bool:
        """Whether a flat result meets a stop rule."""
        return self._rules.met(result)

    def send(self, result: dict[str, Any], checkpoint: CheckpointInfo | None, done: bool) -> Outcome | None:
        """Send one complete flat result; at a horizon, wait for the decision.

        Returns:
            How the trial is over for this process, None if it goes on.

        Raises:
            InvalidInputError: the result cannot be encoded.
            Superseded: another attempt has taken over.
            RefusedError: the server refused for good.
        """
        link = self.link
        waits = not done and link.horizons and self._at_horizon(result)
        link.publish(encode(result), checkpoint, wake=not waits)
        if checkpoint is not None:
            self._retain()
        if done:
            return "completed"
        decision = link.wait_decision() if waits else link.decision
        if decision is not None:
            return "stopped" if decision == "stop" else "paused"
        # Only user code knows when a checkpoint makes sense; a class Trainable is asked for one by its runner.
        return "preempted" if self.preempted and checkpoint is not None else None

    def _at_horizon(self, result: dict[str, Any]) -> bool:
        for attribute, at in self.link.horizons:
            value = result.get(attribute)
            if value.__class__ is not int and value.__class__ is not float:
                value = as_number(value)
            if value is not None and value >= at:
                return True
        return False

    # Checkpoints.

    @property
    def _store(self) -> CheckpointStore:
        if self._store_or_none is None:
            self._store_or_none = self._open_store(self.assignment.trial_dir)
        return self._store_or_none

    def restore(self) -> tuple[CheckpointInfo, Path] | None:
        """Return the checkpoint to start from and a local directory with it, and clear away unfinished ones.

        A damaged checkpoint is passed over with a warning, in favour of the one before.
        """
        assignment = self.assignment
        start = assignment.checkpoint
        infos = [info for info in self._known if start is None or info.index <= start.index]
        if start is not None and all(info.name != start.name for info in infos):
            infos.append(start)
        if not infos and assignment.attempt <= 1:
            return None
        names = {info.name for info in self._known} | {info.name for info in infos}
        for name in self._store.sweep(names):
            log.info("removed the unfinished checkpoint %s", name)
        found, warnings = self._store.newest_whole(infos)
        for warning in warnings:
            log.warning("%s", warning)
        if found is None:
            if infos:
                log.warning("no checkpoint of the trial is whole; it starts from the beginning")
            return None
        return found, self._store.fetch(found)

    def begin_checkpoint(self) -> Path:
        """Return an empty folder to write the next checkpoint in."""
        self.link.check()
        return self._store.begin(self._next_index())

    def commit(self, source: str | None, result: dict[str, Any]) -> CheckpointInfo:
        """Commit the next checkpoint and put its name into `result`.

        Args:
            source: the directory to copy; None takes what is in `begin_checkpoint`'s folder.
            result: the flat result that it belongs to.
        """
        self.link.check()
        index = self._next_index()
        values = msgspec.msgpack.decode(encode(result))
        scalars = {key: value for key, value in values.items() if not isinstance(value, (list, dict, bytes))}
        info = self._store.commit(
            index,
            iteration=int(as_number(result.get("training_iteration")) or 0),
            metrics=scalars,
            attempt=self.assignment.attempt,
            time=self._wall(),
            source=None if source is None else Path(source),
        )
        result["checkpoint_dir_name"] = info.name
        self._index = index + 1
        self._known.append(info)
        return info

    def announce(self, checkpoint: CheckpointInfo) -> None:
        """Report a checkpoint that was made after its result had been sent."""
        self.link.announce(checkpoint)
        self._retain()

    def _next_index(self) -> int:
        if self._index is None:
            self._index = self._store.first_free_index(self.assignment.next_checkpoint_index)
        return self._index

    def _retain(self) -> None:
        from trialpod.storage.retention import to_delete

        removed = []
        for info in to_delete(self._known, self.assignment.checkpoint_rules):
            try:
                self._store.delete(info.name, attempt=self.assignment.attempt)
            except (StorageError, CheckpointError) as error:
                # One checkpoint too many harms nobody; it is tried again after the next one.
                log.warning("%s was not removed: %s", info.name, error)
            else:
                removed.append(info.name)
        if removed:
            self._known = [info for info in self._known if info.name not in removed]
            self.link.deleted(removed)
