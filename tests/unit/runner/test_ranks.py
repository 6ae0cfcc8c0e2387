"""Ranks above 0: they run the same code, and what they report goes nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from trialpod import tune
from trialpod.errors import CheckpointError
from trialpod.protocol.client import ReportClient
from trialpod.protocol.command import CommandSpec
from trialpod.protocol.messages import Assignment, StopRule, TrainableRef
from trialpod.runner.class_runner import ClassRunner
from trialpod.runner.command.command_runner import run_command
from trialpod.runner.function_runner import run_function
from trialpod.runner.ranks import NonReportingLink, WorkerAttempt, rank_of, set_environment
from trialpod.tune import report_values


def assignment(folder: Path, **more: Any) -> Assignment:
    return Assignment(
        trial_id="a_00000",
        attempt=1,
        trial_name="train_a_00000",
        experiment="digits",
        experiment_tag="0",
        trial_dir=str(folder),
        params=msgspec.Raw(msgspec.msgpack.encode({})),
        trainable=TrainableRef(entrypoint="train:train"),
        rank=1,
        world_size=3,
        master_addr="10.0.0.7",
        stop_rules=[StopRule("training_iteration", 3.0)],
        **more,
    )


def attempt(work: Assignment) -> WorkerAttempt:
    client = ReportClient("unix:/nowhere", "digits")
    return WorkerAttempt(work, NonReportingLink(client, work))


def test_the_environment_is_that_of_torchrun(tmp_path: Path) -> None:
    environment = {"MASTER_PORT": "12345"}
    set_environment(assignment(tmp_path), environment)
    assert environment == {
        "TRIALPOD_RANK": "1", "RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "12345",
    }  # fmt: skip
    assert rank_of(environment) == 1


def test_a_trial_of_one_process_gets_no_such_variables(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    set_environment(msgspec.structs.replace(assignment(tmp_path), rank=0, world_size=1), environment)
    assert environment == {}
    assert rank_of(environment) == 0


def test_a_function_runs_to_its_stop_rule_and_stores_nothing(tmp_path: Path) -> None:
    seen = []

    def train(_config: dict[str, Any]) -> None:
        while True:
            context = tune.get_context()
            seen.append((context.get_world_rank(), context.get_world_size(), context.get_node_rank()))
            folder = tmp_path / "made"
            folder.mkdir(exist_ok=True)
            tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_directory(folder))

    work = assignment(tmp_path / "trial")
    assert run_function(train, attempt(work), {}) == "completed"
    assert seen == [(1, 3, 1)] * 3
    assert not (tmp_path / "trial").exists()


def test_a_folder_that_only_rank_0_writes_is_not_missed(tmp_path: Path) -> None:
    def train(_config: dict[str, Any]) -> None:
        while True:
            tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_directory(tmp_path / "written by rank 0"))

    assert run_function(train, attempt(assignment(tmp_path / "trial")), {}) == "completed"


def test_a_checkpoint_reported_while_the_trial_runs_is_rank_0s(tmp_path: Path) -> None:
    def train(_config: dict[str, Any]) -> None:
        tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_directory(tmp_path))
        checkpoint = tune.get_checkpoint()
        assert checkpoint is not None
        assert checkpoint.path

    with pytest.raises(CheckpointError, match="rank 0 only; this is rank 1"):
        run_function(train, attempt(assignment(tmp_path / "trial")), {})


def test_a_command_above_rank_0_needs_no_metric(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    work = assignment(tmp_path / "trial", metric="loss")
    lines = "for i in $(seq 200); do echo seen=$i; done"
    assert run_command(CommandSpec(command=["sh", "-c", lines]), attempt(work), {}, str(tmp_path)) == "completed"
    assert caplog.text == ""


class TestClassEnds:
    """Rank 0 ends the trial: a rank that ends alone leaves it waiting in its next step."""

    class Steps(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.before_step: Any = config.get("before_step", lambda _iteration: None)

        def step(self) -> dict[str, Any]:
            self.before_step(self.iteration + 1)
            return {"own": 1.0}

    def test_at_no_metric_of_its_own(self, tmp_path: Path) -> None:
        work = assignment(tmp_path / "trial")
        work.stop_rules = [StopRule("own", 0.5), *work.stop_rules]
        last: list[int] = []
        assert ClassRunner(attempt(work), {"before_step": last.append}).run(self.Steps) == "completed"
        assert last[-1] == 3

    def test_for_no_metric_that_only_rank_0_has(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(report_values, "MAX_UNJUDGED", 2)
        work = assignment(tmp_path / "trial")
        work.stop_rules = [StopRule("accuracy", 0.95), *work.stop_rules]
        assert ClassRunner(attempt(work), {}).run(self.Steps) == "completed"

    def test_not_when_it_is_to_end_before_rank_0(self, tmp_path: Path) -> None:
        ours, last = attempt(assignment(tmp_path / "trial")), list[int]()

        def before_step(iteration: int) -> None:
            last.append(iteration)
            ours.preempt()

        assert ClassRunner(ours, {"before_step": before_step}).run(self.Steps) == "completed"
        assert last == [1, 2, 3]


def test_class_saves_with_other_ranks_into_a_discarded_folder(tmp_path: Path) -> None:
    folders = []

    class Steps(tune.Trainable):
        def step(self) -> dict[str, Any]:
            return {"loss": 1.0}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            folders.append(Path(checkpoint_dir))

    work = assignment(tmp_path / "trial")
    work.checkpoint_rules = msgspec.structs.replace(work.checkpoint_rules, frequency=1)
    ours = attempt(work)
    assert ClassRunner(ours, {}).run(Steps) == "completed"
    ours.close()
    assert len(folders) == 3
    assert not any(folder.exists() for folder in folders)
    assert not (tmp_path / "trial").exists()
