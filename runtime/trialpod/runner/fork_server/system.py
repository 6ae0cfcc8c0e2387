"""What the fork server needs of Linux beyond `os`: prctl, the list of its children, whether a fork is safe.

Invariant: everything here is safe to call in a freshly forked process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CUDA_ERROR_NOT_INITIALIZED = 3

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def die_with_parent(parent: int) -> bool:
    """Ask the kernel to SIGKILL this process when the thread that forked it ends (prctl(2), PR_SET_PDEATHSIG).

    Returns False when the parent, given by its pid, has ended already: then no signal comes.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def outlive_parent() -> None:
    """Take back `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Return the pids of this process's direct children, zombies included."""
    found: set[int] = set()
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN, or a thread that ended just now.
        return _children_by_scan()
    return found


def _children_by_scan() -> set[int]:
    own = str(os.getpid()).encode()
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may hold spaces and parentheses; the parent is the second field after it.
                if file.read().rpartition(b")")[2].split()[1] == own:
                    found.add(int(name))
    return found


def kill_group(pid: int) -> None:
    """SIGKILL a process that leads a group, and the group; it is not an error when they are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # The process itself too: it may not have made its group yet.
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def unsafe_to_fork() -> str:
    """Say why a fork of this process would not work, or return "".

    Python threads do not exist in the child while the locks they hold do, and a CUDA context cannot be used there.
    Native threads of BLAS libraries do not matter: these libraries restart them after a fork.
    """
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        return f"importing it started threads ({', '.join(sorted(threads))})"
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "importing it initialised CUDA"
    if _cuda_driver_initialised():
        return "importing it initialised the CUDA driver"
    return ""


def _cuda_driver_initialised() -> bool:
    # Any library may have called cuInit (a mere "is there a GPU?" does). Open devices do not tell: NVML, by which
    # PyTorch answers that question here, opens the same ones and survives a fork. The driver itself knows.
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False  # nothing has loaded it
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _CUDA_ERROR_NOT_INITIALIZED)
