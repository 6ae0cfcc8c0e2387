"""Has a script's own syncer (``SyncConfig(syncer=...)``) copy an experiment's folder elsewhere while it runs."""

from __future__ import annotations

import logging
import time
from typing import Any

from trialpod.tune.callback import Callback

logger = logging.getLogger(__name__)

PERIOD_S = 300.0


class SyncerCallback(Callback):
    """Has a script's syncer copy an experiment's folder; what it raises is a warning, and the experiment continues.

    Args:
        syncer: of the script.
        folder: of the experiment.
        remote: where to.
        period_s: seconds from one copy to the next, where the syncer has no `sync_up_if_needed`.
    """

    def __init__(self, syncer: Any, folder: str, remote: str, period_s: float = PERIOD_S) -> None:
        self._syncer, self._folder, self._remote = syncer, folder, remote
        self._period_s, self._last = period_s, float("-inf")

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        """Copy if it is time."""
        self._sync(force=False)

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """Copy if it is time."""
        self._sync(force=False)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Copy all, and wait until that is complete."""
        self._sync(force=True)
        self._call("wait")

    def get_state(self) -> dict[str, Any] | None:
        """Nothing of it is kept."""
        return None

    def _sync(self, *, force: bool) -> None:
        if force:
            self._call("wait")  # one at a time
            self._call("sync_up", self._folder, self._remote)
        elif callable(getattr(self._syncer, "sync_up_if_needed", None)):
            self._call("sync_up_if_needed", self._folder, self._remote)
        elif time.monotonic() - self._last >= self._period_s:
            self._last = time.monotonic()
            self._call("sync_up", self._folder, self._remote)

    def _call(self, name: str, *arguments: str) -> None:
        method = getattr(self._syncer, name, None)
        if not callable(method):
            return
        try:
            if method(*arguments) is False and name == "sync_up":
                logger.warning("%s.sync_up did not copy %s", type(self._syncer).__name__, self._folder)
        except Exception as error:  # noqa: BLE001 - a syncer may raise anything; the experiment is safe in its folder
            logger.warning("%s.%s: %s: %s", type(self._syncer).__name__, name, type(error).__name__, error)
