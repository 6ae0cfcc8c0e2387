"""What an experiment costs: requests to the API server, objects and bytes in etcd, memory without the trials'.

Requests come from the API server's audit log, without those of the administrator, which are this benchmark's own.
Memory is the proportional set size (PSS) of processes, in which a page that several share counts once.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import statistics
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from access import Cluster, KubectlError
from cluster_access import AuditLog

ADMINISTRATOR = "admin"
ETCD = "http://127.0.0.1:2379/v3/kv/range"
_APART = ("/registry/events/", "/registry/leases/", "/registry/masterleases/")
SAMPLE_S = 3.0


class Requests:
    """Requests to the API server from a moment on, by who sent them.

    Args:
        namespaces: whose ServiceAccounts are the system's own parts.
    """

    def __init__(self, namespaces: Iterable[str]) -> None:
        self._own = tuple(f"system:serviceaccount:{name}:" for name in namespaces)
        self._log = AuditLog()

    def read(self) -> dict[str, int]:
        """Return how many the system's own parts have sent since the last call, and all others but this benchmark."""
        found: Counter[str] = Counter(own=0, others=0)
        for request in self._log.read():
            if (
                request.user != ADMINISTRATOR
                and request.verb != "watch"
                and not request.resource.startswith("leases")
            ):
                found["own" if request.user.startswith(self._own) else "others"] += 1
        return dict(found)

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def keys() -> set[str]:
    """Return the keys of all objects in etcd, without events and Leases."""
    found = _range({"key": _encoded("/registry/"), "range_end": _encoded("/registry0"), "keys_only": True})
    names = (base64.b64decode(each["key"]).decode() for each in found)
    return {name for name in names if not name.startswith(_APART)}


def sizes(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return how many of these objects there are of each kind, and their bytes: key and value."""
    found: dict[str, tuple[int, int]] = {}
    for name in names:
        for each in _range({"key": _encoded(name)}):
            kind = name.removeprefix("/registry/").rpartition("/")[0].rpartition("/")[0]
            count, total = found.get(kind, (0, 0))
            found[kind] = (count + 1, total + len(name) + len(base64.b64decode(each.get("value", ""))))
    return found


def _range(request: dict[str, Any]) -> list[dict[str, Any]]:
    asked = urllib.request.Request(ETCD, json.dumps(request).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return list(json.load(answer).get("kvs", []))


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Memory:
    """Looks at the memory of a system's processes, from a thread of its own, until it is stopped.

    Args:
        spaces: the namespaces with its pods.
        is_overhead: whether a process of a pod is not a trial; it gets the pod and the command line.
    """

    def __init__(self, spaces: Iterable[str], is_overhead: Callable[[dict[str, Any], str], bool]) -> None:
        self._spaces = [Cluster(name) for name in spaces]
        self._is_overhead = is_overhead
        self._overhead: list[int] = []
        self._trials: list[tuple[int, int]] = []
        self.parts: dict[str, int] = {}
        """Of the moment with the most: MB by pod and program."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Memory:
        """Begin to look."""
        self._thread.start()
        return self

    def stop(self) -> dict[str, Any]:
        """Return MB: the most and the median of everything but the trials, and the median of a trial's processes."""
        self._stop.set()
        self._thread.join(60)
        each = [total / count for total, count in self._trials if count]
        return {
            "overhead_peak_mb": round(max(self._overhead, default=0) / 1e6, 1),
            "overhead_median_mb": round(statistics.median(self._overhead or [0]) / 1e6, 1),
            "trial_median_mb": round(statistics.median(each or [0]) / 1e6, 1),
            "parts_mb": self.parts,
        }

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(KubectlError):  # a fault may concern the API server
                self._look()
            self._stop.wait(SAMPLE_S)

    def _look(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for space in self._spaces for pod in space.list("pods")}
        overhead, trials, parts = 0, 0, Counter[str]()
        running = set()
        for pid, uid in _processes(pods):
            line = command_line(pid)
            if not line or line.startswith("/pause"):
                continue
            size = _pss(pid)
            if self._is_overhead(pods[uid], line):
                overhead += size
                parts[f"{_owner(pods[uid])}: {os.path.basename(line.split()[0])[:30]}"] += size
            else:
                trials += size
                running.add(uid)
        if overhead >= max(self._overhead, default=0):
            self.parts = {name: round(size / 1e6, 1) for name, size in parts.most_common(12)}
        self._overhead.append(overhead)
        self._trials.append((trials, len(running)))


def _owner(pod: dict[str, Any]) -> str:
    return "-".join(pod["metadata"]["name"].split("-")[:3])


def _processes(uids: Iterable[str]) -> list[tuple[int, str]]:
    wanted = {f"pod{uid}": uid for uid in uids}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                groups = (entry / "cgroup").read_text()
            except OSError:
                continue  # it has just ended
            if "pod" in groups:
                found += [(int(entry.name), uid) for part, uid in wanted.items() if part in groups]
    return found


def processes_of(pod: dict[str, Any]) -> list[int]:
    """Return the ids of all processes of a pod's containers."""
    found = _processes([pod["metadata"]["uid"]])
    return [pid for pid, _ in found if not command_line(pid).startswith("/pause")]


def command_line(pid: int) -> str:
    """Return a process's command line, "" of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def until(holds: Callable[[], Any], timeout_s: float, every_s: float = 0.2) -> Any:
    """Return what `holds` returns once that is true, or None when it is not in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            found = holds()
        except KubectlError:
            found = None
        if found:
            return found
        time.sleep(every_s)  # polls other processes
    return None
