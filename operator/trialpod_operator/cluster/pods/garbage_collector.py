"""Deletes the pods that no attempt needs any more: finished ones once their log is kept, others in due time.

While attempts are in progress, finished pods are deleted outside of the passes, which never wait for a log: nothing
else is done with such a pod, and one such task runs at a time. It ends with the bindings (`close`).

Invariants: a pod's deletion is asked for until the server has taken it. A pod whose log cannot be had is deleted
without, after a while (`logs.LOG_TIMEOUT_S`); one that has not exited, after a moment (`logs.LOG_WAIT_S`), and its
log is read until it is gone. A pod that cannot be deleted yet holds up no other: it is retried behind those that
have not been tried. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from trialpod.errors import StorageError
from trialpod_operator.api.api_errors import ApiError, NotServedError
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.kube import gather_all
from trialpod_operator.cluster.pods.binding import pod_key
from trialpod_operator.cluster.pods.pod_work import PodWork
from trialpod_operator.engine.trial import Trial

logger = logging.getLogger(__name__)

LEAVE_S = 30.0
"""Maximum time that a pod takes to exit after its attempt ended, beside its grace period."""

WORKER_LEAVE_S = 10.0
WORKER_GRACE_S = 1
"""The same for a worker of a group whose head's attempt has ended: it has nothing to save."""

GATHER_S = 3.0
MAX_BATCH = 16
"""Finished pods are deleted together at this count or age of the first: several take one request."""

LOG_AGAIN_S = 1.0
"""How soon to look again whether a log can be had, and is stored."""

REFUSED_AGAIN_S = 5.0
"""How soon to ask again for a deletion that the server has refused."""


