"""Copies of directory trees with checksums, as cheap as the file system allows, and their way to the disk.

Invariants:

* The checksum of a copied file is that of the bytes in the copy.
* A copy shares no inode with its source (a clone shares blocks, copy-on-write), so that later changes to the source
  never reach it. Symbolic links are followed: the copy has none.
* Whatever is wrong with the source is a CheckpointError, whatever is wrong with the target a StorageError.

Files are cloned (``FICLONE``) where the file system can. Otherwise they are copied and checksummed in one pass of
256 kB steps, which stay in the CPU's cache; ``copy_file_range`` and ``sendfile`` followed by a pass for the checksum
are no faster. CRC-32 runs at twice the rate of SHA-256 and four times that of BLAKE2b with the CPU's help, and at
more than six times without it; what it has to find is damage, not forgery.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import threading
import zlib
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from trialpod.errors import CheckpointError, StorageError
from trialpod.storage.base import storage_error
from trialpod.storage.parallel import run_all

CHECKSUM = "crc32"
_STEP = 256 * 1024
_FICLONE = 0x40049409  # linux/fs.h
_KERNEL_STEP = 64 * 1024 * 1024
_SYNC_THREADS = 8
_COPY_THREADS = 4
_LARGE_BYTES = 8 * 1024 * 1024
_CANNOT_CLONE = frozenset(
    (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ETXTBSY)
)


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of an object: its key below the trial's directory, where they start, and how many."""

    at: str
    offset: int
    size: int


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a tree: its path below the root with "/" between the parts, its bytes and its checksum.

    The others are set where files are objects of a remote storage; see `trialpod.storage.checkpoints.remote`.
    """

    path: str
    size: int
    checksum: int
    at: str = ""  # key of its object below the trial's directory, when that is not its own place
    offset: int = 0  # where in that object it starts
    pieces: tuple[Piece, ...] = ()  # its bytes, one range after another, when they are in several objects
    held: int = 0  # bytes of all objects that `pieces` refer to, at most


class Tree(msgspec.Struct):
    """What is below a folder: relative paths, parents before children, and the files' sizes."""

    folders: list[str] = []
    files: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())


def survey(root: str) -> Tree:
    """List what is below `root`, following symbolic links.

    Raises:
        CheckpointError: `root` is no folder, or holds a dangling link, a link to a folder around it, a socket, a
            pipe or a device, or a name that is not valid Unicode; or it changed meanwhile.
    """
    tree = Tree()
    _survey(root, "", (), tree)
    return tree


def _survey(root: str, below: str, around: tuple[tuple[int, int], ...], tree: Tree) -> None:
    here = os.path.join(root, below) if below else root
    try:
        status = os.stat(here)
        identity = (status.st_dev, status.st_ino)
        if identity in around:
            raise CheckpointError(f"cannot checkpoint {here}: it links to a folder that contains it; remove the link")
        with os.scandir(here) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(error, here) from error
    for entry in found:
        path = f"{below}/{entry.name}" if below else entry.name
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise CheckpointError(f"cannot checkpoint {here}: the name {entry.name!r} is not valid UTF-8") from error
        try:
            status = entry.stat()
        except OSError as error:
            raise _unreadable(error, entry.path, entry) from error
        if stat.S_ISDIR(status.st_mode):
            tree.folders.append(path)
            _survey(root, path, (*around, identity), tree)
        elif stat.S_ISREG(status.st_mode):
            tree.files[path] = status.st_size
        else:
            raise CheckpointError(
                f"cannot checkpoint {entry.path}: it is a socket, a pipe or a device; a checkpoint has only files"
            )


def _unreadable(error: OSError, path: str, entry: os.DirEntry[str] | None = None) -> CheckpointError:
    if entry is not None and entry.is_symlink():
        if error.errno == errno.ELOOP:
            return CheckpointError(f"cannot checkpoint {path}: the symbolic link leads back to itself; remove it")
        return CheckpointError(
            f"cannot checkpoint {path}: it is a symbolic link to {os.readlink(path)}, which does not exist; "
            "remove the link or write the file itself"
        )
    if error.errno in (errno.ENOENT, errno.ESTALE):
        return CheckpointError(
            f"cannot checkpoint {path}: it vanished before the checkpoint was complete; keep the folder until the "
            "report has returned"
        )
    return CheckpointError(f"cannot checkpoint {path}: {error.strerror or error}")


def copy_tree(source: str, target: str, tree: Tree) -> list[FileEntry]:
    """Copy what `tree` lists from `source` into the existing folder `target`, without syncing it.

    Raises:
        CheckpointError: the source cannot be read, or vanished.
        StorageError: the target cannot be written; when it is full, with the space needed and free.
    """
    for folder in tree.folders:
        try:
            os.mkdir(os.path.join(target, folder))
        except OSError as error:
            raise storage_error(error, "cannot write", target, tree.size) from error
    left = tree.size
    entries = []
    for path, size in tree.files.items():
        entries.append(_copy_file(os.path.join(source, path), os.path.join(target, path), path, left))
        left -= size
    return entries


def copy_file(source: str, target: str, path: str) -> FileEntry:
    """Copy one file to `target`, which must not exist, without syncing it; errors as of `copy_tree`.

    Args:
        source: the file; a symbolic link is followed.
        target: its copy.
        path: what the entry that is returned is called.
    """
    try:
        size = os.stat(source).st_size
    except OSError as error:
        raise _unreadable(error, source) from error
    return _copy_file(source, target, path, size)


def _copy_file(source: str, target: str, path: str, needed: int) -> FileEntry:
    with _opened(source, target, needed) as (reader, writer):
        if _cloned(reader, writer, target, needed):
            return _checksum(writer, target, path)
        return _copy_bytes(reader, writer, source, target, path, needed)


