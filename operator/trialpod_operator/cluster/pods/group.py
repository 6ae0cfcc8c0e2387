"""The pods of an attempt that has several: which waits for which, and what ended them all. Pure.

An attempt of a trial with `spec.workers` is a group: a head (rank 0), which speaks for it, and workers. Nothing of
the user's runs before all of them ask for their work; and the attempt ends when its head has ended, once.

Of everything that went wrong in a group only the first cause counts, and it is often another pod's: when a node takes
a worker away, the head's own code fails of a broken connection. So a disruption of any pod explains every failure
that comes with it, and a failure of any of them is believed only after all workers were checked. Which of
several failures came first cannot be known, because times in pods are in seconds: then the head's is reported with
the one of a worker that looks least like a lost connection.

Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import zlib
from dataclasses import dataclass, field

import msgspec

from trialpod.protocol.messages import AssignmentRequest, AttemptEnd
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.pods.terminated import Termination

FAILURE_CHECK_DELAY_S = 3.0
"""Time after a failure until the workers are compared: pods show their ends a little late."""

_PEER_LOST = re.compile(r"connection|broken ?pipe|reset by peer|nccl|gloo|rendezvous|timed? ?out", re.IGNORECASE)

BACKOFF_BASE_S = 5.0
MAX_BACKOFF_S = 600.0
"""Pauses before the pods of a group that could not all be scheduled at once are retried."""


@dataclass
class Member:
    """A worker of a group."""

    rank: int
    uid: str = ""  # of its pod; "" = none is known
    created_at: float = 0.0  # when its pod was asked for; 0 = not yet
    asked_at: float = 0.0  # when the server was last asked about it
    explained_by: float = 0.0  # until then the kubelet may say why it killed the pod

    def reset_pod(self) -> None:
        """Its pod went away before the group began."""
        self.uid, self.created_at, self.explained_by = "", 0.0, 0.0


@dataclass
class Group:
    """What is known about the pods of one attempt.

    Args:
        replicas: how many workers it has.
        timeout_s: how long its pods may wait for each other.
    """

    replicas: int
    timeout_s: float
    members: list[Member] = field(init=False)
    joined: dict[int, str] = field(default_factory=dict)  # uids of the pods that ask for their work, by rank
    head_request: AssignmentRequest | None = None
    waiting_since: float = 0.0  # since when a pod of it waits for the others; 0 = none does
    timed_out: bool = False  # they did not come together in time
    cause: Termination | None = None  # what ended it, when that was a worker
    beside: list[Termination] = field(default_factory=list)  # failures of workers that were seen after the head's
    reported_at: float = 0.0  # when the head's failure was first reported; 0 = not yet
    failed_at: float = 0.0  # when the first failure of any of them was seen; 0 = not yet
    looked: bool = False  # and whether the server was asked about the workers after that
    progress: int = 0  # results that the head had sent when they were last counted
    quiet_since: float = 0.0  # since when there are no more
    _begun: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [Member(rank) for rank in range(1, self.replicas + 1)]

    @property
    def size(self) -> int:
        """The number of its pods."""
        return 1 + self.replicas

    # -- the start --

    def join(self, request: AssignmentRequest, uid: str, now: float) -> None:
        """A pod asks for its work."""
        self.joined[request.rank] = uid
        if request.rank == 0:
            self.head_request = request
        if not self.waiting_since:
            self.waiting_since = now

    async def wait(self, seconds: float) -> None:
        """Return when the group has begun or is over, or after that time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun.append(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return
        finally:
            if future in self._begun:
                self._begun.remove(future)

    def release(self) -> None:
        """Wake those who wait, to check again."""
        for future in self._begun:
            if not future.done():
                future.set_result(None)
        self._begun.clear()

    # -- the end --

    def record(self, evidence: list[Termination], now: float) -> None:
        """Record how workers have ended. A disruption takes precedence over a failure, else the first end counts."""
        for ending in evidence:
            if ending.counts_as_failure:
                self.failed_at = self.failed_at or now
            if self.cause is None and self.reported_at and ending.counts_as_failure:
                self.beside += [] if ending in self.beside else [ending]
                continue  # before the head's or after it
            if self.cause is None or (self.cause.counts_as_failure and not ending.counts_as_failure):
                self.cause = ending

    def judge_report(self, end: AttemptEnd, now: float, *, failing: bool = False) -> AttemptEnd | None:
        """Return how the attempt ended whose head says this; None while that is not known for sure.

        Args:
            end: what the head says.
            now: seconds since the epoch.
            failing: a worker's failure is in the journal, so that the head's own completion does not count any more.
        """
        if end.cause not in ("failed", "preempted") and not failing:
            return end
        if self.cause is not None:
            return self.cause.attempt_end() if self._is_sure(self.cause) else None
        if end.cause == "failed":
            return msgspec.structs.replace(end, error=self._with_workers(end.error)) if self._compared(now) else None
        return end

    def judge_read(self, ending: Termination, now: float) -> Termination | None:
        """Return how the attempt ended whose head's pod shows this; None while that is not known for sure."""
        if not ending.counts_as_failure and ending.reason != Reason.DELETED_BY_OPERATOR:
            return ending
        if self.cause is not None:
            return self.cause if self._is_sure(self.cause) else None
        if ending.counts_as_failure:
            ending = dataclasses.replace(ending, message=self._with_workers(ending.message))
            return ending if self._compared(now) else None
        return ending

    def _with_workers(self, message: str) -> str:
        if not self.beside:
            return message
        return f"{message}; {min(self.beside, key=lambda each: bool(_PEER_LOST.search(each.message))).message}"

    def _compared(self, now: float) -> bool:
        if not self.reported_at:
            self.reported_at = now
            self.failed_at = self.failed_at or now
        return self.looked

    def _is_sure(self, cause: Termination) -> bool:
        """Whether no other worker can explain a worker's failure: one may be gone without having been seen to go."""
        return self.looked or not cause.counts_as_failure


def of_worker(rank: int, ending: Termination, *, begun: bool) -> Termination | None:
    """Return what the end of a worker's pod means for its group; None when it means nothing.

    Args:
        rank: the worker's.
        ending: as its pod shows it.
        begun: whether the group had begun; then a worker may be done.
    """
    if ending.reason == Reason.DELETED_BY_OPERATOR or (begun and ending.reason == Reason.EXITED_SILENTLY):
        return None
    return dataclasses.replace(ending, message=f"worker {rank}: {ending.message}")


def failure_of(end: AttemptEnd) -> Termination:
    """Return the failure of a worker that an earlier operator has journaled."""
    return Termination(
        kind="failure", cause="failed", reason=Reason.WORKER_FAILED, message=end.error, retry=end.retry
    )


def deleted_worker(rank: int, reason: str) -> Termination:
    """Return the end of a group of which a worker's pod is being removed."""
    return Termination(
        kind="disruption",
        cause="preempted",
        reason=reason or Reason.POD_DELETED,
        message=f"worker {rank}: its pod is being removed",
    )


def incomplete(running: int, size: int, timeout_s: float) -> Termination:
    """Return the end of a group whose pods did not come to run together."""
    return Termination(
        kind="disruption",
        cause="preempted",
        reason=Reason.GROUP_INCOMPLETE,
        message=f"only {running} of the trial's {size} pods ran within {timeout_s:g} s; all are retried later",
    )


def pause_s(trial_id: str, count: int) -> float:
    """Return how long to wait after a group did not come together for the `count`-th time, in seconds.

    Groups that took each other's room give up at the same time; each one's pauses are its own.
    """
    longest = min(BACKOFF_BASE_S * 2.0 ** min(count, 12), MAX_BACKOFF_S)
    share = zlib.crc32(f"{trial_id}/{count}".encode()) / 2**32
    return longest * (0.25 + 0.75 * share)
