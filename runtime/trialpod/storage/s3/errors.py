"""What a failed request to an S3 server means: whether trying again helps, and what a person has to do.

Invariant: every failure is one of three kinds. *transient*: the same request may succeed in a moment; *refused*: it
succeeds once someone has put something right outside (keys, a clock); *permanent*: never.
"""

from __future__ import annotations

import re
import socket
import time
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from typing import Literal

from trialpod.errors import StorageError
from trialpod.storage.base import (
    KeyExistsError,
    KeyMissingError,
    StorageCredentialsError,
    StorageDeniedError,
    StorageUnavailableError,
)
from trialpod.storage.s3.files import ShortFileError

Kind = Literal["transient", "refused", "permanent"]

_CUT_SHORT = 499
"""What MinIO, ending, answers to the requests that it is at: `ClientDisconnected`, though no client was."""

_TRANSIENT_STATUS = frozenset((408, 425, 429, _CUT_SHORT, 500, 502, 503, 504))
TRANSIENT_CODES = frozenset(
    (
        "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "RequestTimeOut", "OperationAborted",
        "ConditionalRequestConflict", "Throttling", "ThrottlingException", "IncompleteBody", "BadDigest",
        "XAmzContentChecksumMismatch",
        "XMinioServerNotInitialized", "SlowDownRead", "SlowDownWrite", "XMinioBackendDown",
    )
)  # fmt: skip
_FULL_CODES = frozenset(
    ("XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage")
)
_KEYS_CODES = frozenset(
    ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "InvalidTokenId",
     "TokenRefreshRequired", "XMinioInvalidIAMCredentials")
)  # fmt: skip
EXISTS_CODES = frozenset(("PreconditionFailed",))

CONSOLE_HINT = "check the endpoint; for MinIO it is the API's port (9000), not the console's (9001)"


@dataclass(frozen=True)
class Answer:
    """What the server said. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return an answer with the names of its headers in lower case."""
        return cls(status, {name.lower(): value for name, value in headers.items()}, body or b"")

    def date(self) -> float | None:
        """Return the server's time, seconds since the epoch."""
        try:
            return float(timegm(time.strptime(self.headers.get("date", ""), "%a, %d %b %Y %H:%M:%S GMT")))
        except ValueError:
            return None


