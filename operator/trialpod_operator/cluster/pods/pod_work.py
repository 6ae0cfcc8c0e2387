"""Makes and removes the TuneTrials and pods of one experiment at the API server.

Every call may be repeated: what is there already is taken for ours, because its name says for what it was made. What
the server refuses is remembered with its reason, and not asked for again before its time (`Rejections`).

Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trialpod.protocol.output import Section, sections
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.api_errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    UnreachableError,
)
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.kube import Kube, gather_all
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.binding import pod_key
from trialpod_operator.cluster.pods.build import ObjectRef, PodOptions, build_pod
from trialpod_operator.cluster.pods.pending import PendingReason
from trialpod_operator.cluster.pods.reading import container_state, failed_beside, last_end, trial_container
from trialpod_operator.cluster.pods.rejected import rejection_reason
from trialpod_operator.cluster.pods.resources import build_trial
from trialpod_operator.cluster.pods.template import TemplateError
from trialpod_operator.engine.trial import Trial

logger = logging.getLogger(__name__)

REFUSED_BASE_S = 1.0
REFUSED_MOST_S = 30.0

LOG_BYTES = 4 * 1024 * 1024
"""Of a pod's output, at most so much of the beginning is kept."""

LOG_PATIENCE_S = 60.0
"""So long a log that cannot be had is asked for. A node that is gone never gives it."""

LOG_WAIT_S = 1.0
"""So long a look waits for a log; what takes longer is read beside it, and taken in by a later look."""

CLOCKS_DIFFER_S = 30.0
"""The output of an attempt is asked for from so long before its start on: a node's clock may be behind."""

DELETE_BATCH = 50

FORGET_FROM = 64
"""So many pods that are gone are remembered beside those that are there."""

NO_QUEUES_S = 300.0
"""So long Kueue's objects are not asked for again where there are none, or where they may not be read."""


@dataclass
class Rejections:
    """Why the API server does not take new pods or trials, and when to try again."""

    why: PendingReason | None = None
    until: float = 0.0
    count: int = 0

    def add(self, why: PendingReason, now: float, at_least_s: float = 0.0) -> None:
        """Note one more refusal."""
        self.count += 1
        self.why = why
        self.until = now + max(at_least_s, min(REFUSED_BASE_S * 2.0 ** min(self.count - 1, 10), REFUSED_MOST_S))

    def clear(self) -> None:
        """Creating works."""
        self.why, self.until, self.count = None, 0.0, 0


class Logs(Protocol):
    """Keeps what pods printed."""

    def keep_log(self, trial: Trial, text: str, *, once: bool = False) -> None:
        """Keep what one of the trial's pods printed; `once`: what of it is not kept already."""
        ...

    def log_stored(self, trial: Trial) -> bool:
        """Return whether all that was kept of this trial is where it cannot be lost."""
        ...


@dataclass(frozen=True, eq=False)
class _Reading:
    """A log that is on its way, of a pod in that phase."""

    phase: str
    task: asyncio.Task[str]


