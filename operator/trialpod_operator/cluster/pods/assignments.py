"""Which pod may speak for which trial, and which attempt it gets.

Invariants: an attempt begins with the first pod that is given it, and is given to the same pod again and again. The
pods of a group get theirs together. The answer that there is no work comes from the operator that serves the
experiment, never from one that was replaced: the report service requires the fencing check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.pods.binding import PodBinding, PodKey, pod_key
from trialpod_operator.cluster.pods.experiment_pods import ExperimentPods, owns
from trialpod_operator.cluster.pods.resources import total_resources
from trialpod_operator.cluster.pods.reuse import IdlePods
from trialpod_operator.cluster.trial_objects.attempt_objects import AttemptObjects
from trialpod_operator.engine.events import AttemptStarted
from trialpod_operator.experiment.durable import NotReadyError
from trialpod_operator.reports.service import Caller

TOGETHER_S = 20.0
"""Maximum time that a pod's request waits for the other pods of its group; then it asks again."""


class Assignments:
    """Answers the pods of one experiment."""

    def __init__(self, pods: ExperimentPods) -> None:
        self._pods = pods
        self._held: dict[asyncio.Future[AssignmentAnswer], None] = {}  # answers that a pod waits for, in order
        self._closed = False

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Give a pod its attempt. One that continues in place waits for its trial's next one.

        Raises:
            NotReadyError: the start of the attempt is not committed yet.
        """
        trial_id, _, number = request.runner.rpartition("/")
        if not trial_id or not number.isdigit():
            return AssignmentAnswer(reason=f"'{request.runner}' is not a runner of this experiment")
        which = trial_id, int(number)
        binding = self._pods.bindings.get(trial_id)
        if self._pods.idle_pods is not None:
            binding = self._pods.bound_to(which)
            current = binding if binding is not None and binding.current else None
            stays = self._pods.in_place.is_reserved(*which)  # a pod of an operator that reused none
            if request.afresh and not stays and (current is None or not self._pods.idle_pods.is_bound(current)):
                return self._hold(self._give_in_turn(self._pods.idle_pods, which, current, request))
        if binding is not None and not binding.assigned and binding.continues_in_place:
            self._expect_own_pod(binding, which)
        if binding is not None and binding.pod_key == which and binding.trial.running:
            if binding.continues_in_place and not binding.assigned and not request.again:
                # A copy of the pod's first question, or a pod that has never had work: it may still report on that.
                return AssignmentAnswer(reason="the trial continues in a pod that has ended the attempt before")
            if binding.group is None or binding.assigned:
                return self._give(binding, request)
            return self._hold(self._give_together(binding, request))
        if self._pods.in_place.is_reserved(trial_id, int(number)):
            return self._hold(self._give_later(trial_id, int(number), request))
        return AssignmentAnswer(reason="the trial has no work for this pod any more")

    def _expect_own_pod(self, binding: PodBinding, which: PodKey) -> None:
        """Have an attempt begin in the pod that was made for it, if that is the one that asks.

        An operator whose watch is late expects the earlier pod, because it has not seen that this one was made.
        """
        if which == (binding.trial.trial_id, binding.attempt):
            binding.return_to_own_pod()
            if (pod := self._pods.own_pod(binding)) is not None:
                binding.pod_uid = str(pod["metadata"].get("uid", ""))

    async def _hold(self, answer: Awaitable[AssignmentAnswer]) -> AssignmentAnswer:
        waiting = asyncio.ensure_future(answer)
        if self._closed:
            waiting.cancel()
        self._held[waiting] = None
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._closed:
                raise NotReadyError("the experiment was closed") from None
            raise
        finally:
            self._held.pop(waiting, None)

    def close(self) -> None:
        """Let those who wait ask again, perhaps another operator."""
        self._closed = True
        for waiting in self._held:
            waiting.cancel()

    def permits(self, caller: Caller, trial_id: str) -> str | None:
        """Return None if that pod may speak for the trial, else why not.

        Raises:
            NotReadyError: the pod is not known yet.
        """
        if self._pods.work.objects is not None:
            return self._permits_part(self._pods.work.objects, caller, trial_id)
        pod = self._pods.cache.pod(self._pods.key, caller.pod_name)
        if pod is None:
            if self._pods.cache.deleted_pod(caller.pod_uid) is not None:
                return f"pod {caller.pod_name} was deleted"
            raise NotReadyError(f"pod {caller.pod_name} is not known here yet")
        metadata = pod["metadata"]
        if metadata.get("uid") != caller.pod_uid:
            binding = self._pods.bindings.get(trial_id)
            if binding is not None and not binding.assigned and self._pods.cache.deleted_pod(caller.pod_uid) is None:
                # The attempt was not asked for yet: the caller may be the pod recreated, which is not seen yet.
                raise NotReadyError(f"pod {caller.pod_name} is not known here yet")
            return f"pod {caller.pod_name} is another one than the caller"
        which = pod_key(pod)
        binding = self._pods.bindings.get(trial_id)
        has_it = which is not None and binding is not None and binding.assigned and binding.pod_key == which
        if not has_it and (metadata.get("labels") or {}).get(names.TRIAL_ID_LABEL) != trial_id:
            return f"pod {caller.pod_name} does not belong to trial {trial_id}"
        return self._owned_by(pod, which[0] if which is not None else trial_id)

    def admits(self, caller: Caller, trial_id: str, attempt: int) -> str | None:
        """Return None if that pod may ask for work as the one that was made for the attempt, else why not.

        Raises:
            NotReadyError: the pod is not known yet.
        """
        pod = self._pods.cache.pod(self._pods.key, caller.pod_name)
        binding = self._pods.bindings.get(trial_id)
        named = pod is not None and binding is not None and caller.pod_name == self._pods.pod_name(binding)
        if named and binding is not None and self._pods.own_pod(binding) is None:
            return f"the attempt began in an earlier pod named {caller.pod_name}, which is gone"
        which = pod_key(pod) if pod is not None else None
        if pod is None or which is None or pod["metadata"].get("uid") != caller.pod_uid:
            return self.permits(caller, trial_id)
        if which != (trial_id, attempt):
            return f"pod {caller.pod_name} was made for attempt {which[1]} of trial {which[0]}"
        return self._owned_by(pod, trial_id)

    def _permits_part(self, objects: AttemptObjects, caller: Caller, trial_id: str) -> str | None:
        """As `permits`, for the pods of an object of another kind: the first that asks is the attempt's."""
        pod = self._pods.cache.part(self._pods.key, caller.pod_name)
        if pod is None:
            if self._pods.cache.deleted_pod(caller.pod_uid) is not None:
                return f"pod {caller.pod_name} was deleted"
            raise NotReadyError(f"pod {caller.pod_name} is not known here yet")
        if (pod["metadata"].get("labels") or {}).get(names.TRIAL_ID_LABEL) != trial_id:
            return f"pod {caller.pod_name} does not belong to trial {trial_id}"
        binding = self._pods.bindings.get(trial_id)
        if binding is None or pod["metadata"]["labels"].get(names.OBJECT_LABEL) != self._pods.pod_name(binding):
            return None  # its request is answered: no work any more
        return objects.claim(caller.pod_uid, pod, assigned=binding.assigned)

    def _owned_by(self, pod: Object, trial_id: str) -> str | None:
        """Return None if the trial owns the pod, else why it may not speak for it."""
        trial = self._pods.cache.trial(self._pods.key, names.trial_name(self._pods.name, trial_id))
        if trial is not None and not owns(trial, pod):
            return f"pod {pod['metadata']['name']} does not belong to trial {trial_id}"
        return None

    def _give(self, binding: PodBinding, request: AssignmentRequest) -> AssignmentAnswer:
        trial = binding.trial
        if request.rank and (binding.group is None or request.rank > binding.group.replicas):
            return AssignmentAnswer(reason=f"the trial has no worker {request.rank}")
        if binding.group is not None and not self._pods.groups.address(binding):
            raise NotReadyError("the address of the trial's head is not known yet")
        if not binding.assigned:
            if (pod := self._pods.own_pod(binding)) is not None:
                binding.pod_uid = str(pod["metadata"].get("uid", ""))
            binding.assigned = True
            self._pods.attention.add(trial.trial_id)
            binding.expected_by = 0.0
            if self._pods.idle_pods is not None:
                self._pods.idle_pods.mark_started(binding)
            self._pods.durable.apply(
                AttemptStarted(
                    trial_id=trial.trial_id,
                    attempt=binding.attempt,
                    pid=request.pid,
                    hostname=self._hostname(binding, request),
                    node_ip=request.node_ip,
                    resources=self._resources(binding),
                    reused_pod=names.runner_id(*binding.pod_key) if binding.in_reused_pod else "",
                    pod_uid=binding.pod_uid,
                )
            )
            self._pods.changed.add(trial.trial_id)
        else:
            # The pod may have told another operator, which has continued from here, that the attempt is over.
            self._pods.durable.require_fencing_check()
        if not request.rank:
            self._pods.durable.last_contact[trial.trial_id] = self._pods.clock()
        assignment = self._pods.durable.assignment(trial)
        assignment.reuse = self._pods.idle_pods is not None and request.afresh
        if binding.group is not None:
            assignment.rank, assignment.world_size = request.rank, binding.group.size
            assignment.master_addr = self._pods.groups.address(binding)
        folder = self._pods.durable.dirname(trial)
        assignment.trial_dir = f"{names.WORK_DIR}/{folder}"
        return AssignmentAnswer(assignment=assignment)

    def _hostname(self, binding: PodBinding, request: AssignmentRequest) -> str:
        """Return where an attempt runs; for an object's pod its name, by which the next operator finds it again."""
        objects = self._pods.work.objects
        return (objects.pod_of(self._pods.pod_name(binding)) if objects is not None else "") or request.hostname

    def _resources(self, binding: PodBinding) -> dict[str, float]:
        """Return what the binding's pods take as they are, since templates and defaults shape them."""
        if binding.in_reused_pod:
            pod = self._pods.own_pod(binding)
            return total_resources([pod]) if pod is not None else {}
        known = [
            self._pods.own_pod(binding),
            *(self._pods.cache.pod(self._pods.key, name) for name in self._pods.groups.names(binding)),
        ]
        if pods := [pod for pod in known if pod is not None]:
            return total_resources(pods)
        return dict(binding.resources or self._pods.durable.plan.resources_for(binding.trial.config))

    async def _give_later(self, trial_id: str, pod_attempt: int, request: AssignmentRequest) -> AssignmentAnswer:
        binding = await self._pods.in_place.wait(trial_id, pod_attempt)
        if binding is None or self._pods.bindings.get(trial_id) is not binding or not binding.trial.running:
            return AssignmentAnswer(reason="the trial continues later, in another pod")
        return self._give(binding, request)

    async def _give_in_turn(
        self, idle_pods: IdlePods, which: PodKey, binding: PodBinding | None, request: AssignmentRequest
    ) -> AssignmentAnswer:
        binding = await idle_pods.ask(which, binding)
        if binding is None:
            return AssignmentAnswer(reason="there is no more work for this pod")
        current = self._pods.bindings.get(binding.trial.trial_id) is binding and binding.trial.running
        if not current or binding.trial.attempt != binding.attempt or binding.pod_key != which:
            raise NotReadyError("the pod's next trial is another one now")
        return self._give(binding, request)

    async def _give_together(self, binding: PodBinding, request: AssignmentRequest) -> AssignmentAnswer:
        """Give a pod of a group its work when all of them have asked."""
        group = binding.group
        pod = self._pods.groups.pod(binding, request.rank)
        if group is None or pod is None:
            raise NotReadyError("the pod is not known here yet")
        group.join(request, pod["metadata"].get("uid", ""), self._pods.clock())
        if not self.begin_group(binding):
            self._pods.enqueue()  # its timeout counts from now
            await group.wait(TOGETHER_S)
        committed = self._pods.durable.committed()  # here, not by a successor
        if committed is not None:
            await committed
        if self._pods.bindings.get(binding.trial.trial_id) is not binding or not binding.trial.running:
            return AssignmentAnswer(reason="the attempt was over before all pods of the trial ran")
        if not binding.assigned:
            raise NotReadyError("other pods of the trial do not run yet")
        return self._give(binding, request)

    def begin_group(self, binding: PodBinding) -> bool:
        """Begin the attempt of a group if all its pods are there."""
        group = binding.group
        if (
            group is None
            or binding.assigned
            or binding.stop_at is not None
            or not self._pods.groups.is_complete(binding)
        ):
            return False
        assert group.head_request is not None
        self._give(binding, group.head_request)
        self._pods.groups.began(binding)
        return True
