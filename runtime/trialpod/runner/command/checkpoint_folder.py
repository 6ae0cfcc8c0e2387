"""The folder in which a command keeps its checkpoint: when it is complete, and a copy of it for the store.

Without a ready file the folder counts once nothing in it has changed for `settle_s`; an entry that never rests holds
the others up for `MAX_WAIT` times that long, then they are taken without it. With a ready file the folder counts each
time that file has been written.

Invariants: hidden entries, those that end with one of `UNFINISHED`, and what is not a file (a socket, a pipe) never
count, so what is written under such a
name and renamed is seen whole; a copy is used only if the folder has not changed while it was made.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from trialpod.errors import CheckpointError
from trialpod.protocol.command import CheckpointFolderSpec
from trialpod.storage.file_tree import copy_file

UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".lock", "~")
MAX_WAIT = 15

Signature = dict[str, tuple[int, int, int, int]]
"""Path below an entry -> device-independent marks of its content: inode, size, and both times in nanoseconds."""


class CheckpointFolder:
    """One attempt's folder. Times are monotonic seconds.

    Args:
        path: the folder; `restore` makes it.
        spec: when it counts.
    """

    def __init__(self, path: Path, spec: CheckpointFolderSpec) -> None:
        self.path = path
        self._spec = spec
        self._entries: dict[str, Signature] = {}
        self._since: dict[str, float] = {}
        self._changing_since: float | None = None
        self._committed: dict[str, Signature] = {}

    def restore(self, source: Path | None) -> None:
        """Make the folder have exactly what a checkpoint has: nothing without one."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)
        if source is not None:
            from trialpod.storage.layout import is_internal

            shutil.copytree(
                source,
                self.path,
                dirs_exist_ok=True,
                ignore=lambda folder, names: {
                    name for name in names if is_internal(os.path.relpath(os.path.join(folder, name), source))
                },
            )
        self._committed = self._ready_mark() if self._spec.ready_file else self._scan()

    @property
    def changed(self) -> bool:
        """Whether there is something that the last checkpoint does not have."""
        found = self._ready_mark() if self._spec.ready_file else self._scan()
        return bool(found) and found != self._committed

    def poll(self, now: float) -> list[str]:
        """Return the entries of a new checkpoint, [] while there is none."""
        if self._spec.ready_file:
            mark = self._ready_mark()
            return sorted(self._scan()) if mark and mark != self._committed else []
        found = self._scan()
        for name in [name for name in self._since if name not in found]:
            del self._since[name]
        for name, signature in found.items():
            if self._entries.get(name) != signature or name not in self._since:
                self._since[name] = now
        self._entries = found
        if not found or found == self._committed:
            self._changing_since = None
            return []
        if self._changing_since is None:
            self._changing_since = now
        complete = [name for name in found if now - self._since[name] >= self._spec.settle_s]
        overdue = now - self._changing_since >= MAX_WAIT * self._spec.settle_s
        if len(complete) < len(found) and not overdue:
            return []
        if all(self._committed.get(name) == found[name] for name in complete):
            return []
        return sorted(complete)

    def at_end(self) -> list[str]:
        """Return the entries of the last checkpoint, once the program has ended; [] if it has nothing new."""
        return sorted(self._scan()) if self.changed else []

    def copy(self, entries: list[str], target: Path) -> bool:
        """Copy entries into an empty folder; return False, with it empty again, if one changed meanwhile."""
        before = {name: signature for name, signature in self._scan().items() if name in entries}
        mark = self._ready_mark()
        try:
            for name, signature in before.items():
                for path in signature:
                    whole = os.path.join(name, path) if path else name
                    source, place = self.path / whole, target / whole
                    place.parent.mkdir(parents=True, exist_ok=True)
                    if os.path.isdir(source):
                        place.mkdir(exist_ok=True)
                    else:
                        copy_file(str(source), str(place))
        except (CheckpointError, FileNotFoundError, NotADirectoryError):
            before = {}  # it vanished
        now = {name: signature for name, signature in self._scan().items() if name in entries}
        if not before or now != before or mark != self._ready_mark():
            for left in list(target.iterdir()):
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            return False
        self._committed = mark if self._spec.ready_file else before
        self._changing_since = None
        return True

    def _ready_mark(self) -> dict[str, Signature]:
        name = self._spec.ready_file
        if not name:
            return {}
        signature = _signature(str(self.path / name))
        return {name: signature} if signature else {}

    def _scan(self) -> dict[str, Signature]:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return {}
        found = {}
        for name in names:
            if name.startswith(".") or name.endswith(UNFINISHED):
                continue
            if signature := _signature(str(self.path / name)):
                found[name] = signature
        return found


def _signature(root: str) -> Signature:
    """Return the marks of an entry and of all below it; {} when it is gone."""
    found: Signature = {}
    todo = [""]
    while todo:
        path = todo.pop()
        whole = os.path.join(root, path) if path else root
        try:
            status = os.stat(whole)
            if stat.S_ISDIR(status.st_mode):
                found[path] = (status.st_ino, 0, 0, 0)
                todo += [os.path.join(path, name) for name in os.listdir(whole)]
            elif stat.S_ISREG(status.st_mode):
                found[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        except OSError:
            continue
    return found if "" in found else {}
