"""Asks an S3 server's token service (STS) for short-lived keys with a policy: the action AssumeRole.

MinIO has it at its own address and gives a user keys that may do what both the user and the policy may. Amazon has it
at an address of its own, and wants a role. Source: "AssumeRole", AWS Security Token Service API Reference, and
"AssumeRole", MinIO documentation.

minio's `AssumeRoleProvider` is not used: it raises every lifetime below an hour to an hour, signs without a session
token, and tells the server's refusals apart only by the text of a message. Its signature is.

Invariants: secrets never appear in messages or representations; the keys' lifetime is reckoned by the server's clock
alone.
"""

from __future__ import annotations

import hashlib
import re
import time
from calendar import timegm
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from trialpod.errors import StorageError
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import Credentials, Supply
from trialpod.storage.s3.errors import Answer, error_code

if TYPE_CHECKING:
    import urllib3

MIN_DURATION_S, MAX_DURATION_S = 900, 43_200
"""Bounds of the lifetime of keys, in seconds, on both servers."""

MAX_POLICY_CHARACTERS = 2048
"""Amazon's limit for a session policy."""

_API_VERSION = "2011-06-15"
_TRANSIENT = frozenset({"Throttling", "ThrottlingException", "SlowDown", "ServiceUnavailable", "InternalError",
                        "InternalFailure", "RequestTimeout", "XMinioServerNotInitialized"})  # fmt: skip


class StsRefusedError(StorageError):
    """The server gives no such keys; trying again does not help by itself.

    Attributes:
        code: the server's, "" when it does not answer like a token service at all.
    """

    def __init__(self, message: str, code: str) -> None:
        self.code = code
        super().__init__(message)


def assume_role(
    options: StorageOptions,
    credentials: Credentials,
    policy: str,
    *,
    duration_s: int,
    role_arn: str = "",
    endpoint: str = "",
    session: str = "trialpod",
    wall_clock: Callable[[], float] = time.time,
    timeout_s: float = 10.0,
    pool: urllib3.PoolManager | None = None,
) -> Supply:
    """Return short-lived keys. Blocks; for a thread.

    Args:
        options: of the storage, resolved.
        credentials: keys that may do at least what the policy says.
        policy: a JSON document: what the new keys may do.
        duration_s: how long they hold, in seconds; the server's answer counts.
        role_arn: the role to take on; Amazon demands one.
        endpoint: URL of the token service; "" for the storage's own, or Amazon's for the region.
        session: name of the session in the server's records: letters, digits and ``_=,.@-``.
        wall_clock: seconds since the epoch.
        timeout_s: for each step of the exchange, in seconds.
        pool: sends the request; None makes one.

    Raises:
        StsRefusedError: the server refuses.
        StorageUnavailableError: it cannot be reached, or cannot now.
    """
    import urllib3
    from minio.credentials import Credentials as MinioCredentials
    from minio.signer import sign_v4_sts

    from trialpod.storage.s3.transport import tls_context

    url = endpoint or _endpoint(options)
    parts = urlsplit(f"{url.rstrip('/')}/")
    form = {"Action": "AssumeRole", "Version": _API_VERSION, "DurationSeconds": str(duration_s), "Policy": policy}
    form["RoleSessionName"] = session
    if role_arn:
        form["RoleArn"] = role_arn
    body = urlencode(form).encode()
    date = datetime.fromtimestamp(wall_clock(), timezone.utc)
    headers = {
        "Host": parts.netloc,
        "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
        "x-amz-date": f"{date:%Y%m%dT%H%M%SZ}",
        **({"x-amz-security-token": credentials.token} if credentials.token else {}),
    }
    signed = sign_v4_sts(
        method="POST",
        url=parts,
        region=options.region,
        headers=headers,
        credentials=MinioCredentials(credentials.access_key, credentials.secret_key),
        content_sha256=hashlib.sha256(body).hexdigest(),
        date=date,
    )
    if pool is None:
        tls = {"ssl_context": tls_context(options)} if parts.scheme == "https" else {}
        pool = urllib3.PoolManager(timeout=timeout_s, retries=False, **tls)
    try:
        response = pool.urlopen("POST", parts.geturl(), body=body, headers=signed, redirect=False)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise StorageUnavailableError(f"the token service of {url} cannot be reached: {error}") from error
    finally:
        pool.clear()
    answer = Answer.of(response.status, response.headers, response.data)
    if answer.status != 200:
        raise _refusal(answer, url)
    return _supply(answer, url, duration_s)


def _endpoint(options: StorageOptions) -> str:
    host = urlsplit(options.endpoint).hostname or ""
    if host.endswith(".amazonaws.com"):
        return f"https://sts.{options.region}.amazonaws.com"
    return options.endpoint


def _supply(answer: Answer, url: str, duration_s: int) -> Supply:
    text = answer.body.decode("utf-8", "replace")
    found = {
        name: match[1].strip()
        for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
        if (match := re.search(f"<{name}>([^<]+)</{name}>", text))
    }
    if len(found) < 4:
        raise StsRefusedError(f"{url} does not answer like a token service", "")
    lifetime_s = float(duration_s)
    if (now := answer.date()) is not None:  # without a date what was asked for is the best guess
        try:
            until = time.strptime(found["Expiration"].partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")
        except ValueError:
            raise StsRefusedError(f"{url} does not answer like a token service", "") from None
        lifetime_s = timegm(until) - now
    keys = Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
    return Supply(keys, lifetime_s)


def _refusal(answer: Answer, url: str) -> StorageError:
    code, message = error_code(answer)
    said = f"{code} ({message.rstrip('.')})" if code else f"HTTP status {answer.status}"
    starting = "Server not initialized" in message  # MinIO, which serves objects somewhat sooner than it makes keys
    if code in _TRANSIENT or starting or (answer.status >= 500 and answer.status != 501):
        return StorageUnavailableError(f"the token service of {url} cannot answer now: {said}")
    return StsRefusedError(f"{url} gives no short-lived keys (AssumeRole): {said}", code)
