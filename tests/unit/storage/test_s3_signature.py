"""Requests carry the signature that minio's own signer makes for the same address, headers and keys."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import urlsplit

from hypothesis import given
from hypothesis import strategies as st
from minio.credentials import Credentials as MinioCredentials
from minio.signer import sign_v4_s3

from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import Credentials
from trialpod.storage.s3.signature import Signer, canonical_query
from trialpod.storage.s3.transport import Transport

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30) | st.sampled_from(
    ["a b", "a+b", "a%2Bb", "~tilde", "ü/é", "x//y", "a=b&c", "trial_1/.trialpod/journal/00000001.log/000000004096"]
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "If-None-Match",
            "If-Match",
            "Range",
            "x-amz-checksum-crc32",
            "x-amz-meta-trialpod-writer",
            "X-Amz-Copy-Source",
        ]
    ),
    VALUES,
)
PARAMETERS = st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=4)
TIMES = st.integers(0, 4_000_000_000)
OPTIONS = st.sampled_from(
    [
        StorageOptions(endpoint="http://minio:9000"),
        StorageOptions(endpoint="https://[::1]:9000", region="eu-west-1"),
        StorageOptions(endpoint="https://s3.site", addressing="virtual", region="here"),
        StorageOptions(region="ap-south-2"),
    ]
)


def keys_of(access: str, secret: str, token: str) -> Credentials:
    return Credentials(access, secret, token)


KEYS = st.builds(keys_of, VALUES.filter(bool), VALUES.filter(bool), st.just("") | VALUES.filter(str.strip))


class Wire:
    """Stands for the connections to a server: keeps what is sent."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []

    def exchange(self, connect: object, method: str, head: bytes, body: bytes) -> object:
        from trialpod.storage.s3.errors import Answer

        self.heads.append(head)
        return Answer(200, {}, b"")


@given(OPTIONS, st.sampled_from(["GET", "PUT", "HEAD", "POST"]), NAMES, PARAMETERS, HEADERS, KEYS, TIMES)
def test_request_is_the_one_that_minio_would_sign(
    options: StorageOptions,
    method: str,
    key: str,
    query: dict[str, str],
    headers: dict[str, str],
    keys: Credentials,
    now: int,
) -> None:
    wire, body = Wire(), b"some bytes"
    transport = Transport(options.resolved({}), lambda: keys, lambda: float(now), None)
    transport._connections = lambda host: wire  # type: ignore[assignment, method-assign]
    transport.exchange(method, "my-bucket", key, query, headers, body)
    first, *lines = wire.heads[0].decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    sent = dict(line.split(": ", 1) for line in lines)
    url = urlsplit(transport.url(method, "my-bucket", key, query))
    assert first.split(" ")[0] == method
    target = urlsplit(first.split(" ")[1])
    assert (target.path, sorted(target.query.split("&"))) == (url.path, sorted(url.query.split("&")))
    assert sent["host"] == url.netloc
    assert sent["authorization"] == by_minio(method, url.geturl(), headers, body, keys, now, options)


def by_minio(
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes,
    keys: Credentials,
    now: int,
    options: StorageOptions,
) -> str:
    """Return the value of minio's header for the same request."""
    date, digest, address = datetime.fromtimestamp(now, UTC), sha256(body).hexdigest(), urlsplit(url)
    given_headers = {
        **headers,
        "Host": address.netloc,
        "x-amz-date": f"{date:%Y%m%dT%H%M%SZ}",
        "x-amz-content-sha256": digest,
        **({"x-amz-security-token": keys.token} if keys.token else {}),
        **({"Content-Length": str(len(body))} if method in ("PUT", "POST") else {}),
    }
    signed = sign_v4_s3(
        method=method,
        url=address,
        region=options.resolved({}).region,
        headers=given_headers,
        credentials=MinioCredentials(keys.access_key, keys.secret_key),
        content_sha256=digest,
        date=date,
    )
    return str(signed["Authorization"])


class TestKeys:
    def sign(self, signer: Signer, secret: str, now: float) -> str:
        keys = Credentials("access", secret)
        return signer.signed("GET", "host", "/bucket/key", "", {}, sha256().hexdigest(), keys, now)["authorization"]

    def test_key_of_the_day_is_never_one_of_others(self) -> None:
        """The same signer, in any order of days and secrets, signs as one that has signed nothing before."""
        signer = Signer("us-east-1")
        for secret, now in [("a", 0.0), ("b", 0.0), ("a", 0.0), ("a", 86_399.0), ("a", 86_400.0), ("b", 86_400.0)]:
            assert self.sign(signer, secret, now) == self.sign(Signer("us-east-1"), secret, now)

    def test_user_agent_is_not_signed(self) -> None:
        """A proxy may change it."""
        signed = Signer("r").signed("GET", "h", "/", "", {"User-Agent": "x"}, "", Credentials("a", "b"), 0.0)
        assert "user-agent" not in signed["authorization"]


def test_canonical_query_sorts_names_before_values() -> None:
    assert canonical_query("a-b=1&a=2&c") == "a=2&a-b=1&c"
    assert canonical_query("uploads=") == "uploads="
