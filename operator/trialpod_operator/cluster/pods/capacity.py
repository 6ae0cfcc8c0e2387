"""How many attempts of an experiment may be under way at once, beside what its manifest allows. Pure.

A pod that finds no place costs the scheduler, the queue and everybody behind it in that queue; a thousand of them do
nothing that a few would not do. So an experiment runs ahead of what has found a place by some pods only:

* in a queue of Kueue's, by as many as were admitted while all of them are admitted at once, and by `IN_QUEUE` as soon
  as one has to wait: the parallelism then is the quota's;
* with `maxConcurrentTrials`, by as many as have a place, and at least `AHEAD`: each round of an autoscaler sees the
  demand doubled, until the user's own limit is reached;
* without any limit, by `AHEAD`; where a trial has several pods, by one trial.

Invariant: what is observed is journaled, so it changes only by more than it runs ahead when it goes down.
"""

from __future__ import annotations

AHEAD = 16
"""So many more attempts than have a place are started."""

IN_QUEUE = 4
"""So many while some wait in a queue."""

WAITS_AFTER_S = 5.0
"""After so long a pod that a queue has not admitted waits; before, it is on its way."""


def slots(
    now: int | None,
    placed: int,
    most: int | None,
    *,
    queued: bool = False,
    waits: bool = False,
    grouped: bool = False,
) -> int | None:
    """Return how many attempts may be under way, None when that stays as it is.

    Args:
        now: as it is; None = nothing holds them back.
        placed: attempts that have a place: a node, or their work already.
        most: the user's limit, if there is one.
        queued: the pods go through a queue.
        waits: the queue lets some of them wait.
        grouped: each attempt has several pods.
    """
    if queued:
        ahead = IN_QUEUE if waits else max(IN_QUEUE, placed)
    elif most is None:
        ahead = 1 if grouped else AHEAD
    else:
        ahead = max(AHEAD, placed)
    wanted = placed + ahead
    if most is not None and wanted >= most:
        return None if now is None or now >= most else most
    return wanted if now is None or wanted > now or wanted < now - ahead else None
