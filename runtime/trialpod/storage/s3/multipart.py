"""Files to and from S3 in parts, several at a time, each part retried by itself.

minio's `fput_object` and `fget_object` (3 parts of 8 MiB) were measured beside this: 0.98 and 0.76 of obstore's rate
in two rounds where this has 1.31 and 1.04, twice the CPU time, 36 MB more memory, and half this rate or less for
fetching (docs/benchmark-results.md). They also send a file from its beginning when one part fails, and verify no
CRC-32.

Invariants: memory does not grow with the file's size; an upload that failed is aborted, so that its parts do not stay
(when the process dies they stay until the server's own clean-up: MinIO's after a day); all parts of a download come
from one version of the object.
"""

from __future__ import annotations

import os
import re
import zlib
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from trialpod.errors import StorageError
from trialpod.storage.base import storage_error
from trialpod.storage.checkpoints.crc32 import combine
from trialpod.storage.parallel import run_all
from trialpod.storage.s3.client import Rejection, S3Client, crc32_header, final_error
from trialpod.storage.s3.conditional import WRITER, made_by, new_writer, put
from trialpod.storage.s3.files import FilePart

if TYPE_CHECKING:
    from minio import Minio

_STEP = 1024 * 1024
"""Received at a time: 512 MiB over one connection take 0.30 s of CPU, with a quarter of it 0.35 s."""

_MAX_PARTS = 10_000


