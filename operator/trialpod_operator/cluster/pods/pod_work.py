"""Makes and removes the TuneTrials and pods of one experiment at the API server.

Every call may be repeated: what is there already is taken for ours, because its name says for what it was made. What
the server refuses is remembered with its reason, and not asked for again before its time (`Rejections`).

Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trialpod_operator.api.api_errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
)
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import MAX_DELETED, Object, ObjectCache
from trialpod_operator.cluster.kube import ApiServer, gather_all
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.binding import pod_key
from trialpod_operator.cluster.pods.build import ObjectRef, PodOptions, build_pod
from trialpod_operator.cluster.pods.logs import Logs, PodLogs
from trialpod_operator.cluster.pods.pending import PendingReason
from trialpod_operator.cluster.pods.rejected import rejection_reason
from trialpod_operator.cluster.pods.resources import build_trial
from trialpod_operator.cluster.pods.template import TemplateError, TrialTemplateError, building_error
from trialpod_operator.cluster.trial_objects.attempt_objects import AttemptObjects
from trialpod_operator.cluster.trial_objects.build import build_object
from trialpod_operator.engine.trial import Trial

logger = logging.getLogger(__name__)

REJECTION_BACKOFF_S = 1.0
MAX_REJECTION_BACKOFF_S = 30.0

NO_QUEUES_S = 300.0
"""Minimum interval between requests for Kueue's objects where there are none, or reading is forbidden."""


@dataclass
class Rejections:
    """Why the API server does not take new pods or trials, and when to try again."""

    why: PendingReason | None = None
    until: float = 0.0
    count: int = 0

    def add(self, why: PendingReason, now: float, at_least_s: float = 0.0) -> None:
        """Note a refusal; several of one look count once."""
        if now >= self.until:
            self.count += 1
        self.why = why
        self.until = now + max(
            at_least_s, min(REJECTION_BACKOFF_S * 2.0 ** min(self.count - 1, 10), MAX_REJECTION_BACKOFF_S)
        )

    def ease(self) -> None:
        """One was taken, or room was made: try at once, and wait as after the first refusal."""
        self.until, self.count = 0.0, 0

    @property
    def by_quota(self) -> bool:
        """Whether a quota is used up."""
        return self.why is not None and self.why.reason == Reason.QUOTA_EXCEEDED

    def clear(self) -> None:
        """Creating works."""
        self.why, self.until, self.count = None, 0.0, 0


