"""Pods that run one trial after the other (`spec.reusePods`): which ones wait, and which one gets the next trial.

A pod keeps the name and the owner that it was made with (`MADE_FOR_ANNOTATION`); by that name it asks for work. Its
labels say which attempt it has now.

Invariants:

* A pod is labelled for an attempt before it gets it. The journal records which pod started each attempt.
* One that cannot be labelled leaves, and its attempt gets a pod of its own; no other waits for that.
* The previous trial's log is fetched before the next trial starts, or, if that fails, when the pod ends.
* A pod waits for `IDLE_TIMEOUT_S` at most, and not at all where nothing can come; refused, it exits by itself.
* This state may be lost: a pod that asks is added again, any other is deleted.

Owned by the event loop; `serve` is a part of the reconcile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trialpod_operator.api.api_errors import ApiError, UnreachableError
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache
from trialpod_operator.cluster.kube import gather_all
from trialpod_operator.cluster.pods.binding import (
    NEXT_ASSIGNMENT_TIMEOUT_S,
    PodBinding,
    PodKey,
    is_leaving,
    labelled_for,
    pod_key,
)
from trialpod_operator.cluster.pods.pod_work import PodWork
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.durable import NotReadyError

logger = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 30.0
"""Maximum time that a pod waits for another trial."""

RETRY_S = 1.0
"""Interval at which a pod is labelled again after a temporary refusal, for `NEXT_ASSIGNMENT_TIMEOUT_S`."""

LONG_POLL_TIMEOUT_S = 20.0
"""Maximum time that a pod's request is held; then it asks again."""


@dataclass
class _Idle:
    name: str
    pod_key: PodKey
    template_hash: str
    until: float
    trial_id: str = ""  # the one that its labels name
    asked: bool = False
    binding: PodBinding | None = None  # that is to continue in it
    log_kept: bool = False
    refused_at: float = 0.0  # when the server first refused to label it
    retry_at: float = 0.0  # when it is labelled again, if that was refused
    answer: asyncio.Future[PodBinding | None] | None = field(default=None, repr=False)


class _Offers:
    """The idle pods that an attempt may take, those that wait already first, then in the order in which they came.

    Finding one does not go through the others. Whether it is alive is for the caller to check.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, bool], dict[PodKey, _Idle]] = {}  # by template hash, and whether it has asked
        self._of_trial: dict[str, _Idle] = {}

    def put(self, idle: _Idle) -> None:
        self._lines.setdefault((idle.template_hash, idle.asked), {})[idle.pod_key] = idle
        self._of_trial[idle.trial_id] = idle

    def remove(self, idle: _Idle) -> None:
        line = self._lines.get((idle.template_hash, idle.asked), {})
        if line.get(idle.pod_key) is idle:
            del line[idle.pod_key]
            if not line:
                del self._lines[idle.template_hash, idle.asked]
        if self._of_trial.get(idle.trial_id) is idle:
            del self._of_trial[idle.trial_id]

    def first(self, template_hash: str, trial_id: str) -> _Idle | None:
        """Return the trial's own last pod, else the first in line."""
        own = self._of_trial.get(trial_id)
        if own is not None and own.template_hash == template_hash:
            return own
        line = self._lines.get((template_hash, True)) or self._lines.get((template_hash, False)) or {}
        return next(iter(line.values()), None)

    def __bool__(self) -> bool:
        return bool(self._lines)


