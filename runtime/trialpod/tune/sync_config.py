"""`SyncConfig`: Ray Tune's settings for copying an experiment to its storage; most have nothing to do here."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from trialpod import variables
from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError
from trialpod.tune.arguments import names_nearest

logger = logging.getLogger(__name__)


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
        sync_artifacts: keep what else trials write into their directories. In a folder it is there anyway; to a
            bucket it is copied after each checkpoint, every five minutes and at a trial's end.
        sync_artifacts_on_checkpoint: without effect, they are copied then.
        upload_dir: what older scripts call ``RunConfig(storage_path=...)``; a ``local_dir`` beside it is not used.
        syncer: copies the experiment's folder on this machine to ``upload_dir`` or ``storage_path``, as a `Syncer` of
            one's own does; "auto" and None leave that to trialpod. In a cluster it is not used, with a warning.
        sync_on_checkpoint: older scripts' name for what always happens.
        sync_to_cloud, sync_to_driver: older scripts' switches; None, True and False are without effect.
        node_sync_period, cloud_sync_period: older scripts' periods; without effect.

    Raises:
        InvalidInputError: an argument has a value that it cannot have.
    """

    sync_period: float = 300
    sync_timeout: float = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True
    upload_dir: str | None = None
    syncer: Any = "auto"
    sync_on_checkpoint: bool = True
    sync_to_cloud: bool | None = None
    sync_to_driver: bool | None = None
    node_sync_period: float | None = None
    cloud_sync_period: float | None = None

    def __post_init__(self) -> None:
        first: Any = self.sync_period
        second: Any = self.sync_timeout
        if isinstance(first, str) and self.upload_dir is None and under_ray():
            # Up to Ray 2.6 the first two are upload_dir and syncer.
            self.upload_dir, self.sync_period = first, 300
            if isinstance(second, bool) or not isinstance(second, (int, float)):
                self.syncer, self.sync_timeout = second, 1800
        self.validate()

    @property
    def own_syncer(self) -> Any:
        """The script's own syncer, or None."""
        return None if self.syncer in ("auto", None) else self.syncer

    @property
    def storage(self) -> str | None:
        """Where `upload_dir` has the experiment stored, None where it does not or is where a `syncer` copies to."""
        return self.upload_dir if self.own_syncer is None else None

    def validate(self) -> None:
        """Raise an error for a value that cannot work."""
        for argument in ("sync_period", "sync_timeout"):
            value = getattr(self, argument)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                place = "; give a path or URI as RunConfig(storage_path=...)" if isinstance(value, str) else ""
                raise InvalidInputError(
                    f"SyncConfig({argument}={value!r}): must be a positive number of seconds{place}"
                )
        if self.own_syncer is not None and not callable(getattr(self.syncer, "sync_up", None)):
            raise InvalidInputError(
                f'SyncConfig(syncer={self.syncer!r}): must be "auto", None or an object of a Syncer, which has '
                "sync_up and sync_down"
            )
        for argument in ("sync_to_cloud", "sync_to_driver"):
            if not isinstance(value := getattr(self, argument), bool | None):
                raise InvalidInputError(
                    f"SyncConfig({argument}={value!r}): must be True, False or None; commands and functions are not "
                    "supported: give storage_path an s3:// URI instead"
                )
        if self.upload_dir is not None and (not isinstance(self.upload_dir, str) or not self.upload_dir):
            raise InvalidInputError(f"SyncConfig(upload_dir={self.upload_dir!r}): must be a path or URI, or None")


def warn_of_unused_local_dir(where: str, local_dir: object, upload_dir: str) -> None:
    """Say that the experiment is stored in `upload_dir` alone."""
    logger.warning(
        "%s(local_dir=%r) is not used: the experiment is stored in upload_dir=%r. To choose where it works on this "
        "machine, set the variable %s",
        where,
        str(local_dir),
        upload_dir,
        variables.WORK_DIR,
    )
