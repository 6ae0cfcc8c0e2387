"""Objects that are written only where there is none, or only in place of one version.

The server decides (``If-None-Match``, ``If-Match``), so that one of any number of writers wins. Each write carries a
number of its own, so that a lost answer is not mistaken for a lost race: what is there may be what an earlier try of
the same write left. minio's `put_object` knows neither header.
"""

from __future__ import annotations

import os
import zlib

from trialpod.storage.base import ConditionalWriteUnsupportedError, KeyChangedError, KeyMissingError
from trialpod.storage.s3.client import Rejection, S3Client, crc32_header, final_error
from trialpod.storage.s3.errors import Answer
from trialpod.storage.s3.files import FilePart

WRITER = "x-amz-meta-trialpod-writer"


def new_writer() -> str:
    """Return a number that no other write has."""
    return os.urandom(12).hex()


def put(
    client: S3Client, key: str, doing: str, body: bytes | FilePart, crc32: int, *, if_absent: bool = False
) -> None:
    """Make an object by one request; raise KeyExistsError if it is there and `if_absent`."""
    writer = new_writer()
    headers = {"x-amz-checksum-crc32": crc32_header(crc32), WRITER: writer}
    if if_absent:
        headers["If-None-Match"] = "*"
    try:
        client.call("PUT", key, doing, headers=headers, body=body)
    except Rejection as rejection:
        if not (if_absent and rejection.uncertain and made_by(client, key, doing, writer) is not None):
            raise final_error(rejection) from rejection


def replace(client: S3Client, key: str, doing: str, body: bytes, version: str | None) -> str:
    """Replace an object that has this ETag, or make it where `version` is None; return its ETag.

    Raises:
        KeyChangedError: it has another ETag, or there is none.
        ConditionalWriteUnsupportedError: the server knows no ``If-Match`` here.
    """
    writer = new_writer()
    condition = {"If-None-Match": "*"} if version is None else {"If-Match": version}
    headers = {"x-amz-checksum-crc32": crc32_header(zlib.crc32(body)), WRITER: writer, **condition}
    try:
        return etag_of(client.call("PUT", key, doing, headers=headers, body=body))
    except Rejection as rejection:
        code = rejection.failure.code
        if code == "NotImplemented":
            unknown = f"{doing}: the server does not know {next(iter(condition))}"
            raise ConditionalWriteUnsupportedError(unknown) from rejection
        if code != "PreconditionFailed" and not isinstance(rejection.failure.error, KeyMissingError):
            raise final_error(rejection) from rejection
        found = made_by(client, key, doing, writer) if rejection.uncertain else None
        if found is None:
            raise KeyChangedError(f"{doing}: it was changed meanwhile") from rejection
        return found


def etag_of(answer: Answer) -> str:
    """Return the ETag; a proxy that compresses may have marked it as weak, which none matches."""
    return answer.headers.get("etag", "").removeprefix("W/")


def made_by(client: S3Client, key: str, doing: str, writer: str) -> str | None:
    """Return the ETag of the object if this writer made it."""
    try:
        answer = client.call("HEAD", key, doing)
    except Rejection:
        return None
    return etag_of(answer) if answer.headers.get(WRITER) == writer else None
