"""All tasks by name, as far as their data is there."""

from __future__ import annotations

from pathlib import Path

from tasks.lcbench import lcbench_tasks
from tasks.synthetic import synthetic_tasks
from tasks.task import Task


def all_tasks(lcbench: Path | None) -> list[Task]:
    """Return every task whose data is there.

    Args:
        lcbench: the folder with the surrogate of LCBench; None leaves its tasks out.
    """
    tasks: list[Task] = []
    if lcbench is not None:
        tasks += lcbench_tasks(lcbench)
    return tasks + synthetic_tasks()
