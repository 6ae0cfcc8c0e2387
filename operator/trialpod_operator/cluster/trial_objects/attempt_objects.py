"""The objects of other kinds of one experiment: kept together with their primary pods, shown in the cache as pods.

Pods come from the operator's watch. Objects are asked for: all of them by a list now and then while attempts run,
and one alone before anything is concluded from the end of its pod. So there is no watch on kinds that may not be
there, and one request in ten seconds for all trials.

Invariants:

* The first pod that asks for an attempt's work is its primary pod; until one has, it is the oldest.
* No end of a pod is shown before its object was asked for after it: only the object tells a failure of its own, such
  as a deadline, from a disruption.
* What is shown has a name that is a function of the attempt, as a pod's.

Owned by the event loop.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.api.api_errors import NotFoundError
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.reasons import Reason
from trialpod_operator.api.trial_resource.kinds import TrialKind
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.kube import ApiServer, gather_all
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.reading import PendingReason, foreign, seconds
from trialpod_operator.cluster.pods.template import TemplateError
from trialpod_operator.cluster.trial_objects.build import kind_for, resource_name
from trialpod_operator.cluster.trial_objects.composite import compose, ending_mark, is_disrupted, is_echo
from trialpod_operator.experiment.durable import NotReadyError

LIST_S = 10.0
"""Interval of the lists."""

ENDED_S = 1.0
"""How soon an object whose pod has succeeded is asked for again, until it shows its own end."""

JUDGE_S = 5.0
"""Maximum time that the report of a pod waits for its object to be asked for."""

NO_STATUS_S = 20.0
"""Time without a pod and without a status after which an object seems to be orphaned."""


_MISSED = "missed"
"""In place of the uid of a pod that went while no operator was there."""


@dataclass
class _Known:
    item: Object  # as it was last seen
    primary: str = ""  # uid of the pod that has the attempt's work
    last: Object | None = None  # that pod, as it was last seen
    mark: str = ""  # how that pod had ended when the object was last asked for
    asked_at: float = 0.0
    judge_at: float = 0.0  # when its pod first said that it is taken away
    sought_at: float = 0.0  # when its pod was last asked for, because only the object showed its end
    gone: bool = False  # the object is not there any more


class AttemptObjects:
    """The objects of one experiment.

    Args:
        key: "namespace/name" of the experiment.
        experiment: returns the manifest that holds now.
        kube: the API server.
        cache: has the pods; what is shown goes there.
        clock: seconds since the epoch.
        allowed: the kinds that the operator may use, "apiVersion/kind" -> plural.
    """

    def __init__(
        self,
        key: str,
        experiment: Callable[[], TuneExperiment],
        kube: ApiServer,
        cache: ObjectCache,
        clock: Callable[[], float],
        allowed: Mapping[str, str],
    ) -> None:
        self._key = key
        self._namespace, self._name = key.split("/")
        self._experiment = experiment
        self._kube = kube
        self._cache = cache
        self._clock = clock
        self._allowed = allowed
        self._known: dict[str, _Known] = {}  # by name
        self._listed_at = 0.0
        cache.compose_pods(key, self._pod_changed)

    def close(self) -> None:
        """Show nothing any more."""
        self._cache.compose_pods(self._key, None)

    @property
    def kind(self) -> TrialKind:
        """The kind of the objects."""
        resource = self._experiment().spec.trial_resource
        assert resource is not None
        return kind_for(resource)

    def collection(self) -> str:
        """Return the path of the objects.

        Raises:
            TemplateError: the operator may not use their kind.
        """
        kind = self.kind
        return paths.objects(self._namespace, kind.api_version, resource_name(kind, self._allowed))

    # -- what the server says --

    async def load(self) -> None:
        """Ask for all objects: an operator that has just begun knows none."""
        try:
            collection = self.collection()
        except TemplateError:
            return  # no object can have been made
        self._listed_at = self._clock()
        selector = f"{names.MANAGED_BY_LABEL}={names.MANAGER},{names.EXPERIMENT_LABEL}={self._name}"
        before = set(self._known)
        try:
            items = await self._kube.list(collection, selector)
        except NotFoundError:
            items = []  # the kind itself is not there
        for item in items:
            self.put(item)
        listed = {item["metadata"]["name"] for item in items}
        for name in before - listed:
            self._remove(name)
        # What another opening of the experiment has shown.
        for shown in self._cache.pods(self._key):
            name = shown["metadata"]["name"]
            if "pod" in shown and name not in listed and name not in self._known and not self._parts(name):
                self._cache.show(self._key, name, shown, deleted=True)

    async def refresh(self, now: float) -> None:
        """Bring what is shown up to date."""
        due = [
            name
            for name, known in self._known.items()
            if not known.gone
            and (self._mark(name, known) != known.mark or (known.judge_at and known.asked_at <= known.judge_at))
        ]
        waits = [
            name
            for name, known in self._known.items()
            if known.mark == "ended Succeeded"
            and not known.gone
            and now - known.asked_at >= ENDED_S
            and (self._cache.pod(self._key, name) or {}).get("status", {}).get("phase") == "Running"
        ]
        await gather_all(*(self.refresh_one(name) for name in dict.fromkeys([*due, *waits])))
        lost = [
            name
            for name, known in self._known.items()
            if is_echo(known.item, self.kind) and not self._mark(name, known) and now - known.sought_at >= LIST_S
        ]
        for name in lost:
            self._known[name].sought_at = now
        await gather_all(*(self.ask_about_pod(name) for name in lost))
        if self._known and now - self._listed_at >= LIST_S:
            await self.load()

    async def refresh_one(self, name: str) -> bool:
        """Ask for one object; return whether it, or its pod, is there."""
        known = self._known.get(name)
        mark, began = self._mark(name, known) if known is not None else "", self._clock()
        found = await self._kube.get(self.collection(), name)
        if found is None:
            self._remove(name)
        else:
            made = self.put(found, show=False)
            made.mark, made.asked_at = mark, began  # what was reported meanwhile has to be asked about again
            self._show(name)
        return self._cache.pod(self._key, name) is not None

    async def ask_about_pod(self, name: str) -> None:
        """Ask for an object's primary pod, whose end may have gone unseen."""
        known = self._known.get(name)
        pod = self._primary(name, known) if known is not None else None
        if pod is not None and await self._kube.get(paths.pods(self._namespace), pod["metadata"]["name"]) is None:
            self._cache.update_pod(pod, deleted=True)

    def put(self, item: Object, *, show: bool = True) -> _Known:
        """Take in an object as the server has shown it."""
        name = item["metadata"]["name"]
        known = self._known.get(name)
        if known is None or known.item["metadata"].get("uid") != item["metadata"].get("uid"):
            known = self._known[name] = _Known(item)
        known.item = item
        known.gone = known.gone and bool(item["metadata"].get("deletionTimestamp"))
        if show:
            self._show(name)
        return known

    def deleted(self, name: str) -> None:
        """An object's deletion was asked for: it is shown as long as its pod is there."""
        known = self._known.get(name)
        if known is not None:
            stamp = dt.datetime.fromtimestamp(self._clock(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            known.item = {**known.item, "metadata": {"deletionTimestamp": stamp, **known.item["metadata"]}}
            self._remove(name)

    def _remove(self, name: str) -> None:
        known = self._known.get(name)
        if known is None:
            return
        known.gone = True
        self._show(name)

    # -- pods --

    def resume(self, name: str, pod_name: str) -> None:
        """An attempt had begun in that pod when this operator started: find it, or miss it."""
        known = self._known.get(name)
        if known is None:
            return
        found = [pod for pod in self._cache.parts(self._key, name) if pod["metadata"]["name"] == pod_name]
        if found:
            known.primary = str(found[0]["metadata"].get("uid"))
        else:
            known.last = {"metadata": {"name": pod_name, "uid": _MISSED}, "spec": {}, "status": {}}
            known.primary = _MISSED
        self._show(name)

    def claim(self, caller_uid: str, pod: Object, *, assigned: bool) -> str | None:
        """Return None if a pod may speak for its attempt, else why not.

        Args:
            caller_uid: of the pod that asks.
            pod: that pod.
            assigned: whether the attempt has begun.

        Raises:
            NotReadyError: its object is not known yet, because the answer to its creation was lost for example.
        """
        metadata = pod["metadata"]
        name = str((metadata.get("labels") or {}).get(names.OBJECT_LABEL, ""))
        known = self._known.get(name)
        if metadata.get("uid") != caller_uid:
            return f"pod {metadata['name']} is another one than the caller"
        if known is None:
            raise NotReadyError(f"the {self.kind.kind} of pod {metadata['name']} is not known here yet")
        if not assigned and known.primary not in self._parts(name):
            known.primary = ""  # it went before it began
        known.primary = known.primary or caller_uid
        self._show(name)
        if known.primary != caller_uid:
            return f"pod {metadata['name']} is not the one that runs the attempt: the first that asked is"
        return None

    def judge_report(self, name: str, end: AttemptEnd) -> AttemptEnd | None:
        """Return how the attempt ended whose pod says this; None while the object has to be asked for first.

        A pod on a SIGTERM knows only that it is taken away. When the object has failed, of its deadline say, that is
        a failure; when the cluster takes the pod, it is the disruption that it says.
        """
        known = self._known.get(name)
        if end.cause != "preempted" or known is None or known.gone:
            return end
        now = self._clock()
        if not known.judge_at:
            known.judge_at = now
        if known.asked_at <= known.judge_at and now - known.judge_at < JUDGE_S:
            return None
        pod = self._primary(name, known)
        disrupted = pod is not None and is_disrupted(pod)
        if disrupted or not self.kind.failure.holds(known.item) or is_echo(known.item, self.kind):
            return end
        words = self.kind.failure.words(known.item)
        message = f"the {self.kind.kind} failed{f': {foreign(words)}' if words else ''}"
        return msgspec.structs.replace(end, cause="failed", error=message)

    def primary(self, name: str) -> Object | None:
        """Return the pod that has an attempt's work, None when it is not there."""
        known = self._known.get(name)
        return self._primary(name, known) if known is not None else None

    def pod_of(self, name: str) -> str:
        """Return the name of the pod that has an attempt's work, "" for none."""
        known = self._known.get(name)
        pod = self._parts(name).get(known.primary) if known is not None else None
        return str(pod["metadata"]["name"]) if pod is not None else ""

    def _pod_changed(self, name: str) -> None:
        if name in self._known:
            self._show(name)

    def _parts(self, name: str) -> dict[str, Object]:
        """Return the pods of an object that are there, by uid."""
        return {str(pod["metadata"].get("uid")): pod for pod in self._cache.parts(self._key, name)}

    def _primary(self, name: str, known: _Known) -> Object | None:
        parts = self._parts(name)
        if known.primary:
            return parts.get(known.primary)
        if known.last is not None and str(known.last["metadata"].get("uid")) in parts:
            return parts[str(known.last["metadata"].get("uid"))]
        oldest = sorted(
            parts.values(),
            key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]),
        )
        living = [pod for pod in oldest if not pod["metadata"].get("deletionTimestamp")]
        return next(iter(living or oldest), None)

    def _mark(self, name: str, known: _Known) -> str:
        pod = self._primary(name, known)
        if pod is None and known.last is not None and known.primary:
            return ending_mark(known.last, gone=True)
        return ending_mark(pod, gone=False)

    def _show(self, name: str) -> None:
        """Put the composite into the cache, unless its pod has ended since the object was last asked for."""
        known = self._known[name]
        pod = self._primary(name, known)
        gone = pod is None and known.last is not None and bool(known.primary)
        if pod is not None:
            known.last = pod
        if known.gone:
            shown = self._cache.pod(self._key, name)
            if pod is None:
                del self._known[name]
                if shown is not None or known.item["metadata"].get("uid"):
                    last = compose(known.item, known.last, self.kind, gone=gone)
                    self._cache.show(self._key, name, last, deleted=True)
                return
        elif self._mark(name, known) != known.mark:
            return  # `refresh` asks for the object first
        self._cache.show(
            self._key, name, compose(known.item, known.last if gone else pod, self.kind, gone=gone), deleted=False
        )

    # -- why it does not begin --

    def pending_reason(self, name: str, now: float, event: str) -> PendingReason | None:
        """Return why an object has no pod yet; None when it has, or all goes its usual way."""
        known = self._known.get(name)
        if known is None or self._primary(name, known) is not None:
            return None
        item, kind = known.item, self.kind.kind
        since = seconds(item["metadata"].get("creationTimestamp"))
        waited = now - since if since is not None else 0.0
        if (item.get("spec") or {}).get("suspend") is True:
            queue = queues.queue_of(item)
            return PendingReason(
                reason=Reason.QUEUED,
                message=f"the {kind} {name} is suspended"
                + (f": Kueue has not admitted it from the queue {queue}" if queue else ""),
                remedy=queues.remedy("", queue) if queue else "set its spec.suspend to false",
                since=since,
            )
        if event:
            return PendingReason(
                reason=Reason.TRIAL_RESOURCE_WAITING,
                message=f"the {kind} {name} has no pod yet: {foreign(event)}",
                remedy=Reason.TRIAL_RESOURCE_WAITING.remedy,
                since=since,
            )
        if waited < NO_STATUS_S:
            return None
        if not item.get("status"):
            return PendingReason(
                reason=Reason.TRIAL_RESOURCE_WITHOUT_STATUS,
                message=f"the {kind} {name} has no status after {waited:.0f} s: no controller handles it",
                remedy=Reason.TRIAL_RESOURCE_WITHOUT_STATUS.remedy,
                severity="stuck",
                since=since,
            )
        return PendingReason(
            reason=Reason.TRIAL_RESOURCE_WAITING,
            message=f"the {kind} {name} has made no pod that runs the trial yet",
            remedy=Reason.TRIAL_RESOURCE_WAITING.remedy,
            since=since,
        )
