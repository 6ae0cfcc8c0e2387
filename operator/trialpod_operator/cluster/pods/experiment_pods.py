"""What the parts that handle the pods of one experiment share.

Invariant: owned by the event loop. `PodBindings` alone adds to `bindings` and takes out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.metrics.instruments import ExperimentMeter
from trialpod_operator.cluster.pods.attention import Attention
from trialpod_operator.cluster.pods.binding import PodBinding, PodKey, pod_key
from trialpod_operator.cluster.pods.group_work import GroupWork
from trialpod_operator.cluster.pods.pod_work import PodWork
from trialpod_operator.cluster.pods.reuse import IdlePods, InPlaceReservations
from trialpod_operator.experiment.durable import DurableExperiment


@dataclass(eq=False)
class ExperimentPods:
    """One experiment's attempts, and all that is needed to handle their pods.

    Attributes:
        key: "namespace/name".
        experiment: returns the manifest that holds now.
        durable: the experiment's engine.
        meter: counts what happens to the experiment.
        work: acts at the API server.
        cache: what the watches have shown.
        clock: seconds since the epoch.
        enqueue: asks for a reconcile soon.
        groups: the workers beside the heads.
        in_place: the pods that continue with their own trial.
        idle_pods: the pods that continue with any trial; None where pods are not reused.
        bindings: what should run, by trial id.
        changed: ids of trials whose TuneTrial has to be written.
        attention: which attempts the next pass looks at.
        starting: those that may not have started their work yet, by trial id.
        in_other_pods: those that were bound to a pod of another trial, by that.
        other_pods: the same pods, by trial id; an attempt may have returned to a pod of its own since.
    """

    key: str
    experiment: Callable[[], TuneExperiment]
    durable: DurableExperiment
    meter: ExperimentMeter
    work: PodWork
    cache: ObjectCache
    clock: Callable[[], float]
    enqueue: Callable[[], None]
    groups: GroupWork
    in_place: InPlaceReservations
    idle_pods: IdlePods | None = None
    bindings: dict[str, PodBinding] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    attention: Attention = field(default_factory=Attention)
    starting: dict[str, PodBinding] = field(default_factory=dict)
    in_other_pods: dict[PodKey, PodBinding] = field(default_factory=dict)
    other_pods: dict[str, PodKey] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The experiment's name."""
        return self.key.partition("/")[2]

    def pod_name(self, binding: PodBinding) -> str:
        """Return the name of an attempt's pod, or of its head's."""
        named = binding.named  # cached: thousands of bindings are asked several times in one pass
        if named is None or named[0] != binding.pod_attempt or named[1] != binding.pod_trial:
            named = binding.named = (
                binding.pod_attempt,
                binding.pod_trial,
                names.pod_name(self.name, *binding.pod_key),
            )
        return named[2]

    def bind(self, binding: PodBinding) -> None:
        """An attempt should have a pod."""
        trial_id = binding.trial.trial_id
        self.bindings[trial_id] = binding
        if not binding.assigned:
            self.starting[trial_id] = binding
        if binding.pod_trial:
            self.in_other_pods[binding.pod_key] = binding
            self.other_pods[trial_id] = binding.pod_key
        self.attention.add(trial_id)

    def unbind(self, trial_id: str) -> PodBinding | None:
        """The trial's attempt should have no pod any more; return its binding."""
        binding = self.bindings.pop(trial_id, None)
        other_pod = self.other_pods.pop(trial_id, None)
        if binding is not None and other_pod is not None and self.in_other_pods.get(other_pod) is binding:
            del self.in_other_pods[other_pod]
        return binding

    def is_bound(self, binding: PodBinding) -> bool:
        """Return whether an attempt should still have a pod."""
        return self.bindings.get(binding.trial.trial_id) is binding

    def bound_to(self, which: PodKey) -> PodBinding | None:
        """Return the attempt that should run in that pod."""
        own = self.bindings.get(which[0])
        if own is not None and own.pod_key == which:
            return own
        other = self.in_other_pods.get(which)
        if other is None:
            return None
        if self.bindings.get(other.trial.trial_id) is other and other.pod_key == which:
            return other
        return None  # it begins in a pod of its own after all

    def unassigned(self) -> list[PodBinding]:
        """Return the attempts that have not started their work."""
        for trial_id, binding in list(self.starting.items()):
            if binding.assigned or self.bindings.get(trial_id) is not binding:
                del self.starting[trial_id]
        return list(self.starting.values())

    def own_pod(self, binding: PodBinding) -> Object | None:
        """Return that pod, if it exists: not another one of its name, once the attempt works."""
        pod = self.cache.pod(self.key, self.pod_name(binding))
        if pod is not None and binding.assigned and binding.pod_uid not in ("", pod["metadata"].get("uid")):
            return None
        return pod

    def is_orphaned(self, pod: Object) -> bool:
        """Return whether the TuneTrial that a pod was made for was deleted, and perhaps recreated."""
        made_for = pod_key(pod)
        if made_for is None:
            return False
        trial = self.cache.trial(self.key, names.trial_name(self.name, made_for[0]))
        return trial is not None and not owns(trial, pod)


def owns(trial: Object, pod: Object) -> bool:
    """Return whether a TuneTrial is the one that controls a pod."""
    owners = pod["metadata"].get("ownerReferences") or []
    return trial["metadata"].get("uid") in {owner.get("uid") for owner in owners if owner.get("controller")}
