"""A channel that keeps what it is given."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.messages import CheckpointInfo
from trialpod.protocol.nested import NestedNames
from trialpod.tune.checkpoints.checkpoint import Checkpoint
from trialpod.tune.report_values import encode
from trialpod.tune.session import Outcome


class Recorder:
    """Implements `trialpod.tune.session.Channel`; checkpoints are copied below `folder`, if there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.preempted = False
        self.nested = NestedNames()
        self.folder = folder
        self.sent: list[dict[str, Any]] = []
        self.announced: list[str] = []
        self.outcome: Outcome | None = None
        self.copied: list[str] = []

    def judge(self, result: dict[str, Any]) -> bool:
        return False

    def snapshot(self, source: str, result: dict[str, Any]) -> CheckpointInfo:
        name = f"checkpoint_{len(self.copied):06d}"
        self.copied.append(source)
        if self.folder is not None:
            shutil.copytree(source, self.folder / name)
        result["checkpoint_dir_name"] = name
        return CheckpointInfo(name=name, index=len(self.copied) - 1, iteration=1, metrics={}, attempt=1)

    def send(self, result: dict[str, Any], checkpoint: CheckpointInfo | None, done: bool) -> Outcome | None:
        self.sent.append(msgspec.msgpack.decode(encode(result)))
        return "completed" if done else self.outcome

    def announce(self, checkpoint: CheckpointInfo) -> None:
        self.announced.append(checkpoint.name)

    def reported(self, checkpoint: CheckpointInfo) -> Checkpoint:
        return Checkpoint(os.path.join(self.folder or "/dir", checkpoint.name))

    def time_left_s(self) -> float | None:
        return None
