"""Which pod may speak for which trial, and which attempt it gets.

Invariants: an attempt begins with the first pod that is given it, and is given to the same pod again and again. The
pods of a group get theirs together. Who is told that there is no work gets that answer from the operator that is in
office, never from one that was replaced: the report service has it proven (`HostedExperiment.require_fencing_check`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.pods.binding import MadeFor, Run, made_for
from trialpod_operator.cluster.pods.experiment_pods import Shared
from trialpod_operator.cluster.pods.resources import total_resources
from trialpod_operator.cluster.pods.reuse import Reuse
from trialpod_operator.engine.events import AttemptStarted
from trialpod_operator.reports.service import Caller, NotReadyError

TOGETHER_S = 20.0
"""So long a pod's question waits for the other pods of its group; then it is to ask again."""


class Assignments:
    """Answers the pods of one experiment."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._held: dict[asyncio.Future[AssignmentAnswer], None] = {}  # answers that somebody waits for, in order
        self._closed = False

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Give a pod its attempt. One that goes on in place waits for its trial's next one.

        Raises:
            NotReadyError: the start of the attempt is not committed yet.
        """
        trial_id, _, number = request.runner.rpartition("/")
        if not trial_id or not number.isdigit():
            return AssignmentAnswer(reason=f"'{request.runner}' is no runner of this experiment")
        which = trial_id, int(number)
        run = self._shared.runs.get(trial_id)
        if self._shared.reuse is not None:
            run = next((each for each in self._shared.runs.values() if each.made_for == which), None)
            current = run if run is not None and run.trial.running and run.trial.attempt == run.attempt else None
            stays = self._shared.in_place.holds(*which)  # a pod of an operator that reused none
            if request.afresh and not stays and (current is None or not self._shared.reuse.is_bound(current)):
                return self._hold(self._give_in_turn(self._shared.reuse, which, current, request))
        if run is not None and run.made_for == which and run.trial.running:
            if run.follows_in_place and not run.given and not request.again:
                # A copy of the pod's first question, or a pod that has never had work: it may still report on that.
                return AssignmentAnswer(reason="the trial goes on in a pod that has ended the attempt before")
            if run.group is None or run.given:
                return self._give(run, request)
            return self._hold(self._give_together(run, request))
        if self._shared.in_place.holds(trial_id, int(number)):
            return self._hold(self._give_later(trial_id, int(number), request))
        return AssignmentAnswer(reason="the trial has no work for this pod any more")

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
        """Let those who wait ask again, whoever answers then."""
        self._closed = True
        for waiting in self._held:
            waiting.cancel()

    def permits(self, caller: Caller, trial_id: str) -> str:
        """Return "" if that pod may speak for the trial, else why not.

        Raises:
            NotReadyError: the pod is not known yet.
        """
        pod = self._shared.seen.pod(self._shared.key, caller.pod_name)
        if pod is None:
            if self._shared.seen.vanished(caller.pod_uid) is not None:
                return f"pod {caller.pod_name} was deleted"
            raise NotReadyError(f"pod {caller.pod_name} is not known here yet")
        metadata = pod["metadata"]
        if metadata.get("uid") != caller.pod_uid:
            run = self._shared.runs.get(trial_id)
            if run is not None and not run.given and self._shared.seen.vanished(caller.pod_uid) is None:
                # Nobody has asked for the attempt yet: the caller may be the pod made anew, which is not seen yet.
                raise NotReadyError(f"pod {caller.pod_name} is not known here yet")
            return f"pod {caller.pod_name} is another one than the caller"
        which = made_for(pod)
        run = self._shared.runs.get(trial_id)
        has_it = which is not None and run is not None and run.given and run.made_for == which
        if not has_it and (metadata.get("labels") or {}).get(names.TRIAL_ID_LABEL) != trial_id:
            return f"pod {caller.pod_name} does not belong to trial {trial_id}"
        return self._owned_by(pod, which[0] if which is not None else trial_id)

    def admits(self, caller: Caller, trial_id: str, attempt: int) -> str:
        """Return "" if that pod may ask for work as the one that was made for the attempt, else why not.

        Raises:
            NotReadyError: the pod is not known yet.
        """
        pod = self._shared.seen.pod(self._shared.key, caller.pod_name)
        which = made_for(pod) if pod is not None else None
        if pod is None or which is None or pod["metadata"].get("uid") != caller.pod_uid:
            return self.permits(caller, trial_id)
        if which != (trial_id, attempt):
            return f"pod {caller.pod_name} was made for attempt {which[1]} of trial {which[0]}"
        return self._owned_by(pod, trial_id)

    def _owned_by(self, pod: Object, trial_id: str) -> str:
        """Return "" if a trial owns the pod, else why that matters."""
        metadata = pod["metadata"]
        trial = self._shared.seen.trial(self._shared.key, names.trial_name(self._shared.name, trial_id))
        owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or [] if owner.get("controller")}
        if trial is not None and trial["metadata"].get("uid") not in owners:
            return f"pod {metadata['name']} does not belong to trial {trial_id}"
        return ""

    def _give(self, run: Run, request: AssignmentRequest) -> AssignmentAnswer:
        trial = run.trial
        if request.rank and (run.group is None or request.rank > run.group.replicas):
            return AssignmentAnswer(reason=f"the trial has no worker {request.rank}")
        if run.group is not None and not self._shared.groups.address(run):
            raise NotReadyError("the address of the trial's head is not known yet")
        if not run.given:
            run.given = True
            run.expect_by = 0.0
            if self._shared.reuse is not None:
                self._shared.reuse.began(run)
            self._shared.hosted.apply(
                AttemptStarted(
                    trial_id=trial.trial_id,
                    attempt=run.attempt,
                    pid=request.pid,
                    hostname=request.hostname,
                    node_ip=request.node_ip,
                    resources=self._resources(run),
                    place=names.runner_id(*run.made_for) if run.takes_over else "",
                )
            )
            self._shared.changed.add(trial.trial_id)
        else:
            # The pod may have told another operator, which has gone on from here, that the attempt is over.
            self._shared.hosted.require_fencing_check()
        if not request.rank:
            self._shared.hosted.last_contact[trial.trial_id] = self._shared.clock()
        assignment = self._shared.hosted.assignment(trial)
        assignment.reuse = self._shared.reuse is not None and request.afresh
        if run.group is not None:
            assignment.rank, assignment.world_size = request.rank, run.group.size
            assignment.master_addr = self._shared.groups.address(run)
        folder = self._shared.hosted.host.files.path(trial).name
        assignment.trial_dir = f"{names.WORK_DIR}/{folder}"
        return AssignmentAnswer(assignment=assignment)

    def _resources(self, run: Run) -> dict[str, float]:
        """Return what the run's pods take, for the account: as they are, since templates and defaults shape them."""
        if run.takes_over:
            pod = self._shared.own_pod(run)
            return total_resources([pod]) if pod is not None else {}
        shared = self._shared
        known = [shared.own_pod(run), *(shared.seen.pod(shared.key, name) for name in shared.groups.names(run))]
        if pods := [pod for pod in known if pod is not None]:
            return total_resources(pods)
        return dict(run.resources or self._shared.hosted.plan.resources_for(run.trial.config))

    async def _give_later(self, trial_id: str, pod_attempt: int, request: AssignmentRequest) -> AssignmentAnswer:
        run = await self._shared.in_place.wait(trial_id, pod_attempt)
        if run is None or self._shared.runs.get(trial_id) is not run or not run.trial.running:
            return AssignmentAnswer(reason="the trial goes on later, in another pod")
        return self._give(run, request)

    async def _give_in_turn(
        self, reuse: Reuse, which: MadeFor, run: Run | None, request: AssignmentRequest
    ) -> AssignmentAnswer:
        run = await reuse.ask(which, run)
        if run is None:
            return AssignmentAnswer(reason="there is no more work for this pod")
        current = self._shared.runs.get(run.trial.trial_id) is run and run.trial.running
        if not current or run.trial.attempt != run.attempt or run.made_for != which:
            raise NotReadyError("the pod's next trial is another one now")
        return self._give(run, request)

    async def _give_together(self, run: Run, request: AssignmentRequest) -> AssignmentAnswer:
        """Give a pod of a group its work when all of them have asked."""
        group = run.group
        pod = self._shared.groups.pod(run, request.rank)
        if group is None or pod is None:
            raise NotReadyError("the pod is not known here yet")
        group.join(request, pod["metadata"].get("uid", ""), self._shared.clock())
        if not self.begin_group(run):
            self._shared.wake()  # its timeout counts from now
            await group.wait(TOGETHER_S)
        committed = self._shared.hosted.committed()  # here, not of whoever has taken over meanwhile
        if committed is not None:
            await committed
        if self._shared.runs.get(run.trial.trial_id) is not run or not run.trial.running:
            return AssignmentAnswer(reason="the attempt was over before all pods of the trial ran")
        if not run.given:
            raise NotReadyError("other pods of the trial do not run yet")
        return self._give(run, request)

    def begin_group(self, run: Run) -> bool:
        """Begin the attempt of a group if all its pods are there."""
        group = run.group
        if group is None or run.given or run.stop_at is not None or not self._shared.groups.is_complete(run):
            return False
        assert group.head_request is not None
        self._give(run, group.head_request)
        self._shared.groups.began(run)
        return True
