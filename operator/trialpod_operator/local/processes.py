"""The trial processes of one machine, as the event loop sees them: the parent's side of the fork server.

Invariants:

* Every `spawn` ends in exactly one `ExitInfo`, whatever dies and in whatever order.
* An exit is reported when the process and its descendants are gone, so a next attempt can never overlap with it.
* When the fork server itself dies, its trials are killed and reported as `lost`, and a new one takes its place. One
  that dies while it imports the user's code is replaced by one that does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trialpod.errors import TrialpodError
from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.runner.fork_server.protocol import (
    DEFAULT_FUNCTION,
    DEFAULT_PRELOADER,
    Command,
    Event,
    EventStream,
    Exited,
    Kill,
    Preload,
    Preloaded,
    Ready,
    Signal,
    Spawn,
    Started,
    frame,
)
from trialpod_operator.local.fork_server import ForkServer

logger = logging.getLogger(__name__)

_GONE_WAIT_S = 5.0
"""How long the parent waits for a killed process to be gone."""

_STARTS = 3
"""Maximum number of restarts in a row of a fork server that has worked and dies before it is ready."""


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a trial process ended.

    `status` is the exit status, or minus the signal that killed it; `cpu_s` seconds of user and system time;
    `max_rss` bytes; `problem` says why there was no process or what happened to it from outside; `lost` is True when
    that was not the trial's own doing.
    """

    key: str
    pid: int  # 0 = never started
    status: int
    cpu_s: float = 0.0
    max_rss: int = 0
    problem: str = ""
    lost: bool = False

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        if self.status >= 0:
            return f"exit status {self.status}"
        try:
            return f"killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"killed by signal {-self.status}"


class Process:
    """A trial process. `pid` is 0 until it has started."""

    __slots__ = ("_on_exit", "exited", "key", "pid")

    def __init__(
        self, key: str, exited: asyncio.Future[ExitInfo], on_exit: Callable[[ExitInfo], None] | None
    ) -> None:
        self.key = key
        self.pid = 0
        self.exited = exited
        """Set when the process and its descendants are gone. Shield it when a wait for it may be cancelled."""
        self._on_exit = on_exit

    def finish(self, info: ExitInfo) -> None:
        """Publish the exit (called by the pool)."""
        if self._on_exit is not None:
            # By the loop: an error in the callback must not look like one of the control socket.
            self.exited.get_loop().call_soon(self._on_exit, info)
        if not self.exited.done():
            self.exited.set_result(info)


class _Link(asyncio.Protocol):
    """The control socket to one fork server process."""

    def __init__(self, on_event: Callable[[Event], None], on_lost: Callable[[], None]) -> None:
        self._stream = EventStream()
        self._on_event = on_event
        self._on_lost = on_lost

    def data_received(self, data: bytes) -> None:
        for event in self._stream.feed(data):
            self._on_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()


