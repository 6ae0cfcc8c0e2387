"""Keeps an experiment's decider: its code, its pod, and why it does not decide.

Level-based, as the controller is: `reconcile` compares what the experiment needs with the pods that are there.

Invariants: at most one decider's pod is current, and only that one may call. A pod that ends is recreated, with
backoff while deciders end before they have decided anything. An experiment without deciding code has none of this.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from trialpod.errors import StorageError
from trialpod.storage.registry import open_storage
from trialpod_operator.api.api_errors import AlreadyExistsError, ApiError
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.decider.pod import build_decider, digest
from trialpod_operator.cluster.pods.build import ObjectRef
from trialpod_operator.cluster.pods.pending import pending_reason
from trialpod_operator.cluster.pods.reading import PendingReason, container_state, seconds, trial_container
from trialpod_operator.cluster.pods.rejected import rejection_reason
from trialpod_operator.cluster.pods.template import TemplateError, building_error
from trialpod_operator.cluster.pods.terminated import read_termination
from trialpod_operator.cluster.services import Services
from trialpod_operator.cluster.status.conditions import Problem
from trialpod_operator.cluster.storage_access import StorageLocation
from trialpod_operator.experiment.decisions.queue import DecisionQueue
from trialpod_operator.experiment.durable import NotReadyError
from trialpod_operator.experiment.own_code import pack_manifest
from trialpod_operator.reports.service import Caller

logger = logging.getLogger(__name__)

LATE_S = 10.0
"""Time that an event waits for a decider before the status says so."""

BACKOFF_BASE_S, MAX_BACKOFF_S = 1.0, 120.0
POLL_S = 5.0

ASK_S = 20.0
"""Silence of a decider's pod after which the server is asked whether it is there."""

SILENT_S = 180.0
"""Silence of a pod that runs after which another one is made: its node is cut off, or its process hangs at import."""


