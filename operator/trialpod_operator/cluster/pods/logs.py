"""Keeps what the pods of one experiment print in their trials' logs.

The output of a pod is fetched when the pod has ended; that of a reused pod also before its next attempt, and that of
one that is made to end before that. What cannot be fetched is retried for `LOG_TIMEOUT_S`, then given up. Owned by
the event loop.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from trialpod.protocol.output import Section, sections
from trialpod_operator.api.api_errors import ApiError, UnreachableError
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.kube import ApiServer
from trialpod_operator.cluster.pods.binding import pod_key
from trialpod_operator.cluster.pods.reading import container_state, failed_beside, last_end, own_name, trial_container
from trialpod_operator.engine.trial import Trial

logger = logging.getLogger(__name__)

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Maximum size of the beginning that is kept of one pod's output."""

LAST_LINES = 200
"""Lines kept of the end of a longer output. The container runtime splits lines at 16 KiB."""

LIMIT_MARGIN_BYTES = 64 * 1024
"""By how much the API server may miss the limit of an answer's size."""

LOG_TIMEOUT_S = 60.0
"""Maximum time to retry a log that cannot be fetched. A lost node never returns it."""

LOG_WAIT_S = 1.0
"""Maximum time that a reconcile pass waits for a log; a slower one is fetched in the background for a later pass."""

CLOCK_SKEW_S = 30.0
"""The output of an attempt is fetched from this long before its start on: the node's clock may be behind."""

MAX_DELETED_PODS = 64
"""Maximum number of deleted pods that are remembered, beside as many as exist."""


class Logs(Protocol):
    """Keeps what pods printed."""

    def keep_log(self, trial: Trial, text: str, *, once: bool = False) -> None:
        """Keep what one of the trial's pods printed; `once`: what of it is not kept already."""
        ...

    def log_stored(self, trial: Trial) -> bool:
        """Return whether all that was kept of this trial is where it cannot be lost."""
        ...


_Part = tuple[str, str, int]


@dataclass(frozen=True, eq=False)
class _Reading:
    """A log that is on its way, of a pod in that phase."""

    phase: str
    task: asyncio.Task[str]


