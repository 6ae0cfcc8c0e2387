"""Pods whose process is the runner itself: client, link, checkpoints and preemption, over a network that fails.

What really happened is noted here, beside what was answered, for the oracles to compare.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fake_api import Object
from fake_pods import Caller, FakePods
from sim_deciders import run_decider
from sim_kernel import PROCESS, Kernel, Process, SimThread, WorldOver, kernel
from sim_plan import NAMESPACE
from sim_witness import Track, Witness

from trialpod import variables
from trialpod.protocol import client as client_module
from trialpod.protocol.http import IO_TIMEOUT_S, TransportError
from trialpod.protocol.messages import AttemptEnd
from trialpod.runner import main as runner_main
from trialpod.runner.preemption import PreemptionWatch
from trialpod_operator.cluster import names
from trialpod_operator.reports.connection import Limits
from trialpod_operator.reports.service import ReportService

if TYPE_CHECKING:
    from sim_world import SimOperator, SimWorld

TIMEOUT_S = 60.0
WORKING_S = Limits().working_s
HOP_S = 0.01

worlds: list[SimWorld] = []


class Network:
    """Between pods and operators.

    Attributes:
        lost, unanswered, doubled, delayed: shares of messages.
        cut: pods that reach nobody, by their uid.
    """

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.random = random.Random(f"network {world.plan.seed}")
        self.lost = self.unanswered = self.doubled = self.delayed = 0.0
        self.cut: set[str] = set()

    def chance(self, share: float, kind: str) -> bool:
        happens = bool(share) and self.random.random() < share
        if happens:
            self.world.kernel.counts[kind] += 1
        return happens

    def hop(self) -> float:
        seconds = self.random.random() * HOP_S
        if self.chance(self.delayed, "messages delayed"):
            seconds += self.random.random() * 4.0
        return seconds

    def break_off(self, call: Call) -> None:
        """The caller is gone, or waits no more: the server learns of it where the network brings it."""
        call.close()
        if call.caller.pod_uid not in self.cut:
            self.world.after(HOP_S, call.hang_up)

    def sign(self, call: Call) -> None:
        """Tell the caller that its request is being worked on."""
        if call.caller.pod_uid not in self.cut:
            call.heard_s = self.world.kernel.now

    def receiver(self, caller: Caller, target: str) -> SimOperator | None:
        """Return who gets a request: the operator of that address, or whomever the Service chooses."""
        serving = [each for each in self.world.operators if each.serving and each.process.alive]
        if target:
            return next((each for each in serving if each.process.name == target.partition(":")[0]), None)
        return self.random.choice(serving) if serving else None


class Call:
    """One request on its way.

    Attributes:
        heard_s: when the caller last heard of it.
        handlers: what works on it, and where.
        hung_up: the caller waits for it no more, and the server can know that.
        target: the operator that it is for, "" = any.
    """

    def __init__(self, thread: SimThread, caller: Caller, now: float, target: str) -> None:
        self.thread, self.caller, self.target = thread, caller, target
        self.answer: tuple[int, bytes] | None = None
        self.refused = ""
        self.over = False
        self.heard_s = now
        self.handlers: list[tuple[Process, asyncio.Future[Any]]] = []
        self.hung_up = False
        self.forget: list[Callable[[], None]] = []

    def end(self, answer: tuple[int, bytes] | None, refused: str = "") -> None:
        if not self.over:
            self.close()
            self.answer, self.refused = answer, refused
            kernel().unpark(self.thread)

    def close(self) -> None:
        """Nobody waits for it any more: no process's end concerns it."""
        self.over = True
        forget, self.forget = self.forget, []
        for each in forget:
            each()

    def hang_up(self) -> None:
        """Its connection is closed, by whichever side: who works on it is told when that process can be."""
        self.hung_up = True
        handlers, self.handlers = self.handlers, []
        for process, task in handlers:
            process.call(task.cancel)


class SimConnection:
    """In the place of a pod's connection to the report service."""

    retry_after_s = None

    def __init__(self, network: Network, caller: Caller, process: Process) -> None:
        self.network, self.caller, self.process = network, caller, process
        self._target = ""

    def redirect(self, target: str) -> None:
        if target:
            self.network.world.kernel.counts["redirects"] += 1
        self._target = target

    def post(self, path: str, body: bytes, *, timeout_s: float | None = None) -> tuple[int, bytes]:
        network, world = self.network, self.network.world
        if world.kernel.over:
            raise WorldOver
        self.process.point("before a call")
        thread = kernel().current
        assert thread is not None
        call = Call(thread, self.caller, kernel().now, self._target)
        label = f"{self.process.name} {path.rpartition('/')[2]}"
        call.forget.append(self.process.on_kill_do(lambda: call.over or network.break_off(call)))
        if path.endswith("/report"):
            world.pods.record_sent(self.process, body)
        world.env(network_send, network, call, path, body, self.caller, label)
        until = kernel().now + (timeout_s or TIMEOUT_S)
        while not call.over and kernel().now < (patient_until := min(until, call.heard_s + IO_TIMEOUT_S)):
            kernel().park(patient_until - kernel().now)
        call.close()
        self.process.point("after a call")
        if call.answer is None:
            world.env(network.break_off, call)
            kernel().log("no answer", f"{label} {call.refused}")
            raise TransportError(call.refused or "no answer in time")
        status, data = call.answer
        kernel().log("answer", f"{label} {status}")
        world.pods.record_answer(self.process, path, body, status, data)
        return status, data

    def close(self) -> None:
        pass


