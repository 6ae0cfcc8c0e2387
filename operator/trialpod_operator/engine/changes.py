"""What a scheduler changes of a trial: parameters, tag, and the checkpoint that it goes on from. Plain data."""

from __future__ import annotations

import msgspec

from trialpod.protocol.messages import CheckpointInfo


class Start(msgspec.Struct, array_like=True, frozen=True):
    """A checkpoint of another trial that a trial goes on from."""

    trial_id: str  # whose directory it is in
    checkpoint: CheckpointInfo

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the checkpoint."""
        return self.trial_id, self.checkpoint.name


class Change(msgspec.Struct, array_like=True, frozen=True):
    """An exploit that has been decided; it comes into force when the trial's attempt has ended."""

    source: str  # the trial that is followed, maybe itself
    params: bytes  # MessagePack of the config
    tag: str  # "" keeps the old one
    start: Start | None = None  # None: the trial's own newest checkpoint


class Planted(msgspec.Struct, array_like=True, frozen=True):
    """An exploit in force, until the trial has a checkpoint of its own since then."""

    source: str
    start: Start
    params_before: bytes
    tag_before: str
