"""Reads both streams of a command: on to the trial's own log, and line by line to the reader of metrics.

Invariants:

* The bytes reach the log as they are, at once. A full disk there stops nothing.
* Lines wait in a queue of bounded size. When it is full, reading waits, and with it the program as soon as its pipe
  is full: nothing is lost, and memory is bounded.
* A last line without an end counts only when `keep_partial` says so: of a program that was killed it may be half a
  number.
"""

from __future__ import annotations

import os
import queue
import selectors
import threading
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
        self._partials: list[str] = []
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

    def finish(self, timeout_s: float, *, keep_partial: bool) -> None:
        """Wait until all is read, but not for long: a process that is left may keep the streams open."""
        while self._thread.is_alive() and timeout_s > 0:
            self._thread.join(min(0.05, timeout_s))
            timeout_s -= 0.05
            if self._queue.full():
                return  # the caller takes lines, and calls again
        if keep_partial and not self._thread.is_alive():
            for line in self._partials:
                self._put(line)
            self._partials.clear()

    @property
    def ended(self) -> bool:
        """Whether both streams have ended."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        splitters = {}
        with selectors.DefaultSelector() as selector:
            for stream, target in zip(self._streams, (1, 2), strict=True):
                splitters[stream.fileno()] = (LineSplitter(), target)
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    splitter, target = splitters[key.fd]
                    data = os.read(key.fd, _CHUNK)
                    if not data:
                        selector.unregister(key.fileobj)
                        if line := splitter.finish():
                            self.last.add(line)
                            self._partials.append(line)
                        continue
                    _write(target, data)
                    for line in splitter.feed(data):
                        self.last.add(line)
                        self._put(line)
        for stream in self._streams:
            stream.close()

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
