"""The simulated machine: processes, threads and time, all in one thread and in an order that a seed decides.

Code that waits in `threading` or `time` runs here as it is, in greenlets: where it would block, the next one runs,
and when nobody can, time jumps to the next timer. Code that lives in an event loop runs in `SimLoop`. Each callback,
task and thread belongs to a `Process`, which may be stopped (SIGSTOP: what it had to do waits), or killed (SIGKILL:
it never gets to another instruction, and nothing is cleaned up).

Invariants:

* Exactly one thing runs at a time; it is interrupted only where it waits.
* What a process does is decided by the seed alone: no real thread, clock, socket or random number is asked.
* A process that is dead has no effects.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import heapq
import itertools
import random
import selectors
import sys
import time as real_time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

import greenlet
from virtual_time import START, StuckError, VirtualLoop

from trialpod.tune import session as sessions

T = TypeVar("T")

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("PROCESS", default=None)
WAKE_S = 0.0001
"""A thread that may continue does so within this time: so the seed decides who of several is first."""
MANY, MOST_CANCELLED = 100, 0.5
"""Of more timers than this, the cancelled ones are dropped when they are more than this share."""
RESOLUTION_S = 1e-9
"""Timers that are no further from each other than this are due together."""


class WorldOver(greenlet.GreenletExit):
    """The run has ended; whatever still waits is deleted."""


class _NoSelector(selectors.SelectSelector):
    """Nothing real is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0


