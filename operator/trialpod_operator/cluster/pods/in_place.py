"""Pods that stay when their attempt has ended, because they ask for their trial's next one (exploits in place).

Whoever comes first waits for the other: the pod that asks, for the start of the attempt; the start, for the pod
(`Run.expect_by`). However often a pod's question comes, each copy gets the same answer. A reservation holds for
`ASK_AGAIN_S`; afterwards the pod is as any other whose attempt has ended. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from trialpod_operator.cluster.pods.binding import ASK_AGAIN_S, Run


@dataclass
class _Reservation:
    pod_attempt: int
    until: float
    resources: dict[str, float] | None


@dataclass
class _Asking:
    pod_attempt: int
    future: asyncio.Future[Run | None] = field(repr=False)


class InPlace:
    """The reservations of one experiment's pods, by the trial's id.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reserved: dict[str, _Reservation] = {}
        self._asking: dict[str, _Asking] = {}

    def reserve(self, run: Run) -> None:
        """The run's pod said that it will ask for the trial's next attempt."""
        self._reserved[run.trial.trial_id] = _Reservation(run.pod_attempt, self._clock() + ASK_AGAIN_S, run.resources)

    def holds(self, trial_id: str, pod_attempt: int) -> bool:
        """Return whether the pod is kept for the trial's next attempt."""
        reserved = self._reserved.get(trial_id)
        return reserved is not None and reserved.pod_attempt == pod_attempt and self._clock() < reserved.until

    def take(self, trial_id: str, resources: dict[str, float] | None) -> int | None:
        """An attempt starts; return the number of the pod that it may go on in, None when there is none."""
        reserved = self._reserved.pop(trial_id, None)
        if reserved is None or reserved.resources != resources or self._clock() >= reserved.until:
            return None
        return reserved.pod_attempt

    def started(self, run: Run) -> None:
        """Tell a pod that waits whether it goes on."""
        asking = self._asking.pop(run.trial.trial_id, None)
        if asking is not None and not asking.future.done():
            asking.future.set_result(run if run.pod_attempt == asking.pod_attempt else None)

    def ended(self, trial_id: str) -> None:
        """The trial is over: no pod of it goes on."""
        self._reserved.pop(trial_id, None)
        asking = self._asking.pop(trial_id, None)
        if asking is not None and not asking.future.done():
            asking.future.set_result(None)

    async def wait(self, trial_id: str, pod_attempt: int) -> Run | None:
        """Return the trial's next attempt once it starts; None when the pod is to leave."""
        asking = self._asking.get(trial_id)
        if asking is None or asking.pod_attempt != pod_attempt:
            asking = self._asking[trial_id] = _Asking(pod_attempt, asyncio.get_running_loop().create_future())
        try:
            return await asyncio.wait_for(asyncio.shield(asking.future), ASK_AGAIN_S)
        except TimeoutError:
            if self._asking.get(trial_id) is asking:
                del self._asking[trial_id]
                self._reserved.pop(trial_id, None)
            if not asking.future.done():
                asking.future.set_result(None)
            return asking.future.result()  # the attempt may have started in this very moment
