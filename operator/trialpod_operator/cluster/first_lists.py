"""The lists with which an operator's watches begin: what is opened meanwhile need not be listed again.

They are complete for an experiment that this process has served since before they began, because no other operator
has made or changed anything of it since then. Pods come first: with them attempts are answered. TuneTrials, of which
there are ten times as many, are needed by the first reconcile pass only.

Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from trialpod_operator.cluster.shards.assignment import shard_of

WAIT_S = 30.0
"""Maximum time to wait for a list: a namespace that cannot be listed keeps no experiment of another one waiting."""


class FirstLists:
    """The lists of one process.

    Args:
        shards: numbers of the shards that it serves when the lists begin.
        pods: each is set when a list of pods was shown.
        trials: the same of TuneTrials.
        until: time of the event loop after which they are of no use.
    """

    def __init__(
        self,
        shards: Collection[int] = (),
        pods: Sequence[asyncio.Event] = (),
        trials: Sequence[asyncio.Event] = (),
        until: float = 0.0,
    ) -> None:
        self._shards = frozenset(shards)
        self._pods, self._trials = pods, trials
        self._until = until
        self._opened: set[str] = set()

    def cover(self, uid: str) -> bool:
        """Return whether they are all that has to be known of an experiment to open it, which is true once for each.

        One that is opened again may have pods that this process has made and no watch has shown yet.
        """
        new = uid not in self._opened
        self._opened.add(uid)
        return new and shard_of(uid) in self._shards and asyncio.get_running_loop().time() < self._until

    async def pods_shown(self) -> bool:
        """Wait until all pods were shown; return whether they were in time."""
        return await _all(self._pods)

    async def trials_shown(self) -> bool:
        """Wait until all TuneTrials were shown; return whether they were in time."""
        return await _all(self._trials)


async def _all(events: Sequence[asyncio.Event]) -> bool:
    try:
        async with asyncio.timeout(WAIT_S):
            for event in events:
                await event.wait()
    except TimeoutError:
        return False
    return True