class ProcessPool:
    """Starts trial processes through a fork server and watches them.

    Args:
        env: environment of the fork server and so of all trials; None = this process's. Put what libraries read when
            they are loaded (``OMP_NUM_THREADS``) here: the user's module is loaded only once.
        cwd: working directory of the fork server; None = this process's.
        keep_fd: a descriptor that all processes keep open (the experiment's lock).
        preloader: what the fork server calls to import the user's code, ``module:function``.
        function: what a trial process calls, ``module:function``.
        server: a fork server that has been started already, with the same `env`, `cwd` and `keep_fd`.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        keep_fd: int | None = None,
        preloader: str = DEFAULT_PRELOADER,
        function: str = DEFAULT_FUNCTION,
        server: ForkServer | None = None,
    ) -> None:
        self._env = env
        self._cwd = cwd
        self._keep_fd = keep_fd
        self._prepared = server
        self._preloader = preloader
        self._function = function
        self._processes: dict[str, Process] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._outbox: list[bytes] = []  # commands given while there is no fork server to take them
        self._ready: asyncio.Future[None] | None = None
        self._ref: TrainableRef | None = None
        self._storage_uri = ""
        self._preloaded: asyncio.Future[Preloaded] | None = None
        self._broken = ""
        self._worked = False  # a fork server was ready once, so it can run here
        self._failed_starts = 0  # in a row
        self._closing = False
        self._gone = asyncio.Event()
        self._restart: asyncio.Task[None] | None = None

    @property
    def fork_server_pid(self) -> int:
        """Pid of the fork server, 0 when there is none."""
        return self._server.pid if self._server is not None else 0

    async def start(self) -> None:
        """Start the fork server and wait until it accepts commands.

        Raises:
            TrialpodError: it cannot run on this machine.
        """
        if sys.platform != "linux":
            raise TrialpodError(f"trials as local processes need Linux; this is {sys.platform}")
        await self._launch()
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def preload(self, ref: TrainableRef, storage_uri: str = "") -> Preloaded:
        """Import the user's code, and what the storage needs, once for all trials; say how that went."""
        if self._broken:
            return Preloaded(problem=self._broken)
        self._ref = ref
        self._storage_uri = storage_uri
        self._preloaded = asyncio.get_running_loop().create_future()
        self._send(self._preload_command(ref))
        return await asyncio.shield(self._preloaded)

    def _preload_command(self, ref: TrainableRef) -> Preload:
        return Preload(ref=ref, preloader=self._preloader, function=self._function, storage_uri=self._storage_uri)

    def spawn(
        self,
        key: str,
        *,
        runner: str,
        address: str,
        experiment: str,
        cwd: str = "",
        log_path: str = "",
        env: Mapping[str, str | None] | None = None,
        python_path: Sequence[str] = (),
        on_exit: Callable[[ExitInfo], None] | None = None,
    ) -> Process:
        """Start a trial process; return at once.

        Args:
            key: names the process in this pool; must never have been used before.
            runner: identity that it gives to the report service at `address`.
            address: ``unix:/path`` or a URL.
            experiment: the experiment's name in that service.
            cwd: its working directory; "" = the fork server's.
            log_path: file to which its stdout and stderr are appended.
            env: variables to set, or with None to remove.
            python_path: folders to put first on ``sys.path``.
            on_exit: called in the event loop when it is gone.
        """
        if key in self._processes:
            raise ValueError(f"a process with key {key!r} is running")
        loop = asyncio.get_running_loop()
        process = Process(key, loop.create_future(), on_exit)
        self._processes[key] = process
        if self._broken and self._worked and not self._closing:
            # What ended it before may be over; retries of this attempt become rarer.
            self._broken, self._failed_starts = "", 0
            self._gone.clear()
            self._restart = loop.create_task(self._relaunch())
        if self._broken or self._closing:
            problem = self._broken or "the process pool is closed"
            loop.call_soon(self._finish, ExitInfo(key=key, pid=0, status=1, problem=problem, lost=True))
            return process
        self._send(
            Spawn(
                key=key,
                runner=runner,
                address=address,
                experiment=experiment,
                cwd=cwd,
                log_path=log_path,
                env=dict(env or {}),
                python_path=list(python_path),
                function=self._function,
            )
        )
        return process

    def terminate(self, key: str, sig: int = signal.SIGTERM) -> None:
        """Send a signal to a trial's main process; nothing happens when it has ended."""
        if key in self._processes:
            self._send(Signal(key=key, signum=sig))

    def is_alive(self, key: str) -> bool:
        """Tell whether a trial's main process runs; False from its death on, also before its exit was reported."""
        process = self._processes.get(key)
        if process is None:
            return False
        if not process.pid:
            return True
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        except OSError:  # no descriptor is left, or none is allowed: its exit tells
            return True
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            return not ended.poll(0)
        finally:
            os.close(descriptor)

    def kill(self, key: str) -> None:
        """SIGKILL a trial and all its descendants."""
        if key in self._processes:
            self._send(Kill(key=key))

    async def kill_all(self) -> None:
        """SIGKILL all trials and wait until they are gone."""
        exits = [process.exited for process in self._processes.values()]
        for key in self._processes:
            self._send(Kill(key=key))
        if exits:
            await asyncio.wait(exits)

    async def close(self) -> None:
        """Kill all trials, end the fork server, and wait until all are gone."""
        if self._closing:
            await self._gone.wait()
            return
        self._closing = True
        if self._restart is not None:
            await asyncio.wait([self._restart])
        if self._transport is not None and not self._transport.is_closing():
            # The end of the commands ends the fork server; it still reports the exits.
            self._transport.write_eof()
            try:
                await asyncio.wait_for(self._gone.wait(), _GONE_WAIT_S)
            except TimeoutError:
                if self._server is not None:
                    self._server.kill()
                await self._gone.wait()
        self._gone.set()

    def _send(self, command: Command) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(command))
        else:
            self._outbox.append(frame(command))

    async def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        prepared, self._prepared = self._prepared, None
        server = prepared or ForkServer(env=self._env, cwd=self._cwd, keep_fd=self._keep_fd)
        self._server = server.process
        transport, _ = await loop.create_connection(lambda: _Link(self._on_event, self._on_lost), sock=server.control)
        self._transport = transport
        if self._ref is not None:
            transport.write(frame(self._preload_command(self._ref)))
        for data in self._outbox:
            transport.write(data)
        self._outbox.clear()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Started):
            process = self._processes.get(event.key)
            if process is not None:
                process.pid = event.pid
        elif isinstance(event, Exited):
            process = self._processes.get(event.key)
            if process is None:
                return
            info = ExitInfo(
                key=event.key,
                pid=process.pid,
                status=event.status,
                cpu_s=event.cpu_s,
                max_rss=event.max_rss,
                problem=event.problem,
            )
            self._finish(info)
        elif isinstance(event, Preloaded):
            if self._preloaded is not None and not self._preloaded.done():
                self._preloaded.set_result(event)
        elif isinstance(event, Ready) and self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
            self._worked, self._failed_starts = True, 0

    def _on_lost(self) -> None:
        self._transport = None
        lost = list(self._processes.values())
        self._restart = asyncio.get_running_loop().create_task(self._after_death(lost))

    async def _after_death(self, lost: list[Process]) -> None:
        server = self._server
        assert server is not None
        assert self._ready is not None
        server.kill()  # It has closed its socket; this need not wait until it has ended.
        status = server.wait()
        self._server = None
        how = str(ExitInfo(key="", pid=server.pid, status=status))
        if not self._closing:
            logger.warning("the fork server ended unexpectedly: %s", how)
        await _kill_groups([process.pid for process in lost if process.pid])
        problem = "the process pool was closed" if self._closing else f"its parent, the fork server, ended: {how}"
        restart = not self._closing and self._ready.done()
        if not self._ready.done() and self._worked and self._failed_starts < _STARTS and not self._closing:
            self._failed_starts += 1
            restart = True
        elif not self._ready.done():
            self._give_up(
                f"the fork server cannot start: {how}; its output says why "
                f"(try: {sys.executable} -c 'import trialpod.runner.fork_server.server')"
            )
            return
        if self._preloaded is not None and not self._preloaded.done():
            problem = f"importing it ended the process ({how}); trials import it by themselves"
            self._end_preload(problem)
        self._lose(lost, problem)
        if restart:
            await self._relaunch()
        else:
            self._gone.set()

    async def _relaunch(self) -> None:
        try:
            await self._launch()
        except OSError as error:  # no memory, no descriptor or no process is left
            self._server = None
            self._give_up(f"the fork server cannot be started again: {error}")

    def _give_up(self, problem: str) -> None:
        """Have no fork server until the next `spawn`; what waits for one waits no more."""
        self._broken = problem
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(TrialpodError(problem))
            self._ready.exception()  # Without a waiter, the exits say it.
        self._end_preload(problem)
        self._outbox.clear()
        self._lose(list(self._processes.values()), problem)
        self._gone.set()

    def _end_preload(self, problem: str) -> None:
        if self._preloaded is not None and not self._preloaded.done():
            self._ref = None
            self._preloaded.set_result(Preloaded(problem=problem))

    def _lose(self, lost: list[Process], problem: str) -> None:
        for process in lost:
            self._finish(ExitInfo(process.key, process.pid, -signal.SIGKILL, problem=problem, lost=True))

    def _finish(self, info: ExitInfo) -> None:
        process = self._processes.pop(info.key, None)
        if process is not None:
            process.finish(info)


