"""Reconciles one TuneExperiment: opens its engine, applies the spec, reconciles the pods, writes the status.

Level-based: `reconcile` compares the object, the engine and the pods, does what is missing, and may be called at any
time. What it cannot do becomes a `Problem` in the status, and is retried. It never runs concurrently for one
experiment. `write_status` runs beside it, so that no pass waits for a status; nothing else changes the objects.

Invariant: a status says what the latest complete pass has found, of the experiment that this pass has left open. One
that is being written holds `_writing`, and so does whatever closes the experiment. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError, StorageError, TrialpodError
from trialpod.protocol.messages import (
    AssignmentAnswer,
    AssignmentRequest,
    AttemptEnd,
    CredentialsAnswer,
)
from trialpod.storage.base import Storage, StorageCredentialsError, StorageDeniedError, StorageUnavailableError
from trialpod.storage.registry import open_storage
from trialpod_operator.api.api_errors import ApiError, ForbiddenError, NotServedError
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names, storage_access, user_requests
from trialpod_operator.cluster.annotations import stop_is_asked
from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.config_map_code import CODE, ConfigMapCode
from trialpod_operator.cluster.decider.keeper import DeciderKeeper
from trialpod_operator.cluster.deletion import delete_stored, update_finalizer
from trialpod_operator.cluster.experiment_plan import (
    TRAINABLE_NAME,
    make_plan,
    refuse_other,
    trainable_change,
    with_stored_trainable,
)
from trialpod_operator.cluster.experiment_storage import ExperimentStorage
from trialpod_operator.cluster.key_issuer import KeyIssuer
from trialpod_operator.cluster.kube import gather_all
from trialpod_operator.cluster.metrics.account import Account, AccountView
from trialpod_operator.cluster.metrics.instruments import STORAGE_ERRORS
from trialpod_operator.cluster.pods.bindings import PodBindings
from trialpod_operator.cluster.pods.build import GPU, ObjectRef
from trialpod_operator.cluster.pods.pending import QUEUE_LABEL
from trialpod_operator.cluster.pods.pod_work import PodWork
from trialpod_operator.cluster.pods.rejected import request_refusal
from trialpod_operator.cluster.services import Services
from trialpod_operator.cluster.shell import ClusterShell
from trialpod_operator.cluster.status.conditions import Problem, is_starting
from trialpod_operator.cluster.status.events import changes
from trialpod_operator.cluster.status.writer import Finding, StatusWriter
from trialpod_operator.cluster.storage_access import StorageLocation
from trialpod_operator.cluster.stored_manifest import check_stored
from trialpod_operator.cluster.trial_objects.attempt_objects import AttemptObjects
from trialpod_operator.engine.actions import Action, ResultsApplied
from trialpod_operator.engine.events import (
    Recovered,
    ResumeRequested,
    RetryRequested,
    SettingsObserved,
    SuspendRequested,
)
from trialpod_operator.engine.state import State
from trialpod_operator.experiment.durable import DurableExperiment, NotReadyError
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.replica import EmptiedError, FencedError
from trialpod_operator.experiment.stored import kind_changes, release_claim, replace_stored
from trialpod_operator.reports.service import Caller, Served

logger = logging.getLogger(__name__)

STORAGE_RETRY_S = 5.0
"""Maximum time to retry one operation of an opening. The replica retries forever, and the status says so."""

COMMIT_TIMEOUT_S = 5.0
"""Maximum time that one pass waits for the storage to commit."""

FINISH_TIMEOUT_S = 10.0
"""Maximum time to wait for a storage to take the last snapshot of an experiment that has finished."""

CLAIM_CHECK_S = 10.0
"""Maximum time to check whether an experiment that could not be opened, or is closed at once, was deleted."""

CLAIM_RETRY_S = 0.5

RETRY_S = 10.0
"""Poll interval while something outside of the watched objects has to be corrected."""

MAX_FENCED_OPENINGS = 5
"""Maximum number of fenced openings in a row before the journal counts as damaged: another operator may be ending."""


class StorageEmptiedError(StorageError):
    """The storage no longer holds an experiment that has begun."""

    def __init__(self, uri: str, start_again: str, *, by_default: bool) -> None:
        changed = "If the chart's defaults.storage was changed, its endpoint for example, set it back. "
        super().__init__(
            f"{uri} is empty, and this experiment had begun there: its journal, results and checkpoints were "
            f"removed. {changed if by_default else ''}Restore them from a backup to resume it; or start it again "
            f"without them: {start_again}"
        )


class StorageMovedError(StorageError):
    """The operator has another default storage than when an experiment without a storage of its own began."""

    def __init__(self, uri: str, now: str) -> None:
        super().__init__(
            f"this experiment names no storage and is kept at {uri}, and the operator's default storage is {now} "
            "now; nothing is lost. It continues when an administrator sets the chart's defaults.storage back"
        )


class ExperimentController:
    """One TuneExperiment.

    Args:
        key: "namespace/name".
        uid: of the object; another object of the same name gets another controller.
        services: what all experiments share.
    """

    def __init__(self, key: str, uid: str, services: Services) -> None:
        self.key = key
        self.uid = uid
        self._services = services
        self._namespace, self._name = key.split("/")
        self._generation = -1  # that was checked last
        self._experiment: TuneExperiment | None = None  # the latest valid manifest, with its storage
        self._wanted: TuneExperiment | None = None  # the same with the spec's Trainable, which trials may not run yet
        self._by_default = False  # the spec names no storage: it is the operator's default
        self._held_back: Problem | None = None  # why they do not run it
        self._corrected = False  # the Trainable was, and failed trials were not retried yet
        self._refused: Problem | None = None  # what is wrong with the manifest as it is now
        self._durable: DurableExperiment | None = None
        self._shell: ClusterShell  # of the experiment while it is open
        self._objects: AttemptObjects | None = None  # of another kind, as this operator has seen them
        self._bindings: PodBindings | None = None
        self._children_listed = False  # when it was opened: the TuneTrials among them are known
        self._compared = False  # TuneTrials with the trials, since then
        self._tried = False  # whether opening it was tried
        self._fenced_openings = 0  # in a row
        self._emptied = False  # whether its location was emptied while it was open; reset when it opens again
        self._applied = -1  # generation whose settings the engine has
        self._storage = ExperimentStorage(key, uid, services)
        self._code = ConfigMapCode()
        self._decider = DeciderKeeper(ObjectRef(namespace=self._namespace, name=self._name, uid=uid), services)
        self._issuer: KeyIssuer | None = None  # with scoped credentials
        self._broken: BaseException | None = None
        self._deleting_since: float | None = None  # by the loop's clock
        self._writer = StatusWriter(key, services)
        self._writing = asyncio.Lock()  # held while a status is written, or the experiment is closed
        self._finding: Finding | None = None  # of the latest pass since it was opened or closed
        self._account = AccountView(key)
        self._uncounted = False  # that it cannot be counted was logged

    @property
    def open(self) -> bool:
        """True while the engine is in memory."""
        return self._durable is not None

    @property
    def size(self) -> int:
        """How many attempts are in progress."""
        return len(self._bindings.in_progress) if self._bindings is not None else 0

    def account(self, now: float) -> Account | None:
        """Return what its trials took, for the metrics; None once it has been closed for a while.

        Where it cannot be counted, it is as if it were closed: the metrics of others do not depend on it.

        Args:
            now: seconds since the epoch.
        """
        try:
            return self._count(now)
        except Exception:
            if not self._uncounted:
                logger.exception("what %s takes cannot be counted", self.key)
            self._uncounted = True
            return self._account.last(now)

    def _count(self, now: float) -> Account | None:
        experiment = self._experiment
        if self._durable is None or self._bindings is None or experiment is None:
            return self._account.last(now)
        options = self._services.options.pod_options
        asked = [options.gpu_resource if name == GPU else name for name in experiment.spec.resource_amounts]
        return self._account.observe(
            self._durable.engine,
            now,
            queue=queue_of(experiment),
            asked=asked,
            waits_since=self._bindings.waiting_since,
        )

    # -- for the report service --

    def served(self) -> Served:
        """Return the open experiment, for the reports of its attempts."""
        return Served(self._ready()[0], self)

    def attempt_ended(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        """Record the end that an attempt reports; return the end to journal."""
        end = self._ready()[1].record_reported_end(trial_id, attempt, end)
        self._shell.meter.ended(trial_id, attempt, end.cause)
        return end

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        """Return the work of a pod."""
        return self._ready()[1].assignments.assign(request)

    async def credentials(self, trial_id: str, attempt: int) -> CredentialsAnswer:
        """Return keys to what the attempt needs of the storage."""
        durable, _ = self._ready()
        if self._issuer is None:
            return CredentialsAnswer(problem="the trial's pod has the storage's keys from a Secret")
        return await self._issuer.answer(durable.journaled, trial_id, attempt)

    def permits(self, caller: Caller, trial_id: str) -> str | None:
        """Return None if that pod may speak for the trial, else why not."""
        return self._ready()[1].assignments.permits(caller, trial_id)

    def admits(self, caller: Caller, trial_id: str, attempt: int) -> str | None:
        """Return None if that pod is the runner that was made for the attempt, else why not."""
        return self._ready()[1].assignments.admits(caller, trial_id, attempt)

    def admits_decider(self, caller: Caller) -> str | None:
        """Return None if that pod is the experiment's decider, else why not."""
        self._ready()
        return self._decider.admits(caller)

    def _ready(self) -> tuple[DurableExperiment, PodBindings]:
        if self._durable is None or self._bindings is None:
            raise NotReadyError(f"experiment {self.key} is not open at the moment")
        return self._durable, self._bindings

    def contradicts(self, trial_id: str, shown: str) -> bool:
        """Return whether a trial has ended in another state than the one that its TuneTrial shows.

        An operator that has just been replaced may have written the TuneTrial last.
        """
        trial = self._durable.engine.state.trials.get(trial_id) if self._durable is not None else None
        return trial is not None and trial.ended and trial.status != shown

    def trial_changed(self, trial_id: str) -> None:
        """A TuneTrial was edited or deleted by a user."""
        if self._bindings is not None:
            self._bindings.trial_changed(trial_id)

    def pod_changed(self, trial_id: str, name: str) -> None:
        """A pod with a trial's label was made, changed or deleted."""
        if self._bindings is not None:
            self._bindings.pod_changed(trial_id, name)

    # -- reconcile --

    async def reconcile(self, item: Mapping[str, Any]) -> float | None:
        """Run one pass; return in how many seconds the next one is due.

        Args:
            item: the TuneExperiment as it was last seen.
        """
        self._writer.observe(item)
        # A broken engine (fenced, or without its journal) is reopened from the storage.
        if self._broken is not None:
            self._emptied = self._emptied or isinstance(self._broken, EmptiedError)
            self._broken = None
            await self.close()
        # A deleted object only loses its data and its finalizer.
        if item["metadata"].get("deletionTimestamp"):
            return await self._delete(item)
        # The spec is validated once per generation; an invalid one leaves the experiment as it is.
        self._check(item)
        over = not self.open and self._writer.finished_as_observed(item)
        problem = None if over else self._refused
        again: float | None = None
        # Open it, bring engine and pods in line with the spec, close it at its end.
        if problem is None:
            was_open = self.open
            try:
                again = await self._advance(item)
                self._fenced_openings, self._emptied = 0, False
            except (
                StorageError,
                InvalidInputError,
                FencedError,
                ForbiddenError,
                storage_access.StorageProblemError,
            ) as error:
                problem, again = await self._problem_of(error, was_open=was_open)
        if problem is None and self.open:
            problem = (self._issuer.problem if self._issuer is not None else None) or self._held_back
            if problem is None and self._storage.unreadable is not None:
                problem, _ = await self._problem_of(self._storage.unreadable, was_open=was_open)
            if problem is None and self._durable is not None and self._durable.decisions is not None:
                problem = self._decider.problem(self._durable.decisions)
        # The status says what the steps before have found. Neither they nor the next pass wait for it.
        refused = problem is not None and problem is self._refused
        self._finding = Finding(self._generation, problem, refused=refused)
        self._services.enqueue_status(self.key)
        return _soonest(again, self._time_to_live(item))

    async def write_status(self) -> float | None:
        """Write what the latest pass has found; return in how many seconds there will be more to write."""
        async with self._writing:
            if self._finding is None:
                return None
            return await self._writer.write(self._durable, self._bindings, self._finding)

    async def _problem_of(self, error: Exception, *, was_open: bool) -> tuple[Problem | None, float]:
        """Return what the status says about an error, None for nothing, and in how many seconds to try again."""
        reason, message, stalled = Reason.REFUSED, str(error), True
        match error:
            case ForbiddenError():
                return self._forbidden(error), RETRY_S
            case storage_access.StorageProblemError():
                return Problem(reason=error.reason, message=message, stalled=True), RETRY_S
            case StorageCredentialsError() | StorageDeniedError():
                STORAGE_ERRORS.inc()
                self._storage.expire_keys()
            case StorageUnavailableError():
                STORAGE_ERRORS.inc()
                reason, stalled = Reason.STORAGE_UNAVAILABLE, False
                message += "; it continues as soon as the storage answers"
            case FencedError():
                logger.warning("reopening %s: %s", self.key, error)
                await self.close()
                self._emptied = self._emptied or isinstance(error, EmptiedError)
                self._fenced_openings += not was_open
                if was_open or (not self._emptied and self._fenced_openings <= MAX_FENCED_OPENINGS):
                    return None, 1.0
                reason = Reason.JOURNAL_DAMAGED
                message += (
                    "; restore what is missing from a backup; or start again without what is left: set "
                    f"spec.storage.deletionPolicy to Delete (which deletes it), {self._again}"
                )
            case StorageEmptiedError():
                reason = Reason.STORAGE_EMPTIED
            case StorageMovedError():
                reason = Reason.STORAGE_MOVED
        return Problem(reason=reason, message=message, stalled=stalled), RETRY_S

    def _forbidden(self, error: ForbiddenError) -> Problem:
        why = request_refusal(error)
        if self._finding is None or self._finding.problem is None or self._finding.problem.message != why.text:
            logger.warning("%s: %s", self.key, error)
        return Problem(reason=why.reason, message=why.text, stalled=why.severity == "stuck")

    async def hand_over(self, timeout_s: float) -> None:
        """Commit what is pending, if the storage answers in time, and release the experiment."""
        if self._durable is not None and self._broken is None:
            with contextlib.suppress(FencedError, NotReadyError, StorageError):
                await self._durable.wait_committed(timeout_s)
        await self.close()

    async def close(self) -> None:
        """Release the experiment; everything committed stays, and so do its pods."""
        async with self._writing:
            if self._durable is not None:
                self.account(self._services.clock())  # the last that is shown of it
            durable, bindings = self._durable, self._bindings
            self._durable = self._bindings = self._finding = None
        if bindings is not None:
            bindings.assignments.close()
        try:
            if durable is not None:
                durable.close()
        finally:
            if bindings is not None:
                await bindings.close()

    def _check(self, item: Mapping[str, Any]) -> None:
        generation = int(item["metadata"].get("generation", 0))
        if generation == self._generation:
            return
        try:
            checked = check_stored(item)
        except Exception as error:  # a fault of the check itself; the queue retries it
            message = f"the manifest cannot be checked, a fault of trialpod: {type(error).__name__}: {error}"
            problem = Problem(reason=Reason.INVALID_SPEC, message=message, stalled=True)
            self._finding = Finding(generation, problem, refused=True)
            self._services.enqueue_status(self.key)
            raise
        self._generation = generation
        self._refused = self._held_back = None
        self._by_default = checked.experiment is not None and checked.experiment.spec.storage is None
        if checked.experiment is None:
            listed = "; ".join(str(problem) for problem in checked.problems[:5])
            more = f" (and {len(checked.problems) - 5} more)" if len(checked.problems) > 5 else ""
            self._refused = Problem(reason=Reason.INVALID_SPEC, message=f"{listed}{more}", stalled=True)
            return
        if self.open and self._experiment is not None:
            specs = [msgspec.to_builtins(each.spec) for each in (self._experiment, checked.experiment)]
            if changed := kind_changes(*specs):
                message = (
                    f"{changed[0]} cannot change once the experiment has started; change it back, or start another "
                    "one under a new name"
                )
                self._refused = Problem(reason=Reason.INVALID_SPEC, message=message, stalled=True)
                return
        try:
            self._experiment = storage_access.with_storage(
                checked.experiment, self._namespace, self._services.options.storage_rules
            )
            self._wanted = self._experiment
        except storage_access.StorageProblemError as error:
            reason, message = error.reason, str(error)
            if reason == Reason.STORAGE_MISSING and self._writer.has_begun and self._writer.stored_at:
                reason, message = Reason.STORAGE_MOVED, str(StorageMovedError(self._writer.stored_at, "none"))
            self._refused = Problem(reason=reason, message=message, stalled=True)

    async def _advance(self, item: Mapping[str, Any]) -> float | None:
        """Open the experiment if it is to run, and advance it; return in how many seconds the next pass is due."""
        experiment = self._experiment
        if experiment is None or self._refused is not None:
            return None
        # Open the engine; a finished experiment stays closed unless it has left pods behind.
        if self._durable is None:
            if self._writer.finished_as_observed(item):
                if self._objects is None and (seen := await self._attempt_objects(experiment)) is not None:
                    await seen.refresh(self._services.clock())  # this operator did not run it
                    self._objects = seen
                if self._services.cache.deciders(self.key):
                    await self._decider.remove()  # made right before the end, and not known then
                if not self._leftover_pods():
                    return None
                if not await self._open_finished(experiment):
                    return await self._delete_leftover_pods()
            elif not await update_finalizer(self._services, self.key, item, experiment):
                return None  # it was deleted before any data was stored
            else:
                await self._open(experiment)
        elif self._applied != self._generation:
            await update_finalizer(self._services, self.key, item, experiment)  # deletionPolicy may have changed
        # Follow corrected keys, a corrected Trainable and the ConfigMap's code.
        await self._refresh_keys(experiment)
        experiment = await self._follow_trainable(experiment)
        await self._compare_code(experiment)
        # From the opening on attempts are answered; what follows needs the TuneTrials, which may still be listed.
        durable, bindings = self._ready()
        await self._compare_trials(bindings)
        # Apply what users request.
        first_pass = self._applied == -1
        self._apply_requests(item, experiment, durable)
        # In the first pass its starts are committed before the pods are reconciled: they are created at once.
        if first_pass:
            await durable.wait_committed(COMMIT_TIMEOUT_S)
        # Bring the pods in line with the engine; the decider's first, because the others wait for it.
        decides = None
        if durable.decisions is not None:
            decides = await self._decider.reconcile(experiment, self._storage.location(experiment), durable.decisions)
        again = _soonest(await bindings.reconcile(), decides)
        # Close it when all has ended.
        decided = durable.decisions is None or durable.decisions.idle
        if durable.engine.finished and not bindings.in_progress and decided:
            return await self._finish(durable, bindings)
        if bindings.in_progress:
            again = _soonest(again, self._code.next_check_s(experiment.spec.trainable, self._services.clock()))
        return again

    async def _compare_trials(self, bindings: PodBindings) -> None:
        """Find the TuneTrials that do not show how their trials ended, once after each opening."""
        if self._compared:
            return
        if not self._children_listed and not await self._services.first_lists.trials_shown():
            await self._services.list_children(self.key)
        self._compared = True
        bindings.compare_trials()

    def _apply_requests(
        self, item: Mapping[str, Any], experiment: TuneExperiment, durable: DurableExperiment
    ) -> None:
        # Settings first: a retry starts as many trials as they allow.
        if self._applied != self._generation:
            self._apply_spec(item, experiment, durable)
        if self._corrected:
            self._corrected = False
            if not stop_is_asked(item["metadata"]):
                durable.apply(RetryRequested(from_scratch=True, cut_short=True))
        user_requests.apply_retry(item, durable)
        # Stopping last: it ends what a retry has queued.
        user_requests.apply_stop(item, durable, self._services.cache.stops(self.key))

    async def _finish(self, durable: DurableExperiment, bindings: PodBindings) -> float | None:
        if self._held_back is not None:
            return 0.0  # no attempt runs now, so the next pass can change the Trainable
        # The end is committed before the status shows it.
        if not await durable.wait_committed(COMMIT_TIMEOUT_S):
            return 1.0
        # A finished experiment is not reopened, so its files are stored before the status says so.
        if not durable.files_stored:
            return 0.5
        # The memory goes last: the status and the logs of the last pods are written from it.
        async with self._writing:
            all_written = await self._writer.write_final(durable, bindings, Finding(self._generation))
            if not all_written or bindings.pods_left:
                return 1.0
            bindings.assignments.close()
            await bindings.close()
            if problem := await durable.finish(FINISH_TIMEOUT_S):
                logger.warning("the last snapshot of %s is not stored, its journal is: %s", self.key, problem)
            durable.close()
            self.account(self._services.clock())  # the last that metrics show of it
            self._durable = self._bindings = self._finding = None
        logger.info("%s has finished", self.key)
        return None

    # -- a corrected Trainable --

    async def _follow_trainable(self, experiment: TuneExperiment) -> TuneExperiment:
        """Switch trials to the Trainable that the spec names, if they run another one.

        That is possible until a trial has reported something, and while no trial's process runs: attempts whose pods
        wait for their image or a node get the new one when they ask for their assignment. Otherwise trials keep the
        one that they run, and the status says why.

        Returns:
            The experiment, with the Trainable that its trials run.

        Raises:
            InvalidInputError: the experiment is over, and has results of the other Trainable.
        """
        durable, _ = self._ready()
        wanted = self._wanted or experiment
        running = with_stored_trainable(wanted, durable.plan.document)
        self._held_back, self._writer.trainable_differs = None, running is not wanted
        if running is wanted:
            return wanted
        self._experiment = running
        refuse_other(running, self._namespace, durable.plan.document)
        if not await durable.wait_committed(COMMIT_TIMEOUT_S):
            self._held_back = Problem(
                reason=Reason.CHANGE_PENDING, message="spec.trainable was changed; waiting for the storage"
            )
            return running
        state = durable.engine.state
        if state.reported:
            message = trainable_change(running, wanted)
            self._held_back = Problem(reason=Reason.REFUSED, message=message, stalled=True)
            if durable.engine.finished:
                raise InvalidInputError(message)
            return running
        if not _can_be_exchanged(running, wanted, state) or not await self._correct_trainable(wanted, durable):
            self._held_back = Problem(
                reason=Reason.CHANGE_PENDING,
                message="spec.trainable was changed; trials run the new one when the attempts that run have ended "
                f"without a result. To end them: trialpod suspend {self._name} -n {self._namespace}; then resume it",
            )
            return running
        return wanted

    async def _correct_trainable(self, wanted: TuneExperiment, durable: DurableExperiment) -> bool:
        """Write the Trainable into the stored document, and open the experiment with it.

        It is stored before any trial can start with it.

        Returns:
            False if a process has begun with the former one meanwhile; nothing was changed.
        """
        known = {key: value for key, value in durable.plan.document.items() if key != CODE}
        known["manifest"] = msgspec.to_builtins(wanted)
        known.setdefault(TRAINABLE_NAME, durable.plan.settings.trainable_name)
        await self._code.read(self._services.kube, self._namespace, wanted.spec.trainable)
        location = self._storage.location(wanted)
        document = self._plan(wanted, location, known).document
        if not all(map(is_starting, durable.engine.state.running_trials())):
            return False
        await self.close()  # no attempt gets an assignment until it is open again
        patient = msgspec.structs.replace(location.own, retry_s=STORAGE_RETRY_S)

        def replace() -> None:
            replace_stored(open_storage(location.uri, patient), document, self._refuse_unserved)

        await asyncio.get_running_loop().run_in_executor(None, replace)
        logger.info("%s: spec.trainable was corrected", self.key)
        self._experiment = wanted
        self._corrected = True
        await self._open(wanted)
        return True

    def _leftover_pods(self) -> list[Object]:
        """Return the pods, or objects, that a finished experiment has left because no operator ran at its end."""
        return [
            pod
            for pod in self._services.cache.pods(self.key)
            if not pod["metadata"].get("deletionTimestamp")
            and names.LOG_KEPT_ANNOTATION not in (pod["metadata"].get("annotations") or {})
        ]

    async def _open_finished(self, experiment: TuneExperiment) -> bool:
        """Open a finished experiment to store the logs of its last pods; return whether that is possible."""
        try:
            await self._open(experiment, only_stored=True)
        except (TrialpodError, OSError) as error:
            if isinstance(error, ApiError | NotServedError | NotReadyError):
                raise
            logger.warning("what the last pods of %s printed is not kept: %s", self.key, error)
            return False
        return True

    async def _delete_leftover_pods(self) -> float | None:
        """Delete pods that a finished experiment has left, without storing their logs."""
        objects = self._objects
        for pod in self._leftover_pods():
            metadata = pod["metadata"]
            collection = paths.pods(self._namespace) if objects is None else objects.collection()
            deletion = self._services.kube.delete(collection, metadata["name"], uid=metadata.get("uid", ""))
            if (error := await paths.refusal(deletion)) is not None:  # the other pods do not wait for this one
                logger.debug("%s: a pod that is left cannot be deleted: %s", self.key, error)
            elif objects is not None:
                objects.deleted(metadata["name"])
        return RETRY_S

    # -- opening --

    async def _open(self, experiment: TuneExperiment, *, only_stored: bool = False) -> None:
        services = self._services
        self._refuse_unserved()
        # No pod begins without the authority. What could not be opened may be retried for days, without a write.
        again, self._tried = self._tried, True
        if again:
            await self._refresh_keys(experiment)
        else:
            await gather_all(services.publish_authority(self._namespace), self._refresh_keys(experiment))
        location = self._storage.location(experiment)
        issuer = self._storage.key_issuer(experiment, location)
        begun = self._writer.has_begun
        if issuer is not None and not only_stored and not (begun or self._services.cache.has_trials(self.key)):
            await issuer.check()  # not later: trials continue with the keys that they have
        directory = self._storage.work_dir
        patient = msgspec.structs.replace(location.own, retry_s=STORAGE_RETRY_S)

        await self._code.read(services.kube, self._namespace, experiment.spec.trainable)

        def plan(stored: Mapping[str, Any] | None) -> ExperimentPlan:
            if stored is None and only_stored:
                raise StorageError(f"{location.uri} holds no experiment any more")
            if stored is None and begun:
                raise self._missing(location.uri)
            # Data that a deleted TuneExperiment has left is continued only with the same manifest.
            return self._plan(
                with_stored_trainable(experiment, stored or {}) if begun else experiment, location, stored
            )

        def opening() -> DurableExperiment:
            services.remove_folder(directory)  # everything is in the storage
            storage = open_storage(location.uri, patient)
            return DurableExperiment.open(plan, directory, storage, services.clock)

        durable = await self._open_in_thread(experiment, opening, lambda: open_storage(location.uri, patient))
        try:
            if begun and durable.engine.state.settings is None:
                raise self._missing(location.uri)
            if again:
                await services.publish_authority(self._namespace)
            covered = services.first_lists.cover(self.uid)
            # Pods and TuneTrials follow from records, but for the decider's pod.
            none_yet = durable.engine.state.settings is None and durable.decisions is None
            listed = not none_yet and (not covered or not await services.first_lists.pods_shown())
            if listed:
                await services.list_children(self.key)
            self._objects = await self._attempt_objects(experiment)
            self._refuse_unserved()
            bindings = self._start(durable, experiment)
        except BaseException:
            durable.close()
            raise
        self._durable, self._bindings, self._applied, self._issuer = durable, bindings, -1, issuer
        self._compared, self._children_listed = False, listed or none_yet
        services.opened(self.key)

    def _start(self, durable: DurableExperiment, experiment: TuneExperiment) -> PodBindings:
        """Begin with an opened experiment, and find the pods of the attempts that were in progress."""
        services = self._services
        wanted = self._wanted or experiment
        self._experiment = experiment = with_stored_trainable(wanted, durable.plan.document)
        self._writer.trainable_differs = experiment is not wanted
        self._shell = ClusterShell(
            self._perform,
            self._on_broken,
            lambda: services.enqueue_soon(self.key),
            lambda: services.enqueue_status_soon(self.key),
            lambda event: user_requests.retry_recorded(event, durable, self._writer.events.record_retry),
        )
        durable.start(self._shell)
        if durable.decisions is not None:
            durable.decisions.changed = lambda: services.enqueue(self.key)
        owner = ObjectRef(namespace=self._namespace, name=self._name, uid=self.uid)

        def manifest() -> TuneExperiment:
            return self._experiment or experiment

        work = PodWork(
            owner,
            manifest,
            services.kube,
            services.cache,
            services.options.pod_options,
            services.clock,
            durable,
            self._objects,
        )

        def enqueue() -> None:
            services.enqueue(self.key)

        bindings = PodBindings(
            self.key,
            manifest,
            durable,
            self._shell.meter,
            work,
            services.cache,
            services.clock,
            enqueue,
            self._writer.events.record_ending,
        )
        if durable.engine.state.settings is not None:
            durable.apply(Recovered(live=bindings.live_attempts(), writer=services.options.identity))
            logger.info("%s continues: %d records replayed", self.key, durable.journaled.replayed)
        return bindings

    def _refuse_unserved(self) -> None:
        """Refuse to take over a stored experiment that another process may run; for any thread.

        Raises:
            NotReadyError: the Lease is not renewed, or another operator serves the experiment.
        """
        if not self._services.kube.may_change():
            raise NotReadyError(
                "not opened: this operator's Lease is not renewed, or another operator serves the experiment"
            )

    async def _open_in_thread(
        self,
        experiment: TuneExperiment,
        opening: Callable[[], DurableExperiment],
        location: Callable[[], Storage],
    ) -> DurableExperiment:
        """Open the stored experiment; its claim of the location stays only while the TuneExperiment exists.

        An operator that is stopped between seeing the object and writing the claim may write it after the deletion,
        which found nothing to delete. So the object is read after the claim, also when this operator is ending, or
        when it does not know whether the claim was written; a deletion after that finds the claim.
        """
        thread = asyncio.get_running_loop().run_in_executor(None, opening)
        try:
            durable = await asyncio.shield(thread)
            await self._release_late_claim(experiment, durable, location)
        except (asyncio.CancelledError, StorageError):
            abandoned = asyncio.ensure_future(self._abandon(experiment, thread, location))
            try:
                await asyncio.shield(abandoned)
            except asyncio.CancelledError:
                await abandoned  # this operator ends meanwhile
                raise
            raise
        except BaseException:
            if thread.done() and thread.exception() is None:
                thread.result().close()
            raise
        return durable

    async def _abandon(
        self, experiment: TuneExperiment, opening: asyncio.Future[DurableExperiment], location: Callable[[], Storage]
    ) -> None:
        """Close what is opened, and release a claim that came too late, while there is time for it."""
        with contextlib.suppress(TrialpodError, OSError, TimeoutError):
            async with asyncio.timeout(CLAIM_CHECK_S):
                await asyncio.wait([opening])
                durable = opening.result() if opening.exception() is None else None
                if durable is not None:
                    durable.close()
                while True:
                    try:
                        return await self._release_late_claim(experiment, durable, location)
                    except StorageError as error:
                        logger.info("whether %s has left anything in the storage is not known: %s", self.key, error)
                        await asyncio.sleep(CLAIM_RETRY_S)

    async def _release_late_claim(
        self, experiment: TuneExperiment, durable: DurableExperiment | None, location: Callable[[], Storage]
    ) -> None:
        """Release the location of an experiment that has not begun and whose TuneExperiment was deleted meanwhile.

        Raises:
            NotReadyError: it was, and the claim is gone.
            StorageError: the storage cannot be reached.
        """
        storage = experiment.spec.storage
        deletes = storage is not None and storage.deletion_policy == "Delete"
        begun = self._writer.has_begun if durable is None else durable.engine.state.settings is not None
        if not deletes or begun:
            return
        found = await self._services.kube.get(paths.experiments(self._namespace), self._name)
        # Another object of this name may use the claim already.
        if found is not None and (
            found["metadata"].get("uid") != self.uid or not found["metadata"].get("deletionTimestamp")
        ):
            return
        await asyncio.get_running_loop().run_in_executor(None, lambda: release_claim(location()))
        raise NotReadyError(f"{self.key} was deleted before it began")

    def _missing(self, uri: str) -> StorageError:
        """Return the error of an experiment that has begun, and is not at this URI."""
        before = self._writer.stored_at
        if self._by_default and before and before != uri:
            return StorageMovedError(before, uri.removesuffix(f"/{self._name}"))
        return StorageEmptiedError(uri, self._again, by_default=self._by_default)

    @property
    def _again(self) -> str:
        return f"kubectl -n {self._namespace} delete te {self._name}, and apply it again"

    def _plan(
        self, experiment: TuneExperiment, location: StorageLocation, stored: Mapping[str, Any] | None
    ) -> ExperimentPlan:
        code = self._code.pinned(experiment.spec.trainable, stored)
        return make_plan(experiment, location, self._namespace, stored, code, self._decider.code)

    async def _refresh_keys(self, experiment: TuneExperiment) -> None:
        durable = self._durable
        refused = durable is not None and durable.keys_refused
        await self._storage.refresh_keys(experiment, refused=refused, in_use=durable is not None)

    async def _compare_code(self, experiment: TuneExperiment) -> None:
        """Report when the code in a ConfigMap is no longer what trials run."""
        durable = self._durable
        if durable is None or experiment.spec.trainable.config_map_ref is None:
            return
        kube, now = self._services.kube, self._services.clock()
        known = durable.plan.document.get(CODE)
        if message := await self._code.changed(kube, self._namespace, experiment.spec.trainable, known, now):
            self._writer.events.record_code(message)

    def record_outage(self, seconds: float) -> None:
        """Report by an event how long the API server did not answer."""
        self._writer.events.record_outage(seconds)

    # -- while it is open --

    def _apply_spec(self, item: Mapping[str, Any], experiment: TuneExperiment, durable: DurableExperiment) -> None:
        plan = durable.plan
        if plan.settings.name:
            location = self._storage.location(experiment)
            plan = self._plan(experiment, location, durable.plan.document)
        flags, before = durable.engine.state.flags, durable.engine.state.settings
        if before is not None:
            self._writer.events.record_change(
                changes(item, before, plan.settings, flags.suspended, experiment.spec.suspend)
            )
        if durable.decisions is not None and plan.decided is not None:
            durable.decisions.observe(plan.decided)
        if experiment.spec.suspend and not durable.suspend_wanted:
            durable.apply(SuspendRequested())
        if self._bindings is not None:
            # Before the settings are applied: otherwise all trials that they allow start at once.
            self._bindings.observe_capacity(plan.settings)
        durable.apply(SettingsObserved(settings=plan.settings))
        if not experiment.spec.suspend and durable.suspend_wanted:
            durable.apply(ResumeRequested())
        self._applied = self._generation

    def _perform(self, action: Action) -> None:
        if self._bindings is not None:
            self._bindings.perform(action)
        self._writer.events.record_action(action)
        if isinstance(action, ResultsApplied):
            self._services.enqueue_status_soon(self.key)  # no pod depends on them, and most events are results
        else:
            self._services.enqueue(self.key)

    def _on_broken(self, error: BaseException) -> None:
        logger.warning("%s is reopened: %s", self.key, error)
        self._broken = error
        self._services.enqueue(self.key)

    # -- the end --

    def _time_to_live(self, item: Mapping[str, Any]) -> float | None:
        """Return in how many seconds the object is to be deleted; it is deleted by `reconcile` when that is now."""
        experiment = self._experiment
        if experiment is None or experiment.spec.ttl_seconds_after_finished is None or self.open:
            return None
        if self._refused is not None or not self._writer.finished_as_observed(item):
            return None  # it was asked to continue, and has not yet
        completed = self._writer.completed_at(item)
        if completed is None:
            return None
        left = completed + experiment.spec.ttl_seconds_after_finished - self._services.clock()
        if left <= 0:
            self._services.delete_soon(self.key, self.uid)
            return RETRY_S
        return left

    async def _delete(self, item: Mapping[str, Any]) -> float | None:
        """Release a deleted experiment, and delete its data if the manifest says so."""
        await self.close()
        if names.STORAGE_FINALIZER not in (item["metadata"].get("finalizers") or []):
            return None
        now = asyncio.get_running_loop().time()
        if self._deleting_since is None:
            await self._services.list_children(self.key)  # an operator that has just started has not listed all pods
            self._deleting_since = now
        return await delete_stored(self._services, self.key, item, self._storage.keys_dir, now - self._deleting_since)

    async def _attempt_objects(self, experiment: TuneExperiment) -> AttemptObjects | None:
        """Return the objects of another kind that run the trials, as the server has them; None where pods do."""
        if experiment.spec.trial_resource is None:
            return None
        services = self._services
        made = AttemptObjects(
            self.key,
            lambda: self._experiment or experiment,
            services.kube,
            services.cache,
            services.clock,
            services.options.trial_kinds,
        )
        await made.load()
        return made

    def remove_files(self) -> None:
        """Remove this experiment's files from the operator's disk."""
        self._storage.remove_files()


def queue_of(experiment: TuneExperiment) -> str:
    """Return the queue that an experiment's pods wait in, "" when there is none."""
    given = (experiment.spec.template.get("metadata") or {}).get("labels") or {}
    return str(given.get(QUEUE_LABEL) or (experiment.metadata.labels or {}).get(QUEUE_LABEL) or "")


def _can_be_exchanged(former: TuneExperiment, new: TuneExperiment, state: State) -> bool:
    """Return whether attempts that run can still get another Trainable: none has a process, and no pod shows it."""
    if not state.running:
        return True
    in_pods = any(spec.spec.trainable.config_map_ref or spec.spec.trainable.command for spec in (former, new))
    return not in_pods and not former.spec.reuse_pods and all(map(is_starting, state.running_trials()))


def _soonest(*times: float | None) -> float | None:
    known = [each for each in times if each is not None]
    return min(known) if known else None
