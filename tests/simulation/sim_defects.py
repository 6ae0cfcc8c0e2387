"""Deliberate defects: each takes away one of the rules that the system rests on. The oracles have to notice."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from sim_kernel import PROCESS
from sim_plan import KINDS, Fault, Plan, placed_plan_of, plain_plan_of, wide_plan_of

from trialpod.protocol.client import ReportClient
from trialpod.protocol.messages import ReportRequest
from trialpod.storage.base import KeyExistsError
from trialpod.storage.checkpoints import remote
from trialpod.storage.checkpoints.commit_queue import CommitQueue
from trialpod.storage.checkpoints.remote import RemoteCheckpointStore
from trialpod.tune.session import Session
from trialpod_operator.cluster import deletion, experiment_controller, experiment_plan
from trialpod_operator.cluster.controller import Controller
from trialpod_operator.cluster.experiment_controller import ExperimentController
from trialpod_operator.cluster.experiment_storage import ExperimentStorage
from trialpod_operator.cluster.kube import Kube
from trialpod_operator.cluster.pods import bindings, reuse
from trialpod_operator.cluster.pods.diagnostics import AttemptEndings
from trialpod_operator.cluster.pods.group import Group
from trialpod_operator.cluster.pods.reuse import IdlePods
from trialpod_operator.cluster.shards import membership
from trialpod_operator.cluster.shards.assignment import SHARDS, Member, ShardMap
from trialpod_operator.cluster.shards.membership import Membership
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment import stored
from trialpod_operator.experiment.durable import DurableExperiment
from trialpod_operator.experiment.replica.journal import JournalReplica
from trialpod_operator.experiment.replica.post_delete_cleanup import PostDeleteCleanup
from trialpod_operator.reports import service
from trialpod_operator.reports.service import ReportService

Put = Callable[[Any, str, Any], None]
"""monkeypatch.setattr"""


def answer_before_commit(put: Put) -> None:
    """Answers call durable what the storage does not have."""
    put(DurableExperiment, "committed", lambda _self: None)


def no_fencing(put: Put) -> None:
    """A journal's object that another operator has made is replaced."""

    def create(self: JournalReplica, key: str, data: bytes) -> tuple[int, bool]:
        self._storage.write(key, data)
        return len(data), True

    put(JournalReplica, "_put", create)


def no_seal(put: Put) -> None:
    """A snapshot replaces records that it does not know."""
    put(JournalReplica, "_seal_before", lambda _self, _number: None)


def anothers_write_taken_for_ones_own(put: Put) -> None:
    """An object of another operator is taken for one of ours whose answer was lost."""

    def create(self: JournalReplica, key: str, data: bytes) -> tuple[int, bool]:
        with contextlib.suppress(KeyExistsError):  # nobody looks whose it is
            self._storage.write_new(key, data)
        return len(data), True

    put(JournalReplica, "_put", create)


def duplicate_not_recognised(put: Put) -> None:
    """A report that comes twice counts twice."""

    def receive(served: Any, request: Any, received: int | None) -> Any:
        if request.results and received is not None and request.first <= received:
            request = msgspec.structs.replace(request, first=received + 1)
        return right(served, request, received)

    right = service._receive
    put(service, "_receive", receive)


def no_proof(put: Put) -> None:
    """An operator ends processes on what it knows, which may not be the latest."""
    put(DurableExperiment, "require_fencing_check", lambda _self: None)


def no_mark_of_removal(put: Put) -> None:
    """What is written where the journal was removed counts as committed."""
    put(JournalReplica, "_refuse_removed", lambda _self, _segment: None)


def deleted_checkpoints_come_back(put: Put) -> None:
    """A late report of a checkpoint that is deleted since makes it known again."""

    def add(trial: Any, committed: list[Any], now: float) -> bool:
        trial.next_checkpoint_index, before = 0, trial.next_checkpoint_index
        known = {info.name for info in trial.checkpoints}
        added = right(trial, [info for info in committed if info.name not in known], now)
        trial.next_checkpoint_index = max(before, trial.next_checkpoint_index)
        return added

    right = Trial.add_checkpoints
    put(Trial, "add_checkpoints", add)


