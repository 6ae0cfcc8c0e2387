"""Storage in a folder of a file system.

Invariants: values are written to a temporary file beside the key, synced, and renamed or linked into place; temporary
files are never listed. Folders appear with the first key in them.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trialpod.errors import CheckpointError, InvalidInputError, StorageError
from trialpod.storage.base import (
    KeyChangedError,
    KeyExistsError,
    KeyMissingError,
    Storage,
    checked_key,
    storage_error,
)
from trialpod.storage.file_tree import checksum_file, copy_file, copy_tree, scan_tree, sync_path, sync_tree
from trialpod.storage.options import StorageOptions

_TEMPORARY = ".trialpod-tmp-"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NO_EXCLUSIVE_RENAME = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1  # of Linux


class DirectoryStorage(Storage):
    """The storage whose root is a folder. The folder itself is made with the first key."""

    has_conditional_writes = True
    example = "file:///absolute/path"

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(root)

    @classmethod
    def open(cls, uri: str, options: StorageOptions | None = None, *, check: bool = True) -> DirectoryStorage:
        """Return the storage in a folder, which need not exist."""
        return cls(cls.folder_of(uri))

    @classmethod
    def folder_of(cls, uri: str) -> Path:
        """Return the folder of a plain path or ``file:///path``."""
        if "://" not in uri:
            return Path(uri).expanduser()
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise InvalidInputError(
                f"storage {uri!r} names the host {parts.netloc!r}; write file:///absolute/path (three slashes)"
            )
        if not parts.path:
            raise InvalidInputError(f"storage {uri!r} has no path; write file:///absolute/path")
        return Path(unquote(parts.path))

    def __repr__(self) -> str:
        return f"DirectoryStorage({self._root!r})"

    @property
    def uri(self) -> str:
        """The folder's absolute path."""
        return self._root

    def read(self, key: str) -> bytes:
        """Return the file's content."""
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise KeyMissingError(f"there is no file {path}") from error
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error

    def write(self, key: str, data: bytes) -> None:
        """Replace the file as a whole."""
        path = self._path(key)
        temporary = self._temporary(path, data)
        try:
            os.replace(temporary, path)
        except OSError as error:
            _unlink(temporary)
            raise storage_error(error, "cannot write", path, len(data)) from error
        sync_path(os.path.dirname(path))

    def write_new(self, key: str, data: bytes) -> None:
        """Make the file; refuse if the name is taken."""
        path = self._path(key)
        temporary = self._temporary(path, data)
        try:
            self._publish_new(temporary, path, len(data))
        finally:
            _unlink(temporary)
        sync_path(os.path.dirname(path))

    def read_version(self, key: str) -> tuple[bytes, str]:
        """Return the file's content and a digest of it."""
        data = self.read(key)
        return data, _digest(data)

    def write_if(self, key: str, data: bytes, version: str | None) -> str:
        """Replace the file if its content has this digest; of all who do so, one at a time looks and writes."""
        path = self._path(key)
        folder = os.path.dirname(path)
        self._make_folder(folder)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise storage_error(error, "cannot open", folder) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                found: str | None = _digest(self.read(key))
            except KeyMissingError:
                found = None
            if found != version:
                raise KeyChangedError(f"{path} was changed meanwhile")
            self.write(key, data)
        except OSError as error:
            raise storage_error(error, "cannot lock", folder) from error
        finally:
            os.close(descriptor)
        return _digest(data)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return that part of the file."""
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                pieces = []
                while length > 0 and (piece := os.pread(file.fileno(), length, start)):
                    pieces.append(piece)
                    start, length = start + len(piece), length - len(piece)
                return b"".join(pieces)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise KeyMissingError(f"there is no file {path}") from error
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error

    def put_file(self, local: Path, key: str) -> int:
        """Copy a file in, by clone where the file system can, and sync it."""
        path = self._path(key)
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, _TEMPORARY + os.urandom(8).hex())
        self._make_folder(folder)
        try:
            copy_file(os.fspath(local), temporary)
            checksum = checksum_file(temporary)[1]
            sync_path(temporary)
            os.replace(temporary, path)
        except CheckpointError as error:
            raise StorageError(f"cannot copy {local} to {path}: {error}") from error
        except OSError as error:
            raise storage_error(error, "cannot write", path) from error
        finally:
            _unlink(temporary)
        sync_path(folder)
        return checksum

    def copy(self, source: str, key: str) -> None:
        """Copy a file, by clone where the file system can."""
        path = self._path(source)
        if not os.path.isfile(path):
            raise KeyMissingError(f"there is no file {path}")
        self.put_file(Path(path), key)

    def get_file(self, key: str, local: Path, *, size: int | None = None) -> int:
        """Copy a file out, by clone where the file system can."""
        path = self._path(key)
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise KeyMissingError(f"there is no file {path}") from error
        except OSError as error:
            raise storage_error(error, "cannot read", path) from error
        if os.path.isdir(path):
            raise KeyMissingError(f"there is no file {path}: it is a folder")
        _unlink(os.fspath(local))
        try:
            copy_file(path, os.fspath(local))
            found, checksum = checksum_file(os.fspath(local))
        except CheckpointError as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        if size is not None and found != size:
            _unlink(os.fspath(local))
            raise StorageError(f"{path} has {found} bytes instead of {size}")
        return checksum

    def exists(self, key: str) -> bool:
        """Tell whether there is a file or folder of this name."""
        return os.path.exists(self._path(key))

    def list(self, prefix: str = "") -> list[str]:
        """Return the files below the folder, sorted."""
        start = self._path(prefix, root_allowed=True)
        try:
            return sorted(f"{prefix}/{name}" if prefix else name for name in _walk(start))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_error(error, "cannot list", start) from error

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the files below the folder, sorted, with their sizes."""
        found = {}
        for key in self.list(prefix):
            path = self._path(key)
            try:
                found[key] = os.stat(path, follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # removed since it was listed
            except OSError as error:
                raise storage_error(error, "cannot list", path) from error
        return found

    def sample_keys(self, prefix: str = "", *, limit: int = 1000) -> Sequence[str]:
        """Return the first files that are found below the folder."""
        start = self._path(prefix, root_allowed=True)
        try:
            return [f"{prefix}/{name}" if prefix else name for name in itertools.islice(_walk(start), limit)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_error(error, "cannot list", start) from error

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders in the folder."""
        start = self._path(prefix, root_allowed=True)
        try:
            with os.scandir(start) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_error(error, "cannot list", start) from error

    def delete(self, key: str) -> None:
        """Remove the file, if it exists."""
        path = self._path(key)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if os.path.isdir(path):
                return
            raise storage_error(error, "cannot remove", path) from error

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove the files that are there."""
        for key in keys:
            self.delete(key)

    def delete_tree(self, prefix: str) -> None:
        """Remove the folder, if it is there."""
        path = self._path(prefix)
        try:
            shutil.rmtree(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise storage_error(error, "cannot remove", path) from error

    def put_directory(self, local: Path, prefix: str) -> None:
        """Copy a local folder in; files of the same name are replaced."""
        target = self._path(prefix, root_allowed=True)
        tree = scan_tree(os.fspath(local))
        self._make_folder(target)
        for path in tree.files:
            _unlink(os.path.join(target, path))
        for folder in tree.folders:
            self._make_folder(os.path.join(target, folder))
        tree_folders, tree.folders = tree.folders, []
        copy_tree(os.fspath(local), target, tree)
        sync_tree(target, tree_folders, list(tree.files))

    def get_directory(self, prefix: str, local: Path) -> None:
        """Copy a folder out; files of the same name are replaced."""
        source = self._path(prefix, root_allowed=True)
        if not os.path.isdir(source):
            raise KeyMissingError(f"there is no folder {source}")
        try:
            tree = scan_tree(source)
            self._make_folder(os.fspath(local))
            for folder in tree.folders:
                self._make_folder(os.path.join(local, folder))
            for path in tree.files:
                _unlink(os.path.join(local, path))
            tree.folders = []
            copy_tree(source, os.fspath(local), tree)
        except CheckpointError as error:
            raise StorageError(f"cannot read {source}: {error}") from error

    def abort_uploads(self, prefixes: Iterable[str]) -> int:
        """Return 0: files are copied as wholes."""
        return 0

    def local_path(self, key: str) -> Path | None:
        """Return the path, whether or not it exists."""
        return Path(self._path(key, root_allowed=True))

    def sub(self, prefix: str) -> Storage:
        """Return the storage of a folder below."""
        return DirectoryStorage(self._path(prefix))

    def parent(self) -> Storage:
        """Return the storage of the folder above."""
        return DirectoryStorage(Path(self._path("", root_allowed=True)).parent)

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    def _path(self, key: str, *, root_allowed: bool = False) -> str:
        checked_key(key, root_allowed=root_allowed)
        return os.path.join(self._root, key) if key else self._root

    def _make_folder(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "cannot make the folder", path) from error

    def _temporary(self, path: str, data: bytes) -> str:
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, _TEMPORARY + os.urandom(8).hex())
        self._make_folder(folder)
        try:
            self._write_exclusively(temporary, data)
        except BaseException:
            _unlink(temporary)
            raise
        return temporary

    def _publish_new(self, temporary: str, path: str, size: int) -> None:
        try:
            # A link, unlike a rename, fails when the name is taken.
            os.link(temporary, path)
        except FileExistsError as error:
            raise KeyExistsError(f"{path} exists already") from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise storage_error(error, "cannot write", path, size) from error
            self._rename_new(temporary, path, size)

    def _rename_new(self, temporary: str, path: str, size: int) -> None:
        try:
            if _rename_exclusively(temporary, path):
                return
        except FileExistsError as error:
            raise KeyExistsError(f"{path} exists already") from error
        except OSError as error:
            raise storage_error(error, "cannot write", path, size) from error
        # An empty file takes the name, and the rename fills it. A reader may see it empty, and it stays so when this
        # process is killed between.
        self._write_exclusively(path, b"")
        try:
            os.replace(temporary, path)
        except OSError as error:
            _unlink(path)
            raise storage_error(error, "cannot write", path, size) from error

    def _write_exclusively(self, path: str, data: bytes) -> None:
        try:
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError as error:
            raise KeyExistsError(f"{path} exists already") from error
        except OSError as error:
            raise storage_error(error, "cannot write", path, len(data)) from error


def _digest(data: bytes) -> str:
    from hashlib import sha256  # only a copy of an experiment needs it

    return sha256(data).hexdigest()


def _walk(root: str, below: str = "") -> Iterator[str]:
    with os.scandir(os.path.join(root, below) if below else root) as entries:
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, name)
            elif not entry.name.startswith(_TEMPORARY):
                yield name


def _rename_exclusively(source: str, target: str) -> bool:
    """Rename, and raise FileExistsError if the name is taken; False where the system or the file system cannot."""
    try:
        import ctypes

        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, a libc without libraries, not Linux
        return False
    if rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCLUSIVE_RENAME:
        return False
    raise OSError(number, os.strerror(number), target)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, "cannot remove", path) from error
