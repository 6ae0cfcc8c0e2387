"""Files to and from S3 in parts, several at a time, each part tried again by itself.

Invariants: memory does not grow with the file's size; an upload that failed is aborted, so that its parts do not stay
(when the process dies they stay until the server's own clean-up: MinIO's after a day); all parts of a download come
from one version of the object.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from trialpod.errors import StorageError
from trialpod.storage.base import ConditionalWriteUnsupportedError, KeyChangedError, KeyMissingError, storage_error
from trialpod.storage.checkpoints.crc32 import combine
from trialpod.storage.s3.client import Rejection, S3Client, crc32_header, settled
from trialpod.storage.s3.http import Answer, FilePart, Sink

T = TypeVar("T")

WRITER = "x-amz-meta-trialpod-writer"
_STEP = 256 * 1024
_MAX_PARTS = 10_000


def parallel(count: int, items: Iterable[T], work: Callable[[T], None]) -> None:
    """Do `work` for all items in up to `count` threads, of which the caller's is one; raise the first error.

    After an error no further item is begun.
    """
    iterator = iter(items)
    lock = threading.Lock()
    problems: list[BaseException] = []

    def worker() -> None:
        while not problems:
            with lock:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
                    problems.append(error)
                    return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
                problems.append(error)

    threads = [threading.Thread(target=worker, daemon=True) for _ in range(count - 1)]
    for thread in threads:
        thread.start()
    worker()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def upload(client: S3Client, local: Path, key: str, uri: str, *, if_absent: bool, crc32: int | None) -> int:
    """Send a file; see `Storage.put_file`."""
    doing = f"cannot write {uri} from {local}"
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise storage_error(error, "cannot read", local) from error
    try:
        size = os.fstat(descriptor).st_size
        if size < client.options.multipart_bytes:
            found = _checksum(descriptor, 0, size, local)
            _expect(found, crc32, doing)
            put(client, key, doing, FilePart(descriptor, 0, size), if_absent=if_absent, crc32=found)
            return found
        return _Upload(client, key, doing, descriptor, size, local).run(if_absent=if_absent, crc32=crc32)
    finally:
        os.close(descriptor)


def put(client: S3Client, key: str, doing: str, body: bytes | FilePart, *, if_absent: bool, crc32: int) -> None:
    """Make an object by one request; raise KeyExistsError if it is there and `if_absent`."""
    writer = os.urandom(12).hex()
    headers = {"x-amz-checksum-crc32": crc32_header(crc32), WRITER: writer}
    if if_absent:
        headers["If-None-Match"] = "*"
    try:
        client.call("PUT", key, doing, headers=headers, body=body)
    except Rejection as rejection:
        # The answer to an earlier try may have been lost: what is there may be what that try wrote.
        if not (if_absent and rejection.uncertain and written_by(client, key, doing, writer)):
            raise settled(rejection) from rejection


def replace(client: S3Client, key: str, doing: str, body: bytes, version: str | None) -> str:
    """Replace an object that has this ETag, or make it where `version` is None; return its ETag.

    Raises:
        KeyChangedError: it has another ETag, or there is none.
        ConditionalWriteUnsupportedError: the server knows no ``If-Match`` here.
    """
    writer = os.urandom(12).hex()
    condition = {"If-None-Match": "*"} if version is None else {"If-Match": version}
    headers = {"x-amz-checksum-crc32": crc32_header(zlib.crc32(body)), WRITER: writer, **condition}
    try:
        return etag_of(client.call("PUT", key, doing, headers=headers, body=body))
    except Rejection as rejection:
        code = rejection.failure.code
        if code == "NotImplemented":
            raise ConditionalWriteUnsupportedError(
                f"{doing}: the server does not know {next(iter(condition))}"
            ) from rejection
        if code != "PreconditionFailed" and not isinstance(rejection.failure.error, KeyMissingError):
            raise settled(rejection) from rejection
        # The answer to an earlier try may have been lost: what is there may be what that try wrote.
        found = _made_by(client, key, doing, writer) if rejection.uncertain else None
        if found is None:
            raise KeyChangedError(f"{doing}: it was changed meanwhile") from rejection
        return found


def etag_of(answer: Answer) -> str:
    """Return the ETag; a proxy that compresses may have marked it as weak, which none matches."""
    return answer.headers.get("etag", "").removeprefix("W/")


def written_by(client: S3Client, key: str, doing: str, writer: str) -> bool:
    """Tell whether the object was made by this writer."""
    return _made_by(client, key, doing, writer) is not None


def _made_by(client: S3Client, key: str, doing: str, writer: str) -> str | None:
    """Return the ETag of the object if this writer made it."""
    try:
        answer = client.call("HEAD", key, doing)
    except Rejection:
        return None
    return etag_of(answer) if answer.headers.get(WRITER) == writer else None


class _Upload:
    """One multipart upload."""

    def __init__(self, client: S3Client, key: str, doing: str, descriptor: int, size: int, local: Path) -> None:
        self._client = client
        self._key = key
        self._doing = doing
        self._descriptor = descriptor
        self._size = size
        self._local = local
        self._part_bytes = max(client.options.part_bytes, -(-size // _MAX_PARTS))
        self._count = -(-size // self._part_bytes)
        self._etags: list[str] = [""] * self._count
        self._checksums: list[int] = [0] * self._count
        self._failed = False
        self._upload = ""

    def run(self, *, if_absent: bool, crc32: int | None) -> int:
        writer = os.urandom(12).hex()
        headers = {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "FULL_OBJECT", WRITER: writer}
        try:
            begun = self._client.call("POST", self._key, self._doing, query={"uploads": ""}, headers=headers)
        except Rejection as rejection:
            raise settled(rejection) from rejection
        found = re.search(rb"<UploadId>([^<]+)</UploadId>", begun.body)
        if found is None:
            raise StorageError(f"{self._doing}: the server gave no upload id")
        self._upload = found[1].decode()
        try:
            workers = min(self._count, self._client.options.parallelism)
            parallel(workers, range(self._count), self._send)
            whole = self._whole()
            _expect(whole, crc32, self._doing)
            self._complete(whole, writer, if_absent=if_absent)
        except BaseException:
            self._abort()
            raise
        return whole

    def _span(self, index: int) -> tuple[int, int]:
        start = index * self._part_bytes
        return start, min(self._part_bytes, self._size - start)

    def _send(self, index: int) -> None:
        start, length = self._span(index)
        try:
            checksum = _checksum(self._descriptor, start, length, self._local)
            answer = self._client.call(
                "PUT",
                self._key,
                self._doing,
                query={"partNumber": str(index + 1), "uploadId": self._upload},
                headers={"x-amz-checksum-crc32": crc32_header(checksum)},
                body=FilePart(self._descriptor, start, length),
                cancelled=lambda: self._failed,
            )
        except Rejection as rejection:
            self._failed = True
            raise settled(rejection) from rejection
        except BaseException:
            self._failed = True
            raise
        self._etags[index] = answer.headers.get("etag", "")
        self._checksums[index] = checksum

    def _whole(self) -> int:
        checksum = self._checksums[0]
        for index in range(1, self._count):
            checksum = combine(checksum, self._checksums[index], self._span(index)[1])
        return checksum

    def _complete(self, whole: int, writer: str, *, if_absent: bool) -> None:
        from html import escape

        parts = "".join(
            f"<Part><PartNumber>{index + 1}</PartNumber><ETag>{escape(etag)}</ETag>"
            f"<ChecksumCRC32>{crc32_header(self._checksums[index])}</ChecksumCRC32></Part>"
            for index, etag in enumerate(self._etags)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        headers = {"x-amz-checksum-crc32": crc32_header(whole), "x-amz-checksum-type": "FULL_OBJECT"}
        if if_absent:
            headers["If-None-Match"] = "*"
        query = {"uploadId": self._upload}
        try:
            self._client.call("POST", self._key, self._doing, query=query, headers=headers, body=body)
        except Rejection as rejection:
            if not (rejection.uncertain and written_by(self._client, self._key, self._doing, writer)):
                raise settled(rejection) from rejection

    def _abort(self) -> None:
        try:
            self._client.call("DELETE", self._key, self._doing, query={"uploadId": self._upload}, patience_s=0.0)
        except (Rejection, StorageError):
            return  # the server removes abandoned uploads by itself; the error that led here says what happened


def download(client: S3Client, key: str, local: Path, uri: str, size: int | None) -> int:
    """Fetch an object; see `Storage.get_file`."""
    doing = f"cannot read {uri}"
    path = os.fspath(local)
    try:
        _unlink(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise storage_error(error, "cannot write", path, size or 0) from error
    try:
        return _Download(client, key, doing, descriptor, path).run(size)
    except BaseException:
        _unlink(path)
        raise
    finally:
        os.close(descriptor)


class _Download:
    """One download."""

    def __init__(self, client: S3Client, key: str, doing: str, descriptor: int, path: str) -> None:
        self._client = client
        self._key = key
        self._doing = doing
        self._descriptor = descriptor
        self._path = path
        self._etag = ""
        self._failed = False
        self._checksums: dict[int, tuple[int, int]] = {}

    def run(self, expected: int | None) -> int:
        part_bytes = self._client.options.part_bytes
        first = self._client.options.multipart_bytes if expected is None else expected
        if expected is not None and expected >= self._client.options.multipart_bytes:
            first = part_bytes
        size = self._fetch_first(first)
        if expected is not None and size != expected:
            raise StorageError(f"{self._doing}: it has {size} bytes instead of {expected}")
        if size > first:
            starts = range(first, size, part_bytes)
            workers = min(len(starts), self._client.options.parallelism)
            parallel(workers, starts, lambda start: self._fetch(start, min(part_bytes, size - start)))
        checksum = 0
        for start in sorted(self._checksums):
            length, part = self._checksums[start]
            checksum = combine(checksum, part, length)
        return checksum

    def _fetch_first(self, length: int) -> int:
        """Fetch the first `length` bytes, or all if there are fewer, and return the object's size."""
        if length == 0:
            length = 1
        try:
            answer = self._request(0, length, {})
        except Rejection as rejection:
            if rejection.failure.code == "InvalidRange":
                return 0
            raise settled(rejection) from rejection
        self._etag = answer.get("etag", "")
        total = answer.get("content-range", "").rpartition("/")[2]
        return int(total) if total.isdecimal() else self._checksums[0][0]

    def _fetch(self, start: int, length: int) -> None:
        try:
            self._request(start, length, {"If-Match": self._etag})
        except Rejection as rejection:
            self._failed = True
            if rejection.failure.code == "PreconditionFailed":
                raise StorageError(f"{self._doing}: it was replaced while it was read; try again") from rejection
            raise settled(rejection) from rejection
        except BaseException:
            self._failed = True
            raise
        if self._checksums[start][0] != length:
            self._failed = True
            raise StorageError(f"{self._doing}: the server sent {self._checksums[start][0]} bytes of {length}")

    def _request(self, start: int, length: int, headers: dict[str, str]) -> dict[str, str]:
        state = _Received()

        def sink() -> Sink:
            state.length = state.checksum = 0

            def take(piece: memoryview) -> None:
                state.checksum = zlib.crc32(piece, state.checksum)
                position = start + state.length
                state.length += len(piece)
                while piece:
                    try:
                        count = os.pwrite(self._descriptor, piece, position)
                    except OSError as error:
                        raise storage_error(error, "cannot write", self._path, length - state.length) from error
                    piece, position = piece[count:], position + count

            return take

        answer = self._client.call(
            "GET",
            self._key,
            self._doing,
            headers={"Range": f"bytes={start}-{start + length - 1}", **headers},
            sink=sink,
            cancelled=lambda: self._failed,
        )
        self._checksums[start] = (state.length, state.checksum)
        return answer.headers


class _Received:
    length = 0
    checksum = 0


def _checksum(descriptor: int, start: int, length: int, local: Path) -> int:
    buffer = memoryview(bytearray(min(_STEP, max(length, 1))))
    checksum = 0
    while length:
        try:
            count = os.preadv(descriptor, [buffer[: min(length, _STEP)]], start)
        except OSError as error:
            raise storage_error(error, "cannot read", local) from error
        if not count:
            raise StorageError(f"{local} became shorter while it was sent")
        checksum = zlib.crc32(buffer[:count], checksum)
        start, length = start + count, length - count
    return checksum


def _expect(found: int, expected: int | None, doing: str) -> None:
    if expected is not None and found != expected:
        raise StorageError(
            f"{doing}: the file's checksum is not the expected one; it changed, or the disk is damaged"
        )


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
