"""`SyncConfig`: Ray Tune's settings for copying an experiment to its storage; most have nothing to do here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trialpod.errors import InvalidInputError, NotSupportedError
from trialpod.tune.arguments import names_nearest


@names_nearest
@dataclass
class SyncConfig:
    """How an experiment is copied to its storage.

    trialpod does not copy from time to time: a trial puts each checkpoint into the storage before it continues, and
    what the experiment itself writes follows within seconds. So the periods have no effect, and are accepted for
    scripts that give them.

    Args:
        sync_period: seconds from one copy to the next; without effect.
        sync_timeout: seconds for one copy; without effect, a copy is tried until it works.
        sync_artifacts: keep what else trials write into their directories. In a folder it is there anyway; for a
            bucket `Tuner.fit` refuses it.
        sync_artifacts_on_checkpoint: without effect unless `sync_artifacts` is set.
        upload_dir: what older scripts call ``RunConfig(storage_path=...)``.
        syncer: not supported.
        sync_on_checkpoint: older scripts' name for what always happens.

    Raises:
        InvalidInputError: an argument has a value that it cannot have.
        NotSupportedError: a `syncer` of one's own.
    """

    sync_period: float = 300
    sync_timeout: float = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True
    upload_dir: str | None = None
    syncer: Any = "auto"
    sync_on_checkpoint: bool = True

    def __post_init__(self) -> None:
        self.validate()

    def check_place(self, uri: str) -> None:
        """Raise NotSupportedError when trials' own files are to be copied to a storage elsewhere."""
        if self.sync_artifacts and uri:
            raise NotSupportedError(
                f"SyncConfig(sync_artifacts=True): files that trials write into their directories are not copied to "
                f"{uri}; put what must survive into a checkpoint, or give storage_path a folder"
            )

    def validate(self) -> None:
        """Raise an error for a value that cannot work."""
        for argument in ("sync_period", "sync_timeout"):
            value = getattr(self, argument)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidInputError(f"SyncConfig({argument}={value!r}): must be a positive number of seconds")
        if self.syncer not in ("auto", None):
            raise NotSupportedError(
                f"SyncConfig(syncer={self.syncer!r}): another way of copying cannot be plugged in; give "
                "RunConfig(storage_path=...) a path or s3:// URI and leave syncer out"
            )
        if self.upload_dir is not None and (not isinstance(self.upload_dir, str) or not self.upload_dir):
            raise InvalidInputError(f"SyncConfig(upload_dir={self.upload_dir!r}): must be a path or URI, or None")
