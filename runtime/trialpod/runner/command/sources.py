"""Metrics that a command writes to files, or shows on a page, instead of its output.

Invariants: what was there before the attempt began counts for an earlier one and is not read again, nor is the rest
of a line that an earlier one left without an end; every whole line or record after that is read once. Memory is
bounded by the largest line or record, not by the file: when a program rewrites a file, lines of before are known
again in its first 4 MiB.
"""

from __future__ import annotations

import contextlib
import logging
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from http.client import HTTPException
from ipaddress import ip_address
from itertools import takewhile
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, build_opener

from trialpod.protocol.command import MetricsSpec
from trialpod.tune.command.metrics.event_files import DamagedError, read_scalars
from trialpod.tune.command.metrics.lines import MAX_LINE_BYTES, decode
from trialpod.tune.command.metrics.prometheus import MAX_BYTES, samples
from trialpod.tune.command.metrics.reader import LineReader
from trialpod.tune.command.metrics.rows import CsvReader, mlflow_point, reader_for
from trialpod.tune.command.metrics.text import Number

log = logging.getLogger(__name__)

_READ_BYTES = 4 * 1024 * 1024
_TAIL_BYTES = 4096
_REMEMBERED_LINES = 1000
_FIRST_LINES = 100_000
_HISTORY_LINES = 100
_SCRAPE_TIMEOUT_S = 2.0

_Item = TypeVar("_Item")

Found = tuple[dict[str, Number], int | None]
"""Values that were found together, and the step that was said with them."""


class Source(Protocol):
    """A place where metrics come from."""

    seen: dict[str, Number]

    def poll(self, now: float, *, last: bool = False) -> Iterator[Found]:
        """Yield what has come since the last call; `last` when the program has ended."""
        ...


def parse_text(line: bytes) -> tuple[int, str]:
    """Return the hash and the text of a line."""
    return hash(line), decode(line[:MAX_LINE_BYTES])


def _rows(reader: CsvReader) -> Callable[[bytes], tuple[int, dict[str, Number]]]:
    def parse(line: bytes) -> tuple[int, dict[str, Number]]:
        text = decode(line[:MAX_LINE_BYTES], " \r\n")  # a tab may stand for an empty first column
        return reader.read_row(text) if text.strip() else (hash(line), {})

    return parse