def attempt_not_checked(put: Put) -> None:
    """An attempt that was replaced speaks for the one that replaced it."""

    def answer(self: Engine, trial_id: str, attempt: int) -> Any:
        trial = self.state.trials.get(trial_id)
        return right(self, trial_id, trial.attempt if trial is not None else attempt)

    def report(self: ReportService, served: Any, body: bytes, caller: Any) -> Any:
        request = msgspec.msgpack.decode(body, type=ReportRequest)
        trial = served.experiment.engine.state.trials.get(request.trial_id)
        if trial is not None:
            request = msgspec.structs.replace(request, attempt=trial.attempt)
        return right_report(self, served, msgspec.msgpack.encode(request), caller)

    right, right_report = Engine.answer, ReportService._report
    put(Engine, "answer", answer)
    put(ReportService, "_report", report)


def manifest_first(put: Put) -> None:
    """A checkpoint is there before its files are."""

    def commit(self: RemoteCheckpointStore, index: int, **options: Any) -> Any:
        kept = remote.Upload.run

        def run(upload: Any, threads: int, progress: Any = None) -> Any:
            entries = kept(_Nowhere(upload), threads, progress)
            upload.later = True
            return entries

        remote.Upload.run = run  # type: ignore[method-assign]
        try:
            return right(self, index, **options)
        finally:
            remote.Upload.run = kept  # type: ignore[method-assign]

    right = RemoteCheckpointStore.commit
    put(RemoteCheckpointStore, "commit", commit)


class _Nowhere:
    """An upload whose files do not arrive."""

    def __new__(cls, upload: Any) -> Any:
        storage = upload._storage

        class Storage:
            def __getattr__(self, name: str) -> Any:
                return getattr(storage, name)

            def put_file(self, local: Any, key: str, **_: Any) -> int:
                import zlib

                return zlib.crc32(local.read_bytes())

        upload._storage = Storage()
        return upload


def announced_before_commit(put: Put) -> None:
    """A checkpoint is announced when it is taken, not when it is stored."""

    def submit(self: CommitQueue, info: Any) -> None:
        self._announce(info)
        right(self, info)

    right = CommitQueue.submit
    put(CommitQueue, "submit", submit)


def decision_forgotten_on_restart(put: Put) -> None:
    """A restart chooses again instead of taking what was chosen from the record."""

    def apply(self: Engine, event: Any, now: float, recorded: Any = None) -> Any:
        if recorded is not None and PROCESS.get() is not None:  # not in the checks afterwards
            recorded = type(recorded)()
        return right(self, event, now, recorded)

    right = Engine.apply
    put(Engine, "apply", apply)


def superseded_attempts_write(put: Put) -> None:
    """An attempt that was replaced continues in the storage: it claims, commits and removes."""

    def sweep(self: RemoteCheckpointStore, known: Any, *, attempt: int | None = None) -> Any:
        return right(self, known)

    right = RemoteCheckpointStore.sweep
    put(RemoteCheckpointStore, "sweep", sweep)
    put(RemoteCheckpointStore, "_refuse_superseded", lambda _self, _keys, _attempt: None)
    put(RemoteCheckpointStore, "_claim", lambda self, index, _attempt, parts: self._claimed.__setitem__(index, parts))


def clock_taken_as_it_is(put: Put) -> None:
    """What is due waits until a clock that was set back comes there again."""
    from trialpod_operator.cluster import controller
    from trialpod_operator.experiment.journaled_engine import JournaledEngine

    put(controller, "monotonic_epoch", lambda clock: clock)
    put(JournaledEngine, "now", lambda self: self._clock())


# -- several experiments --


def experiments_mixed_up(put: Put) -> None:
    """Who asks for one experiment gets any, and nobody looks who asks."""

    def find(self: Controller, _name: str) -> Any:
        return next((each.served() for each in self._controllers.values() if each.open), None)

    put(Controller, "find", find)
    put(ExperimentController, "permits", lambda _self, _caller, _trial_id: "")
    put(ExperimentController, "admits", lambda _self, _caller, _trial_id, _attempt: "")


