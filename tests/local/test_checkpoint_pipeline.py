"""Checkpoints of real runner processes: committed in the background, and what is left when they are taken away.

The store is slowed down by a gate in the trial's process: its commits wait until a file appears.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_server import ReportServer

from trialpod.protocol.messages import Assignment, CheckpointRules, StopRule, TrainableRef
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.registry import open_storage

pytestmark = [pytest.mark.local, pytest.mark.slow]

GATE = """
import os, tempfile, time
from trialpod.storage.checkpoints import local
real = local.sync_tree
def gated(root, *rest):
    while "000000" not in root and not os.path.exists("{gate}"):
        time.sleep(0.01)
    real(root, *rest)
local.sync_tree = gated
"""

FUNCTION = """
from trialpod.tune.session import report, get_checkpoint, get_context
from trialpod.tune.checkpoints.checkpoint import Checkpoint
def train(config):
    start = 0
    if found := get_checkpoint():
        with found.as_directory() as folder:
            start = int(open(os.path.join(folder, "step")).read()) + 1
    for step in range(start, config["to"]):
        with tempfile.TemporaryDirectory() as folder:
            if step in config["save"]:
                open(os.path.join(folder, "step"), "w").write(str(step))
                report({{"step": step}}, checkpoint=Checkpoint(folder))
            else:
                report({{"step": step}})
    while config.get("linger"):
        if get_context().preempted:
            with tempfile.TemporaryDirectory() as folder:
                open(os.path.join(folder, "step"), "w").write("99")
                report({{"step": 99}}, checkpoint=Checkpoint(folder))
        time.sleep(0.01)
"""

CLASS = """
from trialpod.tune.trainable.trainable import Trainable
class Counter(Trainable):
    def setup(self, config):
        self.count = 0
    def step(self):
        self.count += 1
        time.sleep(0.05)
        return {{"count": self.count}}
    def save_checkpoint(self, checkpoint_dir):
        return {{"count": self.count}}
    def load_checkpoint(self, checkpoint):
        self.count = checkpoint["count"]
"""


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gate = folder / "gate"
        self.trial_dir = folder / "trial"
        self.server = ReportServer(folder)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, source: str, config: dict[str, Any] | None = None, **fields: Any) -> subprocess.Popen[str]:
        text = textwrap.dedent(GATE + source).format(gate=self.gate)
        values: dict[str, Any] = {"trial_id": "t1", "attempt": 1, "trial_name": "t", "experiment": "exp"}
        values |= {"experiment_tag": "0", "trial_dir": str(self.trial_dir), "trainable": TrainableRef(source=text)}
        values["params"] = msgspec.Raw(msgspec.msgpack.encode(config or {}))
        if "train(config)" in source:
            values["trainable"] = TrainableRef(source=text, attribute="train")
        else:
            values["trainable"] = TrainableRef(source=text, attribute="Counter")
        self.server.assignments.append(Assignment(**{**values, **fields}))
        command = [sys.executable, "-m", "trialpod.runner", "--address", self.server.address]
        process = subprocess.Popen(
            [*command, "--experiment", "exp", "--runner", "r1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process

    def steps(self) -> list[Any]:
        return [result["step"] for result in self.server.results]

    def committed(self) -> list[str]:
        return [info.name for info in open_checkpoints(open_storage(str(self.trial_dir))).committed()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.server:
        yield made
        for process in made.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_a_report_returns_before_its_checkpoint_is_committed(world: World) -> None:
    process = world.start(FUNCTION, {"to": 5, "save": [0, 2]})
    world.server.wait(lambda: len(world.server.results) == 5)
    assert [info.name for info in world.server.checkpoints] in ([], ["checkpoint_000000"])
    assert "checkpoint_000001" not in world.committed()
    world.gate.touch()
    assert process.wait(90) == 0
    assert [info.iteration for info in world.server.checkpoints] == [1, 3]
    assert world.server.ends[-1].cause == "completed"
    assert world.committed() == ["checkpoint_000000", "checkpoint_000001"]


def test_kill_in_mid_commit_leaves_the_previous_checkpoint(world: World) -> None:
    process = world.start(FUNCTION, {"to": 5, "save": [0, 2]})
    world.server.wait(lambda: len(world.server.results) == 5 and len(world.server.checkpoints) == 1)
    process.kill()
    process.wait()
    assert world.committed() == ["checkpoint_000000"]
    world.gate.touch()
    known = list(world.server.checkpoints)
    process = world.start(FUNCTION, {"to": 3, "save": [2]}, attempt=2, checkpoints=known, next_checkpoint_index=1)
    assert process.wait(90) == 0
    assert world.steps() == [0, 1, 2, 3, 4, 1, 2]
    assert world.committed() == ["checkpoint_000000", "checkpoint_000001"]
    assert not list(world.trial_dir.glob(".trialpod-staging-*"))


def test_the_rules_are_applied_in_the_background_too(world: World) -> None:
    world.gate.touch()
    process = world.start(
        FUNCTION, {"to": 6, "save": list(range(6))}, checkpoint_rules=CheckpointRules(num_to_keep=2)
    )
    assert process.wait(90) == 0
    assert world.committed() == ["checkpoint_000004", "checkpoint_000005"]
    assert world.server.deleted == [f"checkpoint_{index:06d}" for index in range(4)]


@pytest.mark.once
@pytest.mark.parametrize("grace_s", [5.0, 15.0])
def test_store_slower_than_grace_keeps_previous_checkpoint(world: World, grace_s: float) -> None:
    process = world.start(FUNCTION, {"to": 3, "save": [0], "linger": True}, grace_s=grace_s)
    world.server.wait(lambda: len(world.server.checkpoints) == 1)
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    assert process.wait(grace_s + 30.0) == 0  # the store never opens; the rest is the machine's
    assert time.monotonic() - started > 0.5 * grace_s  # it used the time that it had
    end = world.server.ends[-1]
    assert (end.cause, end.retry) == ("preempted", True)
    assert "checkpoint_000001 could not be stored within the grace period" in end.error
    assert world.steps()[-1] == 99
    assert world.committed() == ["checkpoint_000000"]


def test_store_within_grace_has_the_last_checkpoint(world: World) -> None:
    process = world.start(FUNCTION, {"to": 3, "save": [0], "linger": True}, grace_s=15.0)
    world.server.wait(lambda: len(world.server.checkpoints) == 1)
    process.send_signal(signal.SIGTERM)
    world.server.wait(lambda: world.steps()[-1:] == [99])
    world.gate.touch()
    assert process.wait(60) == 0
    assert (world.server.ends[-1].cause, world.server.ends[-1].error) == ("preempted", "")
    assert world.committed() == ["checkpoint_000000", "checkpoint_000001"]


def test_a_class_trainable_loses_no_step_when_it_is_taken_away(world: World) -> None:
    world.gate.touch()
    process = world.start(CLASS)
    world.server.wait(lambda: len(world.server.results) >= 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 0
    counts = [result["count"] for result in world.server.results]
    (info,) = world.server.checkpoints
    assert info.metrics["count"] == counts[-1]
    process = world.start(
        CLASS,
        attempt=2,
        checkpoints=[info],
        next_checkpoint_index=1,
        stop_rules=[StopRule("count", counts[-1] + 2.0)],
    )
    assert process.wait(90) == 0
    counts = [result["count"] for result in world.server.results]
    assert counts == list(range(1, len(counts) + 1))
