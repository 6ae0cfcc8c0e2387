"""Why attempts that should run do not, from their pods, from the API server, and from what was said about them."""

from __future__ import annotations

from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.capacity import WAITS_AFTER_S
from trialpod_operator.cluster.pods.experiment_pods import Shared
from trialpod_operator.cluster.pods.pending import Waiting, why_waiting
from trialpod_operator.cluster.pods.pod_work import node_of
from trialpod_operator.cluster.pods.reading import seconds
from trialpod_operator.engine.trial import Trial

AFTER_S = 8.0
EVERY_S = 10.0
"""When a pod has a node and does not begin, its events are looked at so often."""


class Complaints:
    """What is heard of the pods of one experiment that do not begin."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._latest: dict[str, str] = {}  # by pod name: the kubelet's latest warning about it
        self._queue_says = ""  # of the pod that waits first in its queue; the others are behind it
        self._heard_at = 0.0

    def waits(self, now: float) -> list[tuple[Trial, Waiting]]:
        """Return why attempts that should run do not, for those that do not."""
        found = []
        refused = self._shared.work.refusals.why
        for run in self._shared.runs.values():
            if run.given and run.group is None and refused is None:
                continue  # it has begun; and there are thousands
            name = self._shared.pod_name(run)
            pod = self._shared.seen.pod(self._shared.key, name)
            said = self._queue_says if pod and queues.is_held(pod) else self._latest.get(name, "")
            why = why_waiting(pod, now, event=said) if pod and not run.given else None
            if pod is None and refused is not None:
                why = refused
            why = why or self._shared.groups.wait_reason(run, now)
            if why is not None:
                found.append((run.trial, why))
        return found

    async def hear(self, now: float) -> None:
        """Ask for the events of one pod that should have begun: what a volume lacks stands nowhere else.

        Of the pods that wait in a queue, Kueue is asked about the first.
        """
        if now - self._heard_at < EVERY_S:
            return
        begins = [run for run in self._shared.runs.values() if not run.given]
        held = [pod for pod in map(self._shared.own_pod, begins) if pod is not None and waits_in_queue(pod, now)]
        if held:
            self._heard_at = now
            first = min(held, key=lambda pod: (pod["metadata"].get("creationTimestamp"), pod["metadata"]["name"]))
            self._queue_says = await self._shared.work.queue_words(first)
        else:
            self._queue_says = ""
        for run in begins:
            pod = self._shared.own_pod(run)
            if pod is None or run.given or now - run.created_at < AFTER_S or not node_of(pod):
                continue
            self._heard_at = now
            if complaint := await self._shared.work.complaint(pod):
                self._latest = {self._shared.pod_name(run): complaint}
            return
        self._latest = {}


def waits_in_queue(pod: Object, now: float) -> bool:
    """Return whether a pod has been held by its queue for a while."""
    if not queues.is_held(pod):
        return False
    created = seconds(pod["metadata"].get("creationTimestamp"))
    return created is not None and now - created >= WAITS_AFTER_S
