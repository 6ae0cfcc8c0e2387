"""The pages that run on this machine, so that other commands can print the link to what they show.

Invariants:

* Only this user may read a page's file: its link opens a session. Folder and files are 0700 and 0600.
* A page counts as long as its process keeps the lock of its file; the file of one that was killed is removed by the
  next command that looks.
* A file that cannot be written or read costs the link, never the page or the command.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from trialpod.storage.registry import local_folder, normalize_uri
from trialpod_operator.view.reading import is_experiment

LOCK_SUFFIX = ".lock"


class RunningPage(msgspec.Struct):
    """What the file of a page says.

    Attributes:
        host: the machine; a home folder may be shared.
        serves: what the page shows: one experiment, or a folder or prefix with some.
        link: opens the next session.
    """

    host: str
    serves: str
    link: str


class PageFile:
    """The file of a page of this process; it is there until `close`.

    Args:
        serves: what the page shows: a folder, a URI.
        folder: where these files are; None is this user's.
    """

    def __init__(self, serves: str, folder: Path | None = None) -> None:
        folder = folder or pages_folder()
        self._serves = _normalized(serves)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._lock: int | None = None
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.getuid():
                lock = os.open(self._path.with_suffix(LOCK_SUFFIX), os.O_CREAT | os.O_RDWR, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._lock = lock

    def write(self, link: str) -> None:
        """Store the link of the next session."""
        if self._lock is None:
            return
        scratch = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            page = RunningPage(host=socket.gethostname(), serves=self._serves, link=link)
            with open(os.open(scratch, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(page))
            scratch.replace(self._path)

    def close(self) -> None:
        """Remove the file."""
        if self._lock is not None:
            _remove(self._path)
            os.close(self._lock)
            self._lock = None


def find_link(location: str, folder: Path | None = None) -> str:
    """Return the link to an experiment on a page that runs; "" when no page shows it.

    Args:
        location: the experiment's folder or URI, which need not exist yet; or a folder or prefix with some.
        folder: where the files of pages are; None is this user's.
    """
    wanted = _normalized(location)
    above, _, name = wanted.rpartition("/")
    for page in _running(folder or pages_folder()):
        if page.serves in (wanted, above):
            inside = page.serves == above or _is_one(wanted)
            return f"{page.link}#/e/{quote(name, safe='')}" if inside else page.link
    return ""


def pages_folder() -> Path:
    """Return the folder with the files of this user's pages."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    cache = os.environ.get("XDG_CACHE_HOME", "") or "~/.cache"
    return Path(runtime or cache).expanduser() / "trialpod" / "pages"


def _running(folder: Path) -> Iterator[RunningPage]:
    """Yield the pages of this machine, the latest first, and remove the files of those that were killed."""
    with contextlib.suppress(OSError):
        if folder.stat().st_uid != os.getuid():
            return  # what another user wrote there is no link of ours
        for lock in sorted(folder.glob(f"*{LOCK_SUFFIX}"), key=lambda path: -path.stat().st_mtime):
            path = lock.with_suffix(".json")
            with contextlib.suppress(OSError, msgspec.DecodeError):
                if _is_locked(lock):
                    page = msgspec.json.decode(path.read_bytes(), type=RunningPage)
                    if page.host == socket.gethostname():
                        yield page
                else:
                    _remove(path)


def _is_locked(path: Path) -> bool:
    opened = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def _remove(path: Path) -> None:
    for each in (path, path.with_suffix(LOCK_SUFFIX)):
        with contextlib.suppress(OSError):
            each.unlink()


def _normalized(location: str) -> str:
    uri = normalize_uri(location)
    folder = local_folder(uri)
    return str(folder.resolve()) if folder is not None else uri.partition("?")[0].rstrip("/")


def _is_one(location: str) -> bool:
    folder = local_folder(location)
    return folder is None or is_experiment(folder)
