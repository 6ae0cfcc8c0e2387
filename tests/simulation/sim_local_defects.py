"""Deliberate defects on one machine: each takes away a rule, and the oracles have to notice."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sim_local
from sim_local_plan import LOCAL_KINDS, LocalPlan, earlier_local_plan_of
from sim_plan import PLAIN_CLASS, Fault
from sim_world import Journals

from trialpod.protocol.messages import AttemptEnd
from trialpod.storage.base import KeyExistsError
from trialpod.storage.checkpoints.local import LocalCheckpointStore
from trialpod.storage.journal import journal
from trialpod_operator.engine.engine import Engine
from trialpod_operator.experiment.durable import DurableExperiment
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.replica.journal import JournalReplica
from trialpod_operator.experiment.trial_files import TrialFiles
from trialpod_operator.local import workers
from trialpod_operator.local.shell import LocalShell

Put = Callable[[Any, str, Any], None]
"""monkeypatch.setattr"""


def attempts_begin_unknown(put: Put) -> None:
    """An attempt begins before the bucket knows of it, and removes what another machine's has stored."""

    async def at_once(_self: LocalShell, reply: Any) -> Any:
        return reply if not hasattr(reply, "__await__") else await reply

    put(LocalShell, "_once_stored", at_once)


def replaced_segments_go_at_once(put: Put) -> None:
    """What a snapshot replaces is removed before it is copied: nobody can tell any more whose the copy is."""

    def opened(self: Any, directory: Any, **_: Any) -> Any:
        made = sim_local.SimJournal.open(directory)
        self._world_of().journals.append(made)
        return made

    put(Journals, "open", opened)


def removed_before_it_is_known(put: Put) -> None:
    """An attempt removes checkpoints while the bucket's journal still counts on them."""
    put(DurableExperiment, "_known_as_released", lambda _self, _trial, names: names)


def nobody_is_fenced(put: Put) -> None:
    """What another machine made of the journal is taken for one's own."""

    def create(self: JournalReplica, key: str, data: bytes) -> tuple[int, bool]:
        with contextlib.suppress(KeyExistsError):
            self._storage.write_new(key, data)
        return len(data), True

    put(JournalReplica, "_put", create)
    put(JournalReplica, "_refuse_outdated", lambda _self: None)


def the_lock_is_not_looked_at(put: Put) -> None:
    """Two runs of one experiment on one machine."""

    def acquire(self: Any, *_: Any, **__: Any) -> Any:
        self._mine.box.directory.mkdir(exist_ok=True)
        return self

    put(sim_local._Lock, "acquire", acquire)


def a_torn_end_stays(put: Put) -> None:
    """Records are added behind one that was not written to its end."""

    class Os:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def ftruncate(self, _descriptor: int, _length: int) -> None: ...

    real = journal.os
    put(journal, "os", Os())


def done_before_it_is_recorded(put: Put) -> None:
    """What follows from an event is carried out before the journal has it."""

    def apply(self: JournaledEngine, event: Any, *given: Any) -> None:
        perform, held = self._perform, list[Any]()
        self._perform = held.append
        append = self._journal.append

        def late(record: bytes) -> int:
            with contextlib.suppress(Exception):
                return append(record)
            return self._journal.position

        put(self._journal, "append", late)
        try:
            right(self, event, *given)
        finally:
            self._perform = perform
            put(self._journal, "append", append)
        for action in held:
            perform(action)

    right = JournaledEngine.apply
    put(JournaledEngine, "apply", apply)


def files_resume_at_their_ends(put: Put) -> None:
    """After a restart the trials' files keep what is written again."""

    def resume(self: TrialFiles, trials: Any) -> None:
        self.resumed.clear()
        right(self, trials)

    right = TrialFiles.resume
    put(TrialFiles, "resume", resume)


def the_fork_servers_death_is_the_trials(put: Put) -> None:
    """A trial whose fork server died has failed."""

    def describe(info: Any) -> AttemptEnd:
        return AttemptEnd(cause="failed", error=str(info)) if info.lost else right(info)

    right = workers.describe_exit
    put(workers, "describe_exit", describe)


def running_trials_are_forgotten(put: Put) -> None:
    """A new run takes the attempts of the one before for its own."""

    def apply(self: Engine, event: Any, *args: Any, **options: Any) -> Any:
        return [] if type(event).__name__ == "Recovered" else right(self, event, *args, **options)

    right = Engine.apply
    put(Engine, "apply", apply)


def unfinished_checkpoints_count(put: Put) -> None:
    """A checkpoint is there before it is complete."""

    def publish_first(self: LocalCheckpointStore, staging: str, data: bytes) -> None:
        right(self, staging, data[: len(data) // 2] if sim_local.kernel().random.random() < 0.2 else data)

    right = LocalCheckpointStore._write_manifest
    put(LocalCheckpointStore, "_write_manifest", publish_first)


LocalDefect = Callable[[Put], None]
_ENDS = ("run dies", "run killed", "run told to end")

LOCAL_DEFECTS: dict[LocalDefect, tuple[bool, tuple[str, ...]]] = {
    attempts_begin_unknown: (True, ("another machine takes over",) * 2),
    replaced_segments_go_at_once: (True, ("run told to end", "store answers lost", "store away")),
    removed_before_it_is_known: (True, ("machine lost",) * 3),
    nobody_is_fenced: (True, ("another machine takes over",) * 2),
    the_lock_is_not_looked_at: (False, ("second run",)),
    a_torn_end_stays: (False, ("run dies",) * 4),
    done_before_it_is_recorded: (False, ("disk full", *_ENDS)),
    files_resume_at_their_ends: (False, _ENDS),
    the_fork_servers_death_is_the_trials: (False, ("fork server dies",) * 2),
    running_trials_are_forgotten: (False, _ENDS),
    unfinished_checkpoints_count: (False, ()),
}
"""Whether it shows in a bucket, and the faults in whose company."""

SPECS: dict[LocalDefect, dict[str, Any]] = {
    removed_before_it_is_known: {
        "checkpoint": {"frequency": 1, "numToKeep": 1},
        "trainable": {"entrypoint": PLAIN_CLASS},
    },
}
"""And what the experiment's user must ask for."""


def provoking_locally(seed: int, defect: LocalDefect) -> LocalPlan:
    """Return a plan in which a defect may show: a seed's, with other faults in the place of its own."""
    bucket, kinds = LOCAL_DEFECTS[defect]
    assert set(kinds) <= set(LOCAL_KINDS)
    choose = random.Random(f"provoke {seed}")
    plan = next(found for n in range(100) if (found := earlier_local_plan_of(seed + 1000 * n)).bucket == bucket)
    faults = [
        Fault(
            kind,
            round(0.5 + choose.random() * 12.0, 3),
            round(choose.choice([2.0, 8.0, 20.0]) * choose.random(), 3),
            round(choose.random(), 4),
        )
        for kind in kinds
        for _ in range(choose.choice([1, 2, 3]))
    ]
    plan = replace(plan, spec={**plan.spec, **SPECS.get(defect, {})})
    return plan.with_faults(tuple(sorted(faults, key=lambda fault: fault.at)))
