"""Runs jobs in a few threads.

Not `ThreadPoolExecutor`, whose threads an ending interpreter joins: a process that has to exit would wait for a
transfer.

Invariants: the threads are daemons; after the first error no further job starts, and the error is raised once the
running ones have ended; a process that may have no more threads does with those that it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


def run_all(
    jobs: Iterable[Callable[[], object]],
    threads: int,
    *,
    tick: Callable[[], None] | None = None,
    tick_s: float = 1.0,
) -> None:
    """Run every job once; return when all are done.

    Args:
        jobs: what to do, started in this order.
        threads: how many at a time.
        tick: called in this thread every `tick_s` seconds while jobs run.
        tick_s: seconds.

    Raises:
        BaseException: the first error that a job or `tick` raised.
    """
    waiting = list(jobs)
    waiting.reverse()
    if len(waiting) == 1 and tick is None:
        waiting[0]()
        return
    errors: list[BaseException] = []

    def work(between: Callable[[], None] = lambda: None) -> None:
        while not errors:
            try:
                job = waiting.pop()
            except IndexError:
                return
            try:
                job()
                between()
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                errors.append(error)

    workers: list[threading.Thread] = []
    for number in range(min(threads, len(waiting))):
        worker = threading.Thread(target=work, name=f"trialpod-transfer-{number}", daemon=True)
        try:
            worker.start()
        except RuntimeError:  # the limit of the pod or the user
            break
        workers.append(worker)
    if not workers:
        work(tick or (lambda: None))
    for worker in workers:
        while tick is not None and worker.is_alive():
            worker.join(tick_s)
            if worker.is_alive():
                try:
                    tick()
                except BaseException as error:  # noqa: BLE001 - raised below
                    errors.append(error)
                    tick = None
        worker.join()
    if errors:
        raise errors[0]
