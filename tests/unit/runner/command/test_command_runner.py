"""Whole commands in an attempt whose reports are kept here: what becomes a result, and when they have failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.command import CommandSpec, MetricsSpec
from trialpod.protocol.messages import Assignment, StopRule, TrainableRef
from trialpod.protocol.nested import NestedNames
from trialpod.runner.attempt import Attempt
from trialpod.runner.command.command_runner import CommandFailedError, run_command


class Link:
    """Keeps the results."""

    def __init__(self) -> None:
        self.nested = NestedNames()
        self.horizons: tuple[tuple[str, float], ...] = ()
        self.decision: str | None = None
        self.ended = False
        self.published: list[dict[str, Any]] = []
        self.on_result: Callable[[], None] = lambda: None

    def check(self) -> None: ...

    def publish(self, result: bytes, checkpoint: None, *, wake: bool) -> int:
        self.published.append(msgspec.msgpack.decode(result))
        self.on_result()
        return len(self.published)


def results_of(
    folder: Path, script: str, metrics: MetricsSpec | None = None, *, preempted: bool = False, **fields: Any
) -> list[dict[str, Any]]:
    """Run a shell script as a trial's command, to be preempted at its first result; return its results."""
    link = Link()
    work = Assignment(
        trial_id="t",
        attempt=1,
        trial_name="n",
        experiment="e",
        experiment_tag="",
        trial_dir=str(folder / "trial"),
        params=msgspec.Raw(b"\x80"),
        trainable=TrainableRef(),
        **{"metric": "loss", **fields},
    )
    spec = CommandSpec(command=["sh", "-c", script], metrics=metrics or MetricsSpec())
    attempt = Attempt(work, link)  # type: ignore[arg-type]
    if preempted:
        link.on_result = attempt.preempt
    with contextlib.suppress(CommandFailedError):
        run_command(spec, attempt, {}, str(folder))
    return link.published


class TestNames:
    def test_what_a_stop_rule_waits_for_is_never_too_much(self, tmp_path: Path) -> None:
        script = "for i in $(seq 300); do echo m$i=$i; done; echo cost=2; echo loss=1; echo loss=1"
        (row,) = results_of(tmp_path, script, stop_rules=[StopRule("cost", 2.0)])
        assert (row["cost"], row["loss"]) == (2, 1)

    def test_a_stop_rule_on_the_commands_own_total(self, tmp_path: Path) -> None:
        script = "for i in 100 200 300 400; do echo timesteps_total=$i loss=1; done"
        rows = results_of(tmp_path, script, stop_rules=[StopRule("timesteps_total", 300.0)])
        assert [row["timesteps_total"] for row in rows] == [100, 200, 300]


class TestLineWithoutEnd:
    FILE = MetricsSpec(file="m.csv", step="epoch")

    def test_does_not_count_when_killed(self, tmp_path: Path) -> None:
        script = r'printf "epoch,loss\n1,3e-05\n2,1.2" >m.csv; kill -9 $$'
        assert [row["loss"] for row in results_of(tmp_path, script, self.FILE)] == [3e-05]

    def test_counts_when_ended(self, tmp_path: Path) -> None:
        script = r'printf "epoch,loss\n1,3e-05\n2,1.2e-05" >m.csv; exit 3'
        assert [row["loss"] for row in results_of(tmp_path, script, self.FILE)] == [3e-05, 1.2e-05]

    def test_is_not_completed_by_the_next_attempt(self, tmp_path: Path) -> None:
        (tmp_path / "m.csv").write_text("epoch,loss\n1,3e-05\n2,1.2")
        script = r'printf "2,1.2e-05\n3,1e-05\n" >>m.csv'
        rows = results_of(tmp_path, script, self.FILE)
        assert [(row["training_iteration"], row["loss"]) for row in rows] == [(3, 1e-05)]

    def test_of_a_preempted_program_that_ends_by_itself(self, tmp_path: Path) -> None:
        script = 'trap "printf loss=2; exit" TERM; echo loss=1; while :; do sleep 0.02; done'
        assert [row["loss"] for row in results_of(tmp_path, script, preempted=True)] == [1, 2]

    def test_of_a_preempted_program_that_is_killed(self, tmp_path: Path) -> None:
        script = "printf 'loss=1\nloss=2'; while :; do sleep 0.02; done"
        assert [row["loss"] for row in results_of(tmp_path, script, preempted=True)] == [1]
