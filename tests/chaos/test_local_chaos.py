"""Three short rounds of chaos with fixed plans, and what a plan promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from local_chaos import Rounds
from local_checks import LAST_SECONDS, attempts_of, held_up, violations
from local_plan import ALGORITHMS, ALL_KINDS, Fault, plan_of
from local_round import Done, Round


def test_a_seed_is_always_the_same_plan() -> None:
    assert [plan_of(seed) for seed in range(50)] == [plan_of(seed) for seed in range(50)]
    assert plan_of(1) != plan_of(2)


def test_plans_cover_every_fault_algorithm_and_target() -> None:
    plans = [plan_of(seed) for seed in range(300)]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(ALL_KINDS)
    assert {plan.algorithm for plan in plans} == set(ALGORITHMS)
    assert {plan.place for plan in plans} == {"folder", "disk", "bucket"}


def test_without_small_disks_no_plan_fills_one() -> None:
    plans = [plan_of(seed, disks=False) for seed in range(300)]
    assert {plan.place for plan in plans} == {"folder", "bucket"}
    assert all(fault.kind != "fill disk" for plan in plans for fault in plan.faults)


LOST = Fault(after=0, delay_s=0.0, kind="lose machine", hold_s=0.0, choice=0.0)


class TestARoundInWhichSomethingWentWrong:
    """The checks find it: made-up rounds of one trial."""

    def made(self, *facts: dict[str, object], rows: list[int], trials: int = 1) -> Round:
        found = Round(plan_of(4), Path())
        found.facts = [{"at": float(at), "trial": "x_00000", "pid": 1, **fact} for at, fact in enumerate(facts)]
        found.rows = {"x_00000": [report(number, attempt=1) | {"config": {}} for number in rows]}
        found.fsck = {"findings": []}
        found.again = 0
        total = found.plan.spec()["numSamples"]
        trial = {"trial_id": "x_00000", "failures": 0}
        found.results = {"total": total, "counts": {"TERMINATED": total}, "trials": [trial] * total}
        return found

    def test_none(self) -> None:
        facts = [report(1), report(2), {"attempt": 1, "durable": 2, "saved": []}]
        assert violations(self.made(*facts, rows=[1, 2]), None) == []

    def test_a_durable_result_is_missing(self) -> None:
        facts = [report(1), report(2), {"attempt": 1, "durable": 2, "saved": []}]
        (problem,) = violations(self.made(*facts, rows=[1]), None)
        assert "told that 2 of its results are durable; 1 are in result.json" in problem

    def test_a_result_is_there_twice(self) -> None:
        (problem,) = violations(self.made(report(1), report(2), rows=[1, 1, 2]), None)
        assert "result 2 of 3 in result.json" in problem

    def test_a_recorded_checkpoint_was_not_used(self) -> None:
        saved = {"attempt": 1, "durable": 2, "saved": [["checkpoint_000000", 2]]}
        facts = [report(1), report(2), saved, report(1, attempt=2, number=3)]
        problems = violations(self.made(*facts, rows=[1, 2]), None)
        assert any("though the checkpoint of iteration 2 was recorded" in problem for problem in problems)

    def test_repeated_steps_are_bounded_except_unreported_ones(self) -> None:
        many = [report(number) for number in range(1, 12)]
        found = self.made(*many, report(1, attempt=2, number=1), rows=[*range(1, 12), 1])
        found.rows["x_00000"][-1] |= {"stamp": 1}
        assert any("attempt 2 repeats 11 steps" in problem for problem in violations(found, None))
        found.done = [Done(Fault(after=0, delay_s=0.0, kind="kill shell"), 3.5, 0)]
        assert not any("repeats" in problem for problem in violations(found, None))

    def test_a_lost_machine_may_give_the_number_of_an_attempt_again(self) -> None:
        durable = {"attempt": 1, "durable": 1, "saved": []}
        facts = [report(1) | {"stamp": 7}, durable, report(1), report(2), durable]
        found = self.made(*facts, rows=[1, 2])
        assert any("told that 1 of its results are durable; 0 are" in problem for problem in violations(found, None))
        found.done = [Done(LOST, 1.5, 0)]
        assert violations(found, None) == []

    def test_machine_loss_costs_only_recent_checkpoints(self) -> None:
        saved = {"attempt": 1, "durable": 0, "saved": [["checkpoint_000000", 2]]}
        facts = [report(1), report(2), saved, report(1), report(2, attempt=2, number=1)]
        found = self.made(*facts, rows=[1, 2])
        found.done = [Done(LOST, 2.5, 0)]
        assert violations(found, None) == []
        found.facts[2]["at"] -= LAST_SECONDS
        found.facts.sort(key=lambda fact: fact["at"])
        assert any("the checkpoint of iteration 2 was recorded" in problem for problem in violations(found, None))

    def test_a_trial_ran_on_after_its_end_was_recorded(self) -> None:
        end = {"attempt": 1, "end": "completed"}
        facts = [report(1), end, report(2, attempt=2)]
        problems = violations(self.made(*facts, rows=[1]), None)
        assert any("its end, completed, is recorded, and attempt 2 began later" in problem for problem in problems)

    def test_a_failure_was_counted_for_a_disruption(self) -> None:
        found = self.made(report(1), rows=[1])
        found.results["trials"][0]["failures"] = 1
        assert any("nothing of its own was at fault" in problem for problem in violations(found, None))

    def test_something_was_left(self) -> None:
        found = self.made(report(1), rows=[1])
        found.left, found.garbage = {7: "python"}, ["trialpod-run-x"]
        assert len(violations(found, None)) == 2


class TestATrialMayHaveWaited:
    """Then others went first, and a searcher was asked at another moment than undisturbed."""

    def waited(self, *facts: dict[str, object]) -> bool:
        found = Round(plan_of(4), Path())
        found.facts = [{"at": float(at), "trial": "x_00000", "pid": 1, **fact} for at, fact in enumerate(facts)]
        return held_up(attempts_of(found))

    def test_when_an_attempt_failed_and_the_next_one_came_no_further(self) -> None:
        assert self.waited(report(1), report(2), report(1, attempt=2))

    def test_not_when_each_came_further_for_certain(self) -> None:
        durable = [{"attempt": attempt, "durable": 2, "saved": []} for attempt in (1, 2)]
        assert not self.waited(
            report(1),
            report(2),
            durable[0],
            report(2, attempt=2, number=1),
            report(3, attempt=2, number=2),
            durable[1],
        )

    def test_when_its_progress_may_not_be_known(self) -> None:
        assert self.waited(report(1), report(2, attempt=2))

    def test_when_two_attempts_in_a_row_left_no_word(self) -> None:
        assert self.waited(report(1, attempt=3), {"attempt": 3, "durable": 1, "saved": []})

    def test_not_when_it_was_only_paused(self) -> None:
        paused = {"attempt": 1, "durable": 0, "saved": [], "end": "paused"}
        assert not self.waited(report(1), paused, report(1, attempt=2))


def report(iteration: int, attempt: int = 1, number: int | None = None) -> dict[str, object]:
    """Return what a witness writes down of a result, and what else is in its row."""
    return {
        "attempt": attempt,
        "number": iteration if number is None else number,
        "training_iteration": iteration,
        "trained": iteration,
        "stamp": iteration,
        "error": 1 / iteration,
    }


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    return Rounds(tmp_path_factory.mktemp("chaos"))


@pytest.mark.local
@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 5, 6])
def test_a_round_of_chaos_breaks_nothing(rounds: Rounds, seed: int) -> None:
    _, problems = rounds.run(plan_of(seed, disks=os.geteuid() == 0))
    assert problems == []