def one_folder_for_all(put: Put) -> None:
    """All experiments of an operator work in the same folder."""
    put(ExperimentStorage, "work_dir", property(lambda self: Path(self._services.options.work_dir) / "here"))


def namespaces_overlooked(put: Put) -> None:
    """Experiments are distinguished by their names alone."""

    def find(self: Controller, name: str) -> Any:
        plain = name.rpartition("/")[2]
        found = (each for key, each in self._controllers.items() if key.rpartition("/")[2] == plain)
        return next((each.served() for each in found if each.open), None)

    put(Controller, "find", find)
    put(ExperimentController, "permits", lambda _self, _caller, _trial_id: "")
    put(ExperimentController, "admits", lambda _self, _caller, _trial_id, _attempt: "")


def a_place_is_anybodys(put: Put) -> None:
    """What is stored is continued, also what another process stored."""
    for module in (experiment_plan, experiment_controller):
        put(module, "refuse_other", lambda *_: None)


def deleted_whosever_it_is(put: Put) -> None:
    """Who deletes an experiment deletes what is in its place."""
    put(deletion, "namespace_in", lambda _stored: "")


# -- reused pods --


def deleted_places_are_written(put: Put) -> None:
    """Who was stopped does not look whether the place was deleted meanwhile."""
    put(PostDeleteCleanup, "_holder", lambda self: self.journal)


def one_journal_in_a_place(put: Put) -> None:
    """An experiment's journal has the id of the one that was deleted before in its place."""
    put(stored, "draw_journal_id", lambda: "0123456789abcdef")


def told_before_it_is_labelled(put: Put) -> None:
    """A pod gets its next attempt while its labels say something else."""

    async def bind(self: IdlePods, idle: Any, runs: Any) -> None:
        if idle.binding is not None and reuse._is_current(idle, runs):
            self._answer(idle, idle.binding)

    put(IdlePods, "_bind", bind)
    put(IdlePods, "is_bound", lambda _self, _run: True)


def pods_wait_forever(put: Put) -> None:
    """A pod for which nothing can come any more is kept."""
    put(reuse, "IDLE_TIMEOUT_S", 1e9)
    put(bindings, "max_idle_pods", lambda _engine, _running: None)


# -- functions --


def counters_restart(put: Put) -> None:
    """A function's attempt continues with the state that was restored, and counts from 1."""

    def begin(self: Session, *args: Any, **options: Any) -> None:
        right(self, *args, **{**options, "restored": None})

    right = Session.__init__
    put(Session, "__init__", begin)


def checkpoint_not_handed_over(put: Put) -> None:
    """A function's attempt continues counting, and the function begins again."""

    def begin(self: Session, *args: Any, **options: Any) -> None:
        right(self, *args, **{**options, "checkpoint": None})

    right = Session.__init__
    put(Session, "__init__", begin)


def copied_after_the_report(put: Put) -> None:
    """What a function has reported as a checkpoint is read when it is stored, not when it is reported."""

    def commit(self: RemoteCheckpointStore, index: int, **options: Any) -> Any:
        if folder := later.pop((id(self), index), None):
            snapshot(self, index, folder)
        return right(self, index, **options)

    def take(self: RemoteCheckpointStore, index: int, source: Any = None) -> int:
        if source is not None:
            later[id(self), index] = source
        return snapshot(self, index, source)

    later: dict[tuple[int, int], Any] = {}
    right, snapshot = RemoteCheckpointStore.commit, RemoteCheckpointStore.snapshot
    put(RemoteCheckpointStore, "commit", commit)
    put(RemoteCheckpointStore, "snapshot", take)


def commits_behind_a_deletion(put: Put) -> None:
    """Who has stored a checkpoint does not look whether its experiment is still there."""
    put(RemoteCheckpointStore, "_refuse_deleted", lambda _self, _name: None)


# -- workers --


def a_heads_failure_is_believed(put: Put) -> None:
    """Of a group's failures the head's counts, whatever its workers show."""
    put(Group, "judge_report", lambda _self, end, _now, **_: end)
    put(Group, "judge_read", lambda _self, ending, _now: ending)