def upload(client: S3Client, local: Path, key: str, uri: str) -> int:
    """Send a file; see `Storage.put_file`."""
    doing = f"cannot write {uri} from {local}"
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise storage_error(error, "cannot read", local) from error
    try:
        size = os.fstat(descriptor).st_size
        if size >= client.options.multipart_bytes:
            return _Upload(client, key, doing, descriptor, size, local).run()
        whole = FilePart(descriptor, 0, size)
        checksum = whole.checksum(local)
        put(client, key, doing, whole, checksum)
        return checksum
    finally:
        os.close(descriptor)


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

    def run(self) -> int:
        writer = new_writer()
        headers = {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "FULL_OBJECT", WRITER: writer}
        try:
            begun = self._client.call("POST", self._key, self._doing, query={"uploads": ""}, headers=headers)
        except Rejection as rejection:
            raise final_error(rejection) from rejection
        found = re.search(rb"<UploadId>([^<]+)</UploadId>", begun.body)
        if found is None:
            raise StorageError(f"{self._doing}: the server gave no upload id")
        self._upload = found[1].decode()
        try:
            run_all((partial(self._send, index) for index in range(self._count)), self._client.options.parallelism)
            whole = self._whole()
            self._complete(whole, writer)
        except BaseException:
            self._abort()
            raise
        return whole

    def _part(self, index: int) -> FilePart:
        start = index * self._part_bytes
        return FilePart(self._descriptor, start, min(self._part_bytes, self._size - start))

    def _send(self, index: int) -> None:
        part = self._part(index)
        try:
            checksum = part.checksum(self._local)
            answer = self._client.call(
                "PUT",
                self._key,
                self._doing,
                query={"partNumber": str(index + 1), "uploadId": self._upload},
                headers={"x-amz-checksum-crc32": crc32_header(checksum)},
                body=part,
                cancelled=lambda: self._failed,
            )
        except Rejection as rejection:
            self._failed = True
            raise final_error(rejection) from rejection
        except BaseException:
            self._failed = True
            raise
        self._etags[index] = answer.headers.get("etag", "")
        self._checksums[index] = checksum

    def _whole(self) -> int:
        checksum = self._checksums[0]
        for index in range(1, self._count):
            checksum = combine(checksum, self._checksums[index], self._part(index).length)
        return checksum

    def _complete(self, whole: int, writer: str) -> None:
        parts = "".join(
            f"<Part><PartNumber>{index + 1}</PartNumber><ETag>{escape(etag)}</ETag>"
            f"<ChecksumCRC32>{crc32_header(self._checksums[index])}</ChecksumCRC32></Part>"
            for index, etag in enumerate(self._etags)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        headers = {"x-amz-checksum-crc32": crc32_header(whole), "x-amz-checksum-type": "FULL_OBJECT"}
        query = {"uploadId": self._upload}
        try:
            self._client.call("POST", self._key, self._doing, query=query, headers=headers, body=body)
        except Rejection as rejection:
            if not (rejection.uncertain and made_by(self._client, self._key, self._doing, writer) is not None):
                raise final_error(rejection) from rejection

    def _abort(self) -> None:
        try:
            self._client.call("DELETE", self._key, self._doing, query={"uploadId": self._upload}, patience_s=0.0)
        except (Rejection, StorageError):
            return  # the server removes abandoned uploads by itself; the error that led here says what happened


def download(client: S3Client, key: str, local: Path, uri: str, size: int | None) -> int:
    """Fetch an object; see `Storage.get_file`."""
    path = os.fspath(local)
    try:
        _unlink(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise storage_error(error, "cannot write", path, size or 0) from error
    try:
        return _Download(client, key, f"cannot read {uri}", descriptor, path).run(size)
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
        options = self._client.options
        first = options.multipart_bytes if expected is None else expected
        if expected is not None and expected >= options.multipart_bytes:
            first = options.part_bytes
        size = self._fetch_first(max(first, 1))
        if expected is not None and size != expected:
            raise StorageError(f"{self._doing}: it has {size} bytes instead of {expected}")
        run_all(
            (
                partial(self._fetch, start, min(options.part_bytes, size - start))
                for start in range(first, size, options.part_bytes)
            ),
            options.parallelism,
        )
        checksum = 0
        for _, (length, part) in sorted(self._checksums.items()):
            checksum = combine(checksum, part, length)
        return checksum

    def _fetch_first(self, length: int) -> int:
        """Fetch the first `length` bytes, or all if there are fewer, and return the object's size."""
        try:
            headers = self._request(0, length, {})
        except Rejection as rejection:
            if rejection.failure.code == "InvalidRange":
                return 0
            raise final_error(rejection) from rejection
        self._etag = headers.get("etag", "")
        total = headers.get("content-range", "").rpartition("/")[2]
        return int(total) if total.isdecimal() else self._checksums[0][0]

    def _fetch(self, start: int, length: int) -> None:
        try:
            self._request(start, length, {"If-Match": self._etag})
            if self._checksums[start][0] != length:
                raise StorageError(f"{self._doing}: the server sent {self._checksums[start][0]} bytes of {length}")
        except Rejection as rejection:
            self._failed = True
            if rejection.failure.code == "PreconditionFailed":
                raise StorageError(f"{self._doing}: it was replaced while it was read; try again") from rejection
            raise final_error(rejection) from rejection
        except BaseException:
            self._failed = True
            raise

    def _request(self, start: int, length: int, headers: dict[str, str]) -> dict[str, str]:
        def operation(minio: Minio) -> dict[str, str]:
            response = minio.get_object(
                self._client.bucket, self._key, offset=start, length=length, request_headers=dict(headers)
            )
            received = checksum = 0
            try:
                for piece in response.stream(_STEP):
                    checksum = zlib.crc32(piece, checksum)
                    self._write(memoryview(piece), start + received, length - received)
                    received += len(piece)
            except BaseException:
                response.close()  # what is left of the body is not another answer's beginning
                raise
            finally:
                response.release_conn()
            self._checksums[start] = (received, checksum)
            return {name.lower(): value for name, value in response.headers.items()}

        return self._client.run(self._doing, operation, writes=False, cancelled=lambda: self._failed)

    def _write(self, piece: memoryview, position: int, needed: int) -> None:
        while piece:
            try:
                count = os.pwrite(self._descriptor, piece, position)
            except OSError as error:
                raise storage_error(error, "cannot write", self._path, needed) from error
            piece, position = piece[count:], position + count


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
