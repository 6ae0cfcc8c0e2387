"""User code: what it computes follows from its parameter and the steps that it took.

There is a class that takes new configs, one that does not, and a function; where a trial has several pods, their
processes take each step together, and miss each other as those of a distributed training do.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from sim_kernel import PROCESS, Process, kernel
from sim_plan import FUNCTION, PLAIN_CLASS
from sim_pods import worlds

from trialpod import tune
from trialpod.protocol.messages import TrainableRef
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.trainable.trainable import Trainable

BEAT_S = 0.3
"""So often a rank looks for the others."""


def load_sim_trainable(ref: TrainableRef, _options: object = None) -> Any:
    """Return what an entry point names."""
    return {PLAIN_CLASS: PlainTrainable, FUNCTION: sim_function}.get(ref.entrypoint or "", SimTrainable)


def _process() -> Process:
    process = PROCESS.get()
    assert process is not None
    return process


class _Steps:
    """What a trial has computed.

    Args:
        trial_id: the trial.
        x: its parameter.
        rank, size: of the process.
    """

    def __init__(self, trial_id: str, x: float, rank: int, size: int) -> None:
        self.trial_id, self.x, self.rank, self.size = trial_id, x, rank, size
        self.sum, self.iteration = 0.0, 0
        self.uid = ""

    def step(self) -> dict[str, Any]:
        world, process = worlds[-1], _process()
        kernel().sleep(world.plan.step_s * world.pods._random.uniform(0.5, 1.5))
        process.point("step")
        if getattr(process, "fails", False):
            process.fails = False  # type: ignore[attr-defined]
            kernel().counts["user code fails"] += 1
            kernel().log("user code fails", self.trial_id)
            world.pods.track_of(process).harmed[self.trial_id] += 1
            world.pods.record_failed_rank(process)
            raise ValueError("no")
        if self.size > 1:
            self._meet(process)
        self.sum += self.x
        self.iteration += 1
        self.uid = f"{self.trial_id}-{kernel().serial()}"
        world.pods.steps[self.uid] = (self.trial_id, 0, self.iteration, self.sum)
        kernel().log("step", f"{process.name} {self.iteration} {self.sum!r}")
        return {"score": self.sum, "uid": self.uid, "nested": {"sum": self.sum, "of": {"x": self.x}}}

    def _meet(self, process: Process) -> None:
        """Wait for the other ranks; one whose process is gone is missed. Some do not need each other."""
        if worlds[-1].hosted(process.experiment).plan.apart:  # type: ignore[attr-defined]
            return
        group = worlds[-1].pods.group_of(process)
        group[self.rank] = (process, self.iteration)
        while True:
            if any(not each.alive and at < self.iteration for each, at in group.values()):
                kernel().log("rank lost", process.name)
                raise ConnectionError("connection reset by peer")
            if len(group) == self.size and all(at >= self.iteration for _, at in group.values()):
                return
            kernel().sleep(BEAT_S)

    def save(self, folder: str) -> None:
        state = {"sum": self.sum, "iteration": self.iteration, "uid": self.uid}
        with open(os.path.join(folder, "state.json"), "w") as file:
            json.dump(state, file)

    def load(self, folder: str) -> None:
        state = json.loads(Path(folder, "state.json").read_text())
        pods = worlds[-1].pods
        made = pods.steps.get(state["uid"])
        if made is None or made[2:] != (state["iteration"], state["sum"]):
            pods.problems.append(f"a checkpoint holds {state}, which no step has made: {made}")
        self.sum, self.iteration, self.uid = state["sum"], state["iteration"], state["uid"]
        kernel().log("restored", f"{state['iteration']} {state['sum']!r}")


class PlainTrainable(Trainable):
    """A class."""

    def setup(self, config: dict[str, Any]) -> None:
        info = self._info
        assert info is not None
        self.steps = _Steps(info.trial_id, float(config["x"]), info.rank, info.world_size)

    def step(self) -> dict[str, Any]:
        if self.steps.iteration != self.iteration:
            worlds[-1].pods.problems.append(f"iteration {self.iteration}, but the state is of {self.steps.iteration}")
        return self.steps.step()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self.steps.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.steps.load(str(checkpoint))
        if self.iteration not in (0, self.steps.iteration):
            worlds[-1].pods.problems.append(
                f"restored to iteration {self.iteration}, but the state is of {self.steps.iteration}"
            )


class SimTrainable(PlainTrainable):
    """A class that may take another config."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return bool(worlds[-1].plan.seed % 2)


def sim_function(config: dict[str, Any]) -> None:
    """A function, which uses the same folder for each of its checkpoints."""
    world, context = worlds[-1], tune.get_context()
    keeps_every = world.hosted(getattr(PROCESS.get(), "experiment", "")).plan.keeps_every
    steps = _Steps(
        str(context.get_trial_id()), float(config["x"]), context.get_world_rank(), context.get_world_size()
    )
    start = tune.get_checkpoint()
    if start is not None:
        with start.as_directory() as folder:
            steps.load(folder)
    own = world.folder / f"function-{kernel().serial()}"
    own.mkdir()
    try:
        while True:
            result = steps.step()
            checkpoint = None
            if keeps_every and steps.iteration % keeps_every == 0:
                steps.save(str(own))
                checkpoint = Checkpoint.from_directory(own)
            tune.report(result, checkpoint=checkpoint)
    finally:
        shutil.rmtree(own, ignore_errors=True)