def network_send(network: Network, call: Call, path: str, body: bytes, caller: Caller, label: str) -> None:
    """Bring a request to an operator, some way or other."""
    world = network.world
    if caller.pod_uid in network.cut:
        world.kernel.counts["partition"] += 1
        return  # nobody answers, until the caller gives up
    if network.chance(network.lost, "requests lost"):
        world.after(network.random.random() * 2.0, call.end, None, "the request was lost")
        return
    copies = 2 if network.chance(network.doubled, "messages duplicated") else 1
    for copy in range(copies):
        delay = network.hop() + (network.random.random() * 5.0 if copy else 0.0)
        world.after(delay, network_deliver, network, call, path, body, caller, label, copy)


def network_deliver(
    network: Network, call: Call, path: str, body: bytes, caller: Caller, label: str, copy: int
) -> None:
    world = network.world
    operator = network.receiver(caller, call.target)
    if operator is None:
        world.after(HOP_S, call.end, None, "connection refused")
        return
    world.kernel.log("request", f"{label} to {operator.process.name}{' again' if copy else ''} {len(body)}")

    def answered(answer: tuple[int, bytes]) -> None:
        if copy:
            return
        if network.chance(network.unanswered, "answers lost"):
            world.after(network.random.random() * 2.0, call.end, None, "the answer was lost")
            return
        world.after(network.hop(), call.end, answer)

    def handle() -> None:
        reply = operator.service.handle(path, body, caller)
        if not isinstance(reply, Awaitable):
            world.env(answered, reply)
            return

        task = asyncio.ensure_future(reply)

        def finished(task: asyncio.Future[tuple[int, bytes]]) -> None:
            if not task.cancelled():
                world.env(answered, (500, b"") if task.exception() is not None else task.result())

        task.add_done_callback(finished)
        if copy:
            return

        def send_interim() -> None:
            if not (task.done() or call.over):
                world.env(network.sign, call)
                operator.process.call(send_interim, after_s=WORKING_S)

        if call.hung_up:
            # It has come, and behind it, or somewhat later, that its sender is gone.
            operator.process.call(task.cancel, after_s=network.random.random() * HOP_S)
        else:
            call.handlers.append((operator.process, task))
            operator.process.call(send_interim, after_s=WORKING_S)

    reset = operator.process.on_kill_do(lambda: world.after(HOP_S, call.end, None, "connection reset"))
    if call.over:
        reset()
    else:
        call.forget.append(reset)
    operator.process.call(handle)


class SimPreemption(PreemptionWatch):
    """SIGTERM as the kernel of a pod delivers it."""

    def __init__(self, idle_status: int | None = None) -> None:
        self._attempt = None
        self.is_terminated = False
        process = PROCESS.get()
        assert process is not None
        process.watch = self  # type: ignore[attr-defined]

    def sigterm(self, process: Process) -> None:
        attempt = self._attempt
        self.is_terminated = True
        if attempt is None:
            process.exit(0)
            return
        attempt.preempt()
        process.spawn(lambda: self._enforce(attempt), "preemption")


def leave(status: int) -> None:
    """os._exit."""
    process = PROCESS.get()
    assert process is not None
    process.exit(status)