async def _kill_groups(pids: Sequence[int]) -> None:
    """SIGKILL process groups and wait (for a limited time) until their leaders are gone."""
    loop = asyncio.get_running_loop()
    waits: list[asyncio.Future[None]] = []
    descriptors: list[int] = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            gone: asyncio.Future[None] = loop.create_future()
            loop.add_reader(descriptor, _set, gone)
            descriptors.append(descriptor)
            waits.append(gone)
    if waits:
        await asyncio.wait(waits, timeout=_GONE_WAIT_S)
    for descriptor in descriptors:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_CRASHES = {
    signal.SIGSEGV: "an invalid memory access in native code",
    signal.SIGBUS: "an invalid memory access in native code, or a full disk under a mapped file",
    signal.SIGABRT: "native code called abort(); its last output is in the log",
    signal.SIGFPE: "an arithmetic error in native code",
    signal.SIGILL: "an instruction that this processor does not have",
}


def describe_exit(info: ExitInfo) -> AttemptEnd:
    """Return the end of an attempt whose process is gone, with what to check.

    Only what is known to have happened to the process from outside does not count as a failure of the trial. The
    words are the same for all trials that ended alike, so that they can be counted together; the log is named beside
    them.
    """
    if info.lost:
        return AttemptEnd(cause="lost", error=str(info))
    if info.problem:
        return AttemptEnd(cause="failed", error=f"the trial's process could not be started: {info.problem}")
    if info.status >= 0:
        return AttemptEnd(
            cause="failed",
            error=f"the process ended with exit status {info.status} before the trial was over "
            "(os._exit, or a crash at its end?); its log may say more",
        )
    signum = -info.status
    if signum == signal.SIGTERM:
        return AttemptEnd(
            cause="preempted", error="it was ended by SIGTERM from outside before it could save its state"
        )
    if signum == signal.SIGKILL:
        return AttemptEnd(
            cause="failed",
            error="the process was killed (SIGKILL); most often the machine ran out of memory: "
            "run fewer trials at once or make them smaller",
        )
    name = signal.Signals(signum).name if signum in signal.valid_signals() else f"signal {signum}"
    why = _CRASHES.get(signal.Signals(signum)) if signum in signal.valid_signals() else None
    return AttemptEnd(
        cause="failed",
        error=f"the process crashed with {name}{f': {why}' if why else ''}",
    )
