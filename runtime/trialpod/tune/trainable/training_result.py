"""What `Trainable.save` returns."""

from __future__ import annotations

from typing import Any

from trialpod.tune.checkpoints.checkpoint import Checkpoint


class TrainingResult(str):
    """The checkpoint and the metrics of the result that it belongs to. It is also the path, as it was at first.

    Args:
        checkpoint: the checkpoint.
        metrics: of its result.
        path: what `save_checkpoint` returned, below the checkpoint's directory; None means that directory.
    """

    __slots__ = ("checkpoint", "metrics")

    checkpoint: Checkpoint
    metrics: dict[str, Any]

    def __new__(cls, checkpoint: Checkpoint, metrics: dict[str, Any], path: str | None = None) -> TrainingResult:
        """Make one."""
        made = super().__new__(cls, checkpoint.path if path is None else path)
        made.checkpoint = checkpoint
        made.metrics = metrics
        return made

    def __reduce__(self) -> tuple[type[TrainingResult], tuple[Checkpoint, dict[str, Any], str]]:
        """Travel with all parts."""
        return TrainingResult, (self.checkpoint, self.metrics, str(self))

    def __repr__(self) -> str:
        return f"TrainingResult(checkpoint={self.checkpoint!r}, metrics={self.metrics!r})"
