"""AWS Signature Version 4 for requests to S3, and to the service that hands out short-lived keys.

Source: "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)", Amazon S3 API Reference.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from urllib.parse import quote

from trialpod.storage.s3.credentials import Credentials

UNSIGNED = "UNSIGNED-PAYLOAD"
"""The hash to sign for a body whose integrity a checksum header guards."""


def quoted(text: str, safe: str = "") -> str:
    """Percent-encode as the signature demands: all but letters, digits and ``-_.~``."""
    return quote(text, safe=safe + "-_.~")


def query_string(query: dict[str, str]) -> str:
    """Return the canonical query string, which is also the one to send."""
    return "&".join(f"{quoted(name)}={quoted(value)}" for name, value in sorted(query.items()))


class Signer:
    """Signs requests for one region; keeps the day's key, whose making costs four hashes.

    Args:
        region: of the server.
        service: Amazon's name of the service that the requests go to.
    """

    def __init__(self, region: str, service: str = "s3") -> None:
        self._region = region
        self._service = service
        self._made: tuple[Credentials, str, bytes] | None = None

    def sign(
        self,
        method: str,
        path: str,
        query: str,
        headers: dict[str, str],
        payload_hash: str,
        credentials: Credentials,
        now: float,
    ) -> dict[str, str]:
        """Return the headers with the signature added; all of them are signed.

        Args:
            method: of HTTP.
            path: percent-encoded.
            query: as made by `query_string`.
            headers: including Host.
            payload_hash: SHA-256 of the body in hex, or `UNSIGNED`.
            credentials: to sign with.
            now: seconds since the epoch, on the server's clock.
        """
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        signed = {**headers, "x-amz-date": stamp, "x-amz-content-sha256": payload_hash}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        lines = sorted((name.lower(), " ".join(value.split())) for name, value in signed.items())
        names = ";".join(name for name, _ in lines)
        canonical = "\n".join(
            (method, path, query, *(f"{name}:{value}" for name, value in lines), "", names, payload_hash)
        )
        scope = f"{stamp[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.new(self._key(credentials, stamp[:8]), text.encode(), hashlib.sha256).hexdigest()
        signed["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return signed

    def _key(self, credentials: Credentials, day: str) -> bytes:
        made = self._made
        if made is not None and made[0] == credentials and made[1] == day:
            return made[2]
        key = f"AWS4{credentials.secret_key}".encode()
        for part in (day, self._region, self._service, "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        self._made = (credentials, day, key)
        return key
