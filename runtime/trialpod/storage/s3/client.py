"""Requests to one S3 server, each retried until it succeeds, cannot, or has taken too long.

Invariants:

* A request that failed for a moment is sent again after a delay that doubles (full speed never hits a server that
  asks to slow down); the budget counts from the first failure.
* Keys that the server refuses are read again before anything is said to have failed. Other keys are tried at once;
  when they are refused too, after a delay.
* A connection made before a fork is never used after it.
* minio is imported with the first request of a process.
"""

from __future__ import annotations

import base64
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trialpod.errors import StorageError
from trialpod.protocol.backoff import Backoff
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import CredentialsProvider
from trialpod.storage.s3.errors import Answer, ErrorAnswerError, Failure, error_code, from_answer, from_exception
from trialpod.storage.s3.files import FilePart, ShortFileError
from trialpod.storage.s3.providers import provider_for

if TYPE_CHECKING:
    from minio import Minio

    from trialpod.storage.s3.routes import Dial
    from trialpod.storage.s3.transport import Transport

logger = logging.getLogger(__name__)

T = TypeVar("T")

COPY_SOURCE = "x-amz-copy-source"
"""The header that makes a PUT a copy."""

_DENIED_PATIENCE_S = 5.0
_LONG_S = 10.0
_BASE_DELAY_S = 0.1
_MAX_DELAY_S = 5.0


class Rejection(Exception):  # noqa: N818 - not an error yet: the caller decides
    """A request failed for good; `uncertain` says that an attempt at it may have been carried out nevertheless."""

    def __init__(self, failure: Failure, uncertain: bool) -> None:
        super().__init__(str(failure.error))
        self.failure = failure
        self.uncertain = uncertain


@dataclass(frozen=True)
class _Session:
    """The connections of one process."""

    transport: Transport
    minio: Minio


class S3Client:
    """The requests to one bucket. Safe for use by many threads, and after a fork.

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
        self._dial = dial
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._jitter = {} if uniform is None else {"uniform": uniform}
        self._skew_s = 0.0
        self._sessions: dict[int, _Session] = {}

    def close(self) -> None:
        """Close the idle connections; the client may be used again."""
        if (session := self._sessions.get(os.getpid())) is not None:
            session.transport.clear()

    def run(
        self,
        doing: str,
        operation: Callable[[Minio], T],
        *,
        writes: bool = True,
        patience_s: float | None = None,
        refusal_patience_s: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> T:
        """Run one request of minio's client until it succeeds.

        Args:
            doing: what is attempted, for messages, e.g. "cannot write s3://bucket/key".
            operation: makes the request; called for each try.
            writes: a try whose answer is lost may have changed something.
            patience_s: seconds from the first failure in which it is retried; None for the options' `retry_s`.
            refusal_patience_s: the same for refused keys and clocks.
            cancelled: tells that the answer is no longer waited for.

        Raises:
            Rejection: it failed for good.
        """
        self._session()
        from http.client import HTTPException

        from urllib3.exceptions import HTTPError

        patience = self.options.retry_s if patience_s is None else patience_s
        refusal_patience = patience if refusal_patience_s is None else refusal_patience_s
        backoff = Backoff(base_s=_BASE_DELAY_S, cap_s=_MAX_DELAY_S, **self._jitter)
        started: float | None = None
        uncertain = renewed = False
        while True:
            credentials = self.credentials.get()
            answer = None
            try:
                return operation(self._session().minio)
            except ErrorAnswerError as error:
                answer = error.answer
                failure = from_answer(answer, doing, self.options.endpoint, self.credentials.source)
            except (HTTPError, HTTPException, OSError, ShortFileError) as error:
                failure = from_exception(error, doing, self.options.endpoint)
            uncertain = uncertain or (failure.ambiguous and writes)
            now = self._clock()
            started = now if started is None else started
            limit = patience
            if failure.kind == "refused":
                if failure.code == "RequestTimeTooSkewed" and answer is not None and self._adjust_clock(answer):
                    continue
                renewed = self.credentials.refused(credentials) and not renewed
                if renewed:
                    continue
                denied = failure.code == "AccessDenied"
                limit = min(refusal_patience, _DENIED_PATIENCE_S) if denied else refusal_patience
            delay = max(backoff.failed(), failure.retry_after_s)
            if failure.kind == "permanent" or now + delay > started + limit or cancelled():
                raise Rejection(failure, uncertain) from None
            if backoff.failures == 1:
                # A caller with little patience reports by itself; a log line might disturb its output.
                level = logging.WARNING if limit >= _LONG_S else logging.INFO
                logger.log(level, "%s; trying again for up to %.0f s", failure.error, limit)
            self._sleep(delay)

    def call(
        self,
        method: str,
        key: str,
        doing: str,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | FilePart = b"",
        patience_s: float | None = None,
        refusal_patience_s: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Make a request that minio's client has no method for, as of `run`; the key "" is the bucket."""

        def operation(_minio: Minio) -> Answer:
            answer = self._session().transport.exchange(method, self.bucket, key, query or {}, headers or {}, body)
            # CompleteMultipartUpload and CopyObject may announce a failure after they have sent status 200.
            late = method == "POST" or COPY_SOURCE in (headers or {})
            if late and b"<Error>" in answer.body[:1024] and error_code(answer)[0]:
                raise ErrorAnswerError(answer)
            return answer

        return self.run(
            doing,
            operation,
            writes=method != "GET",
            patience_s=patience_s,
            refusal_patience_s=refusal_patience_s,
            cancelled=cancelled,
        )

    def _session(self) -> _Session:
        """Return this process's connections; those of a parent stay open and unused."""
        session = self._sessions.get(os.getpid())
        if session is None:
            try:
                from trialpod.storage.s3.transport import Transport, connect
            except ModuleNotFoundError as error:
                raise StorageError(
                    f"s3:// needs {error.name}, which is not installed; install it with: pip install minio"
                ) from error
            transport = Transport(
                self.options, self.credentials.get, lambda: self._wall_clock() + self._skew_s, self._dial
            )
            # Without a lock, which a fork may leave locked forever: of two threads one makes its session for nothing.
            session = self._sessions.setdefault(os.getpid(), _Session(transport, connect(self.options, transport)))
        return session

    def _adjust_clock(self, answer: Answer) -> bool:
        """Take over the server's time; tell whether that changes anything."""
        server = answer.date()
        if server is None:
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


def final_error(rejection: Rejection) -> StorageError:
    """Return the error to raise for a rejection that nothing more can be done about."""
    return rejection.failure.error