def a_completion_hides_a_workers_failure(put: Put) -> None:
    """What a head says of its end counts, also after a worker's failure was seen."""
    put(AttemptEndings, "record_group", lambda self, run, now: self._pods.groups.record(run, now))


# -- several active operators --


def shards_taken_without_release(put: Put) -> None:
    """The heir of a shard does not wait until its owner has released it."""

    def advance(current: Any, members: Any, _overdue: Any = ()) -> Any:
        return right(current, members, range(SHARDS))

    right = membership.advance
    put(membership, "advance", advance)


def silence_taken_for_death(put: Put) -> None:
    """A replica counts as dead while it may still act."""

    def is_dead(self: Membership, item: Any) -> bool:
        return self._monotonic() - self._changed[item["metadata"]["name"]][1] >= 1.5

    put(Membership, "_is_dead", is_dead)


def dead_replicas_keep_their_shards(put: Put) -> None:
    """Nobody takes over from a replica that does not renew its Lease."""
    right = Membership._is_dead
    put(Membership, "_is_dead", lambda self, item: item["metadata"]["name"] == self._name and right(self, item))


def each_computes_what_it_serves(put: Put) -> None:
    """A replica follows what it sees of the others, not the map that is written."""

    def follow(self: Membership, shard_map: Any, found: Any, began: float) -> None:
        seen = {name.removeprefix(f"{self._name}-"): Member() for name in found} or {self._identity: Member()}
        mine = advance(ShardMap(), seen)
        right(self, msgspec.structs.replace(mine, version=shard_map.version), found, began)

    right, advance = Membership._follow, membership.advance
    put(Membership, "_follow", follow)


def expired_leases_are_good(put: Put) -> None:
    """A replica that was stopped acts on what it knew, without looking at its Lease."""
    put(Membership, "lease_valid", lambda _self: True)


def passes_finish_for_others(put: Put) -> None:
    """What a pass has begun it finishes, also when another operator was given its experiment meanwhile."""
    right = Kube._check_allowed
    put(Kube, "_check_allowed", lambda self, method, path, _serves: right(self, method, path, None))


def redirects_last_forever(put: Put) -> None:
    """A pod that was sent to an operator never asks another one again."""

    def redirect(self: ReportClient, target: str) -> None:
        if target:
            right(self, target)

    right = ReportClient._redirect
    put(ReportClient, "_redirect", redirect)


Defect = Callable[[Put], None]

SHARED = "several operators"
_TWO = ("two operators", "operator paused", "operator dies")
_LATE = ("messages duplicated", "messages delayed", "answers lost")
_GONE = ("node comes back", "pod paused", "pod vanishes")

DEFECTS: dict[Defect, tuple[str, ...]] = {
    answer_before_commit: ("operator dies", "store slow", "store away"),
    no_fencing: _TWO,
    no_seal: ("two operators",) * 3,
    anothers_write_taken_for_ones_own: _TWO,
    duplicate_not_recognised: _LATE,
    no_proof: ("two operators", "operator paused", "pod vanishes"),
    no_mark_of_removal: ("two operators",) * 3,
    deleted_checkpoints_come_back: _LATE,
    attempt_not_checked: (*_GONE, *_LATE),
    manifest_first: (),
    announced_before_commit: ("attempt dies", "store away", "store slow"),
    decision_forgotten_on_restart: ("operator dies", "operator replaced"),
    superseded_attempts_write: _GONE,
    experiments_mixed_up: (),
    one_folder_for_all: (),
    namespaces_overlooked: (),
    a_place_is_anybodys: (),
    deleted_whosever_it_is: ("experiment deleted",),
    deleted_places_are_written: ("store slow", "operator paused", "experiment deleted"),
    one_journal_in_a_place: ("store slow", "operator paused", "experiment deleted"),
    told_before_it_is_labelled: (),
    pods_wait_forever: (),
    counters_restart: ("pod vanishes",) * 3,
    checkpoint_not_handed_over: ("pod vanishes",) * 3,
    copied_after_the_report: ("store slow", "pod vanishes", "pod vanishes", "operator paused"),
    commits_behind_a_deletion: ("experiment deleted", *(("node comes back",) * 4)),
    a_heads_failure_is_believed: ("pod vanishes",) * 3,
    a_completion_hides_a_workers_failure: ("attempt dies",),
    shards_taken_without_release: ("operator joins",) * 3,
    silence_taken_for_death: ("operator without API", "operator paused"),
    dead_replicas_keep_their_shards: ("operator paused",) * 3,
    each_computes_what_it_serves: ("operator joins", "operator without API", "operator dies"),
    expired_leases_are_good: ("operator paused",) * 3,
    passes_finish_for_others: ("pass held up",) * 3,
    redirects_last_forever: ("operator dies",) * 3,
    clock_taken_as_it_is: ("operator clock jumps", "operator clock jumps", *(("pod vanishes",) * 5)),
}
"""And the faults in whose company each shows."""