class PodGarbageCollector:
    """The pods of one experiment that have no binding.

    Args:
        key: "namespace/name" of the experiment.
        work: acts at the API server.
        cache: what the watches have shown.
        clock: seconds since the epoch.
        again: asks for another pass: there may be more to delete.
    """

    def __init__(
        self,
        key: str,
        work: PodWork,
        cache: ObjectCache,
        clock: Callable[[], float],
        again: Callable[[], None] = lambda: None,
    ) -> None:
        self._key = key
        self._work = work
        self._cache = cache
        self._clock = clock
        self._again = again
        self._beside: asyncio.Task[None] | None = None  # takes finished pods away
        self._leave_by: dict[str, float] = {}  # by pod name
        self._noted: dict[str, None] = {}  # names of the pods that may be without an attempt, in that order
        self._retry_at: dict[str, float] = {}  # by the name of a finished pod that could not be deleted
        self._look_at = 0.0  # when there are more finished pods than were deleted at once
        self._gather_until = 0.0  # when finished pods are deleted however few there are; 0 = there are none

    def expect_exit(self, name: str, now: float, workers: Collection[str] = ()) -> None:
        """The attempt of a pod and its workers has ended; they are to exit by themselves, else are made to."""
        self._leave_by[name] = now + LEAVE_S
        self._leave_by |= dict.fromkeys(workers, now + WORKER_LEAVE_S)
        self._noted |= dict.fromkeys((name, *workers))

    def note(self, name: str) -> None:
        """A pod may be without an attempt."""
        self._noted[name] = None

    def keep(self, name: str) -> None:
        """A pod continues."""
        self._leave_by.pop(name, None)
        if (pod := self._cache.pod(self._key, name)) is not None:
            self._work.logs.reopen(pod)

    @property
    def pods_left(self) -> bool:
        """Whether there are pods whose deletion has not been asked for yet."""
        return any(
            not pod["metadata"].get("deletionTimestamp")
            and pod["metadata"].get("uid") not in self._work.deleted
            and not self._has_its_place(pod)
            for pod in self._cache.pods(self._key)
        )

    async def collect(
        self,
        now: float,
        current: Collection[str],
        stopped: Collection[str],
        stays: Callable[[Object], bool],
        trials: Mapping[str, Trial],
        *,
        every: bool,
    ) -> None:
        """Delete what is to go.

        Args:
            now: seconds since the epoch.
            current: names of pods whose attempts continue.
            stopped: names of pods whose attempts have not ended, although they were to.
            stays: whether a pod is kept for another attempt.
            trials: the engine's, by id.
            every: look at all pods, and not only at those that were noted.
        """
        self._work.forget_deleted()
        pods = self._without_attempt(current, every=every)
        finished: list[Object] = []
        leaving: list[Object] = []  # deleted while they ran: removed, with their logs, once they have exited
        unfinished: list[Object] = []
        for pod in pods:
            metadata = pod["metadata"]
            name, uid = metadata["name"], metadata.get("uid", "")
            if uid in self._work.deleted or metadata.get("deletionTimestamp"):
                self._leave_by.pop(name, None)
                if self._is_leaving(pod, stopped) and pod_key(pod) is None:
                    leaving.append(pod)
                continue
            if stays(pod):
                continue
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                if self._has_its_place(pod):
                    self._noted.pop(name, None)
                elif name not in stopped:
                    finished.append(pod)
            elif now < self._retry_at.get(name, now):
                continue  # its deletion was refused
            elif name in stopped or now >= self._leave_by.setdefault(name, now + LEAVE_S):
                unfinished.append(pod)
        # The logs of pods that run are read before their deletion, which does not wait for a slow one.
        running = [pod for pod in unfinished if (pod.get("status") or {}).get("phase") == "Running"]
        hung = [pod for pod in running if pod["metadata"]["name"] in stopped]
        exited = [pod for pod in running if pod["metadata"]["name"] not in stopped]
        await gather_all(
            *(self._work.logs.keep(pod, trials) for pod in (*leaving, *exited)),
            *(self._work.logs.keep_so_far(pod, trials) for pod in hung),
        )
        for pod in unfinished:
            metadata = pod["metadata"]
            name = metadata["name"]
            if stays(pod) or (name not in stopped and name not in self._leave_by):
                self._work.logs.reopen(pod)
                continue  # it continues with another attempt, since a moment ago
            if not await self._work.delete_if_allowed(pod, None if name in stopped else _grace_s(metadata)):
                self._retry_at[name] = now + REFUSED_AGAIN_S
        self._look_at = 0.0
        finished = self._due(finished, now)
        if not finished:
            self._gather_until = 0.0
        elif current and len(finished) < MAX_BATCH:
            self._gather_until = self._gather_until or now + GATHER_S
            if now < self._gather_until:
                return
        if self._beside is not None or not finished:
            return  # it asks for another pass when it is done
        self._gather_until = 0.0
        batch = finished[:MAX_BATCH]
        if current:
            self._beside = asyncio.ensure_future(self._take_away(batch, trials))
            return
        await self._collect(batch, trials)
        if len(finished) > len(batch):
            self._look_at = now + 0.01

    def _due(self, finished: list[Object], now: float) -> list[Object]:
        """Return the finished pods that are to be deleted now, those that were not tried yet before the others."""
        present = self._cache.pod_names(self._key)
        self._retry_at = {name: at for name, at in self._retry_at.items() if name in present}
        due = [pod for pod in finished if now >= self._retry_at.get(pod["metadata"]["name"], now)]
        return sorted(due, key=lambda pod: self._retry_at.get(pod["metadata"]["name"], 0.0))

    def _without_attempt(self, current: Collection[str], *, every: bool) -> list[Object]:
        """Return the pods, or those of the noted ones, whose attempts do not continue; they stay noted."""
        present = self._cache.pod_names(self._key)
        gone = [name for name in (self._leave_by if every else self._noted) if name not in present]
        for name in gone:
            self._leave_by.pop(name, None)
        noted = present if every else self._noted
        self._noted = dict.fromkeys(name for name in noted if name in present and name not in current)
        found = (self._cache.pod(self._key, name) for name in self._noted)
        return [pod for pod in found if pod is not None]

    def _is_leaving(self, pod: Object, stopped: Collection[str]) -> bool:
        """Return whether a pod that was deleted may have a log that is not kept: of a finished one it is before."""
        uid = pod["metadata"].get("uid", "")
        if uid not in self._work.deleted:
            return True
        return uid in self._work.ended_running and pod["metadata"]["name"] not in stopped

    async def _collect(self, finished: list[Object], trials: Mapping[str, Trial]) -> None:
        """Delete finished pods; those that cannot be deleted yet are retried later, also after an error."""
        wait_s, done = LOG_AGAIN_S, set[str]()
        try:
            done |= {pod["metadata"]["name"] for pod in await self._work.collect_finished(finished, trials)}
        except (ApiError, NotServedError, StorageError) as error:
            wait_s = max(REFUSED_AGAIN_S, getattr(error, "retry_after_s", 0.0))
            logger.info("finished pods of %s cannot be deleted yet: %s", self._key, error)
        except Exception:  # a defect: it is retried like any other failure, and no other pod waits for it
            wait_s = REFUSED_AGAIN_S
            logger.exception("finished pods of %s cannot be deleted", self._key)
        for pod in finished:
            name = pod["metadata"]["name"]
            if name in done or pod["metadata"].get("uid") in self._work.deleted:
                self._leave_by.pop(name, None)
                self._retry_at.pop(name, None)
            else:
                self._retry_at[name] = self._clock() + wait_s

    async def _take_away(self, finished: list[Object], trials: Mapping[str, Trial]) -> None:
        try:
            await self._collect(finished, trials)
        finally:
            self._beside = None
        self._again()

    async def close(self) -> None:
        """Take nothing away any more."""
        if self._beside is not None:
            self._beside.cancel()
            await asyncio.wait((self._beside,))

    def times(self) -> list[float]:
        """Return when there will be something to do."""
        soon = (at for at in (self._look_at, self._gather_until) if at)
        return [*self._leave_by.values(), *self._retry_at.values(), *soon]

    def _has_its_place(self, pod: Object) -> bool:
        """Whether a finished pod is to stay, and its log is kept."""
        annotations = pod["metadata"].get("annotations") or {}
        return names.LOG_KEPT_ANNOTATION in annotations and self._work.stays(pod)


def _grace_s(metadata: Object) -> int | None:
    """Return the grace period of a pod whose attempt is over; None for its own."""
    is_worker = (metadata.get("labels") or {}).get(names.RANK_LABEL, "0") != "0"
    return WORKER_GRACE_S if is_worker else None
