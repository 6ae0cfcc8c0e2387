"""Keeps the reference values of tasks in a file: finding them takes seconds for a task, and they never change.

They are found again when the source of the task's module or its stored data has changed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks import task as task_module
from tasks.task import Reference, Task


def load_reference(task: Task, folder: Path) -> None:
    """Set `task.reference` from the folder's file, or find it and add it to that."""
    file = folder / f"{task.name}-{_version(task)}.json"
    if file.exists():
        task.reference = Reference(**json.loads(file.read_text()))
        return
    found: dict[str, Any] = asdict(task.find_reference())
    task.reference = Reference(**found)
    folder.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(found))
    partial.replace(file)


def _version(task: Task) -> str:
    digest = hashlib.sha256(inspect.getsource(task_module).encode())
    digest.update(Path(inspect.getfile(type(task))).read_bytes())
    digest.update(task.contents.encode())
    return digest.hexdigest()[:10]
