"""Running commands, inside the cluster's network namespace or outside, with bounds and errors that say enough."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import layout


class ClusterError(SystemExit):
    """The cluster cannot do what was asked: the message says what, and shows the end of the log concerned."""

    def __init__(self, message: str) -> None:
        super().__init__(f"cluster: {message}")
        self.message = message

    def __str__(self) -> str:
        return self.message


def say(text: str) -> None:
    """Tell the user what is being done."""
    sys.stderr.write(f"cluster: {text}\n")
    sys.stderr.flush()


def tail(path: Path, lines: int = 25) -> str:
    """Return the last lines of a log."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({path}: {error.strerror})"
    return f"--- {path}, its last lines:\n" + "\n".join(text.splitlines()[-lines:])


def inside() -> bool:
    """Whether this process is in the cluster's network namespace."""
    try:
        here, there = os.stat("/proc/self/ns/net"), os.stat(layout.NETNS_FILE)
    except FileNotFoundError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def entering() -> list[str]:
    """Return what to put before a command so that it runs in the cluster's network namespace.

    Not `ip netns exec`: that mounts /sys again and so hides the cgroups.
    """
    return [] if inside() else ["nsenter", f"--net={layout.NETNS_FILE}", "--"]


def run(
    command: Sequence[str | Path],
    *,
    timeout: float = 60,
    given: str | bytes | None = None,
    check: bool = True,
    namespaced: bool = False,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stream: bool = False,
) -> str:
    """Run a command to its end and return what it printed (stdout).

    Args:
        command: The command and its arguments.
        timeout: Seconds until it is killed.
        given: What it reads from stdin.
        check: Whether an exit status other than 0 is an error; otherwise it is ignored.
        namespaced: Whether it runs in the cluster's network namespace.
        environment: Variables beside those of this process.
        cwd: The folder that it runs in.
        stream: Whether its output goes to stderr as it comes, for commands that take minutes.

    Raises:
        ClusterError: It failed or took too long.
    """
    arguments = (entering() if namespaced else []) + [str(part) for part in command]
    data = given.encode() if isinstance(given, str) else given
    try:
        done = subprocess.run(
            arguments,
            input=data,
            stdin=None if data is not None else subprocess.DEVNULL,
            stdout=sys.stderr if stream else subprocess.PIPE,
            stderr=None if stream else subprocess.PIPE,
            timeout=timeout,
            env={**os.environ, **environment} if environment else None,
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{shlex.join(arguments)} did not end within {timeout:.0f} s") from error
    except OSError as error:
        raise ClusterError(f"{arguments[0]} does not run: {error}") from error
    output = (done.stdout or b"").decode(errors="replace")
    if check and done.returncode:
        said = (output + (done.stderr or b"").decode(errors="replace"))[-4000:]
        raise ClusterError(f"{shlex.join(arguments)} failed with exit status {done.returncode}:\n{said}")
    return output


def wait_until(condition: Callable[[], bool], what: str, *, timeout: float, log: Path | None = None) -> None:
    """Wait until a condition holds.

    Raises:
        ClusterError: It does not within `timeout` seconds; the message shows the end of `log`.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {timeout:.0f} s" + (f"\n{tail(log)}" if log else ""))
        time.sleep(0.1)


def mounts_below(*folders: Path) -> list[str]:
    """Return the mount points below folders, the innermost first."""
    found = []
    prefixes = tuple(f"{folder}/" for folder in folders)
    with open("/proc/self/mountinfo") as file:
        for line in file:
            point = line.split()[4].encode().decode("unicode_escape")
            if point.startswith(prefixes) or point in {str(folder) for folder in folders}:
                found.append(point)
    return found[::-1]


def unmount_below(*folders: Path) -> None:
    """Unmount everything below folders."""
    for point in mounts_below(*folders):
        run(["umount", "--lazy", point], check=False)


def require_root() -> None:
    """Raise an error unless this is root on Linux with what the cluster needs of the kernel.

    Raises:
        ClusterError: Something is missing.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ClusterError(
            "the test cluster runs real kubelets and containers: it needs Linux and root (for example in a virtual "
            "machine, or a privileged container)"
        )
    with open("/proc/filesystems") as file:
        kinds = file.read().split()
    if "overlay" not in kinds and not Path("/sys/module/overlay").exists():
        run(["modprobe", "overlay"], check=False)
    if not list(Path("/sys/fs/cgroup").iterdir()):
        raise ClusterError("/sys/fs/cgroup is empty: mount the cgroup file systems there first")
