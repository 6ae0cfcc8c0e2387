"""Deliberate defects: each takes away one of the rules that the system rests on. The oracles have to notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
from sim_kernel import PROCESS
from sim_plan import KINDS, Fault, Plan, plan_of

from trialpod.storage import remote_checkpoints
from trialpod.storage.base import KeyExistsError
from trialpod.storage.remote_checkpoints import RemoteCheckpoints
from trialpod.storage.uploads import CheckpointWriter
from trialpod_operator.cluster.hosted import HostedExperiment
from trialpod_operator.engine import attempts
from trialpod_operator.engine import results as engine_results
from trialpod_operator.engine.engine import Engine
from trialpod_operator.experiment.mirror import Mirror
from trialpod_operator.experiment.stored_files import StoredFiles
from trialpod_operator.reports import service

Put = Callable[[Any, str, Any], None]
"""monkeypatch.setattr"""


def answer_before_commit(put: Put) -> None:
    """Answers call durable what the storage does not have."""
    put(HostedExperiment, "committed", lambda _self: None)


def no_fencing(put: Put) -> None:
    """A journal's object that another operator has made is replaced."""

    def create(self: Mirror, key: str, data: bytes) -> None:
        self._storage.write(key, data)

    put(Mirror, "_create", create)


def no_seal(put: Put) -> None:
    """A snapshot replaces records that it does not know."""
    put(Mirror, "_seal_before", lambda _self, _number: None)


def anothers_write_taken_for_ones_own(put: Put) -> None:
    """An object of another operator is taken for one of ours whose answer was lost."""

    def create(self: Mirror, key: str, data: bytes) -> None:
        with contextlib.suppress(KeyExistsError):  # nobody looks whose it is
            self._storage.write_new(key, data)

    put(Mirror, "_create", create)


def duplicate_not_recognised(put: Put) -> None:
    """A report that comes twice counts twice."""

    def apply(experiment: Any, request: Any, answer: Any) -> Any:
        if request.results and request.first <= answer.received and not answer.superseded:
            request = msgspec.structs.replace(request, first=answer.received + 1)
        return right(experiment, request, answer)

    right = service._apply
    put(service, "_apply", apply)


def no_proof(put: Put) -> None:
    """An operator ends processes on what it knows, which may not be the latest."""
    put(HostedExperiment, "prove", lambda _self: None)


def no_mark_of_removal(put: Put) -> None:
    """What is written where the journal was removed counts as committed."""
    put(Mirror, "_refuse_removed", lambda _self, _segment: None)


def older_files_come_back(put: Put) -> None:
    """A file is replaced whatever stands there, by whoever, and before its records are in the storage."""
    put(Mirror, "_copy_records_of_files", lambda _self: None)
    put(StoredFiles, "write", lambda self, key, data, _refuse: self._storage.write(key, data))


def deleted_checkpoints_come_back(put: Put) -> None:
    """A late report of a checkpoint that is deleted since makes it known again."""

    def keep(engine: Any, trial: Any, committed: list[Any]) -> None:
        trial.next_checkpoint_index, before = 0, trial.next_checkpoint_index
        known = {info.name for info in trial.checkpoints}
        right(engine, trial, [info for info in committed if info.name not in known])
        trial.next_checkpoint_index = max(before, trial.next_checkpoint_index)

    right = engine_results.keep_checkpoints
    put(engine_results, "keep_checkpoints", keep)
    put(attempts, "keep_checkpoints", keep)


def attempt_not_checked(put: Put) -> None:
    """An attempt that was replaced speaks for the one that replaced it."""

    def answer(self: Engine, trial_id: str, attempt: int) -> Any:
        trial = self.state.trials.get(trial_id)
        return right(self, trial_id, trial.attempt if trial is not None else attempt)

    def apply(experiment: Any, request: Any, known: Any) -> Any:
        host = experiment._ready()[0].host
        trial = host.engine.state.trials.get(request.trial_id)
        if trial is not None:
            request = msgspec.structs.replace(request, attempt=trial.attempt)
        return right_apply(experiment, request, known)

    right, right_apply = Engine.answer, service._apply
    put(Engine, "answer", answer)
    put(service, "_apply", apply)