class PodWork:
    """Acts at the API server for one experiment.

    Args:
        owner: the TuneExperiment.
        experiment: returns the manifest that holds now, with its storage.
        kube: the API server.
        seen: gets what the server answers.
        options: for building pods.
        clock: seconds since the epoch.
        logs: keeps what pods printed.
    """

    def __init__(
        self,
        owner: ObjectRef,
        experiment: Callable[[], TuneExperiment],
        kube: Kube,
        cache: ObjectCache,
        options: PodOptions,
        clock: Callable[[], float],
        logs: Logs,
    ) -> None:
        self._owner = owner
        self._key = f"{owner.namespace}/{owner.name}"
        self._experiment = experiment
        self._kube = kube
        self._cache = cache
        self._options = options
        self._clock = clock
        self._logs = logs
        self._from_before = {pod["metadata"].get("uid") for pod in cache.pods(self._key)}
        self._kept: set[str] = set()  # uids of the pods whose log is kept, in the storage or on its way there
        self.rejections = Rejections()
        self.deleted: set[str] = set()
        """Uids of the pods whose deletion was asked for here."""
        self._missed: set[str] = set()  # uids of the pods some of whose output could not be had in time
        self._printed: dict[str, dict[str, dict[int, int]]] = {}  # by pod's uid, trial, attempt: characters kept
        self._no_log_since: dict[str, float] = {}  # by the pod's uid
        self._reading: dict[str, dict[tuple[str, str], _Reading]] = {}
        """By the same, then by container and from when on; "" = all of it."""
        self._no_queues_until = 0.0

    async def create_trial(self, trial: Trial) -> bool:
        """Make the TuneTrial; return whether it is there."""
        body = build_trial(self._experiment(), self._owner, trial)
        made = await self._create(paths.trials(self._owner.namespace), body)
        if made is None:
            return False
        self._cache.update_trial(made, deleted=False)
        return True

    async def create_pod(
        self, trial: Trial, attempt: int, resources: Mapping[str, float] | None = None, rank: int = 0
    ) -> str | None:
        """Make the pod of an attempt, and its TuneTrial before it; return the pod's uid, None when it is refused.

        Args:
            trial: the engine's trial.
            attempt: the attempt that it is made for.
            resources: instead of the manifest's, when a scheduler has changed them.
            rank: of the pod among those of the attempt.
        """
        name = names.trial_name(self._owner.name, trial.trial_id)
        if self._cache.trial(self._key, name) is None and not await self.create_trial(trial):
            return None
        owner = self._cache.trial(self._key, name)
        if owner is None:
            return None
        try:
            body = self._body(trial, attempt, resources, rank, name=name, uid=owner["metadata"]["uid"])
        except TemplateError as error:
            why = PendingReason(reason=Reason.INVALID_TEMPLATE, message=str(error), remedy="", severity="stuck")
            self.rejections.add(why, self._clock())
            return None
        made = await self._create(paths.pods(self._owner.namespace), body)
        if made is None:
            return None
        self._cache.update_pod(made, deleted=False)
        return str(made["metadata"]["uid"])

    async def refresh_pod(self, name: str) -> bool:
        """Ask the server for a pod; return whether it is there."""
        found = await self._kube.get(paths.pods(self._owner.namespace), name)
        if found is None:
            return False
        self._cache.update_pod(found, deleted=False)
        return True

    async def refresh_trial(self, trial: Trial) -> None:
        """Ask the server for a TuneTrial, whose deletion may have gone unseen."""
        name = names.trial_name(self._owner.name, trial.trial_id)
        found = await self._kube.get(paths.trials(self._owner.namespace), name)
        if found is not None:
            self._cache.update_trial(found, deleted=False)
        elif (known := self._cache.trial(self._key, name)) is not None:
            self._cache.update_trial(known, deleted=True)

    async def latest_warning(self, pod: Object) -> str:
        """Return the latest warning among a pod's events, or ""."""
        found = await self._kube.request(
            "GET",
            paths.events(self._owner.namespace),
            query={
                "fieldSelector": f"involvedObject.uid={pod['metadata'].get('uid', '')},type=Warning",
                "limit": "50",
            },
        )
        warnings = [each for each in found.get("items") or [] if each.get("message")]
        warnings.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
        return f"{warnings[-1].get('reason')}: {warnings[-1]['message']}" if warnings else ""

    async def queue_message(self, pod: Object) -> str:
        """Return why Kueue has not admitted a pod, in its words; "" where they cannot be had."""
        now = self._clock()
        if now < self._no_queues_until:
            return ""
        for version in queues.VERSIONS:
            try:
                found = await self._kube.request(
                    "GET",
                    paths.workloads(self._owner.namespace, version),
                    query={**queues.workload_query(pod), "limit": "2"},
                )
            except NotFoundError:
                continue
            except ApiError as error:
                if error.temporary:
                    return ""
                break  # somebody has taken the right away: what the pod itself shows is told without it
            return next((said for each in found.get("items") or [] if (said := queues.words(each))), "")
        self._no_queues_until = now + NO_QUEUES_S
        return ""

    async def delete_pod(self, pod: Object, grace_s: int | None = None) -> None:
        """Ask for the end of a pod: SIGTERM now, SIGKILL after its grace period, or after `grace_s` if given."""
        metadata = pod["metadata"]
        uid = metadata.get("uid", "")
        self.deleted.add(uid)  # before: the news of its end may be here before the answer
        try:
            await self._kube.delete(paths.pods(self._owner.namespace), metadata["name"], uid=uid, grace_s=grace_s)
        except BaseException:
            self.deleted.discard(uid)
            raise

    def shape(self, trial: Trial, attempt: int, resources: Mapping[str, float] | None) -> str | None:
        """Return the digest of the pod that an attempt would get, None when it would get none."""
        try:
            pod = self._body(trial, attempt, resources)
        except TemplateError:
            return None
        found: str | None = pod["metadata"]["annotations"].get(names.SHAPE_ANNOTATION)
        return found

    def _body(
        self,
        trial: Trial,
        attempt: int,
        resources: Mapping[str, float] | None,
        rank: int = 0,
        *,
        name: str = "",
        uid: str = "",
    ) -> Object:
        """Return a pod of an attempt, owned by the TuneTrial of that name; TemplateError: there can be none."""
        owner = ObjectRef(namespace=self._owner.namespace, name=name, uid=uid)
        return build_pod(
            self._experiment(),
            self._owner,
            owner,
            trial.trial_id,
            attempt,
            self._options,
            resources=resources,
            rank=rank,
        )

    async def label_pod(self, pod: Object, labels: Mapping[str, str]) -> bool:
        """Label a pod as it was seen; return False when it has changed since, and is to be looked at again."""
        metadata = pod["metadata"]
        body = {"metadata": {"labels": dict(labels), "resourceVersion": metadata.get("resourceVersion")}}
        try:
            patched = await self._kube.patch(paths.pods(self._owner.namespace), metadata["name"], body)
        except ConflictError:
            await self.refresh_pod(metadata["name"])
            return False
        if patched is None:
            self._cache.update_pod(pod, deleted=True)
            return False
        self._cache.update_pod(patched, deleted=False)
        return True

    async def collect_finished(self, pods: list[Object], trials: Mapping[str, Trial]) -> list[Object]:
        """Keep the logs of finished pods and delete them, or leave them; return those that are done with.

        Args:
            pods: that have ended.
            trials: the engine's, by id.
        """
        kept = await gather_all(*(self._keep(pod, trials) for pod in pods))
        done = [pod for pod, is_kept in zip(pods, kept, strict=True) if is_kept]
        ready = [pod for pod in done if not self.stays(pod)]
        for pod in done:
            if self.stays(pod):
                body = {"metadata": {"annotations": {names.LOG_KEPT_ANNOTATION: "true"}}}
                patched = await self._kube.patch(paths.pods(self._owner.namespace), pod["metadata"]["name"], body)
                if patched is not None:
                    self._cache.update_pod(patched, deleted=False)
        for pod in [each for each in ready if pod_key(each)]:
            ready.remove(pod)  # its labels may be another one's, too
            await self.delete_pod(pod)
        for start in range(0, len(ready), DELETE_BATCH):
            batch = ready[start : start + DELETE_BATCH]
            if len(batch) == 1:
                await self.delete_pod(batch[0])
            else:
                await self._delete_together(batch)
        return done

    def forget_gone(self) -> None:
        """Drop what is known of the output of pods that are gone: of each that there ever was, it would add up."""
        known = (self._kept, self._missed, self._printed.keys(), self._no_log_since.keys(), self._reading.keys())
        pods = self._cache.pods(self._key)
        if max(map(len, known)) <= 2 * len(pods) + FORGET_FROM:
            return
        present = {pod["metadata"].get("uid", "") for pod in pods}
        self._kept &= present
        self._missed &= present
        self._printed = {uid: each for uid, each in self._printed.items() if uid in present}
        self._no_log_since = {uid: each for uid, each in self._no_log_since.items() if uid in present}
        for uid in self._reading.keys() - present:
            self._stop_reading(uid, lambda _since, known: known.task.done())

    def stays(self, pod: Object) -> bool:
        """Return whether the manifest wants a finished pod to stay."""
        policy = self._experiment().spec.finished_pods
        failed = (pod.get("status") or {}).get("phase") == "Failed"
        return policy == "Keep" or (policy == "KeepFailed" and failed)

    async def _create(self, collection: str, body: Object) -> Object | None:
        try:
            return await self._kube.create(collection, body)
        except AlreadyExistsError:
            return await self._kube.get(collection, body["metadata"]["name"])
        except ApiError as error:
            why = rejection_reason(error.status, error.reason, error.detail, self._clock())
            if self.rejections.why is None or self.rejections.why.reason != why.reason:
                logger.warning("%s: %s", self._key, error)
            self.rejections.add(why, self._clock(), error.retry_after_s)
            return None

    async def _delete_together(self, batch: list[Object]) -> None:
        """Delete finished pods in one request for each attempt number, and rank, among them."""
        by_attempt: dict[tuple[str, str], list[Object]] = {}
        for pod in batch:
            labels = pod["metadata"]["labels"]
            key = labels.get(names.ATTEMPT_LABEL, ""), labels.get(names.RANK_LABEL, "")
            by_attempt.setdefault(key, []).append(pod)
        for (attempt, rank), pods in by_attempt.items():
            ids = sorted(pod["metadata"]["labels"][names.TRIAL_ID_LABEL] for pod in pods)
            selector = (
                f"{names.EXPERIMENT_LABEL}={self._owner.name},{names.ATTEMPT_LABEL}={attempt},"
                f"{names.TRIAL_ID_LABEL} in ({','.join(ids)})"
            )
            if rank:  # the attempt's other pods may not be done with
                selector += f",{names.RANK_LABEL}={rank}"
            uids = {str(pod["metadata"].get("uid", "")) for pod in pods}
            self.deleted |= uids
            try:
                await self._kube.delete_all(paths.pods(self._owner.namespace), selector)
            except BaseException:
                self.deleted -= uids
                raise

    async def keep_latest_log(self, pod: Object, trials: Mapping[str, Trial]) -> None:
        """Put what a pod's latest attempt printed into its trial's files; what cannot be had is had at its end."""
        try:
            text, whole = await self._latest_log(pod, trials)
        except ApiError as error:
            logger.info("the log of %s cannot be kept yet: %s", pod["metadata"]["name"], error)
            self._missed.add(pod["metadata"].get("uid", ""))
            return
        self._keep_sections(pod, trials, sections(text, whole=whole))

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
                return self._gives_up(pod, error)
            found = sections(text, whole=whole)
            trial_id = _label(pod, names.TRIAL_ID_LABEL)
            if not found and text:
                found = [Section(trial_id, 0, text)]  # it ended before it had work
            self._keep_sections(pod, trials, found)
            self._kept.add(uid)
            self._stop_reading(uid, lambda _since, _known: True)
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

    async def _latest_log(self, pod: Object, trials: Mapping[str, Trial]) -> tuple[str, bool]:
        """Return the output of a pod from its latest attempt on, and whether it is all that there is."""
        trial_id, attempt = _label(pod, names.TRIAL_ID_LABEL), _label(pod, names.ATTEMPT_LABEL)
        trial = trials.get(trial_id)
        if trial is not None and str(trial.attempt) == attempt and pod_key(pod) != (trial_id, trial.attempt):
            since = dt.datetime.fromtimestamp(trial.started_at - CLOCKS_DIFFER_S, dt.UTC)
            text = await self._log(pod, since.strftime("%Y-%m-%dT%H:%M:%SZ"))
            if any((each.trial_id, str(each.attempt)) == (trial_id, attempt) for each in sections(text)):
                return text, False
        return await self._log(pod), True

    async def _whole_log(self, pod: Object) -> str:
        """Return the output of the containers that explain a pod's end, and then of the trial's own."""
        parts = []
        for each in failed_beside(pod):
            name = str(each.get("name"))
            text = await self._log(pod, container=name)
            end = "" if text.endswith("\n") or not text else "\n"
            status = last_end(each).get("exitCode")
            parts.append(f"trialpod: container {name} exited with status {status}; it printed:\n{text}{end}")
        if parts and _never_began(pod):
            return "".join(parts)
        text = await self._log(pod)
        if parts and text:
            parts.append("trialpod: the trial printed:\n")
        return "".join([*parts, text])

    async def _log(self, pod: Object, since: str = "", *, container: str = "") -> str:
        if not container:
            containers = [each["name"] for each in pod["spec"].get("containers") or []]
            container = names.CONTAINER if names.CONTAINER in containers else next(iter(containers), names.CONTAINER)
        name, uid = pod["metadata"]["name"], pod["metadata"].get("uid", "")
        phase = str((pod.get("status") or {}).get("phase"))  # a pod that has ended prints no more
        # Its latest part may be asked for, and then all of it: both stay at hand until they are there.
        self._stop_reading(
            uid, lambda each, known: known.phase != phase or (each[0] == container and each[1] not in ("", since))
        )
        readings = self._reading.setdefault(uid, {})
        known = readings.get((container, since))
        if known is None:
            asked = self._kube.pod_log(self._owner.namespace, name, container, LOG_BYTES, since)
            known = readings[container, since] = _Reading(phase, asyncio.ensure_future(asked))
            # Nobody may ask any more.
            known.task.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait({known.task}, timeout=LOG_WAIT_S)
        if not known.task.done():
            raise UnreachableError(
                "GET", f"{paths.pods(self._owner.namespace)}/{name}/log", 0, {"message": "it takes long"}
            )
        self._stop_reading(uid, lambda _since, each: each is known)
        return known.task.result()

    def _gives_up(self, pod: Object, error: ApiError) -> bool:
        """Return whether a log that cannot be had is asked for no more."""
        metadata = pod["metadata"]
        since = self._no_log_since.setdefault(metadata.get("uid", ""), self._clock())
        if error.temporary and self._clock() - since < LOG_PATIENCE_S:
            return False
        logger.info("the log of %s cannot be kept: %s", metadata["name"], error)
        self._stop_reading(metadata.get("uid", ""), lambda _since, _known: True)
        return True

    def _stop_reading(self, uid: str, which: Callable[[tuple[str, str], _Reading], bool]) -> None:
        readings = self._reading.get(uid, {})
        for key in [key for key, known in readings.items() if which(key, known)]:
            readings.pop(key).task.cancel()
        if not readings:
            self._reading.pop(uid, None)

    async def _keep(self, pod: Object, trials: Mapping[str, Trial]) -> bool:
        """Put what a pod printed into its trial's files; return False when that has to be tried again."""
        if pod_key(pod) is not None:
            return await self._keep_reused(pod, trials)
        trial = trials.get(_label(pod, names.TRIAL_ID_LABEL))
        if trial is None:
            return True
        metadata = pod["metadata"]
        uid = metadata.get("uid", "")
        if uid in self._kept:
            return self._logs.log_stored(trial)
        try:
            text = await self._whole_log(pod)
        except ApiError as error:
            return self._gives_up(pod, error)
        if not text:
            return True
        self._logs.keep_log(trial, text, once=uid in self._from_before)
        self._kept.add(uid)
        return self._logs.log_stored(trial)


def _never_began(pod: Object) -> bool:
    """Return whether the trial's container never ran, because another one failed before it."""
    own = container_state(pod, str(trial_container(pod).get("name", "")))
    return "terminated" not in own and "running" not in own and bool(failed_beside(pod))


def _label(pod: Object, name: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(name, ""))


def node_of(pod: Object | None) -> str:
    """Return the node that a pod is on, or ""."""
    spec: dict[str, Any] = (pod or {}).get("spec") or {}
    return str(spec.get("nodeName") or "")
