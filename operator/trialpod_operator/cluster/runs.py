"""The pods of one open experiment: what should run, what does, and what ended.

The engine's actions, once committed, say what should run (`Run`). The watch says what does (`Seen`). `reconcile`
compares the two and acts; it may be called at any time and as often as one likes. Names are deterministic, so doing
something again that was done already is refused by the API server, which is harmless.

Invariants:

* A pod is created only for a committed start, and only when its TuneTrial is there to own it.
* An attempt that has asked for its work ends when its pod has ended or is gone: in the cache, and then by the
  server's own word where only the cache's silence says so.
* One that has not asked yet has done nothing; its pod is simply made again.

Owned by the event loop; reconciles of one experiment never overlap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from trialpod.protocol.messages import AssignmentAnswer, AssignmentRequest, AttemptEnd
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import names
from trialpod_operator.cluster.endings import Ending, presumed_gone, read_ending
from trialpod_operator.cluster.hosted import HostedExperiment
from trialpod_operator.cluster.pod_work import PodWork, Refusals, node_of
from trialpod_operator.cluster.pods import grace_seconds
from trialpod_operator.cluster.seen import Object, Seen
from trialpod_operator.cluster.waiting import Waiting, why_waiting
from trialpod_operator.engine.actions import (
    Action,
    StartAttempt,
    StopAttempt,
    TrialCreated,
    TrialEnded,
    TrialRequeued,
)
from trialpod_operator.engine.events import AttemptEnded, AttemptStarted, CapacityObserved
from trialpod_operator.engine.trial import Trial
from trialpod_operator.reports.service import Caller, NotReadyError

logger = logging.getLogger(__name__)

AHEAD = 16
"""So many more pods than have a place are created, when the manifest sets no limit."""

ASK_AGAIN_S = 30.0
"""So long a pod that goes on in place may take to ask for its trial's next attempt."""

SILENT_S = 45.0
"""After so long without a call from an attempt, the API server is asked what its pod is doing."""

COMPLAINTS_AFTER_S = 8.0
COMPLAINTS_EVERY_S = 10.0
"""When a pod has a node and does not begin, its events are looked at so often."""

LEAVE_S = 30.0
"""So long a pod may take to exit after its attempt has ended, beside its grace period."""


@dataclass
class Run:
    """An attempt that should have a pod."""

    trial: Trial
    attempt: int
    pod_attempt: int  # the attempt that its pod was made for
    given: bool = False  # it has fetched its assignment
    stop_at: float | None = None  # when its pod is deleted unless it has ended
    pod_uid: str = ""  # of the pod that asked, or was made
    created_at: float = 0.0  # when the pod was asked for; 0 = not yet
    asked_at: float = 0.0  # when the server was last asked about it
    expect_by: float = 0.0  # a pod that goes on in place has to ask until then
    resources: dict[str, float] | None = None  # of its pod, where a scheduler gave it others than the manifest


@dataclass
class Parting:
    """A pod whose attempt has ended and which has not."""

    leave_by: float


@dataclass
class Asking:
    """A pod that goes on in place and waits for its trial's next attempt."""

    pod_attempt: int
    future: asyncio.Future[Run | None] = field(repr=False)


