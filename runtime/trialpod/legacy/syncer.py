"""A script's own way to copy an experiment elsewhere: Ray Tune's `Syncer` of 2.0 to 2.6.

The experiment runs in a folder of this machine, where everything that trialpod promises holds. The syncer copies that
folder: when a checkpoint is stored, and every ``sync_period`` seconds with a result, and at the end.
"""

from __future__ import annotations

import abc
import logging
import time

logger = logging.getLogger(__name__)

DEFAULT_SYNC_PERIOD = 300.0


class Syncer(abc.ABC):
    """Copies folders to a place elsewhere and back; a subclass says how.

    Args:
        sync_period: seconds from one copy to the next.
    """

    def __init__(self, sync_period: float = DEFAULT_SYNC_PERIOD) -> None:
        self.sync_period = sync_period
        self.last_sync_up_time = float("-inf")
        self.last_sync_down_time = float("-inf")

    @abc.abstractmethod
    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy `local_dir` to `remote_dir`, perhaps in the background; return whether that has begun."""

    @abc.abstractmethod
    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy `remote_dir` to `local_dir`; as `sync_up`."""

    @abc.abstractmethod
    def delete(self, remote_dir: str) -> bool:
        """Remove `remote_dir`; as `sync_up`."""

    def retry(self) -> None:
        """Begin the latest copy again."""
        raise NotImplementedError

    def wait(self) -> None:  # noqa: B027 - one that copies at once has nothing to wait for
        """Return when the copy in the background is complete; raise what it failed with."""

    def wait_or_retry(self, max_retries: int = 3, backoff_s: float = 5.0) -> None:
        """Return when the copy is complete; begin it again where it failed."""
        for tried in range(max_retries):
            try:
                return self.wait()
            except Exception as error:
                logger.warning("the syncer failed, attempt %d of %d: %s", tried + 1, max_retries, error)
                if tried + 1 == max_retries:
                    raise
                time.sleep(backoff_s)
                self.retry()
        return None

    def sync_up_if_needed(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy if the period is over."""
        now = time.time()
        if now - self.last_sync_up_time < self.sync_period:
            return False
        self.last_sync_up_time = now
        return self.sync_up(local_dir, remote_dir, exclude)

    def sync_down_if_needed(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy back if the period is over."""
        now = time.time()
        if now - self.last_sync_down_time < self.sync_period:
            return False
        self.last_sync_down_time = now
        return self.sync_down(remote_dir, local_dir, exclude)

    def reset(self) -> None:
        """Forget when it copied last."""
        self.last_sync_up_time = self.last_sync_down_time = float("-inf")

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Free what it holds."""