class DeciderKeeper:
    """The decider of one experiment. Owned by the event loop.

    Args:
        owner: the TuneExperiment.
        services: what all experiments share.
    """

    def __init__(self, owner: ObjectRef, services: Services) -> None:
        self._owner = owner
        self._key = f"{owner.namespace}/{owner.name}"
        self._services = services
        self._code: tuple[str, bytes] | None = None  # its checksum, and the file's contents
        self._code_problem = ""
        self._number = 0  # of the latest decider
        self._failures = 0  # in a row, of deciders that decided nothing
        self._not_before = 0.0
        self._digest = ""  # of the spec that the failures and the refusal are of
        self._ended: set[str] = set()  # uids of pods whose end was noted
        self._deleted: set[str] = set()  # of those whose deletion was asked for
        self._refused: set[str] = set()  # of those whose deletion was refused, and is asked for again
        self._ending: Problem | None = None  # how the latest pod ended
        self._refusal: PendingReason | None = None  # why no pod can be made
        self._asked_at = 0.0

    # -- its code --

    def code(self) -> bytes:
        """Return the contents of the file with the code; raise NotReadyError before `fetch_code`."""
        if self._code is None:
            raise NotReadyError("the deciding code was not read yet")
        return self._code[1]

    async def fetch_code(self, experiment: TuneExperiment, location: StorageLocation) -> None:
        """Read the file with the code, if it is not the one that is known."""
        decider = experiment.spec.decider
        if decider is None:
            return
        if decider.pickle is None:
            data = pack_manifest(experiment)
            self._code, self._code_problem = (hashlib.sha256(data).hexdigest(), data), ""
            return
        pickle = decider.pickle
        if self._code is not None and self._code[0] == pickle.sha256:
            return
        uri, file = pickle.uri, pickle.uri.removeprefix(f"{location.uri}/")

        def read() -> bytes:
            return open_storage(location.uri, location.own).read(file)

        try:
            if file == uri:
                raise StorageError(f"{uri} is not below the experiment's own location {location.uri}")
            data = await asyncio.get_running_loop().run_in_executor(None, read)
            if hashlib.sha256(data).hexdigest() != pickle.sha256:
                raise StorageError(f"{uri} has another checksum than spec.decider.pickle.sha256")
        except (StorageError, OSError) as error:
            self._code_problem = f"the deciding code cannot be read: {error}; run the script again to store it"
            return
        self._code, self._code_problem = (pickle.sha256, data), ""

    # -- its pod --

    async def reconcile(
        self, experiment: TuneExperiment, location: StorageLocation, queue: DecisionQueue
    ) -> float | None:
        """Bring the pod in line with what the experiment needs; return in how many seconds to come back."""
        now = self._services.clock()
        if queue.has_decided:
            self._failures, self._ending = 0, None
        if not queue.needed:
            await self.remove(queue)
            return None
        await self._delete_ended()
        await self.fetch_code(experiment, location)
        current = False
        for pod in self._pods():
            if self._has_ended(pod):
                await self._record_end(pod, queue, now)
            elif self._is_outdated(pod, experiment) and not self._code_problem:  # else the next one gets the old code
                await self._delete(pod, queue)
                self._not_before = 0.0
            elif current or self._number_of(pod) < self._number:
                await self._delete(pod)
            else:
                self._number = self._number_of(pod)
                current = queue.deciding or await self._is_there(pod, queue, now)
        self._forget_failures_of_former(experiment)
        if current or self._code is None or self._code_problem:
            return POLL_S
        queue.end_session()
        if now < self._not_before:
            return self._not_before - now
        await self._create(experiment, now)
        return POLL_S

    def _forget_failures_of_former(self, experiment: TuneExperiment) -> None:
        """Let no corrected spec wait because of how often the one before it failed."""
        wanted = digest(experiment.spec)
        if self._digest not in ("", wanted):
            self._failures, self._not_before, self._refusal = 0, 0.0, None
        self._digest = wanted

    async def _is_there(self, pod: Object, queue: DecisionQueue, now: float) -> bool:
        """Ask the server about a pod that is silent, and replace one that is for long."""
        since = _silent_since(pod, queue, now)
        if now - max(since, self._asked_at) < ASK_S:
            return True
        self._asked_at = now
        metadata = pod["metadata"]
        found = await self._services.kube.get(paths.pods(self._owner.namespace), metadata["name"])
        if found is None or found["metadata"].get("uid") != metadata.get("uid"):
            self._services.cache.update_pod(pod, deleted=True)
            return False
        self._services.cache.update_pod(found, deleted=False)
        running = (found.get("status") or {}).get("phase") == "Running"
        if running and now - max(since, _silent_since(found, queue, now)) > SILENT_S:
            await self._delete(pod, queue)
            return False
        return True

    async def remove(self, queue: DecisionQueue | None = None) -> None:
        """Delete the pod: nothing is to be decided."""
        await self._delete_ended()
        for pod in self._pods():
            await self._delete(pod, queue)

    def admits(self, caller: Caller) -> str | None:
        """Return why a pod is not the experiment's decider."""
        for pod in self._pods():
            if pod["metadata"].get("uid") == caller.pod_uid:
                if self._number_of(pod) >= self._number:
                    return None
                return f"pod {caller.pod_name} was replaced by another decider"
        if caller.pod_name == names.decider_name(self._owner.name, self._number):
            raise NotReadyError(f"pod {caller.pod_name} is not known yet")
        return f"pod {caller.pod_name} is not the decider of {self._key}"

    def problem(self, queue: DecisionQueue) -> Problem | None:
        """Return why nothing is decided, where that is so for longer than usual."""
        if not queue.needed:
            return None
        now = self._services.clock()
        if self._code_problem:
            return Problem(reason=Reason.DECIDER_FAILED, message=self._code_problem, stalled=True)
        since = queue.waits_since
        if queue.deciding:
            if since is None or now - since < LATE_S:
                return None
            message = f"the experiment's own deciding code has been running for {now - since:.0f} s; {_WAIT}"
            return Problem(reason=Reason.DECIDER_LATE, message=message)
        if queue.problem is not None:
            return Problem(
                reason=Reason.DECIDER_FAILED,
                message=_with_traceback(queue.problem.message, queue.problem.traceback),
                stalled=self._failures > 1,
            )
        if self._ending is not None:
            return self._ending
        if self._refusal is not None:
            message = f"the decider's pod cannot be made: {self._refusal.text}"
            return Problem(reason=self._refusal.reason, message=message, stalled=self._refusal.severity == "stuck")
        pod = next(iter(self._pods()), None)
        why = pending_reason(pod, now) if pod is not None else None
        what = why.text if why is not None else "it starts"
        return Problem(reason=Reason.DECIDER_STARTING, message=f"the decider does not run yet: {what}; {_WAIT}")

    def _pods(self) -> list[Object]:
        found = [
            pod
            for pod in self._services.cache.deciders(self._key)
            if not pod["metadata"].get("deletionTimestamp") and pod["metadata"].get("uid") not in self._ended
        ]
        return sorted(found, key=self._number_of, reverse=True)

    def _number_of(self, pod: Object) -> int:
        number = str(pod["metadata"]["name"]).rpartition("-")[2]
        return int(number) if number.isdecimal() else 0

    def _has_ended(self, pod: Object) -> bool:
        return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def _is_outdated(self, pod: Object, experiment: TuneExperiment) -> bool:
        annotations = pod["metadata"].get("annotations") or {}
        return bool(annotations.get(names.SPEC_ANNOTATION) != digest(experiment.spec))

    async def _record_end(self, pod: Object, queue: DecisionQueue, now: float) -> None:
        self._ended.add(str(pod["metadata"].get("uid")))
        self._number = max(self._number, self._number_of(pod))
        queue.end_session()
        ending = read_termination(pod)
        if ending is not None and ending.counts_as_failure:
            memory = ending.reason == Reason.OOM_KILLED
            reason = Reason.DECIDER_OUT_OF_MEMORY if memory else Reason.DECIDER_FAILED
            message = f"the decider ended: {ending.message}"
            if memory:
                message = f"the decider needs more memory than it has; raise spec.decider.resources.memory; {_WAIT}"
            self._ending = Problem(reason=reason, message=message)
        logger.info("%s: its decider ended: %s", self._key, ending.message if ending is not None else "no reason")
        self._failures += 1
        self._not_before = now + min(BACKOFF_BASE_S * 2.0 ** min(self._failures - 1, 10), MAX_BACKOFF_S)
        await self._ask_to_delete(pod)

    async def _delete(self, pod: Object, queue: DecisionQueue | None = None) -> None:
        self._ended.add(str(pod["metadata"].get("uid")))
        if queue is not None:
            queue.end_session()
        await self._ask_to_delete(pod)

    async def _ask_to_delete(self, pod: Object) -> None:
        metadata = pod["metadata"]
        uid = str(metadata.get("uid", ""))
        deletion = self._services.kube.delete(paths.pods(self._owner.namespace), metadata["name"], uid=uid)
        error = await paths.refusal(deletion)
        if error is not None:  # the next decider does not wait for it: this one may not call any more
            if uid not in self._refused:
                logger.warning("%s: the pod of an earlier decider cannot be deleted: %s", self._key, error)
            self._refused.add(uid)
        else:
            self._deleted.add(uid)

    async def _delete_ended(self) -> None:
        """Ask again for deletions that the server has not taken."""
        for pod in self._services.cache.deciders(self._key):
            uid = pod["metadata"].get("uid")
            if uid in self._ended and uid not in self._deleted and not pod["metadata"].get("deletionTimestamp"):
                await self._ask_to_delete(pod)

    async def _create(self, experiment: TuneExperiment, now: float) -> None:
        numbers = [self._number_of(pod) for pod in self._services.cache.deciders(self._key)]
        self._number = max([self._number, *numbers]) + 1
        try:
            body = self._build(experiment)
            # Strict, else a misspelt field of the template is dropped.
            made = await self._services.kube.create(paths.pods(self._owner.namespace), body, strict=True)
        except AlreadyExistsError:
            return  # an operator before this one made it: it is taken, or the next number is
        except TemplateError as error:
            self._refusal = PendingReason(
                reason=Reason.INVALID_TEMPLATE, message=str(error), remedy="", severity="stuck"
            )
            self._not_before = now + MAX_BACKOFF_S
            return
        except ApiError as error:
            self._refusal = rejection_reason(error.status, error.reason, error.detail, now)
            self._failures += 1
            self._not_before = now + min(BACKOFF_BASE_S * 2.0 ** min(self._failures - 1, 10), MAX_BACKOFF_S)
            return
        self._refusal = None
        self._services.cache.update_pod(made, deleted=False)

    def _build(self, experiment: TuneExperiment) -> Object:
        try:
            return build_decider(experiment, self._owner, self._number, self._services.options.pod_options)
        except TemplateError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # what no check of the manifest has found
            logger.exception("%s: no pod can be made for its decider", self._key)
            raise building_error(error) from error


def _silent_since(pod: Object, queue: DecisionQueue, now: float) -> float:
    """Return since when a pod could have called and did not: what it said to an earlier operator is not known."""
    created = seconds(pod["metadata"].get("creationTimestamp")) or now
    running = container_state(pod, str(trial_container(pod).get("name", ""))).get("running") or {}
    return max(queue.opened_at, queue.last_call, created, seconds(running.get("startedAt")) or 0.0)


_WAIT = "trials continue to their next decision and wait there"


def _with_traceback(message: str, traceback: str) -> str:
    lines = [line for line in traceback.strip().splitlines() if line.strip()]
    return message if not lines else f"{message}\n{chr(10).join(lines[-8:])}"
