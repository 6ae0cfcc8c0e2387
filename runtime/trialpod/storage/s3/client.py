"""Requests to one S3 server, each tried again until it succeeds, cannot, or has taken too long.

Invariants:

* At most `parallelism` requests are under way at a time, whoever makes them.
* A request that failed for a moment is sent again after a delay that doubles (full speed never hits a server that
  asks to slow down); the budget counts from the first failure.
* Keys that the server refuses are read again before anything is said to have failed.
* A body of bytes is signed; the body of a file is guarded by its CRC-32, which the server verifies.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trialpod.errors import StorageError
from trialpod.protocol.backoff import Backoff
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import Credentials, CredentialsProvider, provider_for
from trialpod.storage.s3.errors import Failure, error_code, from_answer, from_exception
from trialpod.storage.s3.http import Answer, FilePart, HttpPool, ShortFileError, Sink, StaleConnectionError
from trialpod.storage.s3.signing import UNSIGNED, Signer, query_string, quoted

if TYPE_CHECKING:
    from trialpod.storage.s3.routes import Dial

logger = logging.getLogger(__name__)

_DENIED_PATIENCE_S = 5.0
_LONG_S = 10.0
_BASE_DELAY_S = 0.1
_MAX_DELAY_S = 5.0
_STALE_TRIES = 100


class Rejection(Exception):  # noqa: N818 - not an error yet: the caller decides
    """A request failed for good; `uncertain` says that a try of it may have been carried out all the same."""

    def __init__(self, failure: Failure, uncertain: bool) -> None:
        super().__init__(str(failure.error))
        self.failure = failure
        self.uncertain = uncertain


class S3Client:
    """The requests of one process to one bucket. Safe for use by many threads.

    Args:
        bucket: its name.
        options: resolved.
        credentials: where the keys come from; None for what the options name.
        dial: connects to the server; None = by the address in the options.
        clock: monotonic seconds.
        wall_clock: seconds since the epoch.
        sleep: waits some seconds.
        uniform: gives a number in [0, 1), for the jitter.
    """

    def __init__(
        self,
        bucket: str,
        options: StorageOptions,
        *,
        credentials: CredentialsProvider | None = None,
        dial: Dial | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[], float] | None = None,
    ) -> None:
        self.bucket = bucket
        self.options = options
        self.credentials = credentials or provider_for(options)
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._uniform = uniform
        self._skew_s = 0.0
        self._signer = Signer(options.region)
        self._slots = threading.BoundedSemaphore(options.parallelism)
        self._pool = HttpPool(
            options.endpoint,
            ca_file=options.ca_file,
            timeout_s=options.timeout_s,
            connect_timeout_s=options.connect_timeout_s,
            ca_pem=options.ca_pem,
            dial=dial,
        )
        parts = urlsplit(options.endpoint)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        shown = f"[{host}]" if ":" in host else host
        if options.addressing == "virtual":
            self._host, self._host_header, self._base = f"{bucket}.{host}", f"{bucket}.{shown}{port}", ""
        else:
            self._host, self._host_header, self._base = host, f"{shown}{port}", f"/{quoted(bucket)}"

    def close(self) -> None:
        """Close the idle connections; the client may be used again."""
        self._pool.close()

    def call(
        self,
        method: str,
        key: str,
        doing: str,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | FilePart = b"",
        sink: Callable[[], Sink] | None = None,
        patience_s: float | None = None,
        refusal_patience_s: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Make a request until it succeeds.

        Args:
            method: of HTTP.
            key: the object's full key; "" for the bucket.
            doing: what is attempted, for messages, e.g. "cannot write s3://bucket/key".
            query: unquoted.
            headers: besides those that every request has.
            body: of the request.
            sink: makes what takes the answer's body, once for every try.
            patience_s: seconds from the first failure in which it is tried again; None for the options' `retry_s`.
            refusal_patience_s: the same for refused keys and clocks.
            cancelled: tells that nobody waits for the answer any more.

        Raises:
            Rejection: it failed for good.
        """
        patience = self.options.retry_s if patience_s is None else patience_s
        refusal_patience = patience if refusal_patience_s is None else refusal_patience_s
        backoff = (
            Backoff(base_s=_BASE_DELAY_S, cap_s=_MAX_DELAY_S)
            if self._uniform is None
            else Backoff(base_s=_BASE_DELAY_S, cap_s=_MAX_DELAY_S, uniform=self._uniform)
        )
        started: float | None = None
        uncertain = False
        stale = 0
        while True:
            credentials = self.credentials.get()
            try:
                with self._slots:
                    answer = self._once(method, key, query or {}, headers or {}, body, sink, credentials)
                if 200 <= answer.status < 300 and not self._is_error(answer):
                    return answer
                failure = from_answer(answer, doing, self.options.endpoint, self.credentials.source)
            except StaleConnectionError as error:
                uncertain = uncertain or method != "GET"
                stale += 1
                if stale < _STALE_TRIES:
                    continue
                failure = from_exception(error, doing, self.options.endpoint)
            except (OSError, ShortFileError) as error:
                failure = from_exception(error, doing, self.options.endpoint)
            uncertain = uncertain or failure.ambiguous
            now = self._clock()
            started = now if started is None else started
            if failure.kind == "refused":
                if failure.code == "RequestTimeTooSkewed" and self._adjust_clock(answer):
                    continue
                if self.credentials.refused(credentials):
                    continue
                limit = (
                    min(refusal_patience, _DENIED_PATIENCE_S) if failure.code == "AccessDenied" else refusal_patience
                )
            else:
                limit = patience
            delay = max(backoff.failed(), failure.retry_after_s)
            if failure.kind == "permanent" or now + delay > started + limit or cancelled():
                raise Rejection(failure, uncertain) from None
            if backoff.failures == 1:
                # Who has little patience says by itself what that means, and maybe where a log line would disturb.
                level = logging.WARNING if limit >= _LONG_S else logging.INFO
                logger.log(level, "%s; trying again for up to %.0f s", failure.error, limit)
            self._sleep(delay)

    def _once(
        self,
        method: str,
        key: str,
        query: dict[str, str],
        headers: dict[str, str],
        body: bytes | FilePart,
        sink: Callable[[], Sink] | None,
        credentials: Credentials,
    ) -> Answer:
        path = f"{self._base}/{quoted(key, '/')}" if key else self._base or "/"
        encoded = query_string(query)
        digest = hashlib.sha256(body).hexdigest() if isinstance(body, bytes) else UNSIGNED
        signed = self._signer.sign(
            method,
            path,
            encoded,
            {"Host": self._host_header, **headers},
            digest,
            credentials,
            self._wall_clock() + self._skew_s,
        )
        target = f"{path}?{encoded}" if encoded else path
        return self._pool.exchange(method, self._host, target, signed, body, sink() if sink is not None else None)

    def _is_error(self, answer: Answer) -> bool:
        # CompleteMultipartUpload may announce a failure after it has sent status 200.
        return b"<Error>" in answer.body[:1024] and bool(error_code(answer)[0])

    def _adjust_clock(self, answer: Answer) -> bool:
        """Take over the server's time; tell whether that changes anything."""
        from calendar import timegm

        try:
            server = float(timegm(time.strptime(answer.headers.get("date", ""), "%a, %d %b %Y %H:%M:%S GMT")))
        except ValueError:
            return False
        skew = server - self._wall_clock()
        if abs(skew - self._skew_s) < 60.0:
            return False
        logger.warning(
            "the clock of %s differs from this machine's by %.0f s; requests are signed with the server's time, "
            "but times in results are this machine's: set both by NTP",
            self.options.endpoint,
            skew,
        )
        self._skew_s = skew
        return True


def crc32_header(checksum: int) -> str:
    """Return the value of ``x-amz-checksum-crc32``."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def settled(rejection: Rejection) -> StorageError:
    """Return the error to raise for a rejection that nothing more can be done about."""
    return rejection.failure.error
