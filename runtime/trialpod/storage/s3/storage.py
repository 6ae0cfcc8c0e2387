"""Storage in a bucket of an S3 server: MinIO above all, and whatever speaks the same protocol.

Invariants: an object is there as a whole or not at all; `write_new` and ``put_file(if_absent=True)`` are decided by
the server (``If-None-Match: *``), so that one of any number of writers wins, and a lost answer is not mistaken for a
lost race; so is `write_if` (``If-Match``); listings are complete when made (S3 and MinIO are strongly consistent).
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote_plus

import msgspec

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.base import (
    ConditionalWriteUnsupportedError,
    KeyMissingError,
    Storage,
    checked_key,
    storage_error,
)
from trialpod.storage.options import StorageOptions
from trialpod.storage.parallel import run_all
from trialpod.storage.s3.client import COPY_SOURCE, Rejection, S3Client, final_error
from trialpod.storage.s3.conditional import etag_of, put, replace
from trialpod.storage.s3.errors import TRANSIENT_CODES, Answer, ErrorAnswerError, not_s3
from trialpod.storage.s3.multipart import download, upload
from trialpod.storage.s3.routes import endpoint_of, plain, region_of, route_to

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from minio import Minio
    from minio.deleteobjects import DeleteError, DeleteObject

T = TypeVar("T")

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_OPEN_PATIENCE_S = 5.0
_DELETE_BATCH = 1000  # S3's limit for one DeleteObjects
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class S3Storage(Storage):
    """The storage whose root is a bucket, or what is below a prefix in it. Safe for use by many threads."""

    is_shared = has_conditional_writes = has_options = has_scoped_credentials = True
    example = "s3://bucket/prefix"

    def __init__(self, client: S3Client, prefix: str = "") -> None:
        """Use a client as it is; `open` also checks that the bucket is there."""
        self._client = client
        self._prefix = prefix  # without "/" at the end

    @classmethod
    def open(
        cls,
        uri: str,
        options: StorageOptions | None = None,
        *,
        check: bool = True,
        client: S3Client | None = None,
    ) -> S3Storage:
        """Return the storage that ``s3://bucket/prefix`` names.

        Args:
            uri: the bucket and, optionally, a prefix.
            options: how to reach the server; None takes all from the environment.
            check: ask the server whether the bucket exists; False where the credentials may not list it.
            client: instead of one made from the options.

        Raises:
            StorageError: the bucket is missing (unless the options say that it may be made), the server refuses the
                keys, is not trusted, or is not an S3 server.
            StorageUnavailableError: the server cannot be reached, or something may be corrected there.
            InvalidInputError: the URI or the options are not valid.
        """
        bucket, prefix = parse_uri(uri)
        if client is None:
            client = _client(uri, bucket, options)
        storage = cls(client, prefix)
        if check:
            storage._check_bucket()
        return storage

    @classmethod
    def preload(cls) -> None:
        """Import minio: 0.3 s and 17 MB that forked processes share."""
        import trialpod.storage.s3.transport  # noqa: F401

    @classmethod
    def normalize_uri(cls, uri: str) -> str:
        """Return the URI without its query, and remember the server that it names."""
        return plain(uri)

    @classmethod
    def check_uri(cls, uri: str) -> None:
        """Refuse what no server takes as the name of a bucket."""
        parse_uri(uri.partition("?")[0])

    def __repr__(self) -> str:
        return f"S3Storage({self.uri!r})"

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix``."""
        return self._uri("")

    def read(self, key: str) -> bytes:
        """Return the object's content."""
        return self._get(key).body

    def read_version(self, key: str) -> tuple[bytes, str]:
        """Return the object's content and its ETag."""
        answer = self._get(key)
        return answer.body, etag_of(answer)

    def write_if(self, key: str, data: bytes, version: str | None) -> str:
        """Replace the object if it has this ETag still (``If-Match``)."""
        checked_key(key)
        if version == "":
            raise ConditionalWriteUnsupportedError(f"the server of {self.uri} gives its objects no ETag")
        doing = f"cannot write {self._uri(key)}"
        return replace(self._client, self._full(key), doing, bytes(data), version)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return that part of the object."""
        return self._get(key, {"Range": f"bytes={start}-{start + length - 1}"}).body if length > 0 else b""

    def write(self, key: str, data: bytes) -> None:
        """Replace the object as a whole."""
        self._put(key, data, if_absent=False)

    def write_new(self, key: str, data: bytes) -> None:
        """Make the object; refuse if there is one."""
        self._put(key, data, if_absent=True)

    def put_file(self, local: Path, key: str) -> int:
        """Send a file, in parts if it is large."""
        checked_key(key)
        return upload(self._client, local, self._full(key), self._uri(key))

    def copy(self, source: str, key: str) -> None:
        """Have the server copy an object; Amazon's does up to 5 GB so."""
        checked_key(key)
        checked_key(source)
        doing = f"cannot copy {self._uri(source)} to {self._uri(key)}"
        headers = {COPY_SOURCE: quote(f"/{self._client.bucket}/{self._full(source)}", safe="/-_.~")}
        try:
            self._client.call("PUT", self._full(key), doing, headers=headers)
        except Rejection as rejection:
            raise final_error(rejection) from rejection

    def get_file(self, key: str, local: Path, *, size: int | None = None) -> int:
        """Fetch an object, in parts if it is large."""
        checked_key(key)
        return download(self._client, self._full(key), local, self._uri(key), size)

    def exists(self, key: str) -> bool:
        """Tell whether there is an object of this name, or one below it."""
        checked_key(key)
        full = self._full(key)
        # The object itself sorts before all others that begin with its name, but "name-x" sorts before "name/x".
        return any(
            found == full or found.startswith(f"{full}/")
            for prefix in (full, f"{full}/")
            for found, _ in self._page(prefix, "", limit=1)[0]
        )

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys below the folder, sorted."""
        return list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the keys below the folder, sorted, with their sizes."""
        checked_key(prefix, root_allowed=True)
        full = self._full(prefix)
        cut = len(self._prefix) + 1 if self._prefix else 0
        found = {key[cut:]: size for key, size in self._objects(f"{full}/" if full else "")}
        return dict(sorted(found.items()))

    def sample_keys(self, prefix: str = "", *, limit: int = 1000) -> Sequence[str]:
        """Return one page of the list."""
        checked_key(prefix, root_allowed=True)
        full = self._full(prefix)
        cut = len(self._prefix) + 1 if self._prefix else 0
        token = ""
        while True:
            page, token = self._page(f"{full}/" if full else "", token, limit=limit)
            found = [key[cut:] for key, _ in page]
            if found or not token:
                return found

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names that the server lists up to the next "/"."""
        checked_key(prefix, root_allowed=True)
        full = self._full(prefix)
        start = f"{full}/" if full else ""
        found: list[str] = []
        token, more = "", True
        while more:
            root = self._listing(start, token, delimiter="/")
            names = (item.findtext("{*}Prefix") or "" for item in root.iterfind("{*}CommonPrefixes"))
            found += [unquote_plus(name)[len(start) : -1] for name in names]
            token = _next_token(root)
            more = bool(token)
        return sorted(name for name in found if name)

    def delete(self, key: str) -> None:
        """Remove the object, if it is there."""
        checked_key(key)
        try:
            self._run(
                f"cannot remove {self._uri(key)}",
                lambda minio: minio.remove_object(self._client.bucket, self._full(key)),
            )
        except KeyMissingError:
            return

    def delete_if(self, key: str, version: str) -> None:
        """Remove the object if it has this ETag; S3's servers know no ``If-Match`` for this, so each try looks."""
        checked_key(key)
        name = self._full(key)

        def remove(minio: Minio) -> None:
            found = minio.stat_object(self._client.bucket, name).etag or ""
            if found.removeprefix("W/").strip('"') == version.strip('"'):
                minio.remove_object(self._client.bucket, name)

        try:
            self._run(f"cannot remove {self._uri(key)}", remove)
        except KeyMissingError:
            return

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects, a thousand with each request."""
        from minio.deleteobjects import DeleteObject

        checked = [checked_key(key) for key in keys]
        for key in filter(_NOT_XML.search, checked):
            self.delete(key)  # such a name cannot be written in a list
        named = [DeleteObject(self._full(key)) for key in checked if not _NOT_XML.search(key)]
        doing = f"cannot remove objects of {self.uri}"
        for start in range(0, len(named), _DELETE_BATCH):
            send = partial(_remove, bucket=self._client.bucket, objects=named[start : start + _DELETE_BATCH])
            errors = self._run(doing, send)
            if codes := sorted({error.code for error in errors} - {"NoSuchKey"}):
                raise StorageError(f"{doing}: the server answers {', '.join(codes)} for some; try again")

    def delete_tree(self, prefix: str) -> None:
        """Remove all objects below the folder."""
        checked_key(prefix)
        self.delete_many(self.list(prefix))

    def put_directory(self, local: Path, prefix: str) -> None:
        """Send the files below a folder, several at a time. Empty folders are not kept: S3 has none."""
        from trialpod.storage.file_tree import scan_tree

        checked_key(prefix, root_allowed=True)
        tree = scan_tree(os.fspath(local))
        below = f"{prefix}/" if prefix else ""
        run_all(
            (partial(self.put_file, Path(local, path), below + path) for path in tree.files),
            self._client.options.parallelism,
        )

    def get_directory(self, prefix: str, local: Path) -> None:
        """Fetch all objects below the folder, several at a time."""
        found = self.sizes(prefix)
        if not found:
            raise KeyMissingError(f"there is nothing below {self._uri(prefix)}")
        cut = len(prefix) + 1 if prefix else 0
        for key in found:
            checked_key(key)  # a name in the bucket must not lead out of the folder
        targets = {key: Path(local, key[cut:]) for key in found}
        for folder in sorted({target.parent for target in targets.values()}):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise storage_error(error, "cannot make the folder", folder) from error
        run_all(
            (partial(self.get_file, key, targets[key], size=found[key]) for key in found),
            self._client.options.parallelism,
        )

    def abort_uploads(self, prefixes: Iterable[str]) -> int:
        """Ask for unfinished multipart uploads, and abort them."""
        count = 0
        for prefix in prefixes:
            full = self._full(prefix) if prefix or not self._prefix else f"{self._prefix}/"
            doing = f"cannot end unfinished uploads of {self._uri(prefix)}"
            try:
                # With only one page of them: the others are found the next time.
                answer = self._client.call(
                    "GET", "", doing, query={"uploads": "", "prefix": full}, refusal_patience_s=0.0
                )
                found = re.findall(
                    r"<Upload>.*?<Key>([^<]*)</Key>.*?<UploadId>([^<]*)</UploadId>",
                    answer.body.decode("utf-8", "replace"),
                    re.DOTALL,
                )
                for key, upload in found:
                    self._client.call("DELETE", unescape(key), doing, query={"uploadId": unescape(upload)})
            except Rejection as rejection:
                if rejection.failure.code in ("NoSuchUpload", "NotImplemented"):
                    continue
                if rejection.failure.code == "AccessDenied":
                    raise StorageError(f"{doing}: the keys may not list and abort multipart uploads") from rejection
                raise final_error(rejection) from rejection
            count += len(found)
        return count

    def local_path(self, key: str) -> Path | None:
        """Return None: objects are not on this machine's disk."""
        return None

    def sub(self, prefix: str) -> Storage:
        """Return the storage of what is below a prefix; it shares the connections."""
        return S3Storage(self._client, self._full(checked_key(prefix)))

    def parent(self) -> Storage:
        """Return the storage of the folder above; it shares the connections."""
        if not self._prefix:
            raise StorageError(f"{self.uri} is a whole bucket; there is nothing above it")
        return S3Storage(self._client, self._prefix.rpartition("/")[0])

    def close(self) -> None:
        """Close idle connections; later calls open new ones."""
        self._client.close()

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix and key else self._prefix or key

    def _uri(self, key: str) -> str:
        full = self._full(key)
        return f"s3://{self._client.bucket}/{full}" if full else f"s3://{self._client.bucket}"

    def _run(self, doing: str, operation: Callable[[Minio], T]) -> T:
        try:
            return self._client.run(doing, operation)
        except Rejection as rejection:
            raise final_error(rejection) from rejection

    def _get(self, key: str, headers: dict[str, str] | None = None) -> Answer:
        checked_key(key)
        try:
            return self._client.call("GET", self._full(key), f"cannot read {self._uri(key)}", headers=headers)
        except Rejection as rejection:
            if headers and rejection.failure.code == "InvalidRange":
                return Answer(416, {}, b"")
            raise final_error(rejection) from rejection

    def _put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        checked_key(key)
        doing = f"cannot write {self._uri(key)}"
        put(self._client, self._full(key), doing, bytes(data), zlib.crc32(data), if_absent=if_absent)

    def _check_bucket(self) -> None:
        doing = f"cannot open {self.uri}"
        patience = min(_OPEN_PATIENCE_S, self._client.options.retry_s)
        # With the prefix, because keys may be allowed to list only what is below it.
        query = {"list-type": "2", "max-keys": "1", "prefix": f"{self._prefix}/" if self._prefix else ""}
        try:
            answer = self._client.call("GET", "", doing, query=query, patience_s=patience, refusal_patience_s=0.0)
        except Rejection as rejection:
            if rejection.failure.code != "NoSuchBucket" or not self._client.options.create_bucket:
                raise final_error(rejection) from rejection
            self._make_bucket(patience)
            return
        if b"<ListBucketResult" not in answer.body:
            raise not_s3(
                doing, self._client.options.endpoint, "the response is not a list of objects (ListBucketResult)"
            )

    def _make_bucket(self, patience: float) -> None:
        doing = f"cannot make the bucket {self._client.bucket}"
        try:
            self._client.run(
                doing,
                lambda minio: minio.make_bucket(self._client.bucket),
                patience_s=patience,
                refusal_patience_s=0.0,
            )
        except Rejection as rejection:
            if rejection.failure.code != "BucketAlreadyOwnedByYou":  # another process was faster
                raise final_error(rejection) from rejection

    def _objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        token = ""
        while True:
            page, token = self._page(prefix, token)
            yield from page
            if not token:
                return

    def _page(self, prefix: str, token: str, *, limit: int = 1000) -> tuple[Sequence[tuple[str, int]], str]:
        """Return one page of keys and sizes, and the token of the next."""
        root = self._listing(prefix, token, limit=limit)
        try:
            page = [
                (unquote_plus(item.findtext("{*}Key") or ""), int(item.findtext("{*}Size") or 0))
                for item in root.iterfind("{*}Contents")
            ]
        except ValueError as error:
            raise self._unreadable_list(prefix, error) from error
        # A name that ends in "/" is what graphical tools make for an empty folder.
        return [(key, size) for key, size in page if not key.endswith("/")], _next_token(root)

    def _listing(self, prefix: str, token: str, *, limit: int = 1000, delimiter: str = "") -> Element:
        """Return one page of a list as the server writes it; `Minio.list_objects` has no limit."""
        from xml.etree import ElementTree as ET

        query = {"list-type": "2", "max-keys": str(limit), "prefix": prefix, "encoding-type": "url"}
        if token:
            query["continuation-token"] = token
        if delimiter:
            query["delimiter"] = delimiter
        doing = f"cannot list s3://{self._client.bucket}/{prefix}"
        try:
            return ET.fromstring(self._client.call("GET", "", doing, query=query).body)
        except Rejection as rejection:
            raise final_error(rejection) from rejection
        except ET.ParseError as error:
            raise self._unreadable_list(prefix, error) from error

    def _unreadable_list(self, prefix: str, error: Exception) -> StorageError:
        doing = f"cannot list s3://{self._client.bucket}/{prefix}"
        return not_s3(doing, self._client.options.endpoint, f"the list cannot be read: {error}")


