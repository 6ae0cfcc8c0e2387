"""The process of a command: a group of its own, both streams as pipes, and a guard that ends it with its runner.

Invariants:

* The program's descendants that stay in its group end with it; one that keeps a pipe open is not waited for.
* When the runner dies, whatever the cause, the guard kills the group: no program outlives its attempt.
* The guard is gone before the group's number can belong to others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from trialpod.errors import TrainableError, nearest
from trialpod.runner.command.program_file import loader_of, machine_of, this_machine

# The program says its number before it becomes the program; the end of the pipe is the end of the runner.
_GUARD = "import os,sys;told=sys.stdin.buffer.read();told and os.killpg(int(told),9)"
_FINAL = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM,
    errno.ENOEXEC, errno.E2BIG,
})  # fmt: skip
"""Errors of a start that every other attempt has too; after others, such as too many processes, it may succeed."""
_EXEC_FAILED = {"ENOEXEC": "has no #! line and cannot run on this machine", "EACCES": "may not be executed"}


class CommandNotFoundError(TrainableError):
    """The program of a command is not there, or cannot be executed."""


class CommandProcess:
    """A running command.

    Args:
        arguments: the exact arguments; the first is the program.
        env: all its variables.
        cwd: its working directory.

    Raises:
        CommandNotFoundError: the program cannot be started.
        TrainableError: it could not be started now.
    """

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        try:
            # It is there before the program, so that no death of the runner is too early for it.
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise TrainableError(f"the guard of {arguments[0]!r} cannot be started: {error.strerror}") from error
        assert self._guard.stdin is not None
        pipe = self._guard.stdin.fileno()

        def tell_guard() -> None:
            # In the child, after it has its group; until it is the program, it keeps the pipe open itself.
            os.write(pipe, str(os.getpid()).encode())

        try:
            self._process = subprocess.Popen(
                list(arguments),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                preexec_fn=tell_guard,
            )
        except BaseException as error:
            self._dismiss_guard()
            if not isinstance(error, (OSError, ValueError)):
                raise
            is_final = isinstance(error, ValueError) or error.errno in _FINAL
            why = _why_not_started(arguments[0], env, cwd, error)
            raise (CommandNotFoundError if is_final else TrainableError)(why) from error
        self.pid = self._process.pid
        self._closed = False
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.streams = (self._process.stdout, self._process.stderr)

    def poll(self) -> int | None:
        """Return the exit status, minus the number of the signal that killed it; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end, at most this time; return as `poll`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(seconds, 0.0))
        return None

    def end(self, grace_s: float) -> int:
        """SIGTERM to the group, after the grace period SIGKILL; return the exit status."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        status = self.wait(grace_s)
        if status is None:
            self.signal(signal.SIGKILL)
            status = self._process.wait()
        return status

    def close(self) -> None:
        """Kill what is left of the group, and the guard; only the first call does something."""
        if self._closed:
            return  # the number of the group may already be another's
        self._closed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._dismiss_guard()

    def _dismiss_guard(self) -> None:
        self._guard.kill()
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()


def describe_status(status: int) -> str:
    """Return how a command ended, in words."""
    if status >= 0:
        return f"exited with status {status}"
    name = signal.Signals(-status).name if -status in signal.valid_signals() else f"signal {-status}"
    hint = "; most often the machine, or the container, ran out of memory" if -status == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def program_problem(program: str, path: str, cwd: str) -> str | None:
    """Return why a program could not be started here, as far as that can be said without starting it.

    Args:
        program: the first of the arguments.
        path: the PATH of the command.
        cwd: its working directory.
    """
    found = os.path.join(cwd, program) if "/" in program else shutil.which(program, path=path)
    error: OSError
    if found is None or not os.path.exists(found):
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    elif not os.access(found, os.X_OK):
        error = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    else:
        return None
    return _why_not_started(program, {"PATH": path}, cwd, error)


def _why_not_started(program: str, env: Mapping[str, str], cwd: str, error: Exception) -> str:
    path = env.get("PATH", os.defpath)
    if not os.path.isdir(cwd):
        return f"the working directory {cwd} of the command does not exist"
    name = error.strerror if isinstance(error, OSError) else str(error)
    if isinstance(error, FileNotFoundError) and "/" not in program:
        guess = nearest(program, _programs(path))
        hint = f"; did you mean {guess!r}?" if guess else "."
        return f"there is no program {program!r}{hint} In a cluster it has to be in the image. PATH is {path}"
    if isinstance(error, FileNotFoundError):
        found = os.path.join(cwd, program)
        there = os.path.exists(found)
        if loader := loader_of(found):
            return (
                f"the program {program} needs the loader {loader}, which is not here: it is built for another C "
                "library (glibc or musl); build it for this image, or statically"
            )
        if there:
            return (
                f"the program {program} names an interpreter that does not exist (its #! line): correct that line, "
                "install the interpreter (in a cluster in the image), or name another one first"
            )
        guess = nearest(os.path.basename(program), _programs(os.path.dirname(found))[:5000])
        hint = f"; did you mean {os.path.join(os.path.dirname(program), guess)!r}?" if guess else "."
        return (
            f"the program {program} does not exist, seen from {cwd}{hint} Correct the command or its working "
            "directory; in a cluster it has to be in the image"
        )
    if isinstance(error, OSError) and error.errno is not None:
        known = _EXEC_FAILED.get(errno.errorcode.get(error.errno, ""))
        if known:
            found = shutil.which(program, path=path) or os.path.join(cwd, program)
            built_for, here = machine_of(found), this_machine()
            if error.errno == errno.ENOEXEC and built_for and built_for != here:
                return (
                    f"the program {found} is built for {built_for}, and this machine is {here}: use an image of this "
                    "architecture, or choose nodes of the other one (nodeSelector kubernetes.io/arch)"
                )
            remedy = "name its interpreter first, such as bash or python"
            if error.errno == errno.EACCES:
                remedy = f"chmod +x {found}, or {remedy}"
            return f"the program {found} {known}: {remedy}"
    return f"the program {program!r} cannot be started: {name}"


def _programs(path: str) -> list[str]:
    found: set[str] = set()
    for folder in path.split(os.pathsep)[:20]:
        with contextlib.suppress(OSError):
            found.update(os.listdir(folder or "."))
    return sorted(found)