class IdlePods:
    """The pods of one experiment that have no attempt.

    Args:
        key: "namespace/name" of the experiment.
        cache: what the watches have shown.
        work: acts at the API server.
        clock: seconds since the epoch.
        enqueue: asks for a reconcile soon.
        leaves: called with the name of a pod that is to exit now.
    """

    def __init__(
        self,
        key: str,
        cache: ObjectCache,
        work: PodWork,
        clock: Callable[[], float],
        enqueue: Callable[[], None],
        leaves: Callable[[str], None],
    ) -> None:
        self._key = key
        self._name = key.partition("/")[2]
        self._cache = cache
        self._work = work
        self._clock = clock
        self._enqueue = enqueue
        self._leaves = leaves
        self._idle: dict[PodKey, _Idle] = {}
        self._offers = _Offers()  # those without a binding

    def adopt(self, bindings: Collection[PodBinding]) -> None:
        """Add the pods that had no attempt when the operator started."""
        bound = {binding.pod_key for binding in bindings}
        for pod in self._cache.pods(self._key):
            made_for = pod_key(pod)
            running = (pod.get("status") or {}).get("phase") == "Running"
            if made_for is not None and made_for not in bound and running and not is_leaving(pod, self._work.deleted):
                self._expect(made_for, pod)

    def expect(self, binding: PodBinding) -> bool:
        """The binding's attempt has ended, and its pod will ask for another; return whether it may."""
        name = names.pod_name(self._name, *binding.pod_key)
        pod = self._cache.pod(self._key, name)
        if pod is None or pod_key(pod) != binding.pod_key:
            return False
        self._expect(binding.pod_key, pod)
        return True

    def take(self, binding: PodBinding) -> bool:
        """Have an attempt that starts continue in a pod that has none; return whether there is one.

        The trial's own last pod goes first, then those that wait already.
        """
        if not self._offers:
            return False
        template_hash = self._work.template_hash(binding.trial, binding.attempt, binding.resources)
        found = self._offered(template_hash, binding.trial.trial_id) if template_hash is not None else None
        if found is None:
            return False
        idle, pod = found
        idle.binding = binding
        now = self._clock()
        binding.pod_trial, binding.pod_attempt = idle.pod_key
        binding.pod_uid = str(pod["metadata"].get("uid", ""))
        binding.expected_by, binding.asked_at = now + NEXT_ASSIGNMENT_TIMEOUT_S, now
        return True

    def mark_started(self, binding: PodBinding) -> None:
        """The binding's pod has its attempt."""
        if idle := self._idle.get(binding.pod_key):
            self._answer(idle, binding)

    def is_reserved(self, pod: Object) -> bool:
        """Return whether a pod is kept for another attempt."""
        made_for = pod_key(pod)
        return made_for is not None and made_for in self._idle

    def is_bound(self, binding: PodBinding) -> bool:
        """Return whether the binding's pod is labelled for it, so that it may get it."""
        pod = self._cache.pod(self._key, names.pod_name(self._name, *binding.pod_key))
        return binding.assigned or not binding.in_reused_pod or (pod is not None and labelled_for(pod, binding))

    async def ask(self, made_for: PodKey, binding: PodBinding | None) -> PodBinding | None:
        """Return the next attempt of a pod that asks, once it is labelled for it; None when it is to leave.

        Args:
            made_for: what the pod was made for, which identifies it.
            binding: that is to continue in it, where that is known already.

        Raises:
            NotReadyError: it is to ask again.
        """
        now = self._clock()
        name = names.pod_name(self._name, *made_for)
        pod = self._cache.pod(self._key, name)
        if pod is None or pod_key(pod) != made_for or is_leaving(pod, self._work.deleted):
            return None
        idle = self._idle.get(made_for)
        if idle is None:
            idle = self._idle[made_for] = _Idle(name, made_for, _template_hash(pod), now + IDLE_TIMEOUT_S)
        if not idle.asked:
            self._offers.remove(idle)
            idle.asked, idle.until = True, now + IDLE_TIMEOUT_S
            if idle.binding is None:
                self._offer(idle, pod)
        if binding is not None and binding.pod_key == made_for:  # else it has returned to its own pod meanwhile
            self._offers.remove(idle)
            idle.binding = binding
            binding.expected_by = now + NEXT_ASSIGNMENT_TIMEOUT_S
        if idle.answer is None:
            idle.answer = asyncio.get_running_loop().create_future()
        self._enqueue()
        try:
            return await asyncio.wait_for(asyncio.shield(idle.answer), LONG_POLL_TIMEOUT_S)
        except TimeoutError:
            raise NotReadyError("there is no other trial for the pod yet") from None

    async def serve(
        self,
        now: float,
        bindings: Mapping[str, PodBinding],
        trials: Mapping[str, Trial],
        max_idle_pods: Callable[[], int | None],
    ) -> None:
        """Give pods that have asked their next attempts, and let those go that are not needed.

        Args:
            now: seconds since the epoch.
            bindings: the attempts in progress, by the trial's id.
            trials: the engine's, by id.
            max_idle_pods: returns how many may wait; None = not known now.
        """
        for idle in list(self._idle.values()):
            pod = self._pod(idle)
            if pod is None:
                self._answer(idle, None)
            elif idle.binding is not None and not _is_current(idle, bindings):
                idle.binding, idle.until = None, now + IDLE_TIMEOUT_S
                self._offer(idle, pod)
        asking = [idle for idle in self._idle.values() if idle.asked]
        await gather_all(*(self._keep_log(idle, trials) for idle in asking if not idle.log_kept))
        await gather_all(*(self._bind(idle, bindings) for idle in asking if idle.binding is not None))
        limit = max_idle_pods()  # as it is now: others have come and gone meanwhile
        waiting = sorted((idle for idle in self._idle.values() if idle.binding is None), key=lambda idle: idle.until)
        excess = len(waiting) - limit if limit is not None else 0
        for index, idle in enumerate(waiting):
            if index < excess or now >= idle.until:
                self._leaves(idle.name)
                self._answer(idle, None)

    def times(self) -> list[float]:
        """Return when there will be something to do."""
        return [idle.until if idle.binding is None else idle.retry_at for idle in self._idle.values()]

    def _expect(self, made_for: PodKey, pod: Object) -> None:
        if made_for not in self._idle:
            until = self._clock() + NEXT_ASSIGNMENT_TIMEOUT_S
            idle = self._idle[made_for] = _Idle(pod["metadata"]["name"], made_for, _template_hash(pod), until)
            self._offer(idle, pod)

    def _offer(self, idle: _Idle, pod: Object) -> None:
        """Let attempts that start take a pod."""
        idle.trial_id = _labels(pod).get(names.TRIAL_ID_LABEL, "")
        self._offers.put(idle)

    def _offered(self, template_hash: str, trial_id: str) -> tuple[_Idle, Object] | None:
        """Take a pod with that template hash out of those that are offered, and return it."""
        while (idle := self._offers.first(template_hash, trial_id)) is not None:
            self._offers.remove(idle)
            pod = self._pod(idle)
            if pod is not None:  # else `serve` answers it
                return idle, pod
        return None

    def _pod(self, idle: _Idle) -> Object | None:
        pod = self._cache.pod(self._key, idle.name)
        return None if pod is None or is_leaving(pod, self._work.deleted) else pod

    def _answer(self, idle: _Idle, binding: PodBinding | None) -> None:
        self._offers.remove(idle)
        if self._idle.get(idle.pod_key) is idle:
            del self._idle[idle.pod_key]
        if idle.answer is not None and not idle.answer.done():
            idle.answer.set_result(binding)

    async def _keep_log(self, idle: _Idle, trials: Mapping[str, Trial]) -> None:
        pod = self._pod(idle)
        if pod is not None:
            idle.log_kept = True
            await self._work.logs.keep_latest(pod, trials)

    async def _bind(self, idle: _Idle, bindings: Mapping[str, PodBinding]) -> None:
        binding, pod = idle.binding, self._pod(idle)
        if binding is None or pod is None or not _is_current(idle, bindings) or self._clock() < idle.retry_at:
            return
        labels = {names.TRIAL_ID_LABEL: binding.trial.trial_id, names.ATTEMPT_LABEL: str(binding.attempt)}
        try:
            if not labelled_for(pod, binding) and not await self._work.label_pod(pod, labels):
                self._enqueue()
                return
        except UnreachableError:
            raise
        except ApiError as error:
            now = self._clock()
            idle.refused_at = idle.refused_at or now
            if error.temporary and now - idle.refused_at < NEXT_ASSIGNMENT_TIMEOUT_S:
                idle.retry_at = now + RETRY_S  # the other pods do not wait for it
                return
            logger.warning("pod %s is not reused: %s", idle.name, error)
            if binding.pod_key == idle.pod_key and not binding.assigned:
                binding.reset_pod(self._clock())
            self._leaves(idle.name)
            self._answer(idle, None)
            return
        if idle.binding is binding and _is_current(idle, bindings):
            self._answer(idle, binding)