class SimPods(Witness, FakePods):
    """The kubelets.

    Attributes:
        processes: by the pod's uid.
    """

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world.api, random.Random(f"pods {world.plan.seed}"))
        self.world = world
        self.processes: dict[str, Process] = {}
        self.pods: dict[str, Object] = {}
        self.steps = {}
        self.orphans: set[str] = set()

    # -- what tests and faults do --

    def alive(self) -> list[tuple[Object, Process]]:
        """The pods whose process runs."""
        return [
            (pod, self.processes[uid])
            for uid, pod in self.pods.items()
            if uid in self.processes and self.processes[uid].alive and uid not in self.orphans
        ]

    def orphan(self, pod: Object, known_again_s: float) -> None:
        """The node is cut off, and the pod is removed by force; its process continues, and has a network later."""
        uid = pod["metadata"]["uid"]
        process = self.processes[uid]
        self.orphans.add(uid)
        self.world.network.cut.add(uid)
        self._tasks.pop(uid).cancel()
        self.api.remove(self.current(pod) or pod)
        self.world.after(known_again_s, self.world.network.cut.discard, uid)
        self.world.after(known_again_s + 100.0, process.kill)

    # -- FakePods --

    def _stop_task(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        super()._stop_task(pod)
        process = self.processes.get(uid)
        if process is not None and uid not in self.orphans:
            process.on_kill = lambda: None
            process.kill()

    async def _process(self, pod: Object) -> int:
        uid = pod["metadata"]["uid"]
        world = self.world
        self.pods[uid] = pod
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_exit(status: int) -> None:
            if not exited.done():
                world.env(lambda: None if exited.done() else exited.set_result(status))

        def on_kill() -> None:
            world.env(self.kill, pod, 137, "Error")

        env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        experiment = str(env[variables.EXPERIMENT])
        restarts = world.hosted(experiment).plan.restarts
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        caller = Caller(namespace, name, uid)
        if namespace != NAMESPACE:
            name = f"{namespace}/{name}"
        terminated = self._terminated[uid]

        def begin(before: Process | None = None) -> None:
            """Start the process that runs attempts, as the first one of the container does."""
            process = Process(world.kernel, name)
            if before is not None:
                process.offset_s, process.countdown = before.offset_s, before.countdown
            self.processes[uid] = process
            process.on_exit, process.on_kill = on_exit, on_kill
            process.on_death = lambda: self._harm(process, pod)
            process.experiment = experiment  # type: ignore[attr-defined]
            process.rank = int(env.get(variables.RANK) or 0)  # type: ignore[attr-defined]
            process.caller = caller  # type: ignore[attr-defined]
            ends: list[AttemptEnd] = []
            asked: list[bool] = []

            def main() -> None:
                if is_decider(pod):
                    process.exit(run_decider(make_client("https://operator", experiment)))
                    return
                status = runner_main.run(
                    runner=str(env[variables.RUNNER]),
                    address="https://operator",
                    experiment=experiment,
                    on_end=ends.append,
                    restart=(lambda: asked.append(True)) if restarts else None,
                    again=before is not None,
                )
                if asked and not terminated.is_set():
                    process.on_exit = lambda status: world.env(begin, process)
                elif restarts and ends and ends[-1].cause == "failed":
                    status = status or 1
                process.exit(status)

            process.spawn(main, "main")

        begin()

        async def pass_on() -> None:
            await terminated.wait()
            process = self.processes[uid]
            watch = getattr(process, "watch", None)
            if watch is not None and process.alive:
                world.kernel.log("SIGTERM", process.name)
                process.call(watch.sigterm, process)
            elif process.alive:
                process.exit(0)

        passing = asyncio.ensure_future(pass_on())
        try:
            return await exited
        finally:
            passing.cancel()

    # -- what happened --

    def track_of(self, process: Process) -> Track:
        """Return what is noted of a process's experiment."""
        return self.world.hosted(process.experiment).track  # type: ignore[attr-defined]

    def _harm(self, process: Process, pod: Object) -> None:
        """Its process dies by its own fault: that is a failure of the trial that it has, or is just given."""
        if is_decider(pod):
            return
        current = self.current(pod) or pod
        trials = {current["metadata"]["labels"][names.TRIAL_ID_LABEL]}
        if attempt := getattr(process, "attempt", None):
            trials.add(attempt[0])
        for trial_id in trials:
            self.track_of(process).harmed[trial_id] += 1
        self.record_failed_rank(process)

    def record_failed_rank(self, process: Process) -> None:
        """A process fails by its own fault: it may be one of several of its attempt."""
        attempt = getattr(process, "attempt", None)
        if attempt is not None and getattr(process, "rank", 0):
            self.track_of(process).failed_at.setdefault(attempt, process.kernel.now)

    def given(self, process: Process, trial_id: str, attempt: int) -> None:
        """Where pods are reused, each is labelled for an attempt before it is told of it."""
        caller: Caller = process.caller  # type: ignore[attr-defined]
        pod = self.api.get("pods", caller.pod_name, caller.namespace)
        if pod is None or names.MADE_FOR_ANNOTATION not in (pod["metadata"].get("annotations") or {}):
            return
        labels = pod["metadata"]["labels"]
        found = labels[names.TRIAL_ID_LABEL], labels[names.ATTEMPT_LABEL]
        if found != (trial_id, str(attempt)):
            self.problems.append(f"{process.name} was told of {trial_id}/{attempt}, and is labelled {found}")


def is_decider(pod: Object) -> bool:
    """Return whether a pod decides; its end is no trial's failure."""
    return bool(pod["metadata"]["labels"].get(names.ROLE_LABEL) == names.DECIDER_ROLE)


def make_client(address: str, experiment: str, **_: Any) -> client_module.ReportClient:
    """The client of a pod's process."""
    process = PROCESS.get()
    assert process is not None
    world = worlds[-1]
    caller: Caller = process.caller  # type: ignore[attr-defined]
    connection: Any = SimConnection(world.network, caller, process)
    return client_module.ReportClient(
        address,
        experiment,
        clock=lambda: kernel().now,
        sleep=lambda seconds: kernel().sleep(seconds),
        uniform=world.network.random.random,
        connection=connection,
    )


__all__ = ["Kernel", "ReportService"]
