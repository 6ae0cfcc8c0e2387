"""One live owner per experiment directory.

Own code: filelock (4.2.12) unlocks explicitly at a release (``LOCK_UN``), which takes the lock from the child
processes that inherited its descriptor, and it says neither which process holds a lock nor which ones have it open.

Invariants:

* The lock is an ``flock`` on ``.trialpod/lock``. It ends with the last process that has its descriptor open, however
  that process dies. The descriptor is inheritable, so that child processes which write to the directory hold it too:
  a successor cannot start while one of them is still writing.
* `release` only closes this process's descriptor. It never unlocks for the children.
* The file's content (holder, time) is for messages only, never for locking. The file is never
  removed: a removed lock file could be locked twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from trialpod.errors import ExperimentLockedError, StorageError
from trialpod.storage.base import storage_error
from trialpod.storage.layout import LOCK_FILE, TRIALPOD_DIR

_POLL_S = 0.05
_MAX_COMMAND = 200  # characters, on one line: it is part of a message
_MAX_ARGUMENTS = 16_384  # characters
_HELD = (errno.EAGAIN, errno.EACCES)


class LockOwner(msgspec.Struct):
    """Who took the lock.

    Attributes:
        pid: its process.
        host: its machine.
        started: when the lock was taken, seconds since the epoch.
        command: its command line, shortened, for messages.
        arguments: the whole command line; empty when it is very long.
        folder: where it was started.
        directory: the directory that it locked, as an absolute path: it may have been moved since.
    """

    pid: int
    host: str
    started: float
    command: str
    arguments: list[str] = []
    folder: str = ""
    directory: str = ""


class ExperimentLock:
    """The lock of an experiment directory; also a context manager that releases it at the end."""

    def __init__(self, directory: Path) -> None:
        """Args: directory: the experiment's directory."""
        self._directory = os.fspath(directory)
        self._path = os.path.join(self._directory, TRIALPOD_DIR, LOCK_FILE)
        self._fd = -1

    def acquire(
        self,
        timeout_s: float = 0.0,
        on_wait: Callable[[str], None] | None = None,
        *,
        for_orphans_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> ExperimentLock:
        """Take the lock, waiting up to `timeout_s` seconds for its holder to end.

        Args:
            timeout_s: how long to wait; 0 tries once.
            on_wait: called once, with a sentence that names the holder, when waiting begins.
            for_orphans_only: wait only while the lock's owner has ended and its children still hold it.
            clock: seconds, for the timeout.
            sleep: how to wait between two tries.

        Raises:
            ExperimentLockedError: it is still held.
            StorageError: the file system refuses; some network file systems have no locks.
        """
        if self._fd >= 0:
            return self
        fd = self._open()
        try:
            deadline = clock() + timeout_s
            waiting = False
            while not self._try_lock(fd):
                if clock() >= deadline or (for_orphans_only and self._owner_is_alive(fd)):
                    raise ExperimentLockedError(
                        f"{self._directory} is in use: {self._describe_owner(fd)}. Wait for it to end or end it, or "
                        "choose another experiment name or storage path"
                    )
                if not waiting and on_wait is not None:
                    on_wait(f"waiting for {self._directory}: {self._describe_owner(fd)}")
                waiting = True
                sleep(_POLL_S)
            self._write_owner(fd)
            os.set_inheritable(fd, True)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return self

    def release(self) -> None:
        """Release the lock in this process; children that inherited it hold it until they end."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """Return the inheritable descriptor that holds the lock; raise ValueError if it is not held."""
        if self._fd < 0:
            raise ValueError(f"the lock of {self._directory} is not held")
        return self._fd

    def __enter__(self) -> ExperimentLock:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self) -> int:
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise storage_error(error, "cannot open the lock file", self._path) from error

    def _try_lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                return False
            raise StorageError(
                f"cannot lock {self._path}: {error.strerror}; this file system may have no locks, use a storage path "
                "on another one"
            ) from error
        return True

    def _write_owner(self, fd: int) -> None:
        command = " ".join(" ".join(sys.orig_argv).split())[:_MAX_COMMAND]
        arguments = list(sys.orig_argv) if sum(map(len, sys.orig_argv)) <= _MAX_ARGUMENTS else []
        place = os.path.abspath(self._directory)
        now = time.time()
        holder = LockOwner(os.getpid(), socket.gethostname(), now, command, arguments, _current_folder(), place)
        data = _encoded(holder)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, data, 0)
        except OSError as error:
            raise storage_error(error, "cannot write", self._path, len(data)) from error

    def _read_owner(self, fd: int) -> LockOwner | None:
        try:
            return msgspec.json.decode(os.pread(fd, 65536, 0), type=LockOwner)
        except msgspec.DecodeError:
            return None  # locked a moment ago: its holder has written nothing yet

    def _owner_is_alive(self, fd: int) -> bool:
        holder = self._read_owner(fd)
        return holder is not None and (holder.host != socket.gethostname() or _alive(holder.pid))

    def _describe_owner(self, fd: int) -> str:
        holder = self._read_owner(fd)
        if holder is None:
            return "another process has just locked it"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.started))
        here = holder.host == socket.gethostname()
        where = "" if here else f" on host {holder.host}"
        text = f"process {holder.pid}{where} has held it since {since} ({holder.command})"
        if here and not _alive(holder.pid):
            children = ", ".join(map(str, lock_users(Path(self._directory)))) or "unknown"
            text = (
                f"process {holder.pid} ({holder.command}) ended, but processes that it started still run: {children}"
            )
        return text


def _encoded(holder: LockOwner) -> bytes:
    """Encode it; a command line that is not valid Unicode is left out."""
    try:
        return msgspec.json.encode(holder) + b"\n"
    except UnicodeEncodeError:
        plain = holder.command.encode(errors="replace").decode()
        return msgspec.json.encode(LockOwner(holder.pid, holder.host, holder.started, plain)) + b"\n"


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def read_owner(directory: Path) -> LockOwner | None:
    """Return the last process that took the lock of a directory, which may have ended; None if none has."""
    try:
        return msgspec.json.decode((directory / TRIALPOD_DIR / LOCK_FILE).read_bytes(), type=LockOwner)
    except (OSError, msgspec.DecodeError):
        return None


def lock_users(directory: Path) -> list[int]:
    """Return the other processes of this machine that have a directory's lock open, as far as permissions allow."""
    try:
        own = os.stat(directory / TRIALPOD_DIR / LOCK_FILE)
    except OSError:
        return []
    others = (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())
    return sorted(int(name) for name in others if _has_open(f"/proc/{name}/fd", own))


def is_lock_user(directory: Path, pid: int) -> bool:
    """Return whether a process of this machine has a directory's lock open; of another user's, whether it lives."""
    try:
        own = os.stat(directory / TRIALPOD_DIR / LOCK_FILE)
        os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return _alive(pid)
    except OSError:
        return False
    return _has_open(f"/proc/{pid}/fd", own)


def _has_open(folder: str, own: os.stat_result) -> bool:
    try:
        descriptors = os.listdir(folder)
    except OSError:  # ended meanwhile, or another user's
        return False
    for descriptor in descriptors:
        try:
            if os.path.samestat(os.stat(f"{folder}/{descriptor}"), own):
                return True
        except OSError:
            continue
    return False


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The state follows the command, which is in parentheses and may contain any character.
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