class SimHandle:
    """Something to be done: by a process, unless that is dead, and later while it is stopped.

    It is in the place of `asyncio.Handle` and `asyncio.TimerHandle`.
    """

    __slots__ = ("args", "callback", "context", "gone", "loop", "process", "waits", "when_s")

    def __init__(
        self,
        loop: SimLoop,
        when_s: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.context = context = context if context is not None else contextvars.copy_context()
        self.process = context.get(PROCESS)
        self.loop, self.when_s, self.callback, self.args = loop, when_s, callback, args
        self.gone = self.waits = False

    def __lt__(self, other: object) -> bool:
        return False  # of two for the same moment, the heap decides

    def cancel(self) -> None:
        if not self.gone:
            self.gone = True
            self.callback, self.args = _nothing, ()
            if self.waits:
                self.loop.cancelled += 1

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self.when_s


def _nothing() -> None:
    pass


class SimLoop(VirtualLoop):
    """The event loop of everything.

    Its own turns do what those of asyncio do, in the same order, with nothing that could be waited for.

    Attributes:
        over: nothing is done any more.
        cancelled: how many of the timers that wait will do nothing.
    """

    _ready: deque[SimHandle]
    _scheduled: list[tuple[float, SimHandle]]
    _stopping: bool

    def __init__(self) -> None:
        self._virtual = _NoSelector()  # type: ignore[assignment]
        asyncio.SelectorEventLoop.__init__(self, self._virtual)
        self.over = False
        self.cancelled = 0
        self.set_task_factory(self._new_task)

    def _write_to_self(self) -> None:
        pass

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        context = options.get("context")
        process = context.get(PROCESS) if context is not None else PROCESS.get()
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks_done)
        return task

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        handle = SimHandle(self, 0.0, callback, args, context)
        if not self.over:
            self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = SimHandle(self, when, callback, args, context)
        if not self.over:
            handle.waits = True
            heapq.heappush(self._scheduled, (when, handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._virtual.now + delay, callback, *args, context=context)

    def again(self, handle: SimHandle) -> None:
        """Do now what was due while its process was stopped."""
        if not self.over:
            self._ready.append(handle)

    def _run_once(self) -> None:
        scheduled, ready, clock = self._scheduled, self._ready, self._virtual
        if len(scheduled) > MANY and self.cancelled / len(scheduled) > MOST_CANCELLED:
            self._drop_cancelled()
        while scheduled and scheduled[0][1].gone:
            heapq.heappop(scheduled)[1].waits = False
            self.cancelled -= 1
        if not ready and not self._stopping:
            if not scheduled:
                raise StuckError("nothing is left to do, and the run is not over")
            clock.now += max(0.0, scheduled[0][0] - clock.now)
        end = clock.now + RESOLUTION_S
        while scheduled and scheduled[0][0] < end:
            handle = heapq.heappop(scheduled)[1]
            handle.waits = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            process = handle.process
            if process is not None:
                if not process.alive:
                    continue
                if process.stopped:
                    process.backlog.append(handle)
                    continue
            if handle.gone:
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler({"message": f"in {handle.callback}", "exception": error})

    def _drop_cancelled(self) -> None:
        kept = []
        for entry in self._scheduled:
            if entry[1].gone:
                entry[1].waits = False
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._scheduled[:] = kept
        self.cancelled = 0

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()

        def complete(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - its waiter gets it
                self.call_soon(complete, None, error)
            else:
                self.call_soon(complete, result, None)

        SimThread(target=work, name="executor").start()
        return future


class Process:
    """One process: of an operator or of a pod.

    Attributes:
        alive: False after `kill`.
        stopped: between `stop` and `resume`.
        offset_s: how wrong its wall clock is.
        on_exit: called with of the exit status when it ends by itself.
        countdown: points until it is killed; None while it is not to be.
        on_death: called when that has come, before `on_kill` is.
    """

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.alive, self.stopped = True, False
        self.killed_at: float | None = None
        self.offset_s = 0.0
        self.backlog: deque[SimHandle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.threads: dict[SimThread, None] = {}
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.on_exit: Callable[[int], None] = lambda status: None
        self.countdown: int | None = None
        self.on_kill: Callable[[], None] = lambda: None
        self.on_death: Callable[[], None] = lambda: None
        self.session: Any = None
        self.hostname = name
        self._when_gone: dict[int, Callable[[], None]] = {}
        self._asked = itertools.count()
        kernel.processes.append(self)

    def on_kill_do(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have something done when the process is gone, however that comes; return what takes that back."""
        number = next(self._asked)
        self._when_gone[number] = callback
        return lambda: self._when_gone.pop(number, None) and None

    def ended(self) -> None:
        """Tell those who wait for something of it."""
        waiting, self._when_gone = self._when_gone, {}
        for callback in waiting.values():
            callback()

    def tasks_done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def call(self, callback: Callable[..., Any], *args: Any, after_s: float = 0.0) -> None:
        """Have something done in this process."""
        if after_s:
            self.kernel.loop.call_at(self.kernel.loop.time() + after_s, callback, *args, context=self.context)
        else:
            self.kernel.loop.call_soon(callback, *args, context=self.context)

    def spawn(self, target: Callable[[], Any], name: str) -> SimThread:
        """Start a thread in it."""
        thread = SimThread(target=target, name=name)
        thread.process = self
        thread.start()
        return thread

    def kill(self) -> None:
        """SIGKILL."""
        if not self.alive:
            return
        self.alive = False
        self.killed_at = self.kernel.now
        self.backlog.clear()
        self.kernel.log("killed", self.name)
        self.on_kill()
        self.ended()

    def exit(self, status: int) -> None:
        """End by itself; does not return when it is called by a thread of this process."""
        self.alive = False
        self.kernel.log("exited", f"{self.name} {status}")
        self.on_exit(status)
        self.ended()
        if self.kernel.current is not None and self.kernel.current.process is self:
            self.kernel.hub.switch()
            raise WorldOver

    def strip(self) -> None:
        """Keep only what tells who it was: the oracles may ask for long."""
        kept = {name: getattr(self, name) for name in ("name", "hostname", "kernel", "killed_at", "offset_s")}
        self.__dict__.clear()
        self.__dict__.update(kept, alive=False, stopped=False, countdown=None, tasks={}, threads={}, backlog=deque())
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True
        self.kernel.log("stopped", self.name)

    def resume(self) -> None:
        """SIGCONT."""
        if not self.stopped:
            return
        self.stopped = False
        self.kernel.log("continued", self.name)
        waiting, self.backlog = self.backlog, deque()
        for handle in waiting:
            self.kernel.loop.again(handle)

    def point(self, where: str) -> None:
        """Something happens here that others may see: the process may be killed just here."""
        if self.countdown is not None and self.alive:
            self.countdown -= 1
            if self.countdown < 0:
                self.countdown = None
                self.kernel.log("dies at", f"{self.name} {where}")
                self.on_death()
                self.kill()
        if not self.alive and self.kernel.current is not None:
            self.kernel.hub.switch()
            raise WorldOver


class Kernel:
    """What all processes share."""

    def __init__(self, seed: int, loop: SimLoop, keep: bool = False) -> None:
        self.loop = loop
        self._clock = loop._virtual
        self.random = random.Random(f"kernel {seed}")
        self.processes: list[Process] = []
        self.hub = greenlet.getcurrent()
        self.current: SimThread | None = None
        self.over = False
        self.errors: list[str] = []
        self.locks = LockOrder(self.errors)
        self.events = 0
        self.counts: Counter[str] = Counter()
        self.kept: list[str] | None = [] if keep else None
        self._digest = hashlib.sha256()
        self._serial = itertools.count(1)

    @property
    def now(self) -> float:
        return self._clock.now

    def wall(self) -> float:
        """Seconds since the epoch, as the process that asks sees them."""
        process = PROCESS.get()
        return START + self._clock.now + (process.offset_s if process is not None else 0.0)

    def log(self, kind: str, what: str = "") -> None:
        """Note in the timeline."""
        self.events += 1
        line = f"{self._clock.now:12.6f} {kind:14s} {what}"
        self._digest.update(line.encode())
        if self.kept is not None:
            self.kept.append(line)

    def digest(self) -> str:
        """The timeline in short."""
        return self._digest.hexdigest()

    def record_error(self, what: str, error: BaseException | None) -> None:
        """Something was raised that nobody caught."""
        import traceback

        text = "".join(traceback.format_exception(error)) if error is not None else ""
        self.errors.append(f"{what}: {type(error).__name__}: {error}\n{text}")

    def resume(self, thread: SimThread) -> None:
        """Let a thread run until it waits again."""
        if self.over or not thread.process.alive or thread.greenlet.dead:
            return
        before, self.current = self.current, thread
        kept = sessions._current
        sessions._current = thread.process.session
        try:
            thread.greenlet.switch()
        finally:
            thread.process.session = sessions._current
            sessions._current = kept
            self.current = before

    def park(self, timeout: float | None) -> bool:
        """Wait until somebody calls `unpark` (True), or so many seconds (False)."""
        if self.over:
            raise WorldOver
        thread = self.current
        assert thread is not None, "the event loop's own thread would wait"
        thread.ticket += 1
        thread.parked = True
        if timeout is not None:
            at = self._clock.now + max(0.0, timeout) + self.random.random() * WAKE_S
            self.loop.call_at(at, thread.wake, thread.ticket, False, context=thread.process.context)
        self.hub.switch()
        if self.over:
            raise WorldOver
        return thread.result

    def unpark(self, thread: SimThread) -> None:
        """Let a thread continue soon."""
        thread.due = True
        at = self._clock.now + self.random.random() * WAKE_S
        self.loop.call_at(at, thread.wake, thread.ticket, True, context=thread.process.context)

    def sleep(self, seconds: float) -> None:
        """time.sleep."""
        self.park(seconds)

    def pump(self, process: Process, holds: Callable[[], bool]) -> None:
        """Let other threads of the process run until something holds: its main thread waits for them."""
        while not holds():
            ready = [thread for thread in process.threads if thread.due or not thread.begun]
            if not ready:
                raise StuckError(f"the event loop of {process.name} waits for a thread that waits itself")
            thread = ready[0]
            if thread.begun:
                thread.wake(thread.ticket, True)
            else:
                thread.run()

    def close(self) -> None:
        """Close what still waits."""
        self.over = self.loop.over = True
        self._close(self.processes)

    def reap(self) -> list[Process]:
        """Close what waits in dead processes, and forget them; return them."""
        dead = [process for process in self.processes if not process.alive]
        self.processes = [process for process in self.processes if process.alive]
        self.over = self.loop.over = True  # what they do on their way out has no effects
        try:
            self._close(dead)
        finally:
            self.over = self.loop.over = False
        for process in dead:
            process.strip()
        return dead

    def _close(self, processes: Iterable[Process]) -> None:
        for process in processes:
            process.alive = False
            for task in list(process.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):  # what it does on its way out concerns nobody
                    task.get_coro().close()  # type: ignore[union-attr]
            for thread in list(process.threads):
                if thread.begun and not thread.greenlet.dead:
                    thread.greenlet.throw(WorldOver)
                self.locks.forget(thread)
            process.threads.clear()

    def serial(self) -> int:
        return next(self._serial)


_kernel: list[Kernel] = []


def install_kernel(kernel: Kernel | None) -> None:
    """Make it the one that simulated threads and clocks ask."""
    _kernel[:] = [kernel] if kernel is not None else []


def kernel() -> Kernel:
    return _kernel[0]


class SimThread:
    """threading.Thread."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = daemon
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self.process: Process = PROCESS.get()  # type: ignore[assignment]
        self.greenlet = greenlet.greenlet(self._main, parent=kernel().hub)
        self.begun = self.ended = self.parked = self.due = False
        self.ticket = 0
        self.result = False
        self._joining: list[SimThread] = []

    def start(self) -> None:
        self.process.threads[self] = None
        self.process.call(self.run, after_s=kernel().random.random() * WAKE_S)

    def run(self) -> None:
        if not self.begun:
            self.begun = True
            self.greenlet.gr_context = self.process.context.copy()
            kernel().resume(self)

    def wake(self, ticket: int, result: bool) -> None:
        if self.parked and ticket == self.ticket:
            self.parked = self.due = False
            self.result = result
            kernel().resume(self)

    def is_alive(self) -> bool:
        return (self.begun and not self.ended) or (self in self.process.threads and not self.ended)

    def join(self, timeout: float | None = None) -> None:
        if self.ended:
            return
        _resume_only_in_time()
        if kernel().current is None:
            kernel().pump(self.process, lambda: self.ended)
            return
        self._joining.append(kernel().current)
        kernel().park(timeout)

    def _main(self) -> None:
        try:
            assert self._target is not None
            self._target(*self._args, **self._kwargs)
        except WorldOver:
            return
        except BaseException as error:  # noqa: BLE001 - what no thread of ours may do
            if kernel().over:
                return
            kernel().record_error(f"thread {self.name} of {self.process.name} raised", error)
        finally:
            self.ended = True
            if not kernel().over:
                self.process.threads.pop(self, None)
                for thread in self._joining:
                    kernel().unpark(thread)


def _resume_only_in_time() -> None:
    if kernel().over:
        raise WorldOver


class LockOrder:
    """Finds out whether locks are taken in one order: two threads that take two in both orders may wait forever.

    That they do is rare; that each order happens at some time is not. Locks are distinguished by the line that makes
    them. (The idea is that of Linux's lockdep.)

    Args:
        errors: where it is said.
    """

    def __init__(self, errors: list[str]) -> None:
        self._errors = errors
        self._held: dict[object, list[SimLock]] = {}
        self._after: defaultdict[str, set[str]] = defaultdict(set)

    def taking(self, lock: SimLock, who: object) -> None:
        """A thread takes a lock, or is about to wait for it."""
        held = self._held.setdefault(who, [])
        for other in held:
            if lock.site not in self._after[other.site]:
                self._after[other.site].add(lock.site)
                if self._leads(lock.site, other.site):
                    self._errors.append(
                        f"lock order: the lock of {lock.site} is taken under that of {other.site}, and the other way "
                        "round, perhaps with others in between: two threads may wait for each other"
                    )
        held.append(lock)

    def released(self, lock: SimLock, who: object) -> None:
        """A thread has given a lock back, or up."""
        held = self._held.get(who)
        if held is None:
            return
        if lock in held:
            held.remove(lock)
        if not held:
            del self._held[who]

    def forget(self, who: object) -> None:
        """A thread is no more, wherever it was."""
        self._held.pop(who, None)

    def _leads(self, start: str, end: str) -> bool:
        seen, due = set(), [start]
        while due:
            site = due.pop()
            if site == end:
                return True
            if site not in seen:
                seen.add(site)
                due += self._after[site]
        return False


class SimLock:
    """threading.Lock."""

    def __init__(self) -> None:
        self._locked = False
        self._waiting: deque[SimThread] = deque()
        frame = sys._getframe(1)
        if frame.f_code.co_filename == __file__:
            frame = frame.f_back  # of a condition
        self.site = f"{frame.f_globals['__name__']}:{frame.f_lineno}"

    def locked(self) -> bool:
        return self._locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._locked:
            self._locked = True
            return True
        if not blocking:
            return False
        if kernel().over:
            return True
        thread = kernel().current
        assert thread is not None, "the event loop's own thread would wait for a lock"
        end = None if timeout < 0 else kernel().now + timeout
        while self._locked:
            left = None if end is None else end - kernel().now
            if left is not None and left <= 0:
                return False
            self._waiting.append(thread)
            kernel().park(left)
            if thread in self._waiting:
                self._waiting.remove(thread)
        self._locked = True
        return True

    def release(self) -> None:
        if not self._locked and not kernel().over:
            raise RuntimeError("release of a lock that is not held")
        self._locked = False
        if self._waiting:
            kernel().unpark(self._waiting.popleft())

    # Only here it keeps others out for a while; taken and given back by hand it may be one thread's sign to another.

    def __enter__(self) -> bool:
        world = _kernel[0]
        who = world.current or PROCESS.get()
        world.locks.taking(self, who)
        if not self._locked:
            self._locked = True
            return True
        try:
            return self.acquire()
        except BaseException:
            world.locks.released(self, who)
            raise

    def __exit__(self, *_: object) -> None:
        world = _kernel[0]
        world.locks.released(self, world.current or PROCESS.get())
        self.release()


class SimEvent:
    """threading.Event."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[SimThread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            kernel().unpark(thread)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        _resume_only_in_time()
        thread = kernel().current
        assert thread is not None, "the event loop's own thread would wait"
        self._waiting.append(thread)
        kernel().park(timeout)
        if thread in self._waiting:
            self._waiting.remove(thread)
        return self._set


class SimCondition:
    """threading.Condition."""

    def __init__(self, lock: SimLock | None = None) -> None:
        self._lock = lock or SimLock()
        self._waiting: list[SimThread] = []

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        _resume_only_in_time()
        thread = kernel().current
        if thread is None:
            process = PROCESS.get()
            assert process is not None
            self._lock.release()
            kernel().pump(process, iter([False, True]).__next__)
            self._lock.acquire()
            return True
        self._waiting.append(thread)
        self._lock.release()
        woken = kernel().park(timeout)
        if thread in self._waiting:
            self._waiting.remove(thread)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else kernel().now + timeout
        while not (found := predicate()):
            left = None if end is None else end - kernel().now
            if left is not None and left <= 0:
                return found
            self.wait(left)
        return found

    def notify(self, count: int = 1) -> None:
        for thread in self._waiting[:count]:
            kernel().unpark(thread)
        del self._waiting[:count]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


def run_in_turn(jobs: Iterable[Callable[[], object]], _threads: int) -> None:
    """Do what `run_all` does, one job after the other."""
    for job in jobs:
        job()


def _main_thread() -> object:
    return None  # no simulated thread is it: signal handlers are not installed


sim_threading = SimpleNamespace(
    Thread=SimThread,
    Lock=SimLock,
    RLock=SimLock,
    Event=SimEvent,
    Condition=SimCondition,
    current_thread=lambda: kernel().current,
    main_thread=_main_thread,
)

sim_time = SimpleNamespace(
    time=lambda: kernel().wall(),
    monotonic=lambda: kernel().now,
    perf_counter=lambda: kernel().now,
    sleep=lambda seconds: kernel().sleep(seconds),
    strftime=lambda form, moment=None: real_time.strftime(form, moment or real_time.gmtime(kernel().wall())),
    localtime=lambda moment=None: real_time.gmtime(kernel().wall() if moment is None else moment),
    gmtime=lambda moment=None: real_time.gmtime(kernel().wall() if moment is None else moment),
)