class GrowingFile(Generic[_Item]):
    """New lines of a file that grows, or is rewritten with old lines in front.

    A rewritten file may be read while the program still writes it: one that has only lines of before, and fewer, is
    left alone until it has more, or did not change from one call to the next, and so was begun again.

    Args:
        path: the file; it need not exist yet.
        parse: returns a line's hash, by which it is known again, and what is to be yielded for it, if that is true.
        skip: whether what is in it now is passed over.
    """

    def __init__(self, path: str, parse: Callable[[bytes], tuple[int, _Item]], *, skip: bool) -> None:
        self.path = path
        self._parse = parse
        self._forget()
        self._held: int | None = None  # the hash of a file that may still be written
        if skip:
            for _ in self.old_lines():
                pass

    def _forget(self) -> None:
        self._offset = 0
        self._tail = b""
        self._unended_since: int | None = None  # when what was read ends within a line: when that was written
        # Of the lines that were read: how many, and the hashes of the first and of the last ones.
        self._count = 0
        self._first = array("q")
        self._recent: deque[int] = deque(maxlen=_REMEMBERED_LINES)

    def old_lines(self) -> Iterator[_Item]:
        """Yield the whole lines of an earlier attempt; one without an end is passed over, also when it gets one."""
        yield from self.lines(last=False)
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            file.seek(self._offset)
            while data := file.read(_READ_BYTES):
                self._advance(data)
                self._unended_since = os.fstat(file.fileno()).st_mtime_ns

    def lines(self, *, last: bool) -> Iterator[_Item]:
        """Yield whole lines that have come, parsed; with `last` also one without an end."""
        try:
            with open(self.path, "rb") as file:
                if self._was_rewritten(file.fileno()):
                    data = file.read(_READ_BYTES)
                    content = hash(data)
                    if not last or len(data) == _READ_BYTES:
                        data = data[: data.rfind(b"\n") + 1]
                    hashes, items = self._parsed(data)
                    if not last and content != self._held and self._may_be_unfinished(hashes):
                        self._held = content
                        return
                    known = self._known(hashes)
                    self._forget()
                    self._remember(hashes)
                    self._advance(data)
                    yield from filter(None, items[known:])
                self._held = None
                file.seek(self._offset)
                while data := file.read(_READ_BYTES):
                    end = data.rfind(b"\n") + 1
                    if not end and (last or len(data) > MAX_LINE_BYTES):
                        end = len(data)
                    if not end:
                        return
                    hashes, items = self._parsed(self._without_rest(data[:end]))
                    self._remember(hashes)
                    yield from filter(None, items)
                    self._advance(data[:end])
                    file.seek(self._offset)
        except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
            return

    def _parsed(self, data: bytes) -> tuple[list[int], list[_Item]]:
        parsed = [self._parse(line) for line in data.splitlines()]
        return [key for key, _ in parsed], [item for _, item in parsed]

    def _was_rewritten(self, descriptor: int) -> bool:
        if not self._offset:
            return False
        found = os.fstat(descriptor)
        if self._unended_since is not None and found.st_size == self._offset:
            return found.st_mtime_ns != self._unended_since  # it may have been written again, with the same content
        at = self._offset - len(self._tail)
        return found.st_size < self._offset or os.pread(descriptor, len(self._tail), at) != self._tail

    def _without_rest(self, data: bytes) -> bytes:
        """Return new data without the rest of a line that an earlier attempt left without an end."""
        if self._unended_since is None:
            return data
        _, end, data = data.partition(b"\n")
        if end:
            self._unended_since = None
        return data

    def _may_be_unfinished(self, lines: list[int]) -> bool:
        """Return whether a file has fewer lines than before, and only such that were there before."""
        size = len(lines)
        if size >= self._count:
            return False
        recent = list(self._recent)
        return lines[: len(self._first)] == self._first[:size].tolist() or any(
            recent[at : at + size] == lines for at in range(len(recent) - size + 1)
        )

    def _known(self, lines: list[int]) -> int:
        """Return how many lines of a rewritten file, from its first one on, were read before."""
        recent = list(self._recent)
        for size in range(min(len(lines), len(recent)), 0, -1):
            if recent[-size:] == lines[:size]:
                return size
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(lines, self._first, strict=False)))
        # With so many the file is a history whose end has changed, and not a set of values that replaces another.
        return same if same >= _HISTORY_LINES else 0

    def _remember(self, lines: list[int]) -> None:
        self._count += len(lines)
        self._first.extend(lines[: max(0, _FIRST_LINES - len(self._first))])
        self._recent.extend(lines)

    def _advance(self, data: bytes) -> None:
        self._offset += len(data)
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]


class FileSource:
    """A file of JSON lines, or of lines as on an output."""

    def __init__(self, path: str, reader: LineReader) -> None:
        self._reader = reader
        self._file = GrowingFile(path, parse_text, skip=True)
        self.seen = self._reader.seen

    def poll(self, now: float, *, last: bool = False) -> Iterator[Found]:
        """Yield the metrics of new lines."""
        for line in self._file.lines(last=last):
            if values := self._reader.read(line):
                yield values, None


class CsvSource:
    """A CSV file."""

    def __init__(self, path: str, reader: CsvReader) -> None:
        self._file = GrowingFile(path, _rows(reader), skip=True)  # what is skipped has the header
        self.seen = reader.seen

    def poll(self, now: float, *, last: bool = False) -> Iterator[Found]:
        """Yield the metrics of new rows."""
        for values in self._file.lines(last=last):
            yield values, None


class _Points:
    """Metrics that each come with a step: a group for each step."""

    def __init__(self) -> None:
        self.seen: dict[str, Number] = {}

    def group(self, points: list[tuple[int, str, Number]]) -> Iterator[Found]:
        by_step: dict[int, dict[str, Number]] = {}
        for step, name, value in points:
            by_step.setdefault(step, {})[name] = value
            self.seen[name] = value
        for step in sorted(by_step):
            yield by_step[step], step