def _next_token(listing: Element) -> str:
    """Return the token of the next page; "" after the last."""
    more = listing.findtext("{*}IsTruncated") == "true"
    return (listing.findtext("{*}NextContinuationToken") or "") if more else ""


def _remove(minio: Minio, bucket: str, objects: Iterable[DeleteObject]) -> Sequence[DeleteError]:
    errors = tuple(minio.remove_objects(bucket, objects))
    for error in errors:
        if error.code in TRANSIENT_CODES:  # the same keys may be sent again
            code = f"<Error><Code>{error.code}</Code><Message>for some objects</Message></Error>"
            raise ErrorAnswerError(Answer(status=503, headers={}, body=code.encode()))
    return errors


def _client(uri: str, bucket: str, options: StorageOptions | None) -> S3Client:
    """Return a client for a bucket: at the options' endpoint, by a registered route, or as the environment says."""
    given = options or StorageOptions()
    if given.endpoint:
        return S3Client(bucket, given.resolved())
    if (route := route_to(bucket)) is not None:
        given = msgspec.structs.replace(given, endpoint=route.endpoint, ca_pem=given.ca_pem or route.ca_pem)
        return S3Client(bucket, given.resolved(), credentials=route.credentials, dial=route.dial)
    given = msgspec.structs.replace(given, endpoint=endpoint_of(uri), region=given.region or region_of(uri))
    return S3Client(bucket, given.resolved())


def parse_uri(uri: str) -> tuple[str, str]:
    """Return the bucket and the prefix of ``s3://bucket/prefix``; raise InvalidInputError if they are not valid."""
    _, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise InvalidInputError(
            f"storage {uri!r} does not name a bucket; write s3://bucket/prefix, the bucket's name having 3 to 63 "
            "lower-case letters, digits, '.' and '-'"
        )
    prefix = prefix.strip("/")
    if prefix:
        try:
            checked_key(prefix)
        except StorageError as error:
            raise InvalidInputError(f"storage {uri!r}: {error}") from None
    return bucket, prefix
