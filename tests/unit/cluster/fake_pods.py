"""Pods in memory: each runs its trial's attempts as the runner does, over the report service of the leader.

What really happened is noted here, for the tests to compare with what the operator tells: which pod began which
attempt, and which results the operator said were safe.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fake_api import FakeApi, Object, stamp

from trialpod import variables
from trialpod.protocol.messages import (
    Assignment,
    AssignmentAnswer,
    AssignmentRequest,
    AttemptEnd,
    CheckpointInfo,
    EndCause,
    ReportAnswer,
    ReportRequest,
    TrainableRef,
)
from trialpod.protocol.output import attempt_mark
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods import queues
from trialpod_operator.reports.service import ReportService

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Caller:
    """The identity of a pod."""

    namespace: str
    pod_name: str
    pod_uid: str


@dataclass
class Behaviour:
    """What pods do; changed by tests at any time.

    Attributes:
        starts: False while pods find no place.
        steps: results of a trial.
        step_s: seconds for each.
        begin_s: until a new pod asks for its assignment.
        leaves_s: from the exit of a deleted pod until it is gone.
        comes_back: False: a pod that said that it continues in place never asks.
        fails_at: {(trial index, iteration): times} in which the attempt raises an error instead.
        obeys: False: SIGTERM is ignored.
        room: so many pods run at once.
        hangs: how often, of 1, a head that lost a worker waits for it forever instead of failing.
        alone: a head does not need its workers, and trains on without them.
        metric: the name that trials report it by.
        saves: False: no result has a checkpoint.
    """

    starts: bool = True
    steps: int = 5
    step_s: float = 1.0
    begin_s: float = 2.0
    leaves_s: float = 0.1
    comes_back: bool = True
    fails_at: dict[tuple[str, int], int] = field(default_factory=dict)
    obeys: bool = True
    room: int = 1000
    hangs: float = 0.5
    alone: bool = False
    metric: str = "score"
    saves: bool = True


class ExitedError(Exception):
    """The process of a pod is over."""

    def __init__(self, status: int = 0) -> None:
        self.status = status


class FakePods:
    """The kubelets.

    Attributes:
        behaviour: of all pods.
        service: of the operator that answers; None while there is none.
        running: (trial_id, attempt) -> names of the pods that run it now.
        begun: how often each attempt was begun by a process.
        safe: (trial_id, attempt) -> number of results that were answered as durable.
        problems: what must never happen.
    """

    def __init__(self, api: FakeApi, random: random.Random) -> None:
        self.api = api
        self.behaviour = Behaviour()
        self.service: ReportService | None = None
        self.calls = 0
        self.waiting: Counter[str] = Counter()  # calls whose answer takes time, by what they ask for
        self.running: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.begun: Counter[tuple[str, int]] = Counter()
        self.safe: Counter[tuple[str, int]] = Counter()
        self.workers: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        """Uids of the pods that run the ranks above 0 of an attempt now."""
        self.told_ends: dict[tuple[str, int], EndCause] = {}
        self.problems: list[str] = []
        self.held: set[str] = set()  # ends of the names of pods that find no place
        self.told: list[str] = []
        self.modules: list[dict[str, str]] = []
        """Files with code that attempts were given."""
        self.trainables: list[TrainableRef] = []
        """What attempts were to run, in their order."""
        self._placed: set[str] = set()
        self._met: dict[str, set[int]] = defaultdict(set)  # attempts that once had all their workers, by trial
        self._random = random
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._terminated: dict[str, asyncio.Event] = {}
        self._reasons: dict[str, dict[str, str]] = {}  # why their kubelet ends them, by uid
        api.on_pod = self._pod_changed

    # -- what the cluster does --

    def live(self) -> list[Object]:
        """Pods whose process runs."""
        return [pod for pod in self.api.all("pods") if pod["metadata"]["uid"] in self._tasks]

    def current(self, pod: Object) -> Object | None:
        """Return what the server has under a pod's name already."""
        return self.api.get("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def kill(self, pod: Object, code: int = 137, reason: str = "OOMKilled", message: str = "") -> None:
        """End the process at once."""
        self._stop_task(pod)
        self._exit(pod, code, reason, message)

    def lose_sandbox(self, pod: Object) -> None:
        """The pod's node restarts when it has made the container and not started it: the kubelet leaves it so."""
        self._stop_task(pod)

        def mark(each: Object) -> None:
            each["spec"]["nodeName"] = "node-1"
            made = {"containerID": "containerd://bc32", "started": False, "state": {"waiting": {}}}
            each["status"]["phase"] = "Pending"
            each["status"]["containerStatuses"] = [{"name": names.CONTAINER, **made}]
            each["status"]["conditions"] = [
                {"type": kind, "status": status, "lastTransitionTime": stamp(self.api.now())}
                for kind, status in (("PodScheduled", "True"), ("PodReadyToStartContainers", "False"))
            ]

        self.api.edit(self.current(pod) or pod, mark)

    def vanish(self, pod: Object) -> None:
        """The pod is gone without a trace, as after a forced deletion."""
        self._stop_task(pod)
        self.api.remove(self.current(pod) or pod)

    def preempt(self, pod: Object, reason: str = "PreemptionByScheduler") -> None:
        """The cluster takes the pod's place away: a condition, then its deletion."""

        def mark(each: Object) -> None:
            target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "for a better pod"}
            each["status"].setdefault("conditions", []).append(target)

        current = self.current(pod)
        if current is not None and current["metadata"]["uid"] == pod["metadata"]["uid"]:
            self.api.delete(self.api.edit(current, mark))

    def reach_deadline(self, pod: Object) -> None:
        """The pod's activeDeadlineSeconds are over."""
        grace = float(pod["spec"].get("terminationGracePeriodSeconds") or 30)
        self._end_by_kubelet(pod, "DeadlineExceeded", "Pod was active on the node longer than the deadline", grace)

    def exceed_disk(self, pod: Object) -> None:
        """The pod has more on its local disk than it may."""
        self._end_by_kubelet(
            pod, "Evicted", "Pod ephemeral local storage usage exceeds the total limit of 1Gi. ", 1.0
        )

    def _end_by_kubelet(self, pod: Object, reason: str, message: str, grace: float) -> None:
        """SIGTERM now, SIGKILL later; why, the kubelet says when the container has ended."""
        uid = pod["metadata"]["uid"]
        self._reasons[uid] = {"reason": reason, "message": message}
        self._terminated[uid].set()
        asyncio.get_running_loop().call_later(grace, self._sigkill, pod)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    # -- a pod's life --

    def _pod_changed(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "ADDED":
            self._terminated[uid] = asyncio.Event()
            self._tasks[uid] = asyncio.ensure_future(self._live(pod))
        elif kind == "DELETED":
            self._stop_task(pod)
        elif pod["metadata"].get("deletionTimestamp") and uid in self._terminated:
            event = self._terminated[uid]
            if not event.is_set():
                event.set()
                grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
                if uid in self._tasks:
                    asyncio.get_running_loop().call_later(grace, self._sigkill, pod)
                else:
                    asyncio.get_running_loop().call_later(0.1, self._remove, pod)

    def _sigkill(self, pod: Object) -> None:
        if pod["metadata"]["uid"] in self._tasks:
            self.kill(pod, 137, "Error")

    def _remove(self, pod: Object) -> None:
        current = self.current(pod)
        if current is not None and current["metadata"]["uid"] == pod["metadata"]["uid"]:
            self.api.remove(current)

    def _stop_task(self, pod: Object) -> None:
        task = self._tasks.pop(pod["metadata"]["uid"], None)
        if task is not None:
            task.cancel()
        self._left(pod["metadata"]["uid"])

    def _left(self, uid: str) -> None:
        for pods in self.running.values():
            pods.discard(uid)
        for ranks in self.workers.values():
            for rank in [rank for rank, each in ranks.items() if each == uid]:
                del ranks[rank]

    def _exit(self, pod: Object, code: int, reason: str, message: str = "") -> None:
        current = self.current(pod)
        if current is None or current["metadata"]["uid"] != pod["metadata"]["uid"]:
            return

        def mark(each: Object) -> None:
            ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": stamp(self.api.now())}
            why = self._reasons.get(each["metadata"]["uid"], {})
            each["status"] |= {"phase": "Failed" if code or why else "Succeeded", **why}
            others = [one for one in each["status"].get("containerStatuses") or () if one["name"] != names.CONTAINER]
            own = {"name": names.CONTAINER, "state": {"terminated": ended}}
            each["status"]["containerStatuses"] = [own, *others]

        edited = self.api.edit(current, mark)
        if edited["metadata"].get("deletionTimestamp"):
            asyncio.get_running_loop().call_later(self.behaviour.leaves_s, self._remove, edited)

    def _has_room(self) -> bool:
        return len(self._placed & self._tasks.keys()) < self.behaviour.room

    async def _live(self, pod: Object) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        code = 1
        try:
            if queues.queue_of(pod):
                gates = [{"name": "kueue.x-k8s.io/admission"}]
                self.api.edit(pod, lambda each: each["spec"].update(schedulingGates=gates))
            while not self.behaviour.starts or name.endswith(tuple(self.held)) or not self._has_room():  # noqa: ASYNC110 - tests
                await asyncio.sleep(0.5)
            self._placed.add(uid)
            await asyncio.sleep(self._random.uniform(0.1, 0.5))
            self._place(pod)
            await asyncio.sleep(self._random.uniform(0.5, 1.0) * self.behaviour.begin_s)
            code = await self._process(pod)
        except ExitedError as exited:
            code = exited.status
        except asyncio.CancelledError:
            return
        self._tasks.pop(uid, None)
        self._left(uid)
        self._exit(pod, code, "Error" if code else "Completed")

    def _place(self, pod: Object) -> None:
        current = self.current(pod)
        assert current is not None

        def mark(each: Object) -> None:
            each["spec"].pop("schedulingGates", None)
            each["spec"]["nodeName"] = "node-1"
            each["status"]["phase"] = "Running"
            each["status"]["startTime"] = stamp(self.api.now())
            each["status"]["podIP"] = address_of(each)
            each["status"]["conditions"] = [
                *(each["status"].get("conditions") or []),
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(self.api.now())},
            ]
            each["status"]["containerStatuses"] = [{"name": names.CONTAINER, "state": {"running": {}}}]

        self.api.edit(current, mark)

    # -- its process --

    async def _process(self, pod: Object) -> int:
        env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        caller = Caller(*(pod["metadata"][key] for key in ("namespace", "name", "uid")))
        runner, experiment = str(env[variables.RUNNER]), str(env[variables.EXPERIMENT])
        rank = int(env.get(variables.RANK) or 0)
        request = AssignmentRequest(runner=runner, pid=7, hostname=caller.pod_name, rank=rank, afresh=True)
        while True:
            answer = await self._call(experiment, "assignment", request, caller, AssignmentAnswer)
            if answer.assignment is None:
                return 0
            if answer.assignment.rank != rank:
                self.problems.append(f"{caller.pod_name} has rank {answer.assignment.rank}")
            if rank:
                return await self._worker(pod, answer.assignment)
            if not await self._attempt(pod, experiment, answer.assignment, caller):
                return 0
            request.again = True
            if self._terminated[pod["metadata"]["uid"]].is_set():
                return 0
            if not self.behaviour.comes_back:
                await asyncio.sleep(1e6)

    async def _worker(self, pod: Object, work: Assignment) -> int:
        """Be a rank above 0 until the head is done, or another rank is missed; SIGTERM changes nothing."""
        key = (work.trial_id, work.attempt)
        head = self.api.get("pods", pod["metadata"]["name"].rpartition("-w")[0], pod["metadata"]["namespace"])
        if head is not None and work.master_addr != address_of(head):
            self.problems.append(f"{key}: {work.master_addr} is not the head's address")
        self.workers[key][work.rank] = pod["metadata"]["uid"]
        came = False
        while True:
            await asyncio.sleep(self._random.uniform(0.1, 0.5))
            came = came or bool(self.running[key])
            if key in self.told_ends:
                return int(self.told_ends[key] != "completed")
            lost = came and not self.running[key]
            if lost and self._random.random() < 0.5:
                return 1

    async def _missed(self, work: Assignment) -> bool:
        """Return whether a worker of this attempt is not there; new ones are waited for a little."""
        key = (work.trial_id, work.attempt)
        for _ in range(50):
            if len(self.workers[key]) == work.world_size - 1:
                return False
            if work.attempt in self._met[work.trial_id]:
                return True
            await asyncio.sleep(0.1)
        return True

    async def _attempt(self, pod: Object, experiment: str, work: Assignment, caller: Caller) -> bool:
        """Run one attempt; return whether to ask for the next."""
        self.modules.append(work.trainable.modules)
        self.trainables.append(work.trainable)
        key = (work.trial_id, work.attempt)
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        terminated = self._terminated[uid]
        self.begun[key] += 1
        if work.reuse:
            self.api.logs[uid] = self.api.logs.get(uid, "") + attempt_mark(*key)
            labels = (self.current(pod) or pod)["metadata"]["labels"]
            if (labels[names.TRIAL_ID_LABEL], labels[names.ATTEMPT_LABEL]) != (work.trial_id, str(work.attempt)):
                self.told.append(f"{name} began {key} labelled {labels[names.TRIAL_ID_LABEL]}")
        self.running[key].add(uid)
        workers = len([each for each in self.api.all("pods") if each["metadata"]["name"].startswith(f"{name}-w")])
        if workers < work.world_size - 1:
            self.told.append(f"{key} began with {workers} workers")
        if len(self.running[key]) > 1:
            self.problems.append(f"{key} runs twice at once: {sorted(self.running[key])}")
        try:
            iteration = work.checkpoint.iteration if work.checkpoint else 0
            index = work.next_checkpoint_index
            results: list[msgspec.Raw] = []
            while True:
                with_s = self.behaviour.step_s * self._random.uniform(0.5, 1.5)
                stopped = await _within(terminated, with_s) and self.behaviour.obeys
                if stopped:
                    await self._end(experiment, work, caller, "preempted")
                    return False
                if work.world_size > 1 and not self.behaviour.alone and await self._missed(work):
                    if self._random.random() < self.behaviour.hangs:
                        await terminated.wait()
                        await asyncio.sleep(1.0 if self.behaviour.obeys else 1e6)
                        await self._end(experiment, work, caller, "preempted")
                    else:
                        await self._end(experiment, work, caller, "failed", error="ConnectionResetError: a rank")
                    return False
                self._met[work.trial_id].add(work.attempt)
                iteration += 1
                self.api.logs[uid] = self.api.logs.get(uid, "") + f"attempt {work.attempt} step {iteration}\n"
                left = self.behaviour.fails_at.get((work.trial_id.rpartition("_")[2], iteration), 0)
                if left:
                    self.behaviour.fails_at[work.trial_id.rpartition("_")[2], iteration] = left - 1
                    await self._end(experiment, work, caller, "failed", error="ValueError: no")
                    return False
                number = len(results) + 1
                done = iteration >= self.behaviour.steps
                made = CheckpointInfo(
                    name=f"checkpoint_{index:06d}",
                    index=index,
                    iteration=iteration,
                    metrics={},
                    attempt=work.attempt,
                )
                index += 1
                score = float(work.trial_id.rpartition("_")[2]) + 1
                result = {
                    "training_iteration": iteration,
                    self.behaviour.metric: score * iteration,
                    "attempt": work.attempt,
                    "number": number,
                    "done": done,
                    "time_total_s": float(iteration),
                }
                results.append(msgspec.Raw(_encode(result)))
                answer = ReportAnswer(received=number - 1)
                while answer.received < number:  # it knows fewer than another has called safe: that one will answer
                    first = answer.received + 1
                    request = ReportRequest(
                        trial_id=work.trial_id,
                        attempt=work.attempt,
                        first=first,
                        results=results[first - 1 :],
                        checkpoints=[made] if self.behaviour.saves else [],
                    )
                    answer = await self._report(experiment, request, caller)
                    if answer.decision is not None:
                        break
                self.safe[key] = max(self.safe[key], answer.durable)
                if answer.decision is not None and not done:
                    cause: EndCause = "stopped" if answer.decision == "stop" else "paused"
                    asks = work.reuse or answer.decision == "exploit"
                    await self._end(experiment, work, caller, cause, asks=asks)
                    return asks
                if done:
                    await self._end(experiment, work, caller, "completed", asks=work.reuse)
                    return work.reuse
        finally:
            self.running[key].discard(uid)

    async def _end(
        self,
        experiment: str,
        work: Assignment,
        caller: Caller,
        cause: EndCause,
        *,
        asks: bool = False,
        error: str = "",
    ) -> None:
        end = AttemptEnd(cause=cause, asks=asks, error=error)
        await self._report(experiment, ReportRequest(trial_id=work.trial_id, attempt=work.attempt, end=end), caller)
        self.told_ends[work.trial_id, work.attempt] = cause

    async def _report(self, experiment: str, request: ReportRequest, caller: Caller) -> ReportAnswer:
        answer = await self._call(experiment, "report", request, caller, ReportAnswer)
        if answer.superseded:
            raise ExitedError(1)
        return answer

    async def _call(self, experiment: str, call: str, request: Any, caller: Caller, kind: Any) -> Any:
        while True:
            await asyncio.sleep(self._random.uniform(0.001, 0.02))
            service = self.service
            if service is not None:
                self.calls += 1
                status, body = await self._answer(service, f"/v1/{experiment}/{call}", _encode(request), caller)
                if status == 200 and service is self.service:  # else the connection broke with its operator
                    return msgspec.msgpack.decode(body, type=kind)
                if status < 500 and status != 200:
                    raise ExitedError(1)
            await asyncio.sleep(self._random.uniform(0.5, 1.5))

    async def _answer(self, service: ReportService, path: str, body: bytes, caller: Caller) -> tuple[int, bytes]:
        reply = service.handle(path, body, caller)
        if not isinstance(reply, Awaitable):
            return reply
        self.waiting[path.rpartition("/")[2]] += 1
        try:
            return await reply
        finally:
            self.waiting[path.rpartition("/")[2]] -= 1


def address_of(pod: Object) -> str:
    """Return the IP address of a pod that runs."""
    return f"10.0.0.{pod['metadata']['uid']}"


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