class TensorBoardSource:
    """Event files below a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._points = _Points()
        self.seen = self._points.seen
        self._offsets: dict[Path, int] = {}
        for path in self._files():
            with contextlib.suppress(OSError):
                self._offsets[path] = path.stat().st_size

    def _files(self) -> list[Path]:
        # Not Path.rglob, which raises when a folder vanishes meanwhile.
        return sorted(
            Path(folder, name) for folder, _, names in os.walk(self._folder) for name in names if "tfevents" in name
        )

    def poll(self, now: float, *, last: bool = False) -> Iterator[Found]:
        """Yield the scalars of new records, by step."""
        found: list[tuple[int, str, Number]] = []
        for path in self._files():
            offset = self._offsets.get(path, 0)
            if offset < 0:
                continue
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    scalars, size = read_scalars(file.read())
            except DamagedError as error:
                log.warning("%s is not a readable event file, and is left out: %s", path, error)
                self._offsets[path] = -1
                continue
            except OSError:
                continue
            self._offsets[path] = offset + size
            found += [(scalar.step, scalar.tag, scalar.value) for scalar in scalars]
        yield from self._points.group(found)


class MlflowSource:
    """The metric files of an MLflow file store."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._points = _Points()
        self.seen = self._points.seen
        self._files: dict[Path, GrowingFile[str]] = {}
        self._find(skip=True)

    def _find(self, *, skip: bool) -> None:
        for run, folders, _ in os.walk(self._folder):
            if "metrics" not in folders:
                continue
            for folder, _, names in os.walk(os.path.join(run, "metrics")):
                for path in (Path(folder, name) for name in names):
                    if path.is_file() and path not in self._files:
                        self._files[path] = GrowingFile(str(path), parse_text, skip=skip)

    def poll(self, now: float, *, last: bool = False) -> Iterator[Found]:
        """Yield new points, by step."""
        self._find(skip=False)
        found: list[tuple[int, str, Number]] = []
        for path, file in self._files.items():
            name = path.as_posix().rpartition("/metrics/")[2]
            points = filter(None, map(mlflow_point, file.lines(last=last)))
            found += [(step, name, value) for step, value in points]
        yield from self._points.group(found)


class PrometheusSource:
    """A page in Prometheus' text format; a scrape counts when something in it is new."""

    def __init__(self, url: str, interval_s: float) -> None:
        self._url = url
        self._interval_s = interval_s
        self._opener = _opener_for(url)
        self._due = 0.0
        self._before: dict[str, Number] = {}
        self.seen: dict[str, Number] = {}

    def poll(self, now: float, *, last: bool = False) -> Iterator[Found]:
        """Yield the samples of one scrape, if it is time for one."""
        if last or now < self._due:
            return
        self._due = now + self._interval_s
        try:
            with self._opener.open(self._url, timeout=_SCRAPE_TIMEOUT_S) as answer:
                text = answer.read(MAX_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException, ValueError):
            return  # it is not up yet, or no more, or ended within its answer
        found = samples(text)
        if found and found != self._before:
            self._before = found
            self.seen.update(found)
            yield found, None


def _opener_for(url: str) -> OpenerDirector:
    """Return what opens a URL: through the proxy of the environment, unless it is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost" or host.endswith(".localhost")
    return build_opener(ProxyHandler({})) if loopback else build_opener()


def open_sources(spec: MetricsSpec, wanted: tuple[str, ...]) -> list[Source]:
    """Return the sources beside the output; the paths of `spec` are not templates any more."""
    found: list[Source] = []
    if spec.file:
        reader = reader_for(spec.file, spec, wanted)
        found.append(CsvSource(spec.file, reader) if isinstance(reader, CsvReader) else FileSource(spec.file, reader))
    if spec.tensorboard:
        found.append(TensorBoardSource(spec.tensorboard))
    if spec.mlflow:
        found.append(MlflowSource(spec.mlflow))
    if spec.prometheus:
        found.append(PrometheusSource(spec.prometheus, spec.interval_s))
    return found
