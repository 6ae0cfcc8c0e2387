"""The cluster's processes: started detached, in its network namespace, and known by process id and start time.

Invariants: a process id alone is never signalled, since it may have been given to another process meanwhile; what a
recorded process had as start time is compared first. Started processes outlive the one that started them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from . import layout
from .system import ClusterError, entering, tail, wait_until


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it is not there, or only as a zombie.

    A process whose first thread is a zombie is there, with its open ports, for as long as it has other threads.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        over = fields[0] == b"X" or (fields[0] == b"Z" and len(os.listdir(f"/proc/{pid}/task")) == 1)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if over else int(fields[19])


def _reap(pid: int) -> None:
    # Only those that this very process started are its children; all others are their new parent's to reap.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def log_of(name: str) -> Path:
    """Return the log of a process."""
    return layout.LOGS / f"{name}.log"


def pid_of(name: str) -> int | None:
    """Return the process id of a running process of the cluster, or None if it does not run."""
    try:
        record = json.loads((layout.PIDS / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    _reap(record["pid"])
    return record["pid"] if start_time(record["pid"]) == record["started"] else None


def names() -> list[str]:
    """Return the names of all processes that were started and not stopped on purpose."""
    return sorted(path.stem for path in layout.PIDS.glob("*.json"))


def _inheritable() -> list[int]:
    """Return the open files that a new process would get, such as the lock that marks the cluster as in use."""
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def start(name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> int:
    """Start a process of the cluster if it does not run; return its process id.

    Raises:
        ClusterError: The binary is not there.
    """
    running = pid_of(name)
    if running is not None:
        return running
    arguments = entering() + [str(part) for part in command]
    program = shutil.which(arguments[0])
    if program is None:
        raise ClusterError(f"{name}: {arguments[0]} is not there")
    layout.PIDS.mkdir(parents=True, exist_ok=True)
    layout.LOGS.mkdir(parents=True, exist_ok=True)
    log = log_of(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # A test that starts it again has a folder for temporary files that is removed with the test's run.
    inherited = {key: value for key, value in os.environ.items() if key != "TMPDIR"}
    # posix_spawn, not Popen: the process is to live on, and a Popen object that is dropped complains about that.
    pid = os.posix_spawn(
        program,
        arguments,
        {**inherited, **(environment or {})},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()),
        ],
        setsid=True,
    )
    record = {"pid": pid, "started": start_time(pid), "command": arguments}
    (layout.PIDS / f"{name}.json").write_text(json.dumps(record))
    return pid


def wait_ready(name: str, ready: Callable[[], bool], timeout: float = 60) -> None:
    """Wait until a process does its work.

    Raises:
        ClusterError: It ended, or is not ready in time; the message has the end of its log.
    """

    def condition() -> bool:
        if pid_of(name) is None:
            raise ClusterError(f"{name} ended as soon as it was started\n{tail(log_of(name))}")
        return ready()

    wait_until(condition, f"{name} is ready", timeout=timeout, log=log_of(name))


def kill_all(pids: Iterable[int], sig: int = signal.SIGKILL) -> None:
    """Signal processes; those that are gone already are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)


def stop(name: str, *, sig: int = signal.SIGKILL, timeout: float = 20) -> None:
    """End a process of the cluster and wait until it is gone; after half of the time by SIGKILL.

    Raises:
        ClusterError: It does not go.
    """
    pid = pid_of(name)
    if pid is not None:
        kill_all([pid], sig)
        deadline = time.monotonic() + timeout / 2
        while pid_of(name) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        if pid_of(name) is not None:
            kill_all([pid])
        wait_until(lambda: pid_of(name) is None, f"{name} (process {pid}) is gone", timeout=timeout / 2)
    (layout.PIDS / f"{name}.json").unlink(missing_ok=True)


def with_argument(argument: str) -> list[int]:
    """Return the processes that have this very word in their command line: such as the path of a socket of ours."""
    found = []
    wanted = argument.encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if wanted in words:
                found.append(int(entry))
    return found
