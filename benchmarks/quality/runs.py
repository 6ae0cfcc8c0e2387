"""Runs methods on tasks with several seeds, in a few processes, and returns what came of it as plain data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import methods
from simulator import Conditions, Moment, Outcome, Simulation
from tasks.catalogue import all_tasks
from tasks.references import load_reference
from tasks.task import Task
from tuners.tuner import Tuner


@dataclass(frozen=True)
class Job:
    """A method on a task, with all seeds.

    Attributes:
        method: its name.
        task: its name.
        seeds: one run each.
        conditions: the same for all runs.
    """

    method: str
    task: str
    seeds: tuple[int, ...]
    conditions: Conditions


@dataclass(frozen=True)
class Run:
    """One run: a method on a task with a seed."""

    method: str
    task: str
    seed: int
    overhead: float
    outcome: Outcome

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data, with the moments as rows."""
        data = asdict(self)
        data["outcome"]["moments"] = [[each.used, each.final, each.reported] for each in self.outcome.moments]
        return data

    @staticmethod
    def from_data(data: dict[str, Any]) -> Run:
        """Return what `as_data` was made of."""
        moments = [Moment(*row) for row in data["outcome"]["moments"]]
        return Run(**{**data, "outcome": Outcome(**{**data["outcome"], "moments": moments})})


@dataclass(frozen=True)
class Data:
    """Where the tasks' data is.

    Attributes:
        lcbench: the folder with the surrogate of LCBench; None leaves its tasks out.
        cache: a folder for what is computed once.
        packages: a folder with the packages that only the benchmark needs.
    """

    lcbench: Path | None
    cache: Path
    packages: Path

    def tasks(self) -> dict[str, Task]:
        """Return all tasks by name."""
        if self.packages.is_dir() and str(self.packages) not in sys.path:
            sys.path.append(str(self.packages))
        return {task.name: task for task in all_tasks(self.lcbench)}


class _Worker:
    """What one process keeps between jobs."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._tasks = data.tasks()
        self._tuners: dict[str, Tuner] = {}

    def work(self, job: Job) -> list[Run]:
        task = self._tasks[job.task]
        load_reference(task, self._data.cache / "references")
        tuner = self._tuners.get(job.method)
        if tuner is None:
            tuner = self._tuners[job.method] = methods.find(job.method).make()
        return [
            Run(
                job.method,
                job.task,
                seed,
                job.conditions.overhead,
                Simulation(task, tuner, seed, job.conditions).run(),
            )
            for seed in job.seeds
        ]


_worker: _Worker | None = None


def _start(data: Data) -> None:
    global _worker
    _worker = _Worker(data)


def _work(job: Job) -> list[Run]:
    assert _worker is not None
    return _worker.work(job)


def run_all(jobs: Sequence[Job], data: Data, processes: int, tell: Callable[[str], None]) -> Iterator[Run]:
    """Run all jobs and yield the runs as they come; `tell` gets a line of progress now and then.

    An error in one job ends everything with that error.
    """
    began = printed = time.monotonic()
    with ProcessPoolExecutor(processes, initializer=partial(_start, data)) as pool:
        futures = [pool.submit(_work, job) for job in jobs]
        try:
            for number, future in enumerate(as_completed(futures), 1):
                yield from future.result()
                if time.monotonic() - printed > 10 or number == len(jobs):
                    printed = time.monotonic()
                    tell(f"{number} of {len(jobs)} jobs after {printed - began:.0f} s")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