def max_idle_pods(engine: Engine, running: int) -> int | None:
    """Return how many pods may wait for trials that the engine may still start; None for any number.

    Args:
        engine: with all its decisions carried out.
        running: attempts in progress.
    """
    state = engine.state
    if state.flags.suspended or state.flags.stopping or state.flags.finished:
        return 0
    if not (state.pending or state.delayed or state.paused) and engine.search_exhausted:
        return 0
    limit = state.required_settings.max_concurrent
    return max(0, limit - running) if limit else None


def _is_current(idle: _Idle, bindings: Mapping[str, PodBinding]) -> bool:
    binding = idle.binding
    return (
        binding is not None
        and bindings.get(binding.trial.trial_id) is binding
        and binding.trial.running
        and binding.trial.attempt == binding.attempt
        and binding.pod_key == idle.pod_key
    )


def _labels(pod: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels


def _template_hash(pod: Object) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(names.TEMPLATE_HASH_ANNOTATION, ""))


@dataclass
class _Reservation:
    pod_attempt: int
    until: float
    resources: dict[str, float] | None


@dataclass
class _Asking:
    pod_attempt: int
    future: asyncio.Future[PodBinding | None] = field(repr=False)


class InPlaceReservations:
    """Pods that stay after their attempt for their trial's next one (exploits in place), by the trial's id.

    The pod's question waits for the start of the attempt, and the start for the pod (`PodBinding.expected_by`). Each
    copy of a question gets the same answer. A reservation expires after `NEXT_ASSIGNMENT_TIMEOUT_S`.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reserved: dict[str, _Reservation] = {}
        self._asking: dict[str, _Asking] = {}

    def reserve(self, binding: PodBinding) -> None:
        """The binding's pod said that it will ask for the trial's next attempt."""
        self._reserved[binding.trial.trial_id] = _Reservation(
            binding.pod_attempt, self._clock() + NEXT_ASSIGNMENT_TIMEOUT_S, binding.resources
        )

    def is_reserved(self, trial_id: str, pod_attempt: int) -> bool:
        """Return whether the pod is kept for the trial's next attempt."""
        reserved = self._reserved.get(trial_id)
        return reserved is not None and reserved.pod_attempt == pod_attempt and self._clock() < reserved.until

    def take(self, trial_id: str, resources: dict[str, float] | None) -> int | None:
        """An attempt starts; return the number of the pod that it may continue in, None when there is none."""
        reserved = self._reserved.pop(trial_id, None)
        if reserved is None or reserved.resources != resources or self._clock() >= reserved.until:
            return None
        return reserved.pod_attempt

    def started(self, binding: PodBinding) -> None:
        """Tell a pod that waits whether it continues."""
        asking = self._asking.pop(binding.trial.trial_id, None)
        if asking is not None and not asking.future.done():
            asking.future.set_result(binding if binding.pod_attempt == asking.pod_attempt else None)

    def ended(self, trial_id: str) -> None:
        """The trial is over: no pod of it continues."""
        self._reserved.pop(trial_id, None)
        asking = self._asking.pop(trial_id, None)
        if asking is not None and not asking.future.done():
            asking.future.set_result(None)

    async def wait(self, trial_id: str, pod_attempt: int) -> PodBinding | None:
        """Return the trial's next attempt once it starts; None when the pod is to leave."""
        asking = self._asking.get(trial_id)
        if asking is None or asking.pod_attempt != pod_attempt:
            asking = self._asking[trial_id] = _Asking(pod_attempt, asyncio.get_running_loop().create_future())
        try:
            return await asyncio.wait_for(asyncio.shield(asking.future), NEXT_ASSIGNMENT_TIMEOUT_S)
        except TimeoutError:
            if self._asking.get(trial_id) is asking:
                del self._asking[trial_id]
                self._reserved.pop(trial_id, None)
            if not asking.future.done():
                asking.future.set_result(None)
            return asking.future.result()  # the attempt may have started in this very moment
