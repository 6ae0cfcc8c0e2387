"""A trial's ``params.json``, ``result.json``, ``progress.csv`` and TensorBoard events, as Ray Tune writes them.

Invariants:

* ``result.json`` has one JSON object a line: the result as it was reported and the static part (trial_id, pid,
  hostname, node_ip, config). NaN and the infinities are written as Python's `json` writes them. ``progress.csv`` has
  nested metrics as "a/b".
* Under the name ``ray`` the keys that every result has are in Ray's order, in both files.
* The header of ``progress.csv`` is fixed by the first result; keys that appear later are left out of it. The config
  is in ``params.json`` and ``result.json``. Of a name that is static and reported, the static value is written.
* What `offsets` returned is in the files. `resume` with these offsets continues as if nothing had come after.
* No file stays open: a thousand trials need no descriptors.
* While what comes after `offsets` is written again, readers see the files as they were: the new one is written beside
  and takes the old one's place with the first `flush` from outside. Only a full disk has them shortened in place.
* The event file is written when an encoder for it is given; see `tensorboard`.

Resuming never fails because of a file that a user shortened or removed: the file is continued behind its
last whole line or record, or begun again, and `warnings` says so.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trialpod.compat.activation import under_ray
from trialpod.errors import StorageError
from trialpod.protocol.nested import depth, nest
from trialpod.protocol.values import readable
from trialpod.storage.base import storage_error
from trialpod.storage.layout import PARAMS_FILE, PROGRESS_FILE, RESULT_FILE
from trialpod.storage.tensorboard import EventEncoder, end_of_last_record

_SIMPLE = frozenset((str, int, float, bool, type(None)))
_MAX_INTEGER_BITS = 10_000
_FLUSH_BYTES = 64 * 1024
_CSV_END = "\r\n"  # so that the csv module quotes both characters; the file gets "\n"
_fast = msgspec.json.Encoder()
_RAY_ORDER = (
    "timestamp",
    "checkpoint_dir_name",
    "done",
    "training_iteration",
    "trial_id",
    "date",
    "time_this_iter_s",
    "time_total_s",
    "pid",
    "hostname",
    "node_ip",
    "config",
    "time_since_restore",
    "iterations_since_restore",
)


@dataclass(frozen=True, slots=True)
class EventFile:
    """A TensorBoard event file of a trial that was created at `created_at`, in seconds since the epoch."""

    name: str
    created_at: float
    encoder: EventEncoder


class TrialLog:
    """The log files of one trial. Results are buffered up to 64 kB; call `flush` when readers should see them."""

    def __init__(
        self,
        directory: Path,
        static: Mapping[str, Any],
        *,
        offsets: Mapping[str, int] | None = None,
        events: EventFile | None = None,
    ) -> None:
        """Begin new logs, replacing what is there; with `offsets`, see `resume`.

        Args:
            directory: the trial's directory; made if needed.
            static: what every result carries besides its own values; ``config`` is the trial's parameters.
            offsets: None, or where to continue in each file.
            events: the TensorBoard event file to write, None for none.

        Raises:
            StorageError: a file cannot be read or written.
        """
        self._directory = os.fspath(directory)
        self._as_ray = under_ray()
        self._results: list[bytes] = []
        self._rows: list[bytes] = []
        self._events = events
        self._records: list[bytes] = []  # of the event file
        self._buffered = 0
        self._columns: list[str] | None = None  # of progress.csv
        self._own: list[str] = []  # the columns that come from each result
        self._params_due = False
        self._replaced: set[str] = set()  # files that are written beside the present ones
        self.warnings: list[str] = []
        try:
            os.makedirs(self._directory, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "cannot make the folder", self._directory) from error
        self._set_static(static)
        self._sizes = {
            name: self._continue(name, 0 if offsets is None else offsets.get(name, 0))
            for name in (RESULT_FILE, PROGRESS_FILE, *([events.name] if events is not None else []))
        }
        if self._sizes[PROGRESS_FILE]:
            self._set_columns(self._read_header())
        if offsets is None or not os.path.exists(self._path(PARAMS_FILE)):
            self._write_params()

    @classmethod
    def resume(
        cls,
        directory: Path,
        static: Mapping[str, Any],
        offsets: Mapping[str, int],
        events: EventFile | None = None,
    ) -> TrialLog:
        """Continue the logs of a trial, dropping everything behind `offsets`.

        Args:
            directory: the trial's directory.
            static: as for a new log.
            offsets: what `offsets` returned at the time to go back to; a missing file name means 0.
            events: as for a new log; with the name that it had.

        Raises:
            StorageError: a file cannot be read or written.
        """
        return cls(directory, static, offsets=offsets, events=events)

    def update_static(self, static: Mapping[str, Any]) -> None:
        """Use other static values from the next result on (a new attempt's pid, a new config).

        Raises:
            StorageError: the new config could not be written; it is written with the next flush.
        """
        config = self._static.get("config")
        self._set_static(static)
        if self._columns is not None:
            self._set_columns(self._columns, len(self._own))
        if _jsonable(static.get("config")) != _jsonable(config):
            self._params_due = True
            self._write_params()

    def append(self, results: Iterable[Mapping[str, Any]], nested: Collection[str] = ()) -> None:
        """Add results in their order.

        Args:
            results: by flat names.
            nested: the flat names of the dicts in them, see `trialpod.protocol.nested`.

        Raises:
            StorageError: a full buffer could not be written; it is kept and written with the next flush.
        """
        for result in results:
            if not self._static_names.isdisjoint(result):
                result = {key: value for key, value in result.items() if key not in self._static_names}
            if not _SIMPLE.issuperset(map(type, result.values())):
                result = {key: _jsonable(value) for key, value in result.items()}
            if self._as_ray:
                self._append_as_ray(result, nested)
            else:
                self._append_row(result, self._append_json(result, nested))
            if self._events is not None:
                record = self._events.encoder.encode(result)
                self._records.append(record)
                self._buffered += len(record)
        if self._buffered > _FLUSH_BYTES:
            self._write_buffers(sync=False)

    @property
    def is_replacing(self) -> bool:
        """Whether files are still as they were before they are written again."""
        return bool(self._replaced)

    def flush(self, *, sync: bool = False) -> None:
        """Write what is buffered; with `sync`, also bring it to the disk.

        Raises:
            StorageError: a file cannot be written. What was not written stays buffered.
        """
        if self._params_due:
            self._write_params()
        self._write_buffers(sync=sync)
        for name in list(self._replaced):
            path = self._path(name)
            try:
                os.replace(_beside(path), path)
            except FileNotFoundError:  # removed with its folder
                pass
            except OSError as error:
                raise storage_error(error, "cannot replace", path) from error
            self._replaced.discard(name)

    def _write_buffers(self, *, sync: bool) -> None:
        if self._results:
            self._write_out(RESULT_FILE, b"".join(self._results), sync)
            self._results.clear()
        if self._rows:
            self._write_out(PROGRESS_FILE, b"".join(self._rows), sync)
            self._rows.clear()
        if self._records and self._events is not None:
            name = self._events.name
            begin = b"" if self._sizes[name] else self._events.encoder.header(self._events.created_at)
            self._write_out(name, begin + b"".join(self._records), sync)
            self._records.clear()
        self._buffered = 0

    def offsets(self) -> dict[str, int]:
        """Flush, and return the size of each file: where `resume` can continue."""
        self.flush()
        return dict(self._sizes)

    def _append_as_ray(self, result: Mapping[str, Any], nested: Collection[str]) -> None:
        everything = {**result, **self._static}
        row = {key: value for key, value in everything.items() if key not in _RAY_ORDER}
        row |= {key: everything[key] for key in _RAY_ORDER if key in everything}
        line = json.dumps(_jsonable(nest(row, nested) if nested else row)).encode() + b"\n"
        self._results.append(line)
        row.pop("config", None)
        if nested:  # Ray's columns of nested metrics are the last ones
            row = dict(sorted(row.items(), key=lambda item: depth(item[0], nested)))
        if self._columns is None:
            self._rows.append(_csv_row(list(row)) + b"\n")
            self._set_columns(list(row), len(row))
        self._rows.append(_csv_row([row.get(key) for key in self._own]) + self._row_tail)
        self._buffered += len(line) + len(self._rows[-1])

    def _append_json(self, result: Mapping[str, Any], nested: Collection[str]) -> bool:
        """Add the line; return whether msgspec can encode all values as they are."""
        simple = False
        written = nest(result, nested) if nested else result
        for value in result.values():
            kind = value.__class__
            # A float minus itself is 0.0 unless it is NaN or infinite, which msgspec would write as null.
            if kind not in _SIMPLE or (kind is float and value - value):
                line = _slow(written)
                break
        else:
            try:
                line = _fast.encode(written)
                simple = True
            except (ValueError, TypeError, OverflowError):  # lone surrogates, huge integers
                line = _slow(written)
        # Both parts are objects: their braces become the comma between them.
        line = line[:-1] + self._json_tail if len(line) > 2 else self._json_alone
        self._results.append(line)
        self._buffered += len(line)
        return simple

    def _append_row(self, result: Mapping[str, Any], simple: bool) -> None:
        if self._columns is None:
            own = [key for key in result if key not in self._flat]
            self._rows.append(_csv_row([*own, *self._flat]) + b"\n")
            self._set_columns([*own, *self._flat], len(own))
        values = [result.get(key) for key in self._own]
        row = _simple_csv_row(values) if simple and self._static else None
        if row is None:
            row = _csv_row(values) if values else b""
        row += self._row_tail
        self._rows.append(row)
        self._buffered += len(row)

    def _set_static(self, static: Mapping[str, Any]) -> None:
        self._static = dict(static)
        self._static_names = frozenset(static)
        # Leading comma, no opening brace: see _append_json.
        self._json_alone = _slow(self._static) + b"\n"
        self._json_tail = b"," + self._json_alone[1:] if static else b"}\n"
        self._flat = {key: value for key, value in static.items() if key != "config"}

    def _set_columns(self, columns: list[str], own: int | None = None) -> None:
        """Fix the header. `own` is how many columns, the first ones, come from each result; None finds it out."""
        if own is None:
            own = len(columns)
            while own > 0 and columns[own - 1] in self._flat:
                own -= 1
        self._columns = columns
        self._own = columns[:own]
        tail = _csv_row([self._flat.get(key) for key in columns[own:]])
        self._row_tail = (b"," if 0 < own < len(columns) else b"") + tail + b"\n"

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _write_params(self) -> None:
        path = self._path(PARAMS_FILE)
        text = json.dumps(_jsonable(self._static.get("config", {})), indent=2, ensure_ascii=False, sort_keys=True)
        data = text.encode(errors="backslashreplace")
        try:
            with open(path + ".tmp", "wb") as file:
                file.write(data)
            os.replace(path + ".tmp", path)
        except OSError as error:
            raise storage_error(error, "cannot write", path, len(data)) from error
        self._params_due = False

    def _write_out(self, name: str, data: bytes, sync: bool) -> None:
        path = self._path(name)
        if name in self._replaced:
            path = _beside(path)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if sync:
                    os.fdatasync(fd)
            except OSError:
                # All or nothing, so that the next try does not write a part of it twice.
                os.ftruncate(fd, self._sizes[name])
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise storage_error(error, "cannot write", path, len(data)) from error
        self._sizes[name] += len(data)

    def _cut(self, name: str, size: int) -> None:
        path = self._path(name)
        try:
            os.truncate(path, size)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "cannot shorten", path) from error

    def _continue(self, name: str, offset: int) -> int:
        path = self._path(name)
        try:
            size = os.path.getsize(path)
        except FileNotFoundError:
            if offset:
                self.warnings.append(f"{path} was removed; a new file starts with the next result")
            return 0
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error
        if size < offset:
            binary = name not in (RESULT_FILE, PROGRESS_FILE)
            offset = self._end_of_whole(path, end_of_last_record if binary else _end_of_last_line)
            what = "record" if binary else "line"
            self.warnings.append(f"{path} was truncated; appending after its last complete {what}")
        self._remove_new(path)
        if size > offset and self._copy_beside(path, offset):
            self._replaced.add(name)
        elif size != offset:
            self._cut(name, offset)
        return offset

    @staticmethod
    def _remove_new(path: str) -> None:
        """Remove what a process left that was killed while it wrote a file again."""
        try:
            os.unlink(_beside(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "cannot remove", _beside(path)) from error

    @staticmethod
    def _copy_beside(path: str, size: int) -> bool:
        """Copy the beginning of a file to the one that will replace it; return whether there is room for it."""
        try:
            with open(path, "rb") as source, open(_beside(path), "wb") as target:
                while size > 0 and (block := source.read(min(size, _FLUSH_BYTES))):
                    target.write(block)
                    size -= len(block)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(_beside(path))
            return False
        return True

    def _end_of_whole(self, path: str, end: Callable[[bytes], int]) -> int:
        try:
            with open(path, "rb") as file:
                return end(file.read())
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error

    def _read_header(self) -> list[str]:
        path = self._path(PROGRESS_FILE)
        try:
            with open(path, encoding="utf-8", newline="") as file:
                return next(csv.reader(file))
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error
        except (StopIteration, UnicodeDecodeError, csv.Error) as error:
            raise StorageError(f"{path} has no readable header; move the file away to begin a new one") from error


def _beside(path: str) -> str:
    """Return the file that will take the place of another one; its name begins like no file that is copied."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.new")