class PodLogs:
    """The output of one experiment's pods.

    Args:
        namespace: of the experiment.
        key: "namespace/name" of the experiment.
        kube: the API server.
        cache: the pods.
        clock: seconds since the epoch.
        logs: the trials' logs.
    """

    def __init__(
        self, namespace: str, key: str, kube: ApiServer, cache: ObjectCache, clock: Callable[[], float], logs: Logs
    ) -> None:
        self._namespace = namespace
        self._key = key
        self._kube = kube
        self._cache = cache
        self._clock = clock
        self._logs = logs
        self._from_before = {pod["metadata"].get("uid") for pod in cache.pods(self._key)}
        self._kept: dict[str, int | None] = {}
        """Characters kept of pods whose log is kept (or on its way); None: not to be continued, or given up."""
        self._so_far: dict[str, int] = {}  # by pod's uid: characters kept of what it printed before it was to end
        self._missed: set[str] = set()  # uids of the pods some of whose output could not be fetched in time
        self._printed: dict[str, dict[str, dict[int, int]]] = {}  # by pod's uid, trial, attempt: characters kept
        self._no_log_since: dict[str, float] = {}  # by the pod's uid
        self._reading: dict[str, dict[_Part, _Reading]] = {}
        """By the same, then by container, from when on ("" = all), and how many last lines (0 = the beginning)."""

    @property
    def remembered(self) -> int:
        """How many pods' output is remembered."""
        return max(len(self._kept), len(self._printed))

    async def keep(self, pod: Object, trials: Mapping[str, Trial]) -> bool:
        """Add what an ended pod printed to its trial's log; return False when that has to be retried."""
        if pod_key(pod) is not None:
            return await self._keep_reused(pod, trials)
        trial = trials.get(_label(pod, names.TRIAL_ID_LABEL))
        if trial is None:
            return True
        metadata = pod["metadata"]
        uid = metadata.get("uid", "")
        if uid in self._kept:
            return self._logs.log_stored(trial)
        if not own_name(pod):
            return True  # an object of another kind that never had a pod
        try:
            known = self._so_far.get(uid)
            text = await self._whole_log(pod) if known is None else (await self._with_end(pod))[known:]
        except ApiError as error:
            return self._give_up(pod, error)
        if text:
            self._logs.keep_log(trial, text, once=uid in self._from_before)
        elif known is None:
            return True
        self._kept[uid] = None if failed_beside(pod) else (known or 0) + len(text)
        return self._logs.log_stored(trial)

    def reopen(self, pod: Object) -> None:
        """A pod whose log was kept continues after all: what it prints from now on is kept, too."""
        uid = pod["metadata"].get("uid", "")
        if pod_key(pod) is not None:
            self._kept.pop(uid, None)
        elif (known := self._kept.get(uid)) is not None:
            del self._kept[uid]
            self._so_far[uid] = known

    async def keep_so_far(self, pod: Object, trials: Mapping[str, Trial]) -> None:
        """Add what a pod that is to end has printed to its trial's log; `keep` adds the rest, or all of it."""
        if pod_key(pod) is not None:
            await self.keep_latest(pod, trials, ended=False)
            return
        trial, uid = trials.get(_label(pod, names.TRIAL_ID_LABEL)), pod["metadata"].get("uid", "")
        if trial is None or uid in self._kept or uid in self._so_far or not own_name(pod):
            return
        try:
            text = await self._log(pod)
        except ApiError as error:
            logger.info("the log of %s cannot be kept yet: %s", pod["metadata"]["name"], error)
            return
        text = text[: text.rfind("\n") + 1]
        if text:
            self._logs.keep_log(trial, text, once=uid in self._from_before)
            self._so_far[uid] = len(text)

    async def keep_latest(self, pod: Object, trials: Mapping[str, Trial], *, ended: bool = True) -> None:
        """Add what a pod's latest attempt printed to its trial's log, else leave it for the end of the pod."""
        try:
            text, whole = await self._latest_log(pod, trials, ended=ended)
        except ApiError as error:
            logger.info("the log of %s cannot be kept yet: %s", pod["metadata"]["name"], error)
            self._missed.add(pod["metadata"].get("uid", ""))
            return
        self._keep_sections(pod, trials, sections(text, whole=whole))

    def forget_deleted(self) -> None:
        """Forget the output of deleted pods; it would add up over an experiment."""
        known = (
            self._kept.keys(),
            self._missed,
            self._so_far.keys(),
            self._printed.keys(),
            self._no_log_since.keys(),
            self._reading.keys(),
        )
        if max(map(len, known)) <= 2 * len(self._cache.pod_names(self._key)) + MAX_DELETED_PODS:
            return
        present = {pod["metadata"].get("uid", "") for pod in self._cache.pods(self._key)}
        self._kept = {uid: each for uid, each in self._kept.items() if uid in present}
        self._missed &= present
        self._so_far = {uid: each for uid, each in self._so_far.items() if uid in present}
        self._printed = {uid: each for uid, each in self._printed.items() if uid in present}
        self._no_log_since = {uid: each for uid, each in self._no_log_since.items() if uid in present}
        for uid in self._reading.keys() - present:
            self._stop_reading(uid, lambda _part, known: known.task.done())

    async def _keep_reused(self, pod: Object, trials: Mapping[str, Trial]) -> bool:
        """Keep what is left of the output of a pod that ran several trials."""
        metadata = pod["metadata"]
        uid = metadata.get("uid", "")
        if uid not in self._kept:
            try:
                if _never_began(pod):
                    text, whole = await self._whole_log(pod), True
                else:
                    text, whole = await self._latest_log(pod, trials)
                if not whole and (uid in self._from_before or uid in self._missed):
                    self._keep_sections(pod, trials, sections(await self._log(pod)))
            except ApiError as error:
                return self._give_up(pod, error)
            found = sections(text, whole=whole)
            trial_id = _label(pod, names.TRIAL_ID_LABEL)
            if not found and text:
                found = [Section(trial_id, 0, text)]  # it ended before it had work
            self._keep_sections(pod, trials, found)
            self._kept[uid] = None
            self._stop_reading(uid, lambda _part, _known: True)
        concerned = [trials[each] for each in self._printed.get(uid, ()) if each in trials]
        return all(self._logs.log_stored(trial) for trial in concerned)

    def _keep_sections(self, pod: Object, trials: Mapping[str, Trial], found: list[Section]) -> None:
        uid = pod["metadata"].get("uid", "")
        lengths = self._printed.setdefault(uid, {})
        for section in found:
            trial = trials.get(section.trial_id)
            attempts = lengths.setdefault(section.trial_id, {})
            known = attempts.get(section.attempt, 0)
            if trial is None or len(section.text) <= known:
                continue
            attempts[section.attempt] = len(section.text)
            self._logs.keep_log(trial, section.text[known:], once=not known and uid in self._from_before)

    async def _latest_log(self, pod: Object, trials: Mapping[str, Trial], *, ended: bool = True) -> tuple[str, bool]:
        """Return the output of a pod from its latest attempt on, and whether it is all that there is.

        A beginning gets its end when no other attempt follows this one in it. Any other would need the lines between,
        which tell whose the end is.
        """
        trial_id, attempt = _label(pod, names.TRIAL_ID_LABEL), _label(pod, names.ATTEMPT_LABEL)
        trial = trials.get(trial_id)
        if trial is not None and str(trial.attempt) == attempt:
            if pod_key(pod) == (trial_id, trial.attempt):
                text = await self._log(pod)
                return (await self._add_end(pod, text) if ended else text), True
            since = dt.datetime.fromtimestamp(trial.current.started_at - CLOCK_SKEW_S, dt.UTC)
            from_start = since.strftime("%Y-%m-%dT%H:%M:%SZ")
            text = await self._log(pod, from_start)
            if any((each.trial_id, str(each.attempt)) == (trial_id, attempt) for each in sections(text)):
                return (await self._add_end(pod, text, from_start) if ended else text), False
        return await self._log(pod), True

    async def _whole_log(self, pod: Object) -> str:
        """Return the output of the containers that explain a pod's end, and then of the trial's own."""
        parts = []
        for each in failed_beside(pod):
            name = str(each.get("name"))
            text = await self._with_end(pod, container=name)
            end = "" if text.endswith("\n") or not text else "\n"
            status = last_end(each).get("exitCode")
            parts.append(f"trialpod: container {name} exited with status {status}; it printed:\n{text}{end}")
        if parts and _never_began(pod):
            return "".join(parts)
        text = await self._with_end(pod)
        if parts and text:
            parts.append("trialpod: the trial printed:\n")
        return "".join([*parts, text])

    async def _with_end(self, pod: Object, *, container: str = "") -> str:
        """Return the output of a container; of one that is too long, its beginning and its end."""
        return await self._add_end(pod, await self._log(pod, container=container), container=container)

    async def _add_end(self, pod: Object, beginning: str, since: str = "", *, container: str = "") -> str:
        if len(beginning.encode()) < MAX_LOG_BYTES - LIMIT_MARGIN_BYTES:
            return beginning
        return joined(beginning, await self._log(pod, since, container=container, last_lines=LAST_LINES))

    async def _log(self, pod: Object, since: str = "", *, container: str = "", last_lines: int = 0) -> str:
        if not container:
            container = str(trial_container(pod).get("name") or names.CONTAINER)
        name, uid = own_name(pod), pod["metadata"].get("uid", "")
        phase = str((pod.get("status") or {}).get("phase"))  # a pod that has ended prints no more
        # Its latest part may be asked for, and then all of it: both stay at hand until they are there.
        self._stop_reading(
            uid, lambda each, known: known.phase != phase or (each[0] == container and each[1] not in ("", since))
        )
        readings = self._reading.setdefault(uid, {})
        known = readings.get((container, since, last_lines))
        if known is None:
            asked = self._kube.pod_log(self._namespace, name, container, MAX_LOG_BYTES, since, last_lines)
            known = readings[container, since, last_lines] = _Reading(phase, asyncio.ensure_future(asked))
            # Requests are not accepted any more.
            known.task.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait({known.task}, timeout=LOG_WAIT_S)
        if not known.task.done():
            raise UnreachableError(
                "GET", f"{paths.pods(self._namespace)}/{name}/log", 0, {"message": "log request still in progress"}
            )
        self._stop_reading(uid, lambda _part, each: each is known)
        return known.task.result()

    def _give_up(self, pod: Object, error: ApiError) -> bool:
        """Return whether a log that cannot be fetched is given up."""
        metadata = pod["metadata"]
        since = self._no_log_since.setdefault(metadata.get("uid", ""), self._clock())
        if error.temporary and self._clock() - since < LOG_TIMEOUT_S:
            return False
        logger.info("the log of %s cannot be kept: %s", metadata["name"], error)
        self._stop_reading(metadata.get("uid", ""), lambda _part, _known: True)
        self._kept[metadata.get("uid", "")] = None  # it may stay for long, on a node that is lost
        return True

    def _stop_reading(self, uid: str, which: Callable[[_Part, _Reading], bool]) -> None:
        readings = self._reading.get(uid, {})
        for key in [key for key, known in readings.items() if which(key, known)]:
            readings.pop(key).task.cancel()
        if not readings:
            self._reading.pop(uid, None)


def joined(beginning: str, end: str) -> str:
    """Return the beginning and the end of one output with a line between them, or each part once where they meet."""
    if beginning.endswith(end):
        return beginning
    first_line = end[: end.find("\n") + 1] or end
    at = max(0, len(beginning) - len(end))
    for _ in range(LAST_LINES):
        at = beginning.find(first_line, at)
        if at < 0:
            break
        if end.startswith(beginning[at:]):
            return beginning[:at] + end
        at += 1
    newline = "" if beginning.endswith("\n") else "\n"
    return f"{beginning}{newline}trialpod: part of the output is left out here; its last lines follow\n{end}"


def _never_began(pod: Object) -> bool:
    """Return whether the trial's container never ran, because another one failed before it."""
    own = container_state(pod, str(trial_container(pod).get("name", "")))
    return "terminated" not in own and "running" not in own and bool(failed_beside(pod))


def _label(pod: Object, name: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(name, ""))
