"""The cgroups that nodes' pods are in, one tree per node, in cgroup v1 and v2."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from . import layout
from .processes import kill_all
from .system import ClusterError

_ROOT = Path("/sys/fs/cgroup")


def _controllers() -> list[Path]:
    """Return the roots in which each node has a cgroup: one for v2, one for each controller of v1."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in sorted(_ROOT.iterdir()) if (path / "cgroup.procs").exists() and not path.is_symlink()]


def folders(node: layout.Node) -> list[Path]:
    """Return the node's cgroup in every controller."""
    return [root / node.cgroup for root in _controllers()]


def create(node: layout.Node) -> None:
    """Make the node's cgroups: a kubelet with a cgroup root of its own does not make that itself."""
    if (_ROOT / "cgroup.controllers").exists():
        controllers = (_ROOT / "cgroup.controllers").read_text().split()
        (_ROOT / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    for folder in folders(node):
        folder.mkdir(exist_ok=True)
        # In v1 a new cpuset is empty, and nothing may run in it.
        for name in ("cpuset.cpus", "cpuset.mems"):
            above = folder.parent / name
            if above.exists() and (folder / name).exists():
                (folder / name).write_text(above.read_text())


def pids(node: layout.Node) -> set[int]:
    """Return the processes of all of the node's containers."""
    found: set[int] = set()
    for folder in folders(node):
        for path, _, files in os.walk(folder):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found.update(int(pid) for pid in (Path(path) / "cgroup.procs").read_text().split())
    return found


def kill(node: layout.Node, timeout: float = 20) -> None:
    """Kill all processes of the node's containers, and wait until they are gone.

    Raises:
        ClusterError: Some do not go.
    """
    deadline = time.monotonic() + timeout
    while alive := pids(node):
        kill_all(alive)
        if time.monotonic() > deadline:
            raise ClusterError(f"{node.name}: processes {sorted(alive)[:10]} do not go though they were killed")
        time.sleep(0.02)


def remove(node: layout.Node) -> None:
    """Remove the node's cgroups, the innermost first; no process may be in them."""
    for folder in folders(node):
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
