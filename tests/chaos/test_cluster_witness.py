"""The checks of a round in the cluster see what they are there to see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cluster_witness as witness
import pytest
from cluster_outcome import wrong_training
from cluster_plan import DEAL, KINDS, plan_of
from cluster_training import Model, loss_of


def account(folder: Path, life: str, *notes: dict[str, Any]) -> None:
    lines = [json.dumps({"trial": "t_0", "life": life, "attempt": 1, **note}) for note in notes]
    (folder / f"t_0-{life}.jsonl").write_text("\n".join(lines) + "\n")


def step(at: float, number: int, iteration: int, stamp: str) -> dict[str, Any]:
    return {"at": at, "number": number, "iteration": iteration, "stamp": stamp}


@pytest.fixture
def two_lives(tmp_path: Path) -> list[witness.Life]:
    account(
        tmp_path, "b", step(1.0, 1, 1, "b1"), step(2.0, 2, 2, "b2"), {"at": 2.1, "durable": 1}, step(3.0, 3, 3, "b3")
    )
    account(tmp_path, "a", {**step(9.0, 1, 2, "a2"), "attempt": 2}, {**step(9.5, 2, 3, "a3"), "attempt": 2})
    return witness.read(tmp_path)


def test_a_durable_result_that_is_not_stored_is_a_loss(two_lives: list[witness.Life]) -> None:
    assert witness.lost(two_lives, {"t_0": [{"stamp": "b1"}]}) == []
    (said,) = witness.lost(two_lives, {"t_0": [{"stamp": "b2"}, {"stamp": "a2"}]})
    assert "1 durable results are lost (iterations [1])" in said


def test_a_result_that_is_stored_twice_is_seen(two_lives: list[witness.Life]) -> None:
    (said,) = witness.lost(two_lives, {"t_0": [{"stamp": "b1"}, {"stamp": "b1"}]})
    assert "stored twice" in said


def test_a_break_has_its_length_and_the_steps_done_again(two_lives: list[witness.Life]) -> None:
    (found,) = witness.breaks(two_lives, still_s=2.0)
    assert (found.stopped, found.resumed, found.repeated, found.same_process) == (3.0, 9.0, 2, False)


def test_stalled_process_is_a_break_without_repeated_steps(tmp_path: Path) -> None:
    account(tmp_path, "c", step(1.0, 1, 1, "c1"), step(8.0, 2, 2, "c2"))
    (found,) = witness.breaks(witness.read(tmp_path), still_s=2.0)
    assert (found.stopped, found.resumed, found.repeated, found.same_process) == (1.0, 8.0, 0, True)


def test_a_torn_last_line_of_an_account_is_left_out(tmp_path: Path) -> None:
    account(tmp_path, "d", step(1.0, 1, 1, "d1"))
    with open(tmp_path / "t_0-d.jsonl", "a") as file:
        file.write('{"trial": "t_0", "li')
    (life,) = witness.read(tmp_path)
    assert len(life.steps) == 1


def test_a_loss_follows_from_the_learning_rates_of_its_steps() -> None:
    model = Model()
    for rate in (0.5, 0.5, 0.1):
        loss = model.train(rate)
    assert model.rates == [[0.5, 2], [0.1, 1]]
    assert loss_of(model.rates) == loss
    assert loss_of([[0.5, 1], [0.1, 2]]) != loss


def test_retrained_results_are_counted_across_exploits() -> None:
    courses = [[[0.5, 1]], [[0.5, 2]], [[0.5, 3]], [[0.5, 2]], [[0.5, 2], [0.1, 1]], [[1.0, 3], [0.1, 1]]]
    rows: list[dict[str, Any]] = []
    for rates in courses:
        steps = sum(int(count) for _, count in rates)
        row = {"rates": json.dumps(rates), "loss": loss_of(rates), "trained": steps, "training_iteration": steps}
        rows.append(row)
    assert wrong_training({"t_0": rows}) == []
    rows[3] = {**rows[3], "loss": rows[3]["loss"] * 1.000001}
    (said,) = wrong_training({"t_0": rows})
    assert "the loss of iteration 2 is not that of its steps" in said


@pytest.mark.parametrize("deal", range(20))
def test_same_seeds_give_same_plan_with_every_kind_of_fault(deal: int) -> None:
    plans = [plan_of(seed) for seed in range(deal * DEAL, (deal + 1) * DEAL)]
    assert plans == [plan_of(plan.seed) for plan in plans]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(KINDS)
    assert [plan.disrupts for plan in plans].count(False) == 1
