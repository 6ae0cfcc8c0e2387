"""What goes wrong: one method for each kind of fault, and the end of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from fake_api import Object
from sim_kernel import Process
from sim_plan import Fault
from sim_store_faults import StoreFaults

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.kube import TIMEOUT_S
from trialpod_operator.cluster.shards.membership import HANDOVER_TIMEOUT_S

if TYPE_CHECKING:
    from sim_world import Hosted, SimOperator, SimWorld

T = TypeVar("T")

MAX_COUNTDOWN = 40
PASS_WITHIN_S = 8.0
"""Maximum time to wait for an operator to change something."""
STALE_S = 17.0
"""A Lease is taken by another after this long."""


def _chosen(items: Sequence[T], x: float) -> T:
    return items[min(int(x * len(items)), len(items) - 1)]  # x is rounded, so it may be 1


class Faults(StoreFaults):
    """Lets faults happen in a world. A fault counts when it had something to happen to."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self._asking: dict[str, asyncio.Lock] = {}  # one wish of a user after the other

    async def happen(self, fault: Fault) -> None:
        await getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)

    async def heal(self) -> None:
        """From now on nothing is broken; what was lost stays lost."""
        world = self.world
        network = world.network
        network.lost = network.unanswered = network.doubled = network.delayed = 0.0
        world.weather.clear()
        world.flaky = world.lost_answers = 0.0
        world.api_away = False
        world.pods.behaviour.starts = True
        for process in world.kernel.processes:
            process.countdown = None
            process.resume()
        for operator in world.operators:
            if operator.watch is not None:
                operator.watch.lose = lambda plural, item: False
            self._connect(operator)
        wanted = world.plan.operators
        for operator in world.alive[:-wanted]:
            operator.process.kill()
        for _ in range(wanted - len(world.alive)):
            world.start_operator()
        for experiment in world.experiments:
            await self._spec(experiment, suspend=False)

    # -- choices --

    def _count(self, kind: str) -> None:
        self.world.kernel.counts[kind] += 1

    def _a_pod(self, fault: Fault) -> tuple[Object, Process] | None:
        pods = self.world.pods.alive()
        return _chosen(pods, fault.x) if pods else None

    def _an_experiment(self, fault: Fault) -> Hosted:
        there = [each for each in self.world.experiments if each.created]
        return _chosen(there, fault.x * 7.0 % 1.0)

    # -- wires --

    async def _requests_lost(self, fault: Fault) -> None:
        self.world.network.lost = 0.1 + 0.6 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.network.lost = 0.0

    async def _answers_lost(self, fault: Fault) -> None:
        self.world.network.unanswered = 0.1 + 0.6 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.network.unanswered = 0.0

    async def _messages_duplicated(self, fault: Fault) -> None:
        self.world.network.doubled = 0.1 + 0.8 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.network.doubled = 0.0

    async def _messages_delayed(self, fault: Fault) -> None:
        self.world.network.delayed = 0.1 + 0.8 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.network.delayed = 0.0

    async def _partition(self, fault: Fault) -> None:
        if found := self._a_pod(fault):
            self.world.network.cut.add(found[0]["metadata"]["uid"])
            await asyncio.sleep(fault.for_s)
            self.world.network.cut.discard(found[0]["metadata"]["uid"])

    # -- pods --

    async def _attempt_dies(self, fault: Fault) -> None:
        if found := self._a_pod(fault):
            self._count("attempt dies")
            found[1].countdown = int(fault.x * 997) % MAX_COUNTDOWN

    async def _pod_vanishes(self, fault: Fault) -> None:
        if found := self._a_pod(fault):
            self._count("pod vanishes")
            self.world.pods.vanish(found[0])

    async def _pod_vanishes_unseen(self, fault: Fault) -> None:
        operator = self.world.operator
        if (found := self._a_pod(fault)) and operator is not None and operator.watch is not None:
            self._count("pod vanishes unseen")
            operator.watch.lose = lambda plural, _item: plural == "pods"
            self.world.pods.vanish(found[0])
            operator.watch.lose = lambda plural, _item: False

    async def _pod_preempted(self, fault: Fault) -> None:
        if found := self._a_pod(fault):
            self._count("pod preempted")
            self.world.pods.preempt(found[0])

    async def _node_comes_back(self, fault: Fault) -> None:
        if found := self._a_pod(fault):
            self._count("node comes back")
            self.world.pods.orphan(found[0], 5.0 + fault.for_s)

    async def _pod_paused(self, fault: Fault) -> None:
        if found := self._a_pod(fault):
            self._count("pod paused")
            found[1].stop()
            await asyncio.sleep(fault.for_s)
            found[1].resume()

    async def _pod_clock_jumps(self, fault: Fault) -> None:
        if found := self._a_pod(fault):
            self._count("pod clock jumps")
            found[1].offset_s += 3600.0 * (1 if fault.x < 0.5 else -1)

    async def _user_code_fails(self, fault: Fault) -> None:
        if found := self._a_pod(fault):
            found[1].fails = True  # type: ignore[attr-defined]

    async def _no_room(self, fault: Fault) -> None:
        self._count("no room")
        self.world.pods.behaviour.starts = False
        await asyncio.sleep(fault.for_s)
        self.world.pods.behaviour.starts = True

    # -- operators --

    def _an_operator(self, fault: Fault) -> SimOperator | None:
        alive = self.world.alive
        if self.world.plan.operators == 1 or not alive:
            return self.world.operator
        return _chosen(alive, fault.x * 7.0 % 1.0)

    def _connect(self, operator: SimOperator) -> None:
        operator.kube.cut = False
        operator.kube.road.set()
        self.world.weather.cut.discard(operator.process)
        if operator.watch is not None:
            operator.watch.reconnect()

    async def _operator_joins(self, _fault: Fault) -> None:
        self._count("operator joins")
        self.world.start_operator()

    async def _operator_without_API(self, fault: Fault) -> None:  # noqa: N802
        if operator := self._an_operator(fault):
            self._count("operator without API")
            operator.kube.cut = True
            await asyncio.sleep(fault.for_s)
            self._connect(operator)

    async def _operator_without_store(self, fault: Fault) -> None:
        if operator := self._an_operator(fault):
            self._count("operator without store")
            self.world.weather.cut.add(operator.process)
            await asyncio.sleep(fault.for_s)
            self.world.weather.cut.discard(operator.process)

    async def _operator_dies(self, fault: Fault) -> None:
        if operator := self._an_operator(fault):
            self._count("operator dies")
            operator.process.countdown = int(fault.x * 997) % MAX_COUNTDOWN

    async def _operator_replaced(self, fault: Fault) -> None:
        operator = self._an_operator(fault)
        if operator is not None and operator.serving:
            self._count("operator replaced")
            process = operator.process
            if fault.x < 0.5:
                self.world.start_operator()  # the next one waits already
            process.call(lambda: asyncio.ensure_future(operator.close()))
            await asyncio.sleep(3.0)
            process.kill()

    async def _operator_paused(self, fault: Fault) -> None:
        if operator := self._an_operator(fault):
            self._count("operator paused")
            replaced = fault.x < 0.7
            if replaced and self.world.plan.operators == 1:
                self.world.start_operator()
            operator.process.stop()
            await asyncio.sleep(fault.for_s + (STALE_S if replaced else 0.0))
            operator.process.resume()

    async def _pass_held_up(self, fault: Fault) -> None:
        """A request hangs until nobody waits for the pass any more: another operator is given what it is about."""
        if (operator := await self._in_a_pass(fault)) is not None:
            self._count("pass held up")
            self.world.start_operator()
            await asyncio.sleep(HANDOVER_TIMEOUT_S + 4.0 + min(fault.for_s, TIMEOUT_S - HANDOVER_TIMEOUT_S - 4.0))
            operator.kube.road.set()

    async def _operator_paused_in_a_pass(self, fault: Fault) -> None:
        if (operator := await self._in_a_pass(fault)) is not None:
            self._count("operator paused in a pass")
            operator.process.stop()
            operator.kube.road.set()
            await asyncio.sleep(fault.for_s + (STALE_S if fault.x < 0.7 else 0.0))
            operator.process.resume()

    async def _in_a_pass(self, fault: Fault) -> SimOperator | None:
        """Return an operator that waits in the middle of a pass, right before it changes something."""
        operator = self._an_operator(fault)
        if operator is None:
            return None
        operator.kube.road.clear()
        for _ in range(int(PASS_WITHIN_S / 0.05)):
            await asyncio.sleep(0.05)
            if operator.kube.held_up and operator.process.alive:
                return operator
        operator.kube.road.set()
        return None

    async def _two_operators(self, fault: Fault) -> None:
        self._count("two operators")
        second = self.world.start_operator(lease=f"other-{fault.x}")
        await asyncio.sleep(fault.for_s + 1.0)
        alive = self.world.alive
        if self.world.plan.operators > 1:  # which share a Lease that this one does not have: it is not to stay
            if second in alive:
                second.process.kill()
        elif len(alive) > 1:
            (second if fault.x < 0.5 else alive[0]).process.kill()

    async def _operator_clock_jumps(self, fault: Fault) -> None:
        if operator := self._an_operator(fault):
            self._count("operator clock jumps")
            operator.process.offset_s += 3600.0 * (1 if fault.x < 0.5 else -1)

    # -- the API server --

    async def _API_flaky(self, fault: Fault) -> None:  # noqa: N802
        self.world.flaky = 0.1 + 0.4 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.flaky = 0.0

    async def _API_answers_lost(self, fault: Fault) -> None:  # noqa: N802
        self.world.lost_answers = 0.1 + 0.4 * fault.x
        await asyncio.sleep(fault.for_s)
        self.world.lost_answers = 0.0

    async def _API_away(self, fault: Fault) -> None:  # noqa: N802
        self.world.api_away = True
        await asyncio.sleep(fault.for_s)
        self.world.api_away = False

    # -- users --

    async def _suspended(self, fault: Fault) -> None:
        self._count("suspended")
        experiment = self._an_experiment(fault)
        await self._spec(experiment, suspend=True)
        await asyncio.sleep(fault.for_s)
        await self._spec(experiment, suspend=False)

    async def _more_samples(self, fault: Fault) -> None:
        self._count("more samples")
        experiment = self._an_experiment(fault)
        experiment.samples += 1 + int(fault.x * 2)
        experiment.evaluations += 1
        await self._spec(experiment, numSamples=experiment.samples)

    async def _trial_stopped_by_its_user(self, fault: Fault) -> None:
        experiment = self._an_experiment(fault)
        if trials := experiment.trials():
            self._count("trial stopped by its user")
            trial = _chosen(trials, fault.x)
            experiment.stopped.add(trial["spec"]["trialId"])
            await self.world.client.patch(
                paths.trials(experiment.plan.namespace), trial["metadata"]["name"], {"spec": {"stop": True}}
            )

    async def _experiment_deleted(self, fault: Fault) -> None:
        experiment = self.world.experiments[-1]
        if experiment.created and experiment is not self.world.experiments[0]:
            self._count("experiment deleted")
            experiment.deleted = True
            await self.world.client.delete(paths.experiments(experiment.plan.namespace), experiment.name)

    async def _spec(self, experiment: Hosted, **changes: object) -> None:
        async with self._asking.setdefault(experiment.key, asyncio.Lock()):
            await self.world.client.patch(
                paths.experiments(experiment.plan.namespace), experiment.name, {"spec": changes}
            )
