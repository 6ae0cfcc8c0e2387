"""All TuneExperiments: which ones there are, whose turn it is, and where the report service finds them.

Watches only put keys into the work queue. One reconcile per key does the rest, but for the status, which has a queue
of its own. Owned by the event loop.

Of several active operators each reconciles the experiments of its own shards (`shards`). Every one sees all
TuneExperiments and pods, so that it knows where an attempt has to report; TuneTrials it keeps of its own only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from trialpod_operator.api.api_errors import ApiError, NotServedError
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.cache import Object, ObjectCache, key_of
from trialpod_operator.cluster.experiment_controller import ExperimentController
from trialpod_operator.cluster.experiment_storage import FolderRemoval
from trialpod_operator.cluster.first_lists import FirstLists
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.metrics.account import Account
from trialpod_operator.cluster.metrics.instruments import timed_reconcile, timed_status
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.pods.pending import QUEUE_LABEL
from trialpod_operator.cluster.services import Services
from trialpod_operator.cluster.shards.assignment import shard_of
from trialpod_operator.cluster.shards.ownership import Ownership
from trialpod_operator.cluster.status.conditions import READY, Observation, set_condition
from trialpod_operator.cluster.work_queue import WorkQueue
from trialpod_operator.experiment.durable import NotReadyError
from trialpod_operator.reports.service import Caller, ElsewhereError, Served

logger = logging.getLogger(__name__)

FIRST_LOOK_S = 60.0
"""Maximum time after the start until a watch has shown every experiment."""

REST_PER_ATTEMPT_S = 0.0001
MAX_REST_S = 0.1
"""An experiment is looked at again after such a rest for each attempt in progress, up to a maximum: what happens
meanwhile takes one look together."""

STATUS_RESTS = 2.5
"""Statuses are written after so many of these rests: nothing waits for them."""

HAND_OVER_S = 2.0
"""Maximum time that an experiment which another operator takes over waits for the storage to commit."""

CHANGE_S = 1.0
"""Maximum time that a change which nothing waits for has to wait for its reconcile, or for the status."""

POD_CHANGE_S = 0.25
"""The same for a pod that is on its way to run: its node, its start and its conditions, which come one by one, take
one reconcile together. Its attempt does not wait for that: it asks for its assignment by itself."""


class Controller:
    """Keeps an `ExperimentController` for every TuneExperiment.

    Args:
        kube: the API server.
        options: the operator's settings.
        clock: seconds since the epoch.
        authority: returns the certificates that pods have to trust, as PEM text.
        ownership: which experiments are this operator's; all by default.
    """

    def __init__(
        self,
        kube: Kube,
        options: OperatorOptions,
        clock: Callable[[], float] = time.time,
        authority: Callable[[], str] = lambda: "",
        ownership: Ownership | None = None,
    ) -> None:
        self.ownership = ownership or Ownership(everything=True)
        self.cache = ObjectCache()
        self.queue = WorkQueue(timed_reconcile(self._reconcile), self._failed, rest=self.rest_s)
        self.statuses = WorkQueue(timed_status(self._write_status), self._failed, rest=self.status_rest_s)
        self.services = Services(
            kube,
            options,
            self.cache,
            enqueue=self.queue.add,
            enqueue_soon=lambda key: self.queue.add_later(key, CHANGE_S),
            enqueue_status=self.statuses.add,
            enqueue_status_soon=lambda key: self.statuses.add_later(key, CHANGE_S),
            clock=monotonic_epoch(clock),
            authority=authority,
            remove_folder=FolderRemoval(),
            opened=self._end_opening,
        )
        self._kube = kube
        self._controllers: dict[str, ExperimentController] = {}
        self._closed: asyncio.Event = asyncio.Event()  # set, and replaced, whenever a controller is gone
        self._closing = False
        # Done when the experiment is open, or after the next pass over it; here while a caller waits for it.
        self._opening: WeakValueDictionary[str, asyncio.Future[None]] = WeakValueDictionary()
        self._started_at = math.inf  # when this process began to work, in the time of its loop; not yet

    @property
    def open_count(self) -> int:
        """How many experiments are in memory."""
        return sum(each.open for each in self._controllers.values())

    def accounts(self) -> list[Account]:
        """Return what the trials of the open experiments took, and of those that have just finished."""
        now = self.services.clock()
        found = (controller.account(now) for _, controller in sorted(self._controllers.items()))
        return [account for account in found if account is not None]

    def find(self, name: str) -> Served | None:
        """Return the experiment "namespace/name" for the report service.

        Raises:
            ElsewhereError: another operator serves it, or will.
            NotReadyError: it may be there, and is not open yet.
        """
        found = self._controllers.get(name)
        uid = found.uid if found is not None else self._uid(name)
        if uid and not self.ownership.serves(uid):
            raise ElsewhereError(f"experiment {name} is not served here", self.ownership.address_of(uid))
        if found is not None and found.open:
            return found.served()
        # An operator whose watch is late knows nothing of what another has begun.
        if found is not None or name in self.cache.experiments or self._is_new() or self.ownership.several:
            raise NotReadyError(f"experiment {name} is not open at the moment")
        return None

    def opening(self, name: str) -> Awaitable[None] | None:
        """Return what to await until an experiment is open, or a pass over it has ended; None = that will not be."""
        if self._closing or (name not in self.cache.experiments and not self._is_new()):
            return None
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = asyncio.get_running_loop().create_future()
        return opening

    def _is_new(self) -> bool:
        # Not by a clock that may be set: a trial fails when the answer is that its experiment is gone.
        return asyncio.get_running_loop().time() - self._started_at < FIRST_LOOK_S

    def experiment_of(self, caller: Caller) -> str:
        """Return the key of the experiment that a pod belongs to, "" when the pod was not seen."""
        return self.cache.experiment_of(caller.namespace, caller.pod_name, caller.pod_uid)

    def begin_lists(self, pods: Sequence[asyncio.Event], trials: Sequence[asyncio.Event]) -> None:
        """The watches are about to list all pods and TuneTrials; each event is set when a list was shown."""
        until = asyncio.get_running_loop().time() + FIRST_LOOK_S
        self.services.first_lists = FirstLists(self.ownership.serving, pods, trials, until)

    def start(self) -> None:
        """Begin to work."""
        self._started_at = asyncio.get_running_loop().time()
        self.queue.start()
        self.statuses.start()

    async def close(self) -> None:
        """Stop working and release everything; pods continue."""
        await self.queue.close()
        await self.statuses.close()
        self._closing = True
        while self._opening:
            self._opening.popitem()[1].set_result(None)
        for key, controller in self._controllers.items():
            try:
                await controller.close()
            except Exception:  # the others are released all the same
                logger.exception("%s was not closed", key)

    # -- shards --

    def gain(self, shards: frozenset[int]) -> None:
        """Serve the experiments of these shards from now on."""
        for key, item in self.cache.experiments.items():
            if shard_of(str(item["metadata"].get("uid"))) in shards:
                self.queue.retry(key)

    async def release(self, shards: frozenset[int]) -> None:
        """Close the experiments of these shards, which `ownership` does not serve any more; their pods continue."""

        def left() -> list[str]:
            return [key for key, each in self._controllers.items() if shard_of(each.uid) in shards]

        for key in left():
            self.queue.retry(key)
        while left():
            await self._closed.wait()

    async def report_unserved(self, shards: Mapping[int, float]) -> None:
        """Write into the status of each experiment of these shards that no operator serves it, unless it says so.

        Only for the coordinator: no other replica writes these statuses. The next owner writes what is then.

        Args:
            shards: each with the seconds since when.
        """
        for key, item in list(self.cache.experiments.items()):
            number, status = shard_of(self._uid(key)), item.get("status") or {}
            if number not in shards or status.get("completionTime") or self.ownership.serves_shard(number):
                continue
            conditions = status.get("conditions") or []
            if any(each.get("reason") == Reason.NO_OPERATOR for each in conditions):
                continue
            message = (
                f"no operator has served this experiment (shard {number}) for {shards[number]:.0f} s; its trials "
                "continue and keep their results; `trialpod check` shows the operators"
            )
            observation = Observation(READY, "Unknown", Reason.NO_OPERATOR, message)
            generation = int(item["metadata"].get("generation", 0))
            changed = set_condition(conditions, observation, generation=generation, now=self.services.clock())
            namespace, name = key.split("/")
            try:
                body = {
                    "metadata": {"resourceVersion": item["metadata"]["resourceVersion"]},
                    "status": {"conditions": changed},
                }
                await self.services.kube.patch(paths.experiments(namespace), name, body, "status")
            except ApiError as error:
                logger.info("%s does not say yet that no replica serves it: %s", key, error)

    def own_experiments(self) -> dict[str, Object]:
        """Return the TuneExperiments that this operator serves, by their keys."""
        return {key: item for key, item in self.cache.experiments.items() if self.ownership.serves(self._uid(key))}

    def shard_loads(self) -> dict[int, int]:
        """Return how many experiments are open in each shard that this operator serves."""
        counts = Counter(shard_of(each.uid) for each in self._controllers.values() if each.open)
        return {number: counts[number] for number in sorted(self.ownership.serving)}

    def _uid(self, key: str) -> str:
        item = self.cache.experiments.get(key)
        return str(item["metadata"].get("uid") or "") if item is not None else ""

    # -- what the watches show --

    def on_experiment(self, item: Object, *, deleted: bool) -> None:
        """A TuneExperiment was made, changed or deleted."""
        before = self.cache.experiments.get(key_of(item))
        key = self.cache.update_experiment(item, deleted=deleted)
        if key not in self._controllers and not self.ownership.serves(self._uid(key)):
            return
        if deleted or before is None or _requested(item) != _requested(before):
            self.queue.retry(key)  # what a user asks for may be what lets it succeed
        else:
            self.queue.add(key)

    def on_trial(self, item: Object, *, deleted: bool) -> None:
        """A TuneTrial was made, changed or deleted."""
        shard = (item["metadata"].get("labels") or {}).get(names.SHARD_LABEL) or ""
        if shard.isdecimal() and not self.ownership.serves_shard(int(shard)) and not deleted:
            return  # it is read from the server when its experiment is opened
        key = self.cache.update_trial(item, deleted=deleted)
        controller = self._controllers.get(key) if key is not None else None
        if key is None or controller is None:
            return
        trial_id = str((item.get("spec") or {}).get("trialId"))
        shown = str((item.get("status") or {}).get("state") or "")
        if deleted or (item.get("spec") or {}).get("stop") or controller.contradicts(trial_id, shown):
            controller.trial_changed(trial_id)
            self.queue.add(key)

    def on_pod(self, item: Object, *, deleted: bool) -> None:
        """A pod was made, changed or deleted."""
        key = self.cache.update_pod(item, deleted=deleted)
        if key is None:
            return
        controller = self._controllers.get(key)
        if controller is not None:
            metadata = item["metadata"]
            controller.pod_changed(str(metadata["labels"].get(names.TRIAL_ID_LABEL, "")), metadata["name"])
        if controller is None and not self.ownership.serves(self._uid(key)):
            return
        if deleted or controller is None or _is_urgent(item):
            self.queue.add(key)
        else:
            self.queue.add_later(key, POD_CHANGE_S)

    # -- work --

    async def _reconcile(self, key: str) -> float | None:
        try:
            return await self._pass(key)
        finally:
            if key in self.cache.experiments:
                self._end_opening(key)

    def _end_opening(self, key: str) -> None:
        """Retry the calls that wait for an experiment: it is open, or a pass over it has ended."""
        if (opening := self._opening.pop(key, None)) is not None:
            opening.set_result(None)

    async def _pass(self, key: str) -> float | None:
        item = self.cache.experiments.get(key)
        controller = self._controllers.get(key)
        if controller is not None and not self.ownership.serves(controller.uid):
            await controller.hand_over(HAND_OVER_S)
            self._forget(key, controller)
            self.cache.forget_trials(key)
            controller = None
        if controller is not None and (item is None or item["metadata"].get("uid") != controller.uid):
            await controller.close()
            self._forget(key, controller)
            self.cache.forget(key)
            controller = None
        if item is None or not self.ownership.serves(self._uid(key)):
            return None
        if controller is None:
            uid = str(item["metadata"].get("uid"))
            controller = ExperimentController(key, uid, self._services_of(uid))
            self._controllers[key] = controller
        try:
            return await controller.reconcile(item)
        except NotServedError as error:
            logger.info("a pass of %s ends: %s", key, error)
            return 0.0  # the next one releases it

    async def _write_status(self, key: str) -> float | None:
        controller = self._controllers.get(key)
        if controller is None or controller.uid != self._uid(key) or not self.ownership.serves(controller.uid):
            return None  # a pass releases it
        try:
            return await controller.write_status()
        except NotServedError as error:
            logger.info("the status of %s is not written: %s", key, error)
            return None

    def _services_of(self, uid: str) -> Services:
        """Return the services for what is done for one experiment: it ends when another operator is given that."""
        number = shard_of(uid)
        return replace(self.services, kube=self._kube.on_behalf_of(lambda: self.ownership.serves_shard(number)))

    def _forget(self, key: str, controller: ExperimentController) -> None:
        controller.remove_files()
        del self._controllers[key]
        self._closed.set()
        self._closed = asyncio.Event()

    def record_outage(self, seconds: float) -> None:
        """Do at once what has failed meanwhile; have each open experiment tell that the API server did not answer."""
        self.queue.retry_failed()
        self.statuses.retry_failed()
        for key, controller in self._controllers.items():
            if controller.open:
                controller.record_outage(seconds)
                self.queue.add(key)

    def rest_s(self, key: str) -> float:
        """Return for how many seconds an experiment rests after a pass."""
        controller = self._controllers.get(key)
        return min(controller.size * REST_PER_ATTEMPT_S, MAX_REST_S) if controller is not None else 0.0

    def status_rest_s(self, key: str) -> float:
        """Return for how many seconds no status of an experiment and its trials is written after one was."""
        return self.rest_s(key) * STATUS_RESTS

    def _failed(self, key: str, error: BaseException) -> None:
        if isinstance(error, ApiError | NotReadyError):
            logger.warning("%s: %s", key, error)
        else:
            logger.error("%s could not be reconciled", key, exc_info=error)


def _requested(item: Object) -> tuple[Any, ...]:
    """Return what tells users' changes of a TuneExperiment from the operator's."""
    metadata = item["metadata"]
    return tuple(metadata.get(name) for name in ("uid", "generation", "deletionTimestamp", "annotations"))


def _is_urgent(pod: Object) -> bool:
    """Return whether something waits for what a pod shows: it ends, or others start, wait or continue with it."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata.get("deletionTimestamp") or status.get("phase") not in (None, "", "Pending", "Running"):
        return True
    return bool(_TOGETHER & (metadata.get("labels") or {}).keys())


_TOGETHER = frozenset((names.RANK_LABEL, names.OBJECT_LABEL, names.ROLE_LABEL, QUEUE_LABEL))
"""Labels of pods that are looked at together with others."""


def monotonic_epoch(clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock that continues where it was when the given one is set back.

    Else everything that waits for a time would wait longer by the step.

    Args:
        clock: seconds since the epoch.
    """
    ahead_s, latest = 0.0, clock()

    def read() -> float:
        nonlocal ahead_s, latest
        now = clock() + ahead_s
        if now < latest:
            ahead_s += latest - now
            now = latest
        latest = now
        return now

    return read