class ErrorAnswerError(Exception):
    """The server answered with another status than 2xx."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"HTTP status {answer.status}")
        self.answer = answer


@dataclass(frozen=True)
class Failure:
    """One failed request."""

    kind: Kind
    error: StorageError
    code: str = ""
    ambiguous: bool = False  # the server may have done it nevertheless
    retry_after_s: float = 0.0  # what the server asked for


def error_code(answer: Answer) -> tuple[str, str]:
    """Return the code and the message of an S3 error document; empty where there is none."""
    text = answer.body[:65536].decode("utf-8", "replace")
    code, message = re.search(r"<Code>([^<]*)</Code>", text), re.search(r"<Message>([^<]*)</Message>", text)
    return unescape(code[1]) if code else "", unescape(message[1]) if message else ""


def from_answer(answer: Answer, doing: str, endpoint: str, credentials_source: str) -> Failure:
    """Classify an answer that is not a success; `doing` is what was attempted, as in "cannot write s3://bucket/key"."""
    code, message = error_code(answer)
    said = f"{code} ({message.rstrip('.')})" if code else f"HTTP status {answer.status}"
    after = answer.headers.get("retry-after", "")
    wait = float(after) if after.isdecimal() else 0.0
    if code in ("NoSuchKey", "NoSuchVersion") or (answer.status == 404 and not code and not answer.body):
        return Failure("permanent", KeyMissingError(f"{doing}: there is no such object"), code)
    if code in EXISTS_CODES or (answer.status == 412 and not code):
        return Failure("permanent", KeyExistsError(f"{doing}: it exists already"), code or "PreconditionFailed")
    if code == "NoSuchUpload":
        # By the server's clean-up after a long outage, or by an attempt that has taken over.
        return Failure(
            "permanent",
            StorageUnavailableError(f"{doing}: the upload was ended by another client; it has to begin again"),
            code,
        )
    if code == "NoSuchBucket":
        return Failure(
            "permanent",
            StorageError(
                f"{doing}: the bucket does not exist; make it, or set `createBucket: true` in the manifest's "
                "storage or the variable TRIALPOD_CREATE_BUCKET=1"
            ),
            code,
        )
    if code == "RequestTimeTooSkewed":
        return Failure(
            "refused",
            StorageUnavailableError(
                f"{doing}: this machine's clock and that of {endpoint} differ by more than 15 minutes "
                f"(the server's: {answer.headers.get('date', 'unknown')}); set both by NTP"
            ),
            code,
        )
    if code in _KEYS_CODES:
        return Failure(
            "refused",
            StorageCredentialsError(
                f"{doing}: {endpoint} refuses the credentials from {credentials_source}: {said}; "
                "put valid keys there, they are read again by themselves"
            ),
            code,
        )
    if code == "AccessDenied" or (answer.status == 403 and not code):
        return Failure(
            "refused",
            StorageDeniedError(
                f"{doing}: {endpoint} denies access to the credentials from {credentials_source}; "
                "their policy must allow to list the bucket, and to get, put and delete its objects"
            ),
            "AccessDenied",
        )
    if code in _FULL_CODES or answer.status == 507:
        return Failure(
            "transient",
            StorageUnavailableError(f"{doing}: the server's disk or quota is full: {said}; free some space there"),
            code,
            ambiguous=False,
            retry_after_s=wait,
        )
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException") or (
        300 <= answer.status < 400
    ):
        found = re.search(rb"<Region>([^<]*)</Region>", answer.body)
        region = answer.headers.get("x-amz-bucket-region") or (found[1].decode("ascii", "replace") if found else "")
        where = f"set the region to {region!r}" if region else "check the region and the endpoint"
        return Failure("permanent", StorageError(f"{doing}: the bucket is not here: {said}; {where}"), code)
    if code in TRANSIENT_CODES or answer.status in _TRANSIENT_STATUS:
        return Failure(
            "transient",
            StorageUnavailableError(f"{doing}: {endpoint} is temporarily unavailable: {said}"),
            code,
            ambiguous=answer.status >= _CUT_SHORT
            and code not in ("SlowDown", "SlowDownWrite", "XMinioServerNotInitialized"),
            retry_after_s=wait,
        )
    if b"HTTP request to an HTTPS server" in answer.body:
        return Failure(
            "permanent", StorageError(f"{doing}: {endpoint} speaks TLS; write https:// in the endpoint"), code
        )
    if not code:
        return Failure("permanent", not_s3(doing, endpoint, said))
    return Failure("permanent", StorageError(f"{doing}: {endpoint} answers {said}"), code)


def not_s3(doing: str, endpoint: str, said: str) -> StorageError:
    """Return the error for a server that does not talk like S3."""
    return StorageError(f"{doing}: {endpoint} does not answer like an S3 server ({said}); {CONSOLE_HINT}")


def from_exception(error: Exception, doing: str, endpoint: str) -> Failure:
    """Classify an exception of a request that has no complete answer: urllib3's, an OSError, a ShortFileError."""
    from http.client import HTTPException  # which imports ssl

    error = _root_cause(error)
    if isinstance(error, ShortFileError):
        return Failure("permanent", StorageError(f"{doing}: the local file became shorter meanwhile"))
    name = type(error).__name__
    if name == "SSLCertVerificationError":
        reason = getattr(error, "verify_message", "") or str(error)
        return Failure(
            "permanent",
            StorageError(
                f"{doing}: the certificate of {endpoint} is not trusted: {reason}; give its CA as the storage's CA "
                "file (AWS_CA_BUNDLE), and check that the host is one of the certificate's names"
            ),
        )
    if name == "SSLError" and getattr(error, "reason", "") in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return Failure(
            "permanent", StorageError(f"{doing}: {endpoint} does not speak TLS; write http:// in the endpoint")
        )
    if isinstance(error, socket.gaierror):
        why = f"its host name cannot be resolved ({error.strerror}); check the endpoint"
    elif isinstance(error, ConnectionRefusedError):
        why = "nothing listens there; check the endpoint, and that the server runs"
    elif isinstance(error, TimeoutError) or name.endswith("TimeoutError"):
        why = "it did not answer in time"
    elif isinstance(error, HTTPException) and not isinstance(error, OSError):
        why = f"the answer is not HTTP ({error!r:.100}); {CONSOLE_HINT}"
    else:
        why = str(error) or name
    refused = isinstance(error, (ConnectionRefusedError, socket.gaierror))
    return Failure(
        "transient", StorageUnavailableError(f"{doing}: {endpoint} cannot be reached: {why}"), ambiguous=not refused
    )


def _root_cause(error: Exception) -> Exception:
    """Return what urllib3 wrapped."""
    while True:
        inner = error.__cause__ or next((each for each in error.args if isinstance(each, Exception)), None)
        if not isinstance(inner, Exception):
            return error
        error = inner
