"""Faults of the chaos in the cluster end when they should, and a run knows what it has not done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import cluster_chaos
from cluster_access import Cluster
from cluster_faults import Done, Faults, MissedError
from cluster_plan import KINDS, SHORT, Fault
from cluster_round import Report
from operator_release import Operator


class Recorded(Faults):
    """Faults that are done to nothing."""

    def __init__(self) -> None:
        super().__init__(Operator(Cluster("system")), Cluster("trials"))
        self.undone = threading.Event()

    def _store_stopped(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        undo.append(self.undone.set)
        return "minio"

    def _trial_cut_off(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        undo.append(self.undone.set)
        raise MissedError("no rule could be made")


def test_a_fault_that_lasts_ends_by_itself() -> None:
    faults = Recorded()
    done = faults.begin(Fault("store stopped", 0.0, 0.05, 0.0))
    assert faults.undone.wait(60)
    while faults.going:
        pass
    assert done.ended > done.began


def test_missed_fault_is_undone_at_once() -> None:
    faults = Recorded()
    done = faults.begin(Fault("trial cut off", 0.0, 60.0, 0.0))
    assert done.missed
    assert faults.undone.is_set()
    assert not faults.going
    faults.forget(done)
    assert faults.done == []


def _session(*kinds: str, missed: tuple[str, ...] = ()) -> list[Report]:
    report = Report(SHORT)
    report.done = [Done(Fault(kind, 0.0, 0.0, 0.0), 1.0, missed=kind in missed) for kind in kinds]
    return [report]


def test_a_session_tells_the_kinds_that_never_happened() -> None:
    assert cluster_chaos.never(_session(*KINDS)) == []
    assert cluster_chaos.never(_session(*KINDS, missed=("node lost",))) == ["node lost"]
    table = cluster_chaos.table(_session(*KINDS, missed=("node lost",))).splitlines()
    (line,) = [line for line in table if line.startswith("node lost")]
    assert line.split()[2] == "0"


def test_every_kind_of_fault_can_be_done() -> None:
    known: dict[str, Any] = vars(Faults)
    assert [kind for kind in KINDS if "_" + kind.lower().replace(" ", "_").replace("-", "_") not in known] == []