def _end_of_last_line(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _jsonable(value: Any) -> Any:
    """Return the value as Python's `json` takes it; what it cannot hold becomes its repr."""
    if value.__class__ in _SIMPLE:
        return _text_of_huge(value) if value.__class__ is int else value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _key(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    simple = readable(value)
    return repr(value) if isinstance(simple, bytes) else _jsonable(simple)


def _text_of_huge(value: int) -> int | str:
    """Return a whole number, or its text where it has more digits than `json` writes."""
    return value if value.bit_length() < _MAX_INTEGER_BITS else hex(value)


def _key(key: Any) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        return str(_text_of_huge(int(key)))
    return json.dumps(key) if key is None or isinstance(key, (bool, float)) else str(key)


def _slow(result: Mapping[str, Any]) -> bytes:
    return json.dumps(_jsonable(result), separators=(",", ":")).encode()


def _csv_row(values: list[Any]) -> bytes:
    text = io.StringIO()
    try:
        csv.writer(text, lineterminator=_CSV_END).writerow(values)
    except ValueError:  # an integer with more digits than Python writes
        text = io.StringIO()
        known = [_text_of_huge(value) if value.__class__ is int else value for value in values]
        csv.writer(text, lineterminator=_CSV_END).writerow(known)
    return text.getvalue()[: -len(_CSV_END)].encode(errors="backslashreplace")


def _simple_csv_row(values: list[Any]) -> bytes | None:
    """Return what `_csv_row` does, in a third of the time; None if a text among the values may need quotes.

    The JSON of the values is the CSV row once brackets, quotes and the names of constants are replaced, provided that
    no text contains a comma, or what JSON escapes: quotes, backslashes, ends of lines.
    """
    data = _fast.encode(values)
    if data.count(b",") != len(values) - 1 or b"\\" in data:
        return None
    row = b"," + data[1:-1] + b","
    for name, text in ((b",null,", b",,"), (b",false,", b",False,"), (b",true,", b",True,")):
        if name in row:
            # Twice: neighbours share a comma, and a replacement takes only every other one.
            row = row.replace(name, text).replace(name, text)
    return row[1:-1].replace(b'"', b"")
