"""Heartbeat of the process that writes an experiment into a storage.

Advisory: the guarantee is that the journal's objects are created only if they do not exist (`replica`). Without the
heartbeat, the second process to start could be the one that wins there.

Invariants: no clock is compared with another machine's. A writer increments a counter in ``.trialpod/writer.json``. A
starting process polls it, and takes over after `LEASE_S` of its own time without a change. On the same machine it
checks whether the process exists instead, and does not wait.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from trialpod.errors import ExperimentLockedError, StorageError
from trialpod.storage.base import KeyExistsError, KeyMissingError, Storage
from trialpod.storage.layout import WRITER_KEY

logger = logging.getLogger(__name__)

BEAT_S = 3.0
LEASE_S = 15.0
POLL_S = 1.0

_claimed_here: set[str] = set()
"""The tokens of this process's claims that are not released: it may run an experiment again whose claim it left."""


class Writer(msgspec.Struct):
    """The writing process."""

    token: str
    host: str
    pid: int
    machine: str  # boot id and PID namespace, in which `pid` is valid
    started: str  # when the process started, in ticks since boot: detects a reused pid
    count: int = 0

    @classmethod
    def of_this_process(cls) -> Writer:
        """Return what describes this process."""
        pid = os.getpid()
        return cls(os.urandom(8).hex(), socket.gethostname(), pid, _machine(), _start_of(pid))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class WriterClaim:
    """This process's claim to be the writer of an experiment.

    Args:
        storage: the experiment's location.
        me: the process that claims.
        clock: seconds of this machine, for differences only.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        storage: Storage,
        me: Writer | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage = storage
        self._me = me or Writer.of_this_process()
        self._clock = clock
        self._sleep = sleep
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._reachable = True

    def acquire(self, on_wait: Callable[[str], None]) -> None:
        """Become the writer.

        Args:
            on_wait: called each time it starts waiting to see whether another writer is alive.

        Raises:
            ExperimentLockedError: another process writes.
            StorageError: the storage cannot be read or written.
        """
        _claimed_here.add(self._me.token)
        try:
            self._acquire(on_wait)
        except BaseException:
            _claimed_here.discard(self._me.token)
            raise

    def _acquire(self, on_wait: Callable[[str], None]) -> None:
        data = msgspec.json.encode(self._me)
        while True:
            found = self._read()
            if found is None:
                with contextlib.suppress(KeyExistsError):
                    self._storage.write_new(WRITER_KEY, data)
                    return
                continue
            if self._has_ended(found, on_wait):
                self._storage.write(WRITER_KEY, data)
                return

    def keep(self) -> None:
        """Continue telling, from a thread, that this process is alive."""
        self._thread = threading.Thread(target=self._beat, name="trialpod-writer", daemon=True)
        self._thread.start()

    def release(self, *, reachable: bool = True) -> None:
        """Stop telling, and let another process write.

        Args:
            reachable: the storage answered lately; else it is left alone.
        """
        self._end.set()
        _claimed_here.discard(self._me.token)
        if not (reachable and self._reachable):
            return  # a process of another machine waits until the count stops
        if self._thread is not None:
            self._thread.join(BEAT_S)
            if self._thread.is_alive() or not self._reachable:
                return  # the storage does not answer now, and would hold up the end of this process
        try:
            if self._is_me(self._read()):
                self._storage.delete(WRITER_KEY)
        except StorageError as error:
            logger.info("%s/%s stays: %s", self._storage.uri, WRITER_KEY, error)

    def beat(self) -> bool:
        """Increment the count; return False when another process has become the writer.

        Raises:
            StorageError: the storage cannot be read or written.
        """
        if not self._is_me(self._read()):
            return False
        self._me.count += 1
        self._storage.write(WRITER_KEY, msgspec.json.encode(self._me))
        return True

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            try:
                if not self.beat():
                    return  # the journal's copy finds it out too, and ends the run
            except StorageError as error:
                self._reachable = False
                logger.info("cannot tell %s that this process writes: %s", self._storage.uri, error)
            else:
                self._reachable = True

    def _has_ended(self, found: Writer, on_wait: Callable[[str], None]) -> bool:
        """Return whether the writer is dead; False when it has released the experiment meanwhile."""
        if found.machine == self._me.machine:
            if _start_of(found.pid) != found.started:
                return True
            if found.pid == self._me.pid and found.token not in _claimed_here:
                return True  # an earlier run of this process could not remove it
            raise self._refusal(found)
        on_wait(
            f"{found} was writing this experiment to {self._storage.uri}; waiting {LEASE_S:.0f} s to see whether it "
            "still does"
        )
        began = self._clock()
        while self._clock() - began < LEASE_S:
            self._sleep(POLL_S)
            now = self._read()
            if now is None:
                return False  # it has just ended
            if now != found:
                raise self._refusal(now)
        return True

    def _refusal(self, found: Writer) -> ExperimentLockedError:
        return ExperimentLockedError(
            f"{found} is running this experiment and writes it to {self._storage.uri}; stop it first, or give this "
            "one another name (--name)"
        )

    def _read(self) -> Writer | None:
        try:
            return msgspec.json.decode(self._storage.read(WRITER_KEY), type=Writer)
        except KeyMissingError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StorageError(
                f"{self._storage.uri}/{WRITER_KEY} cannot be read ({error}); if no process runs this experiment, "
                "remove it"
            ) from error

    def _is_me(self, found: Writer | None) -> bool:
        return found is not None and found.token == self._me.token


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.urandom(8).hex()  # unknown: no other process is taken to be of the same machine


def _start_of(pid: int) -> str:
    """Return when a process started, in ticks since boot; "" when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    state, started = fields[0], fields[19]
    return "" if state in (b"Z", b"X") else started.decode()
