"""The other ranks of an attempt that runs in several processes: the same code as rank 0, whose reports go nowhere.

Rank 0 speaks for the attempt: it reports, keeps the checkpoints and gets the decisions. The others get the same
config and start from the same checkpoint; `tune.report` and its checkpoints do nothing there, and class Trainables
save into a folder that is thrown away, because saving may take all ranks. What a rank needs to find the others is in
the environment that `torch.distributed` and others read.

Invariants:

* A rank above 0 never writes to the trial's storage, and says nothing to the report service.
* It ends by itself only at an iteration, which is the same for all ranks: other metrics may be its own, and rank 0
  would wait for it in the next step.
* Asked to end, it continues until its function returns or the grace period is nearly over: rank 0 may need it
  for the step at whose end it saves.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from trialpod import variables
from trialpod.errors import CheckpointError
from trialpod.protocol.attempt_link import AttemptLink
from trialpod.protocol.client import ReportClient
from trialpod.protocol.messages import Assignment, AttemptEnd, CheckpointInfo
from trialpod.runner.attempt import Attempt
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.report_values import StopRules
from trialpod.tune.result_keys import TRAINING_ITERATION
from trialpod.tune.session import Outcome

MASTER_PORT = "29500"
"""Where rank 0 listens, unless the variable MASTER_PORT says otherwise: the same as torchrun's."""


def rank_of(environment: MutableMapping[str, str]) -> int:
    """Return the rank that this process asks for, 0 where nothing is said."""
    text = environment.get(variables.RANK, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def set_environment(assignment: Assignment, environment: MutableMapping[str, str]) -> None:
    """Tell the trial's code its number among repeats, and distributed frameworks the attempt's other processes."""
    if assignment.repeat or variables.REPEAT in environment:
        environment[variables.REPEAT] = str(assignment.repeat)
    if assignment.world_size <= 1:
        return
    environment.update(
        **{variables.RANK: str(assignment.rank)},
        RANK=str(assignment.rank),
        WORLD_SIZE=str(assignment.world_size),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        GROUP_RANK=str(assignment.rank),
        NODE_RANK=str(assignment.rank),
        MASTER_ADDR=assignment.master_addr,
    )
    environment.setdefault("MASTER_PORT", MASTER_PORT)


class NonReportingLink(AttemptLink):
    """The link of a rank above 0: nothing is sent."""

    def __init__(self, client: ReportClient, assignment: Assignment) -> None:
        super().__init__(client, assignment.trial_id, assignment.attempt)

    def start(self) -> None:
        """Do nothing."""

    def finish(self, end: AttemptEnd) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class WorkerAttempt(Attempt):
    """An attempt seen from a rank above 0. Arguments as for `Attempt`."""

    def __init__(self, assignment: Assignment, link: NonReportingLink) -> None:
        super().__init__(assignment, link)
        self._folder: str | None = None
        self._shared_rules = StopRules(rule for rule in assignment.stop_rules if rule.key == TRAINING_ITERATION)

    def judge_alone(self) -> None:
        """Do nothing: rank 0 ends the trial."""

    def judge(self, result: dict[str, Any]) -> bool:
        """Whether a flat result meets a stop rule on the iteration."""
        return self._shared_rules.met(result)

    def send(self, result: dict[str, Any], checkpoint: CheckpointInfo | None, done: bool) -> Outcome | None:
        """Drop one result; the trial is over here when a stop rule says so, as it is for rank 0."""
        return "completed" if done else None

    def at_horizon(self, result: dict[str, Any]) -> bool:
        """Return False: only rank 0 asks."""
        return False

    def _clear_away(self, names: set[str]) -> None:
        """Do nothing: what is in the storage is rank 0's."""

    def begin_checkpoint(self) -> Path:
        """Return an empty folder, whose content is thrown away."""
        import tempfile

        self._throw_away()
        self._folder = tempfile.mkdtemp(prefix="trialpod-rank-")
        return Path(self._folder)

    def snapshot(self, source: str | None, result: dict[str, Any]) -> CheckpointInfo:
        """Keep nothing of a checkpoint; return what it would be called."""
        self._throw_away()
        return CheckpointInfo(name="", index=0, iteration=0, metrics={}, attempt=self.assignment.attempt)

    def announce(self, checkpoint: CheckpointInfo) -> None:
        """Do nothing."""

    def reported(self, checkpoint: CheckpointInfo) -> Checkpoint:
        """Return a checkpoint that cannot be read: only rank 0 has what was reported."""
        from trialpod.tune.checkpoints.reported_checkpoint import ReportedCheckpoint

        def locate() -> Path:
            raise CheckpointError(
                f"what was reported as a checkpoint can be read by rank 0 only; this is rank {self.assignment.rank}"
            )

        return ReportedCheckpoint("", locate)

    def close(self) -> None:
        """Remove local copies."""
        self._throw_away()
        super().close()

    def _throw_away(self) -> None:
        if self._folder is not None:
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
