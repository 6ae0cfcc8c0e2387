"""Reads both streams of a command: on to the trial's own log, and line by line to the reader of metrics.

Invariants:

* The bytes reach the log as they are, at once. A full disk there stops nothing.
* Lines wait in a queue of bounded size. When it is full, reading waits, and with it the program as soon as its pipe
  is full: nothing is lost, and memory is bounded.
* A last line without an end is kept apart: of a program that was killed it may be half a number.
* After `stop` the thread reads what the pipes hold and ends, also when a process that is left keeps them open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import selectors
import struct
import termios
import threading
import time
from typing import IO

from trialpod.tune.command.metrics.lines import LineSplitter
from trialpod.tune.command.metrics.reader import LastLines, LineReader

MAX_QUEUED_LINES = 4096
_CHUNK = 64 * 1024


class CommandOutput:
    """The output of a command, read in a thread.

    Args:
        streams: its stdout and stderr.
        reader: says which lines can have a metric; only those are queued.
    """

    def __init__(self, streams: tuple[IO[bytes], IO[bytes]], reader: LineReader) -> None:
        self._streams = streams
        self._reader = reader
        self._queue: queue.Queue[str] = queue.Queue(MAX_QUEUED_LINES)
        self._dropping = threading.Event()
        self._stop_reader, self._stop_writer = os.pipe()
        self._stopped = False
        self._working = False
        self.partials: list[str] = []
        """Last lines without an end, once all has been read."""
        self.read_at = time.monotonic()
        """When something came last, in monotonic seconds."""
        self.last = LastLines()
        self._thread = threading.Thread(target=self._run, name="trialpod-output", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> str | None:
        """Return the next line that can have a metric, None when none comes in time."""
        try:
            return self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None

    def drop(self) -> None:
        """Read on to the log only: no more lines are wanted."""
        self._dropping.set()
        while self.next(0) is not None:
            pass

    def stop(self) -> None:
        """End the reading with what the pipes hold now. Call it when nothing that counts can write any more."""
        if not self._stopped:
            self._stopped = True
            os.close(self._stop_writer)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the reading, not for long: a log on a dead disk may hold it up."""
        self._thread.join(timeout_s)

    @property
    def ended(self) -> bool:
        """Whether no more lines will be queued."""
        return not self._thread.is_alive()

    @property
    def idle(self) -> bool:
        """Whether every line that the program has written until now has come out of `next`."""
        # In this order: what is not in a pipe any more is with the thread or processed.
        if not self.ended and (any(map(_held, self._descriptors())) or self._working):
            return False
        return self._queue.empty()

    def _descriptors(self) -> list[int]:
        with contextlib.suppress(ValueError):  # the thread has just closed them
            return [stream.fileno() for stream in self._streams if not stream.closed]
        return []

    def _run(self) -> None:
        targets = dict(zip(self._streams, (1, 2), strict=True))
        splitters = {stream: LineSplitter() for stream in self._streams}
        with selectors.DefaultSelector() as selector:
            selector.register(self._stop_reader, selectors.EVENT_READ)
            for stream in self._streams:
                selector.register(stream, selectors.EVENT_READ)
            while targets:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._stop_reader in ready:
                    break
                for stream in [stream for stream in self._streams if stream in ready]:
                    if not self._read(stream, targets[stream], splitters[stream], _CHUNK):
                        selector.unregister(stream)
                        del targets[stream]
        for stream, target in targets.items():
            left = _held(stream.fileno())
            while left > 0 and (size := self._read(stream, target, splitters[stream], min(left, _CHUNK))):
                left -= size
        for splitter in splitters.values():
            if line := splitter.finish():
                self.last.add(line)
                self.partials.append(line)
        for stream in self._streams:
            stream.close()
        os.close(self._stop_reader)

    def _read(self, stream: IO[bytes], target: int, splitter: LineSplitter, size: int) -> int:
        """Pass on at most this many bytes; return how many, 0 at the end of the stream."""
        self._working = True
        data = os.read(stream.fileno(), size)
        self.read_at = time.monotonic()
        if data:
            _write(target, data)
            for line in splitter.feed(data):
                self.last.add(line)
                self._put(line)
        self._working = False
        return len(data)

    def _put(self, line: str) -> None:
        if not self._reader.may_count(line):
            return
        while not self._dropping.is_set():
            try:
                self._queue.put(line, timeout=0.2)
            except queue.Full:
                continue
            return


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        return


def _held(descriptor: int) -> int:
    """Return how many bytes a pipe holds, 0 once it has been closed."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0)))
    except OSError:
        return 0
    return int(count)