class PodWork:
    """Acts at the API server for one experiment.

    Args:
        owner: the TuneExperiment.
        experiment: returns the manifest that holds now, with its storage.
        kube: the API server.
        cache: gets what the server answers.
        options: for building pods.
        clock: seconds since the epoch.
        logs: keeps what pods printed.
        objects: of another kind, that stand for the pods; None where attempts are pods.
    """

    def __init__(
        self,
        owner: ObjectRef,
        experiment: Callable[[], TuneExperiment],
        kube: ApiServer,
        cache: ObjectCache,
        options: PodOptions,
        clock: Callable[[], float],
        logs: Logs,
        objects: AttemptObjects | None = None,
    ) -> None:
        self._owner = owner
        self._key = f"{owner.namespace}/{owner.name}"
        self._experiment = experiment
        self._kube = kube
        self._cache = cache
        self._options = options
        self._clock = clock
        self.objects = objects
        self.logs = PodLogs(owner.namespace, self._key, kube, cache, clock, logs)
        self.rejections = Rejections()
        self.deleted: set[str] = set()
        """Uids of the pods whose deletion was asked for here: not asked for again."""
        self.ended_running: set[str] = set()
        """Uids of those among them that ran then: what they print until they have exited is kept, too."""
        self._unanswered: set[str] = set()  # uids of those that were asked for before, without an answer
        self._refused: set[str] = set()  # uids of those whose deletion was refused: it is logged once
        self._gone_before: set[str] = set()  # uids of those that another client had ended before
        self._no_queues_until = 0.0
        self._counted: set[str] = set()  # uids of the pods that a quota counted when it was used up
        self._hashed: TuneExperiment | None = None
        self._template_hashes: dict[
            frozenset[tuple[str, float]] | None, str | None
        ] = {}  # of its pods, by their resources

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

        Raises:
            TrialTemplateError: there can be none with the trial's parameters.
        """
        name = names.trial_name(self._owner.name, trial.trial_id)
        if self._cache.trial(self._key, name) is None and not await self.create_trial(trial):
            return None
        owner = self._cache.trial(self._key, name)
        if owner is None:
            return None
        try:
            body = self._body(trial, attempt, resources, rank, name=name, uid=owner["metadata"]["uid"])
            collection = self._collection()
        except TrialTemplateError:
            raise
        except TemplateError as error:
            why = PendingReason(reason=Reason.INVALID_TEMPLATE, message=str(error), remedy="", severity="stuck")
            self.rejections.add(why, self._clock())
            return None
        made = await self._create(collection, body, strict=True)  # else a misspelt field of a template is dropped
        if made is None:
            return None
        if self.objects is not None:
            self.objects.put(made)
        else:
            self._cache.update_pod(made, deleted=False)
        return str(made["metadata"]["uid"])

    def _collection(self) -> str:
        """Return the path of what stands for attempts; TemplateError: the operator may not use it."""
        return paths.pods(self._owner.namespace) if self.objects is None else self.objects.collection()

    async def refresh_pod(self, name: str) -> bool:
        """Ask the server for a pod; return whether it is there."""
        if self.objects is not None:
            await self.objects.ask_about_pod(name)
            return await self.objects.refresh_one(name)
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
        """Return the latest warning among a pod's events, or ""; of an object's without a pod, among its own."""
        uid = (pod.get("pod") or pod["metadata"]).get("uid", "")
        found = await self._kube.request(
            "GET",
            paths.events(self._owner.namespace),
            query={
                "fieldSelector": f"involvedObject.uid={uid},type=Warning",
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
                break  # the right was withdrawn: what the pod itself shows is reported without it
            return next((said for each in found.get("items") or [] if (said := queues.words(each))), "")
        self._no_queues_until = now + NO_QUEUES_S
        return ""

    async def delete_pod(self, pod: Object, grace_s: int | None = None) -> None:
        """Ask for the end of a pod: SIGTERM now, SIGKILL after its grace period, or after `grace_s` if given."""
        metadata = pod["metadata"]
        uid = metadata.get("uid", "")
        self.deleted.add(uid)  # before: the news of its end may be here before the answer
        if (pod.get("status") or {}).get("phase") == "Running":
            self.ended_running.add(uid)
        try:
            found = await self._kube.delete(self._collection(), metadata["name"], uid=uid, grace_s=grace_s)
        except BaseException:
            self.deleted.discard(uid)
            self._unanswered.add(uid)
            raise
        if not found and uid not in self._unanswered:
            self._gone_before.add(uid)
        if self.objects is not None:
            self.objects.deleted(metadata["name"])

    async def delete_if_allowed(self, pod: Object, grace_s: int | None = None) -> bool:
        """Ask for the end of a pod as `delete_pod` does; return False where the server refuses this.

        Other pods do not wait for one that an admission rule protects, for example.

        Raises:
            UnreachableError: the server does not answer.
        """
        error = await paths.refusal(self.delete_pod(pod, grace_s))
        if error is not None:
            uid = pod["metadata"].get("uid", "")
            level = logging.DEBUG if uid in self._refused else logging.WARNING
            logger.log(level, "%s: a pod cannot be deleted: %s", self._key, error)
            self._refused.add(uid)
            return False
        return True

    def forget_deleted(self) -> None:
        """Forget the deletions of pods that are gone, and of which no late event can come any more."""
        self.logs.forget_deleted()
        if len(self.deleted) <= 2 * len(self._cache.pod_names(self._key)) + MAX_DELETED:
            return
        present = {pod["metadata"].get("uid", "") for pod in self._cache.pods(self._key)}
        gone = {uid for uid in self.deleted if uid not in present and not self._cache.was_deleted(uid)}
        for known in (self.deleted, self.ended_running, self._unanswered, self._gone_before, self._refused):
            known -= gone

    def ended_pod(self, uid: str) -> bool:
        """Return whether a pod that ends, or is gone, does so because it was asked for here."""
        return uid in self.deleted and uid not in self._gone_before

    def template_hash(self, trial: Trial, attempt: int, resources: Mapping[str, float] | None) -> str | None:
        """Return the digest of the pod that an attempt would get, None when it would get none."""
        experiment, kind = self._experiment(), None if resources is None else frozenset(resources.items())
        if experiment is not self._hashed:
            self._hashed, self._template_hashes = experiment, {}
        if kind not in self._template_hashes:  # equal for all attempts with the same resources
            self._template_hashes[kind] = self._compute_template_hash(trial, attempt, resources)
        return self._template_hashes[kind]

    def _compute_template_hash(self, trial: Trial, attempt: int, resources: Mapping[str, float] | None) -> str | None:
        try:
            pod = self._body(trial, attempt, resources)
        except TemplateError:
            return None
        found: str | None = pod["metadata"]["annotations"].get(names.TEMPLATE_HASH_ANNOTATION)
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
        try:
            return self._build(trial, attempt, resources, rank, name=name, uid=uid)
        except TemplateError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # what no check of the manifest has found
            logger.exception("%s: no pod can be made for trial %s", self._key, trial.trial_id)
            raise building_error(error) from error

    def _build(
        self,
        trial: Trial,
        attempt: int,
        resources: Mapping[str, float] | None,
        rank: int,
        *,
        name: str,
        uid: str,
    ) -> Object:
        owner = ObjectRef(namespace=self._owner.namespace, name=name, uid=uid)
        if self.objects is not None:
            return build_object(
                self._experiment(),
                self._owner,
                owner,
                trial.trial_id,
                attempt,
                trial.shown_config,
                self._options,
                resources=resources,
            )
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

        What fails for one keeps no other from it.

        Args:
            pods: that have ended.
            trials: the engine's, by id.

        Raises:
            ApiError, NotServedError, StorageError: the first failure, once all were tried.
        """
        kept = await asyncio.gather(*(self.logs.keep(pod, trials) for pod in pods), return_exceptions=True)
        done = [pod for pod, is_kept in zip(pods, kept, strict=True) if is_kept is True]
        together: dict[tuple[str, str], list[Object]] = {}  # by attempt number, and rank
        requests = []
        for pod in done:
            labels = pod["metadata"].get("labels") or {}
            if self.stays(pod):
                requests.append(self._mark_kept(pod))
            elif pod_key(pod) is not None or self.objects is not None or not labels.keys() >= _SELECTED_BY:
                # Its labels may be another one's, too; an object has its pods deleted; a user has removed a label.
                requests.append(self.delete_pod(pod))
            else:
                key = labels[names.ATTEMPT_LABEL], labels.get(names.RANK_LABEL, "")
                together.setdefault(key, []).append(pod)
        for (attempt, rank), batch in together.items():
            is_one = len(batch) == 1
            requests.append(self.delete_pod(batch[0]) if is_one else self._delete_together(attempt, rank, batch))
        await gather_all(*requests)
        for failure in kept:
            if isinstance(failure, BaseException):
                raise failure
        return done

    async def _mark_kept(self, pod: Object) -> None:
        """Note at a finished pod that stays that its log is kept."""
        body = {"metadata": {"annotations": {names.LOG_KEPT_ANNOTATION: "true"}}}
        patched = await self._kube.patch(self._collection(), pod["metadata"]["name"], body)
        if patched is not None and self.objects is not None:
            self.objects.put(patched)
        elif patched is not None:
            self._cache.update_pod(patched, deleted=False)

    def stays(self, pod: Object) -> bool:
        """Return whether the manifest wants a finished pod to stay."""
        policy = self._experiment().spec.finished_pods
        failed = (pod.get("status") or {}).get("phase") == "Failed"
        return policy == "Keep" or (policy == "KeepFailed" and failed)

    def notice_room(self) -> None:
        """Where a quota is used up, and pods have ended since, try at once."""
        if self.rejections.by_quota:
            before, self._counted = self._counted, self._unfinished()
            if before - self._counted:
                self.rejections.ease()

    def _unfinished(self) -> set[str]:
        return {
            str(pod["metadata"].get("uid", ""))
            for pod in self._cache.pods(self._key)
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        }

    async def _create(self, collection: str, body: Object, *, strict: bool = False) -> Object | None:
        try:
            return await self._kube.create(collection, body, strict=strict)
        except AlreadyExistsError:
            return await self._kube.get(collection, body["metadata"]["name"])
        except ApiError as error:
            kind = str(body["kind"])
            kind = "" if kind == "Pod" else kind
            why = rejection_reason(error.status, error.reason, error.detail, self._clock(), kind=kind)
            if self.rejections.why is None or self.rejections.why.reason != why.reason:
                logger.warning("%s: %s", self._key, error)
            self.rejections.add(why, self._clock(), error.retry_after_s)
            if self.rejections.by_quota:
                self._counted = self._unfinished()
            return None

    async def _delete_together(self, attempt: str, rank: str, pods: list[Object]) -> None:
        """Delete finished pods of one attempt number, and rank, in one request."""
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


_SELECTED_BY = frozenset({names.EXPERIMENT_LABEL, names.TRIAL_ID_LABEL, names.ATTEMPT_LABEL})
