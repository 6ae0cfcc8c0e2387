"""What is sent to a token service, and what its answers mean."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest
import urllib3

from trialpod.errors import StorageError
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import Credentials, Supply
from trialpod.storage.s3.errors import Answer
from trialpod.storage.s3.sts import StsRefusedError, assume_role

DATE = "Sat, 21 Nov 2026 12:00:00 GMT"
MADE = (
    "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIA</AccessKeyId>"
    "<SecretAccessKey>s3cret/+</SecretAccessKey><SessionToken>token</SessionToken>"
    "<Expiration>{}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
)


class Server(urllib3.PoolManager):
    """Takes the place of connections: keeps what was sent, and answers as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Answer | OSError = made()
        self.endpoint = ""
        self.sent: dict[str, list[str]] = {}
        self.headers: dict[str, str] = {}

    def urlopen(self, method: str, url: str, redirect: bool = True, **kw: Any) -> urllib3.HTTPResponse:  # type: ignore[override]
        self.endpoint, self.headers, self.sent = url.removesuffix("/"), kw["headers"], parse_qs(kw["body"].decode())
        if isinstance(self.answer, OSError):
            raise self.answer
        return urllib3.HTTPResponse(self.answer.body, self.answer.headers, self.answer.status)


def made(expiration: str = "2026-11-21T13:00:00Z", date: str = DATE) -> Answer:
    return Answer(200, {"date": date}, MADE.format(expiration).encode())


@pytest.fixture
def server() -> Server:
    return Server()


def asked(server: Server, options: StorageOptions | None = None, **more: Any) -> Supply:
    resolved = (options or StorageOptions(endpoint="http://minio:9000")).resolved({})
    return assume_role(resolved, Credentials("AKIA", "strong"), '{"Version":""}', duration_s=900, pool=server, **more)


def test_minio_is_asked_at_its_own_address(server: Server) -> None:
    assert asked(server) == Supply(Credentials("ASIA", "s3cret/+", "token"), 3600.0)
    assert server.endpoint == "http://minio:9000"
    assert server.headers["Host"] == "minio:9000"
    assert "/us-east-1/sts/aws4_request" in server.headers["Authorization"]
    assert (server.sent["Action"], server.sent["DurationSeconds"]) == (["AssumeRole"], ["900"])
    assert server.sent["Policy"] == ['{"Version":""}']
    assert "RoleArn" not in server.sent


def test_amazon_uses_the_regions_token_service_with_a_role(server: Server) -> None:
    asked(server, StorageOptions(region="eu-west-1"), role_arn="arn:aws:iam::1:role/t", session="trialpod-team.x")
    assert server.endpoint == "https://sts.eu-west-1.amazonaws.com"
    assert server.sent["RoleArn"] == ["arn:aws:iam::1:role/t"]
    assert server.sent["RoleSessionName"] == ["trialpod-team.x"]


def test_a_token_service_can_be_elsewhere(server: Server) -> None:
    asked(server, endpoint="https://sts.example")
    assert server.endpoint == "https://sts.example"


@pytest.mark.parametrize("expiration", ["2026-11-21T12:30:00Z", "2026-11-21T12:30:00.123Z"])
def test_the_lifetime_is_the_servers(server: Server, expiration: str) -> None:
    server.answer = made(expiration)
    assert asked(server).lifetime_s == 1800.0
    server.answer = made(expiration, date="")
    assert asked(server).lifetime_s == 900.0


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (Answer(403, {}, b"<Code>AccessDenied</Code><Message>no.</Message>"), StsRefusedError, "AccessDenied"),
        (Answer(404, {}, b"nothing here"), StsRefusedError, ""),
        (Answer(501, {}, b"<Code>NotImplemented</Code>"), StsRefusedError, "NotImplemented"),
        (Answer(200, {}, b"<html>a console</html>"), StsRefusedError, ""),
        (Answer(400, {}, b"<Code>Throttling</Code>"), StorageUnavailableError, None),
        (Answer(503, {}, b""), StorageUnavailableError, None),
        (
            Answer(
                400,
                {},
                b"<Code>InvalidParameterValue</Code><Message>Server not initialized, please try again</Message>",
            ),
            StorageUnavailableError,
            None,
        ),
        (ConnectionRefusedError("refused"), StorageUnavailableError, None),
    ],
)
def test_temporary_errors_are_distinguished_from_lasting_ones(
    server: Server, answer: Answer | OSError, kind: type[StorageError], code: str | None
) -> None:
    server.answer = answer
    with pytest.raises(kind) as caught:
        asked(server)
    assert getattr(caught.value, "code", None) == code
    assert "strong" not in str(caught.value)
