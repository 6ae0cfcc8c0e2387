"""When an experiment's status says that somebody else writes it, or that its journal is in pieces."""

from __future__ import annotations

from trialpod_operator.cluster.fencing import OPENINGS, TAKEN, WITHIN_S, Fencing
from trialpod_operator.experiment.late_objects import FencedError

OTHER = FencedError("another process writes this experiment")
GAP = FencedError("the journal has a gap")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def reason(fencing: Fencing) -> str:
    problem = fencing.problem()
    return problem.reason if problem is not None else ""


def test_a_takeover_is_no_conflict() -> None:
    fencing = Fencing(Clock())
    for _ in range(TAKEN - 1):
        fencing.taken(OTHER)
    assert reason(fencing) == ""


def test_what_is_taken_again_and_again_is_one_until_it_rests() -> None:
    clock = Clock()
    fencing = Fencing(clock)
    for _ in range(TAKEN):
        fencing.taken(OTHER)
        clock.now += 10.0
    assert reason(fencing) == "StorageConflict"
    clock.now += fencing.over_in() or 0.0
    assert (reason(fencing), fencing.over_in()) == ("", None)


def test_what_is_taken_now_and_then_is_none() -> None:
    clock = Clock()
    fencing = Fencing(clock)
    for _ in range(3 * TAKEN):
        fencing.taken(OTHER)
        clock.now += WITHIN_S / 2
    assert reason(fencing) == ""


def test_an_error_of_another_kind_is_nobodys_conflict() -> None:
    fencing = Fencing(Clock())
    for _ in range(TAKEN):
        fencing.taken(OSError("the disk is full"))
    assert reason(fencing) == ""


def test_a_journal_in_pieces_is_told_when_it_stays_so_and_over_when_it_opens() -> None:
    fencing = Fencing(Clock())
    for _ in range(OPENINGS):
        fencing.refused(GAP)
    assert reason(fencing) == ""
    fencing.refused(GAP)
    problem = fencing.problem()
    assert problem is not None
    assert (problem.reason, problem.stalled) == ("JournalDamaged", True)
    assert problem.message.startswith("the journal has a gap; ")
    fencing.opened()
    assert fencing.problem() is None
