"""The fork server: ``python -m trialpod.runner.fork_server.server FD --parent PID [--keep-fd N]``.

It imports the runtime and the user's code once and forks a process for each trial, which so starts in milliseconds.

Invariants:

* It has one thread, which sleeps in `poll`; nothing is polled on a timer.
* When a trial has ended, for whatever reason, all its descendants are killed, daemons of their own session included,
  and only then is the trial reported as `Exited`. One that runs as another user, and cannot be killed, is left.
* When the parent is gone (end of the control socket, or its death as such), every trial is killed and this process
  ends. When this process is gone, the kernel kills the trials.
* Trials that are killed because this process is ended (SIGTERM) are not reported: to the parent they were
  lost with it, which is not their own doing.
* Descriptors given as ``--keep-fd`` stay open here and in every trial: a lock held through them is free only when all
  of these processes are gone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections import deque

from trialpod.runner.fork_server import child, system
from trialpod.runner.fork_server.protocol import (
    Event,
    Exited,
    Kill,
    Preload,
    Preloaded,
    Ready,
    Signal,
    Spawn,
    Started,
    frame,
    receive_command,
)
from trialpod.runner.streams import flush

_WAKING = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)
_HANDLED = (*_WAKING, signal.SIGINT)

_LEFTOVER_WAIT_S = 2.0
"""How long the report of an exit waits for killed descendants to be gone (one may hang in a dead file system)."""
_END_WAIT_S = 2.0
"""How long this process waits for what is left once all trials have ended."""


class _ParentGoneError(Exception):
    """No client is left."""


class _TerminatedError(Exception):
    """This process is ended by a signal."""


class ForkServer:
    """The fork server's state and its loop.

    Args:
        control: the socket to the parent.
        parent: the parent's pid.
        keep_fds: descriptors to leave open in trials.
    """

    def __init__(self, control: socket.socket, parent: int, keep_fds: list[int]) -> None:
        self._control = control
        self._parent = parent
        self._keep_fds = keep_fds
        self._environ = dict(os.environ)
        self._trials: dict[int, str] = {}  # pid -> key
        self._pids: dict[str, int] = {}
        self._own: set[int] = set()  # helper processes of the user's module, and what cannot be killed
        self._withheld: deque[tuple[float, Exited]] = deque()  # exits whose descendants may not be gone; until when
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        self._parent_fd = -1
        # A process forked by the parent may hold the other end of the socket open; the parent's own death counts.
        with contextlib.suppress(OSError):
            self._parent_fd = os.pidfd_open(parent)
            self._poll.register(self._parent_fd, select.POLLIN)
        system.adopt_orphans()
        self._handle_signals()

    def run(self) -> None:
        """Serve until the parent is gone or SIGTERM comes."""
        gc.collect()
        gc.freeze()
        try:
            if os.getppid() != self._parent:
                raise _ParentGoneError
            while True:
                self._step()
        except (_ParentGoneError, ConnectionError):
            self._end_everything()
        except _TerminatedError:
            with contextlib.suppress(ConnectionError):
                self._release()  # these had ended before
            self._end_everything(report=False)

    def send(self, event: Event) -> None:
        """Tell the parent."""
        self._control.sendall(frame(event))

    def _step(self) -> None:
        timeout_ms = None
        if self._withheld:
            timeout_ms = max(0, int(1000 * (self._withheld[0][0] - time.monotonic())) + 1)
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout_ms)}
        if self._parent_fd in ready:
            raise _ParentGoneError
        if self._wake_read in ready:
            received = os.read(self._wake_read, 4096)
            self._reap()
            if signal.SIGTERM in received or signal.SIGHUP in received:
                raise _TerminatedError
        self._release(time.monotonic())
        if self._control.fileno() in ready:
            self._handle_command()

    def _handle_command(self) -> None:
        command = receive_command(self._control)
        if command is None:
            raise _ParentGoneError
        if isinstance(command, Spawn):
            self._spawn(command)
        elif isinstance(command, Preload):
            self._preload(command)
        else:
            pid = self._pids.get(command.key)
            if pid is None:
                return  # It has ended meanwhile; its exit is on the way.
            if isinstance(command, Kill):
                system.kill_group(pid)
            elif isinstance(command, Signal):
                os.kill(pid, command.signum)

    def _handle_signals(self) -> None:
        # Python functions, not SIG_IGN: an ignored signal would stay ignored in programs that the user's code starts.
        for number in _HANDLED:
            signal.signal(number, _ignore)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def _preload(self, command: Preload) -> None:
        if self._trials:
            self.send(Preloaded(problem="trials are running already"))
            return
        module = command.function.partition(":")[0]
        # The user's import may take long, and this process cannot listen meanwhile.
        if not system.die_with_parent(self._parent):
            raise _ParentGoneError
        try:
            importlib.import_module(module)
            if command.storage_uri:
                from trialpod.storage.registry import storage_class

                storage_class(command.storage_uri).preload()
            problem = str(child.named(command.preloader)(command.ref))
        except BaseException as error:  # noqa: BLE001 - the user's module may raise anything; the trial says it again
            problem = "".join(traceback.format_exception_only(error)).strip()
        system.outlive_parent()
        flush()
        unsafe = system.unsafe_to_fork()
        if unsafe:
            self.send(Preloaded(problem=problem or unsafe, unforkable=not problem))
            self._replace_self(module)
        self._handle_signals()
        self._own = system.children()
        self.send(Preloaded(problem=problem))
        gc.collect()
        gc.freeze()

    def _replace_self(self, module: str) -> None:
        """Start over in this process, without the user's code. Commands that wait in the socket are kept."""
        for descriptor in (self._control.fileno(), *self._keep_fds):
            os.set_inheritable(descriptor, True)
        os.execve(sys.executable, [*sys.orig_argv, "--again", module], self._environ)

    def _spawn(self, command: Spawn) -> None:
        flush()  # or the trial would write it again
        server = os.getpid()
        # No handler of ours may run in the child, and no signal for the child may be lost before it is itself.
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns when there are native threads; `unsafe_to_fork` has judged them.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.send(Exited(key=command.key, status=1, problem=f"cannot start a process: {error}"))
            return
        if pid == 0:
            close = [self._control.detach(), self._wake_read, self._wake_write]
            close += [self._parent_fd] if self._parent_fd >= 0 else []
            child.run_trial_process(command, server=server, close=close, signals=_HANDLED)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._trials[pid] = command.key
        self._pids[command.key] = pid
        self.send(Started(key=command.key, pid=pid))

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None:
                break
            if ended.si_pid in self._trials:
                # Before it is reaped: after that its number could belong to another process.
                system.kill_group(ended.si_pid)
            pid, status, usage = os.wait4(ended.si_pid, 0)
            self._own.discard(pid)
            key = self._trials.pop(pid, None)
            if key is not None:
                del self._pids[key]
                exited = Exited(
                    key=key,
                    status=os.waitstatus_to_exitcode(status),
                    cpu_s=usage.ru_utime + usage.ru_stime,
                    max_rss=usage.ru_maxrss * 1024,
                )
                self._withheld.append((time.monotonic() + _LEFTOVER_WAIT_S, exited))
        if not self._kill_leftovers():
            self._release()

    def _kill_leftovers(self) -> bool:
        """Kill what ended trials left behind; False when there was nothing.

        What dies leaves its own children to us, and its end wakes us again: the last call finds nothing.
        """
        leftovers = system.children() - self._trials.keys() - self._own
        for pid in leftovers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                self._own.add(pid)
        return bool(leftovers - self._own)

    def _release(self, until: float = math.inf) -> None:
        """Report the exits that were withheld for long enough."""
        while self._withheld and self._withheld[0][0] <= until:
            self.send(self._withheld.popleft()[1])

    def _end_everything(self, *, report: bool = True) -> None:
        self._own.clear()
        for pid in self._trials:
            system.kill_group(pid)
        deadline = time.monotonic() + _END_WAIT_S
        try:
            while self._trials or time.monotonic() < deadline:
                for pid in system.children():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    self._wait_for_signal(None if self._trials else deadline)
                    continue
                key = self._trials.pop(pid, None)
                if key is not None:
                    cpu_s = usage.ru_utime + usage.ru_stime
                    exited = Exited(key=key, status=os.waitstatus_to_exitcode(status), cpu_s=cpu_s)
                    self._withheld.append((0.0, exited))
                    deadline = time.monotonic() + _END_WAIT_S
        except ChildProcessError:
            pass  # All are gone, which is what we wait for.
        # After an orderly close the parent still listens.
        if report:
            with contextlib.suppress(ConnectionError):
                self._release()

    def _wait_for_signal(self, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if poll.poll(None if deadline is None else max(0, int(1000 * (deadline - time.monotonic())) + 1)):
            os.read(self._wake_read, 4096)


def _ignore(_signum: int, _frame: object) -> None:
    """Wake the loop: what is to be done is done there."""


def main() -> None:
    """Run the fork server on the command line's arguments."""
    parser = argparse.ArgumentParser(prog="python -m trialpod.runner.fork_server.server", description=__doc__)
    parser.add_argument("control", type=int, metavar="FD", help="the socket to the parent")
    parser.add_argument("--parent", type=int, required=True, metavar="PID", help="the process that starts this one")
    parser.add_argument("--keep-fd", type=int, action="append", default=[], metavar="N")
    parser.add_argument("--again", default="", metavar="MODULE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.argv[1:] = []  # The user's module is not to see our arguments.
    for descriptor in (arguments.control, *arguments.keep_fd):
        os.set_inheritable(descriptor, False)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    server = ForkServer(socket.socket(fileno=arguments.control), arguments.parent, arguments.keep_fd)
    if arguments.again:
        # When it cannot be imported, each trial says so.
        with contextlib.suppress(ImportError):
            importlib.import_module(arguments.again)
    else:
        with contextlib.suppress(ConnectionError):  # the parent has ended meanwhile, as `run` finds out
            server.send(Ready(pid=os.getpid()))
    server.run()
    flush()
    # Not through the interpreter's shutdown: what the user's module registered there belongs to trials.
    os._exit(0)


if __name__ == "__main__":
    main()