@contextlib.contextmanager
def _opened(source: str, target: str, needed: int) -> Iterator[tuple[int, int]]:
    """Open a file to copy and the new one that it becomes; yield their descriptors."""
    try:
        reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(error, source) from error
    try:
        try:
            writer = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise storage_error(error, "cannot write", target, needed) from error
        try:
            yield reader, writer
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def snapshot_tree(source: str, target: str, tree: Tree) -> None:
    """Copy what `tree` lists as `copy_tree` does, without looking at the bytes: no checksums.

    The kernel copies (``copy_file_range``), which on a file system without clones is the fastest way there is.
    """
    for folder in tree.folders:
        try:
            os.mkdir(os.path.join(target, folder))
        except OSError as error:
            raise storage_error(error, "cannot write", target, tree.size) from error

    def take(path: str) -> None:
        _snapshot_file(os.path.join(source, path), os.path.join(target, path), tree.files[path])

    large = [path for path, size in tree.files.items() if size >= _LARGE_BYTES]
    for path, size in tree.files.items():
        if size < _LARGE_BYTES:
            take(path)
    # The kernel copies, and one core does not reach what memory and disk can do.
    run_all([partial(take, path) for path in large], min(_COPY_THREADS, os.cpu_count() or 1))


def _snapshot_file(source: str, target: str, needed: int) -> None:
    with _opened(source, target, needed) as (reader, writer):
        if not _cloned(reader, writer, target, needed) and not _copied_by_kernel(reader, writer, target, needed):
            _copy_bytes(reader, writer, source, target, "", needed)


def _copied_by_kernel(reader: int, writer: int, target: str, needed: int) -> bool:
    size = 0
    try:
        while count := os.copy_file_range(reader, writer, _KERNEL_STEP):
            size += count
    except OSError as error:
        if size == 0 and error.errno in _CANNOT_CLONE:
            return False
        raise storage_error(error, "cannot write", target, max(needed - size, 0)) from error
    # Some file systems (procfs, some FUSE) copy nothing where there is something: reading finds out.
    return size > 0


def _cloned(reader: int, writer: int, target: str, needed: int) -> bool:
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno in _CANNOT_CLONE:
            return False
        raise storage_error(error, "cannot write", target, needed) from error
    return True


def _copy_bytes(reader: int, writer: int, source: str, target: str, path: str, needed: int) -> FileEntry:
    buffer = memoryview(bytearray(_STEP))
    size = checksum = 0
    while True:
        try:
            count = os.readv(reader, [buffer])
        except OSError as error:
            raise _unreadable(error, source) from error
        if count == 0:
            return FileEntry(path, size, checksum)
        piece = buffer[:count]
        checksum = zlib.crc32(piece, checksum)
        try:
            while piece:
                piece = piece[os.write(writer, piece) :]
        except OSError as error:
            raise storage_error(error, "cannot write", target, max(needed - size, count)) from error
        size += count


def _checksum(descriptor: int, name: str, path: str) -> FileEntry:
    buffer = memoryview(bytearray(_STEP))
    size = checksum = 0
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        while count := os.readv(descriptor, [buffer]):
            checksum = zlib.crc32(buffer[:count], checksum)
            size += count
    except OSError as error:
        raise StorageError(f"cannot read {name}: {error.strerror or error}") from error
    return FileEntry(path, size, checksum)


def checksum_file(root: str, path: str) -> FileEntry:
    """Read the file `path` below `root`; raise FileNotFoundError if it is missing, StorageError if unreadable."""
    name = os.path.join(root, path)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(name) from None
    except OSError as error:
        raise StorageError(f"cannot read {name}: {error.strerror or error}") from error
    try:
        return _checksum(descriptor, name, path)
    finally:
        os.close(descriptor)


def own_links(root: str, below: str = "") -> None:
    """Replace symbolic links and shared hard links below `root` by copies, so that nothing outside can change it."""
    here = os.path.join(root, below) if below else root
    try:
        with os.scandir(here) as entries:
            found = list(entries)
        for entry in found:
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_symlink() or (entry.is_file() and entry.stat().st_nlink > 1):
                _own(entry.path)
            elif entry.is_dir():
                own_links(root, path)
    except OSError as error:
        raise _unreadable(error, here) from error


def _own(link: str) -> None:
    copy = f"{link}.{os.urandom(4).hex()}.tmp"
    if os.path.isdir(link):
        tree = survey(link)
        try:
            os.mkdir(copy)
            copy_tree(link, copy, tree)
            os.unlink(link)
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            raise
    else:
        _copy_file(link, copy, "", os.stat(link).st_size)
    os.replace(copy, link)


def sync_tree(root: str, folders: Sequence[str], files: Sequence[str]) -> None:
    """Bring the files and then the folders below `root`, and `root` itself, to the disk.

    Many small files are synced from several threads: the file system then shares one journal commit among them.
    """
    if len(files) <= 2 * _SYNC_THREADS:
        _sync(root, files)
    else:
        problems: list[StorageError] = []
        threads = [
            threading.Thread(target=_sync_or_note, args=(root, files[start::_SYNC_THREADS], problems))
            for start in range(_SYNC_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
    _sync(root, folders[::-1])
    sync_path(root)


def _sync_or_note(root: str, paths: Sequence[str], problems: list[StorageError]) -> None:
    try:
        _sync(root, paths)
    except StorageError as error:
        problems.append(error)


def _sync(root: str, paths: Sequence[str]) -> None:
    for path in paths:
        sync_path(os.path.join(root, path))


def write_synced(path: str, data: bytes) -> None:
    """Write a file and bring it to the disk; its name is not there before its folder is synced.

    Raises:
        OSError: as the system says it.
    """
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_path(path: str) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error(error, "cannot sync", path) from error