def manifest_first(put: Put) -> None:
    """A checkpoint is there before its files are."""

    def commit(self: RemoteCheckpoints, index: int, **options: Any) -> Any:
        kept = remote_checkpoints.Upload.run

        def run(upload: Any, threads: int, progress: Any = None) -> Any:
            entries = kept(_Nowhere(upload), threads, progress)
            upload.later = True
            return entries

        remote_checkpoints.Upload.run = run  # type: ignore[method-assign]
        try:
            return right(self, index, **options)
        finally:
            remote_checkpoints.Upload.run = kept  # type: ignore[method-assign]

    right = RemoteCheckpoints.commit
    put(RemoteCheckpoints, "commit", commit)


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

    def submit(self: CheckpointWriter, info: Any) -> None:
        self._announce(info)
        right(self, info)

    right = CheckpointWriter.submit
    put(CheckpointWriter, "submit", submit)


def decision_forgotten_on_restart(put: Put) -> None:
    """A restart chooses anew instead of taking what was chosen from the record."""

    def apply(self: Engine, event: Any, now: float, recorded: Any = None) -> Any:
        if recorded is not None and PROCESS.get() is not None:  # not in the checks afterwards
            recorded = type(recorded)()
        return right(self, event, now, recorded)

    right = Engine.apply
    put(Engine, "apply", apply)


def superseded_attempts_write(put: Put) -> None:
    """An attempt that was replaced goes on in the storage: it claims, commits and removes."""

    def sweep(self: RemoteCheckpoints, known: Any, *, attempt: int | None = None) -> Any:
        return right(self, known)

    right = RemoteCheckpoints.sweep
    put(RemoteCheckpoints, "sweep", sweep)
    put(RemoteCheckpoints, "_refuse_superseded", lambda _self, _keys, _attempt: None)
    put(RemoteCheckpoints, "_claim", lambda self, index, _attempt, parts: self._claimed.__setitem__(index, parts))


def clock_taken_as_it_is(put: Put) -> None:
    """What is due waits until a clock that was set back comes there again."""
    from trialpod_operator.cluster import controller
    from trialpod_operator.experiment.host import ExperimentHost

    put(controller, "steady", lambda clock: clock)
    put(ExperimentHost, "now", lambda self: self._clock())


Defect = Callable[[Put], None]

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
    older_files_come_back: (*_TWO, "two operators", "more samples", "operator replaced"),
    deleted_checkpoints_come_back: _LATE,
    attempt_not_checked: (*_GONE, *_LATE),
    manifest_first: (),
    announced_before_commit: ("attempt dies", "store away", "store slow"),
    decision_forgotten_on_restart: ("operator dies", "operator replaced"),
    superseded_attempts_write: _GONE,
    clock_taken_as_it_is: ("operator clock jumps", "operator clock jumps", *(("pod vanishes",) * 5)),
}
"""And the faults in whose company each shows."""


def provoking(seed: int, kinds: tuple[str, ...]) -> Plan:
    """Return a seed's plan with these kinds of faults in the place of its own."""
    import random

    assert set(kinds) <= set(KINDS)
    choose = random.Random(f"provoke {seed}")
    plan = plan_of(seed)
    faults = []
    for kind in kinds:
        for _ in range(choose.choice([1, 2, 3])):
            at = round(0.5 + choose.random() * 12.0, 3)
            for_s = round(choose.choice([2.0, 8.0, 20.0]) * choose.random(), 3)
            faults.append(Fault(kind, at, for_s, round(choose.random(), 4)))
    return plan.with_faults(tuple(sorted(faults, key=lambda fault: fault.at)))