WITHIN: dict[Defect, str] = {
    experiments_mixed_up: "several experiments",
    one_folder_for_all: "several experiments",
    namespaces_overlooked: "several namespaces",
    a_place_is_anybodys: "one place for two",
    deleted_whosever_it_is: "one place for two",
    deleted_places_are_written: "several namespaces",
    one_journal_in_a_place: "several namespaces",
    told_before_it_is_labelled: "reusePods",
    pods_wait_forever: "reusePods",
    counters_restart: "function",
    checkpoint_not_handed_over: "function",
    copied_after_the_report: "function",
    commits_behind_a_deletion: "several namespaces",
    a_heads_failure_is_believed: "workers",
    a_completion_hides_a_workers_failure: "workers apart",
    shards_taken_without_release: SHARED,
    silence_taken_for_death: SHARED,
    dead_replicas_keep_their_shards: SHARED,
    each_computes_what_it_serves: SHARED,
    expired_leases_are_good: SHARED,
    passes_finish_for_others: SHARED,
    redirects_last_forever: SHARED,
}
"""And the features; the others show in plain experiments."""


def provoking(seed: int, defect: Defect) -> Plan:
    """Return a plan in which a defect may show: a seed's, with other faults in the place of its own."""
    kinds = DEFECTS[defect]
    assert set(kinds) <= set(KINDS)
    choose = random.Random(f"provoke {seed}")
    plan = plain_plan_of(seed)
    feature = WITHIN.get(defect)
    if feature == SHARED:
        plan = replace(wide_plan_of(seed), operators=2)
    elif feature:
        plan = next(
            found for n in itertools.count() if feature in (found := placed_plan_of(seed + 1000 * n)).features
        )
    if defect in (deleted_places_are_written, one_journal_in_a_place):
        return plan.with_faults(_around_a_deletion(seed))
    faults = []
    for kind in kinds:
        for _ in range(choose.choice([1, 2, 3])):
            at = round(0.5 + choose.random() * 12.0, 3)
            for_s = round(choose.choice([2.0, 8.0, 20.0]) * choose.random(), 3)
            faults.append(Fault(kind, at, for_s, round(choose.random(), 4)))
    return plan.with_faults(tuple(sorted(faults, key=lambda fault: fault.at)))


def _around_a_deletion(seed: int) -> tuple[Fault, ...]:
    """Return faults that stop operators for long in the middle of a write, while another one deletes the place."""
    choose = random.Random(f"x {seed}")
    at = round(2.0 + choose.random() * 10.0, 3)
    faults = []
    for _ in range(2):
        began, lasts = max(0.3, at - choose.random() * 3.0), 12.0 + choose.random() * 14.0
        faults.append(Fault("operator paused", round(began, 3), round(lasts, 3), round(choose.random(), 4)))
    faults.append(Fault("experiment deleted", at, 0.5, round(choose.random(), 4)))
    faults.append(Fault("store slow", round(max(0.2, at - 3.0), 3), 12.0, round(choose.random(), 4)))
    return tuple(sorted(faults, key=lambda fault: fault.at))
