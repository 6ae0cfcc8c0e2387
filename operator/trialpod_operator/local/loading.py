"""Says what is being imported when the first trial has to wait for it, and when each trial will."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from trialpod.protocol.messages import TrainableRef
from trialpod.runner.fork_server.protocol import Preloaded
from trialpod_operator.display import events

FIRST_S = 1.0
"""An import that takes less is not mentioned."""
INTERVAL_S = 10.0


class Loading:
    """The import of the user's code, once for all trials.

    Args:
        ref: what is imported.
        tell: gets an event when the import takes long, at intervals, and one at its end.
        now: a monotonic clock, in seconds.
    """

    def __init__(
        self, ref: TrainableRef, tell: Callable[[events.Event], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = _described(ref)
        self._tell = tell
        self._now = now
        self._begun = now()
        self._ended = False

    @property
    def message(self) -> str:
        """What to show of it now; empty when it is over or has just begun."""
        seconds = self._now() - self._begun
        return "" if self._ended or seconds < FIRST_S else f"importing {self._what}, {seconds:.0f} s"

    async def follow(self, preload: asyncio.Future[Preloaded]) -> None:
        """Tell of the import until it ends."""
        begun = self._begun
        await asyncio.wait({preload}, timeout=FIRST_S)
        slow = not preload.done()
        while not preload.done():
            self._tell(events.loading(self._what, self._now() - begun, ended=False))
            await asyncio.wait({preload}, timeout=INTERVAL_S)
        self._ended = True
        if not slow or preload.cancelled() or preload.exception():
            return
        found = preload.result()
        if not found.problem:
            self._tell(events.loading(self._what, self._now() - begun, ended=True))
        elif found.unforkable:
            seconds = self._now() - begun
            self._tell(
                events.warning(
                    f"{self._what}: {found.problem}, so each trial imports it by itself, in about {seconds:.1f} s",
                    "use the GPU and start threads in the Trainable only, and trials are forked after one import",
                )
            )


def _described(ref: TrainableRef) -> str:
    if ref.entrypoint is not None:
        return ref.entrypoint.partition(":")[0]
    if ref.command is not None:
        return "trialpod"  # a runner for the program; the module itself is never imported
    return "the Trainable" if ref.source is None else "the manifest's source"