class Runs:
    """Keeps the pods of one experiment as its engine wants them.

    Args:
        key: "namespace/name".
        experiment: returns the manifest that holds now.
        hosted: the experiment's engine.
        work: acts at the API server.
        seen: what the watches have shown.
        clock: seconds since the epoch.
        wake: asks for a reconcile soon.
        on_ending: told of every ending that was read from a pod.
    """

    def __init__(
        self,
        key: str,
        experiment: Callable[[], TuneExperiment],
        hosted: HostedExperiment,
        work: PodWork,
        seen: Seen,
        clock: Callable[[], float],
        wake: Callable[[], None],
        on_ending: Callable[[Trial, Ending], None],
    ) -> None:
        self._key = key
        self._name = key.partition("/")[2]
        self._experiment = experiment
        self._hosted = hosted
        self._work = work
        self._seen = seen
        self._clock = clock
        self._wake = wake
        self._on_ending = on_ending
        self.runs: dict[str, Run] = {}
        self.changed: set[str] = set()  # ids of trials whose TuneTrial has to be looked at
        self._partings: dict[str, Parting] = {}  # by pod name
        self._asking: dict[str, Asking] = {}
        # trial_id -> (pod_attempt, until, resources) of a pod that will ask for the trial's next attempt
        self._in_place: dict[str, tuple[int, float, dict[str, float] | None]] = {}
        self._slots: int | None = None
        self._complaints: dict[str, str] = {}  # by pod name: the kubelet's latest warning about it
        self._complaints_at = 0.0
        for trial in hosted.host.engine.state.get_trials():
            item = seen.trial(key, names.trial_name(self._name, trial.trial_id))
            if not trial.ended or (item is not None and (item.get("status") or {}).get("state") != trial.status):
                self.changed.add(trial.trial_id)
        for trial in hosted.host.engine.state.running_trials():
            self.runs[trial.trial_id] = self._adopt(trial)

    # -- for the experiment's controller --

    @property
    def refusals(self) -> Refusals:
        """Why the API server does not take new pods or trials."""
        return self._work.refusals

    @property
    def pods_left(self) -> bool:
        """Whether there are pods whose deletion has not been asked for yet."""
        return any(
            not pod["metadata"].get("deletionTimestamp")
            and pod["metadata"].get("uid") not in self._work.deleted
            and not self._has_its_place(pod)
            for pod in self._seen.pods(self._key)
        )

    def live_attempts(self) -> list[tuple[str, int]]:
        """Return the attempts that go on after a restart of the operator: those with a pod, or not begun yet."""
        live = []
        for run in self.runs.values():
            pod = self._seen.pod(self._key, self._pod_name(run))
            if not run.given or (pod is not None and read_ending(pod) is None):
                live.append((run.trial.trial_id, run.attempt))
        return live

    def perform(self, action: Action) -> None:
        """Take in a committed action."""
        match action:
            case TrialCreated(trial=trial):
                self.changed.add(trial.trial_id)
            case StartAttempt(trial=trial, attempt=attempt):
                self._start(trial, attempt)
            case StopAttempt(trial=trial, attempt=attempt):
                run = self.runs.get(trial.trial_id)
                if run is not None and run.attempt == attempt and run.stop_at is None:
                    run.stop_at = self._clock() + (self._grace_s if run.given else 0.0)
            case TrialEnded(trial=trial) | TrialRequeued(trial=trial):
                self._end_run(trial)
        self._wake()

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Give a pod its attempt. One that goes on in place waits for its trial's next one.

        Raises:
            NotReadyError: the start of the attempt is not committed yet.
        """
        trial_id, _, number = request.runner.rpartition("/")
        if not trial_id or not number.isdigit():
            return AssignmentAnswer(reason=f"'{request.runner}' is no runner of this experiment")
        run = self.runs.get(trial_id)
        if run is not None and run.pod_attempt == int(number) and run.trial.running:
            return self._give(run, request)
        if trial_id in self._in_place and self._in_place[trial_id][0] == int(number):
            return self._give_later(trial_id, int(number), request)
        return AssignmentAnswer(reason="the trial has no work for this pod any more")

    def permits(self, caller: Caller, trial_id: str) -> str:
        """Return "" if that pod may speak for the trial, else why not.

        Raises:
            NotReadyError: the pod is not known yet.
        """
        pod = self._seen.pod(self._key, caller.pod_name)
        if pod is None:
            if self._seen.vanished(caller.pod_uid) is not None:
                return f"pod {caller.pod_name} was deleted"
            raise NotReadyError(f"pod {caller.pod_name} is not known here yet")
        metadata = pod["metadata"]
        if metadata.get("uid") != caller.pod_uid:
            return f"pod {caller.pod_name} is another one than the caller"
        if (metadata.get("labels") or {}).get(names.TRIAL_ID_LABEL) != trial_id:
            return f"pod {caller.pod_name} does not belong to trial {trial_id}"
        trial = self._seen.trial(self._key, names.trial_name(self._name, trial_id))
        owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or [] if owner.get("controller")}
        if trial is not None and trial["metadata"].get("uid") not in owners:
            return f"pod {caller.pod_name} does not belong to trial {trial_id}"
        return ""

    def waits(self, now: float) -> list[tuple[Trial, Waiting]]:
        """Return why attempts that should run do not, for those that do not."""
        found = []
        for run in self.runs.values():
            name = self._pod_name(run)
            pod = self._seen.pod(self._key, name)
            why = why_waiting(pod, now, event=self._complaints.get(name, "")) if pod and not run.given else None
            if pod is None and self._work.refusals.why is not None:
                why = self._work.refusals.why
            if why is not None:
                found.append((run.trial, why))
        return found

    def pod_of(self, trial: Trial) -> Object | None:
        """Return the pod of a trial's latest attempt, if it is there."""
        run = self.runs.get(trial.trial_id)
        attempt = run.pod_attempt if run is not None else trial.attempt
        return self._seen.pod(self._key, names.pod_name(self._name, trial.trial_id, attempt))

    async def reconcile(self) -> float | None:
        """Bring the pods in line with what should run; return in how many seconds to look again."""
        now = self._clock()
        self._note_endings(now)
        await self._ask_about_silent(now)
        self._stop_overdue(now)
        await self._hear_complaints(now)
        await self._create_missing(now)
        await self._clear_away(now)
        self._observe_capacity()
        return self._next_look(self._clock())

    # -- what should run --

    def _adopt(self, trial: Trial) -> Run:
        """Return the run of an attempt that was under way when the operator started."""
        pods = [
            pod
            for pod in self._seen.pods(self._key)
            if (pod["metadata"].get("labels") or {}).get(names.TRIAL_ID_LABEL) == trial.trial_id
            and read_ending(pod) is None
            and not pod["metadata"].get("deletionTimestamp")
            and int((pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, "0")) <= trial.attempt
        ]
        pods.sort(key=lambda pod: int(pod["metadata"]["labels"][names.ATTEMPT_LABEL]))
        own = names.pod_name(self._name, trial.trial_id, trial.attempt)
        pod_attempt = trial.attempt
        if pods and self._seen.pod(self._key, own) is None:
            pod_attempt = int(pods[-1]["metadata"]["labels"][names.ATTEMPT_LABEL])  # it goes on in place
        uid = pods[-1]["metadata"].get("uid", "") if pods else ""
        given = trial.pid != 0 or trial.received > 0
        expect_by = self._clock() + ASK_AGAIN_S if pod_attempt != trial.attempt and not given else 0.0
        return Run(
            trial,
            trial.attempt,
            pod_attempt,
            given=given,
            pod_uid=uid,
            expect_by=expect_by,
            resources=trial.resources,
        )

    def _start(self, trial: Trial, attempt: int) -> None:
        trial_id = trial.trial_id
        run = Run(trial, attempt, attempt, resources=trial.resources)
        reserved = self._in_place.pop(trial_id, None)
        if reserved is not None and reserved[2] == trial.resources:
            pod = self._seen.pod(self._key, names.pod_name(self._name, trial_id, reserved[0]))
            if pod is not None and read_ending(pod) is None and not pod["metadata"].get("deletionTimestamp"):
                run.pod_attempt, run.expect_by = reserved[0], self._clock() + ASK_AGAIN_S
                run.pod_uid = pod["metadata"].get("uid", "")
                self._partings.pop(pod["metadata"]["name"], None)
        self.runs[trial_id] = run
        self.changed.add(trial_id)
        asking = self._asking.pop(trial_id, None)
        if asking is not None and not asking.future.done():
            asking.future.set_result(run if run.pod_attempt == asking.pod_attempt else None)
        self._hosted.trial_started(trial)

    def _end_run(self, trial: Trial) -> None:
        self.changed.add(trial.trial_id)
        run = self.runs.pop(trial.trial_id, None)
        if run is not None:
            now = self._clock()
            self._partings[self._pod_name(run)] = Parting(now + LEAVE_S)
        asking = self._asking.pop(trial.trial_id, None)
        if asking is not None and trial.ended and not asking.future.done():
            asking.future.set_result(None)
        if trial.ended:
            self._in_place.pop(trial.trial_id, None)
            self._hosted.trial_ended(trial)

    def note_reported_end(self, trial_id: str, attempt: int, end: AttemptEnd) -> None:
        """An attempt said how it ended; a pod that goes on in place stays."""
        run = self.runs.get(trial_id)
        if end.asks and run is not None and run.attempt == attempt:
            self._in_place[trial_id] = (run.pod_attempt, self._clock() + ASK_AGAIN_S, run.resources)

    def _give(self, run: Run, request: AssignmentRequest) -> AssignmentAnswer:
        trial = run.trial
        if not run.given:
            run.given = True
            run.expect_by = 0.0
            self._hosted.apply(
                AttemptStarted(
                    trial_id=trial.trial_id,
                    attempt=run.attempt,
                    pid=request.pid,
                    hostname=request.hostname,
                    node_ip=request.node_ip,
                )
            )
            self.changed.add(trial.trial_id)
        self._hosted.last_contact[trial.trial_id] = self._clock()
        assignment = self._hosted.assignment(trial)
        folder = self._hosted.host.files.path(trial).name
        assignment.trial_dir = f"{names.WORK_DIR}/{folder}"
        return AssignmentAnswer(assignment=assignment)

    async def _give_later(self, trial_id: str, pod_attempt: int, request: AssignmentRequest) -> AssignmentAnswer:
        future: asyncio.Future[Run | None] = asyncio.get_running_loop().create_future()
        self._asking[trial_id] = asking = Asking(pod_attempt, future)
        try:
            run = await asyncio.wait_for(future, ASK_AGAIN_S)
        except TimeoutError:
            run = None
        finally:
            if self._asking.get(trial_id) is asking:
                del self._asking[trial_id]
        if run is None:
            self._in_place.pop(trial_id, None)
            return AssignmentAnswer(reason="the trial goes on later, in another pod")
        return self._give(run, request)

    # -- what ended --

    def _note_endings(self, now: float) -> None:
        for run in list(self.runs.values()):
            pod = self._seen.pod(self._key, self._pod_name(run))
            if pod is None:
                last = self._seen.vanished(run.pod_uid) if run.pod_uid else None
                if last is not None:
                    self._vanished(run, last)
                continue
            run.pod_uid = run.pod_uid or pod["metadata"].get("uid", "")
            ending = read_ending(
                pod,
                deleted_by_us=pod["metadata"].get("uid") in self._work.deleted,
                gone=presumed_gone(pod, now),
            )
            if ending is not None:
                self._ended(run, ending)
            elif run.expect_by and now > run.expect_by and not run.given:
                run.pod_attempt, run.expect_by, run.pod_uid = run.attempt, 0.0, ""  # it does not come back

    def _vanished(self, run: Run, last: Object) -> None:
        """A pod was deleted: before its attempt had begun it is made again, else the attempt has ended."""
        if not run.given:
            run.pod_attempt, run.pod_uid, run.created_at = run.attempt, "", 0.0
            ending = read_ending(last)
            if ending is None or not ending.counts_as_failure:
                return
        else:
            ending = read_ending(last, vanished=True, deleted_by_us=last["metadata"].get("uid") in self._work.deleted)
        if ending is not None:
            self._ended(run, ending)

    def _ended(self, run: Run, ending: Ending) -> None:
        trial = run.trial
        if trial.running and trial.attempt == run.attempt:
            logger.info("attempt %d of %s ended: %s", run.attempt, trial.trial_id, ending.message)
            self._on_ending(trial, ending)
            self._hosted.meter.ended(trial.trial_id, run.attempt, ending.reason, ending.kind)
            end = ending.attempt_end()
            self._hosted.apply(AttemptEnded(trial_id=trial.trial_id, attempt=run.attempt, end=end))

    async def _ask_about_silent(self, now: float) -> None:
        """Ask the server about pods that it may have lost without our hearing of it."""
        for run in list(self.runs.values()):
            heard = max(self._hosted.last_contact.get(run.trial.trial_id, 0.0), run.asked_at, run.created_at)
            pod = self._seen.pod(self._key, self._pod_name(run))
            if not run.given and (pod is not None or not run.created_at):
                continue
            if now - heard < (SILENT_S if pod is not None else 5.0):
                continue
            run.asked_at = now
            if await self._work.look_up_pod(self._pod_name(run)):
                continue
            if run.given:
                if pod is not None:
                    self._seen.take_pod(pod, deleted=True)
                self._ended(run, _must(read_ending(pod, vanished=True)))
            else:
                run.pod_attempt, run.pod_uid, run.created_at = run.attempt, "", 0.0
        self._note_endings(now)

    async def _hear_complaints(self, now: float) -> None:
        """Ask for the events of one pod that should have begun: what a volume lacks stands nowhere else."""
        if now - self._complaints_at < COMPLAINTS_EVERY_S:
            return
        for run in self.runs.values():
            pod = self._seen.pod(self._key, self._pod_name(run))
            if pod is None or run.given or now - run.created_at < COMPLAINTS_AFTER_S or not node_of(pod):
                continue
            self._complaints_at = now
            if complaint := await self._work.complaint(pod):
                self._complaints = {self._pod_name(run): complaint}
            return
        self._complaints = {}

    # -- making and ending pods --

    def _stop_overdue(self, now: float) -> None:
        for run in list(self.runs.values()):
            if run.stop_at is None or now < run.stop_at:
                continue
            if not run.given:
                cause = "paused" if run.trial.decision == "pause" else "stopped"
                end = AttemptEnd(cause=cause)  # type: ignore[arg-type]  # both are causes
                self._hosted.apply(AttemptEnded(trial_id=run.trial.trial_id, attempt=run.attempt, end=end))

    async def _create_missing(self, now: float) -> None:
        if now < self._work.refusals.until:
            return
        missing = [run for run in self.runs.values() if self._needs_pod(run)]
        trials = self._missing_trials()
        if not missing and not trials:
            return
        # The first alone: where the server refuses it, it would refuse them all.
        if missing and (self._work.refusals.count or len(missing) > 4) and not await self._create(missing.pop(0)):
            return
        waiting = [self._create(run) for run in missing]
        waiting += [self._work.create_trial(trial) for trial in trials if trial.trial_id not in self.runs]
        results = await asyncio.gather(*waiting)
        if all(results):
            self._work.refusals.clear()

    def _needs_pod(self, run: Run) -> bool:
        if run.given or run.created_at or run.expect_by or (run.stop_at is not None):
            return False
        return self._seen.pod(self._key, self._pod_name(run)) is None

    def _missing_trials(self) -> list[Trial]:
        missing = []
        for trial_id in self.changed:
            trial = self._hosted.host.engine.state.trials.get(trial_id)
            if trial is not None and self._seen.trial(self._key, names.trial_name(self._name, trial_id)) is None:
                missing.append(trial)
        return missing

    async def _create(self, run: Run) -> bool:
        """Make the pod of an attempt; return whether it is there."""
        if self.runs.get(run.trial.trial_id) is not run:
            return True
        run.pod_attempt = run.attempt
        uid = await self._work.create_pod(run.trial, run.attempt, run.resources)
        if uid is None:
            return False
        run.pod_uid, run.created_at = uid, self._clock()
        return True

    async def _clear_away(self, now: float) -> None:
        """Delete pods that have no run: finished ones with their log kept first, others when their time is up."""
        current = {self._pod_name(run) for run in self.runs.values() if run.stop_at is None or now < run.stop_at}
        stopped = {self._pod_name(run) for run in self.runs.values()} - current
        reserved = {
            names.pod_name(self._name, trial_id, attempt)
            for trial_id, (attempt, until, _) in self._in_place.items()
            if now < until
        }
        finished: list[Object] = []
        for pod in self._seen.pods(self._key):
            metadata = pod["metadata"]
            name, uid = metadata["name"], metadata.get("uid", "")
            if name in current or name in reserved or uid in self._work.deleted or metadata.get("deletionTimestamp"):
                continue
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                if name not in stopped and not self._has_its_place(pod):
                    finished.append(pod)
            elif name in stopped or now >= self._leave_by(name, now):
                await self._work.delete_pod(pod)
        if finished:
            trials = self._hosted.host.engine.state.trials
            ids = [(pod["metadata"].get("labels") or {}).get(names.TRIAL_ID_LABEL, "") for pod in finished]
            pairs = [(pod, trials.get(trial_id)) for pod, trial_id in zip(finished, ids, strict=True)]
            for pod in await self._work.put_away(pairs):
                self._partings.pop(pod["metadata"]["name"], None)

    def _has_its_place(self, pod: Object) -> bool:
        """Whether a finished pod is to stay, and its log is kept."""
        annotations = pod["metadata"].get("annotations") or {}
        return names.LOG_KEPT_ANNOTATION in annotations and self._work.stays(pod)

    def _leave_by(self, name: str, now: float) -> float:
        parting = self._partings.setdefault(name, Parting(now + LEAVE_S))
        return parting.leave_by

    # -- small parts --

    def _observe_capacity(self) -> None:
        """Without a limit of the user's, run ahead of what has found a place by a few pods only."""
        engine = self._hosted.host.engine
        if engine.state.settings is None or engine.settings.max_concurrent is not None:
            return
        placed = sum(
            1 for run in self.runs.values() if run.given or node_of(self._seen.pod(self._key, self._pod_name(run)))
        )
        slots = placed + AHEAD
        if self._slots is None or slots > self._slots or slots < self._slots - AHEAD:
            self._slots = slots
            self._hosted.apply(CapacityObserved(slots=slots))

    def _next_look(self, now: float) -> float | None:
        times = [run.stop_at for run in self.runs.values() if run.stop_at is not None]
        times += [run.expect_by for run in self.runs.values() if run.expect_by]
        times += [parting.leave_by for parting in self._partings.values()]
        if self._work.refusals.until:
            times.append(self._work.refusals.until)
        if self.runs:
            idle = any(not run.given for run in self.runs.values())
            times.append(now + (COMPLAINTS_EVERY_S if idle else SILENT_S / 3))
        return max(0.2, min(times) - now) if times else None

    def _pod_name(self, run: Run) -> str:
        return names.pod_name(self._name, run.trial.trial_id, run.pod_attempt)

    @property
    def _grace_s(self) -> float:
        return grace_seconds(self._experiment().spec)


def _must(ending: Ending | None) -> Ending:
    assert ending is not None
    return ending
