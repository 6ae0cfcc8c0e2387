from __future__ import annotations

import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.base import (
    KeyExistsError,
    KeyMissingError,
    StorageCredentialsError,
    StorageDeniedError,
    StorageUnavailableError,
)
from trialpod.storage.checkpoints.crc32 import combine
from trialpod.storage.options import StorageOptions
from trialpod.storage.registry import open_storage
from trialpod.storage.s3.credentials import Credentials
from trialpod.storage.s3.errors import Answer, from_answer
from trialpod.storage.s3.providers import EnvironmentCredentials, FileCredentials, IdentityCredentials, provider_for
from trialpod.storage.s3.storage import parse_uri


def test_what_is_not_set_comes_from_the_environment():
    found = StorageOptions().resolved(
        {
            "AWS_ENDPOINT_URL": "http://general:1",
            "AWS_ENDPOINT_URL_S3": "http://minio:9000/",
            "AWS_REGION": "eu-west-1",
            "AWS_CA_BUNDLE": "/ca.pem",
            "AWS_PROFILE": "team",
        }
    )
    assert (found.endpoint, found.region, found.ca_file, found.profile) == (
        "http://minio:9000", "eu-west-1", "/ca.pem", "team",
    )  # fmt: skip
    assert found.addressing == "path"


def test_default_endpoint_is_amazons_with_virtual_host():
    found = StorageOptions(region="eu-west-1").resolved({})
    assert (found.endpoint, found.addressing) == ("https://s3.eu-west-1.amazonaws.com", "virtual")


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://minio", "http://", "http://m:99999", "http://m/bucket"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint):
    with pytest.raises(InvalidInputError, match="endpoint"):
        StorageOptions(endpoint=endpoint).resolved({})


def test_options_travel_as_a_message_without_defaults():
    options = StorageOptions(endpoint="http://m:9000", create_bucket=True)
    sent = msgspec.msgpack.encode(options)
    assert msgspec.msgpack.decode(sent, type=StorageOptions) == options
    assert b"region" not in sent


@pytest.mark.parametrize("uri", ["s3://", "s3://A", "s3:///x", "s3://bucket/a/../b", "s3://a..b/x"])
def test_a_uri_that_names_no_bucket_is_refused(uri):
    with pytest.raises(InvalidInputError, match="storage"):
        open_storage(uri)


def test_a_uri_is_a_bucket_and_a_prefix():
    assert parse_uri("s3://bucket/a b/c/") == ("bucket", "a b/c")
    assert parse_uri("s3://bucket") == ("bucket", "")


def test_keys_of_the_environment_change_with_it_and_never_show():
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_SESSION_TOKEN": "t"}
    keys = EnvironmentCredentials(environment)
    first = keys.get()
    assert first == Credentials("a", "hidden", "t")
    assert "hidden" not in repr(first)
    assert not keys.refused(first)
    environment["AWS_SECRET_ACCESS_KEY"] = "new"
    assert keys.refused(first)


def test_missing_keys_are_named():
    with pytest.raises(StorageError, match="AWS_SECRET_ACCESS_KEY not set"):
        EnvironmentCredentials({"AWS_ACCESS_KEY_ID": "a"}).get()


def test_changed_file_is_read_again_after_a_second(tmp_path):
    now = [0.0]
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id=a\naws_secret_access_key=b\n")
    keys = FileCredentials(str(path), "default", clock=lambda: now[0])
    first = keys.get()
    path.write_text("[default]\naws_access_key_id=a2\naws_secret_access_key=b2\n")
    assert keys.get() == first
    now[0] = 1.0
    assert keys.get() == Credentials("a2", "b2")


def test_a_file_is_read_again_at_once_when_its_keys_were_refused(tmp_path):
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id=a\naws_secret_access_key=b\n")
    keys = FileCredentials(str(path), "default", clock=lambda: 0.0)
    first = keys.get()
    assert not keys.refused(first)
    path.write_text("[default]\naws_access_key_id=a\naws_secret_access_key=b2\n")
    assert keys.refused(first)
    path.unlink()
    assert keys.refused(first)
    assert keys.get() == Credentials("a", "b2")


def test_a_file_that_cannot_be_read_is_named_without_its_content(tmp_path):
    path = tmp_path / "credentials"
    path.write_text("secret line without a section\n")
    with pytest.raises(StorageError) as raised:
        FileCredentials(str(path), "default").get()
    assert str(path) in str(raised.value)
    assert "secret line" not in str(raised.value)
    with pytest.raises(StorageError, match="cannot read S3 credentials"):
        FileCredentials(str(tmp_path / "none"), "default").get()


def test_named_sources_go_before_the_environment(tmp_path):
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    named = StorageOptions(credentials_dir=str(tmp_path)).resolved(environment)
    assert isinstance(provider_for(named, environment), FileCredentials)
    assert isinstance(provider_for(StorageOptions().resolved(environment), environment), EnvironmentCredentials)


def classify(status, code="", headers=None):
    body = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode() if code else b""
    return from_answer(Answer(status, headers or {}, body), "cannot x", "http://m", "the test")


@pytest.mark.parametrize(
    ("status", "code", "kind", "error"),
    [
        (404, "NoSuchKey", "permanent", KeyMissingError),
        (404, "", "permanent", KeyMissingError),
        (412, "PreconditionFailed", "permanent", KeyExistsError),
        (404, "NoSuchBucket", "permanent", StorageError),
        (403, "InvalidAccessKeyId", "refused", StorageCredentialsError),
        (400, "ExpiredToken", "refused", StorageCredentialsError),
        (403, "AccessDenied", "refused", StorageDeniedError),
        (403, "RequestTimeTooSkewed", "refused", StorageUnavailableError),
        (503, "SlowDown", "transient", StorageUnavailableError),
        (499, "ClientDisconnected", "transient", StorageUnavailableError),
        (500, "", "transient", StorageUnavailableError),
        (507, "XMinioStorageFull", "transient", StorageUnavailableError),
        (301, "PermanentRedirect", "permanent", StorageError),
        (400, "InvalidArgument", "permanent", StorageError),
    ],
)
def test_answers_are_transient_refused_or_permanent(status, code, kind, error):
    failure = classify(status, code)
    assert (failure.kind, type(failure.error)) == (kind, error)
    assert str(failure.error).startswith("cannot x: ")


def test_request_to_a_terminating_server_may_have_succeeded():
    assert classify(499, "ClientDisconnected").ambiguous
    assert not classify(503, "SlowDown").ambiguous


def test_the_time_that_a_server_asks_for_is_kept():
    assert classify(503, "SlowDown", {"retry-after": "7"}).retry_after_s == 7.0


@pytest.mark.parametrize("cut", [0, 1, 500, 999, 1000])
def test_the_checksum_of_a_whole_follows_from_its_parts(cut):
    data = bytes(range(250)) * 4
    assert combine(zlib.crc32(data[:cut]), zlib.crc32(data[cut:]), len(data) - cut) == zlib.crc32(data)


class TestIdentity:
    """Keys of the pod itself, as ECS and the EKS agent hand them out: asked for at an address in a variable."""

    @pytest.fixture
    def agent(self, tmp_path, monkeypatch):
        class Handler(BaseHTTPRequestHandler):
            asked = 0

            def do_GET(self):
                Handler.asked += 1
                keys = {"AccessKeyId": f"key-{self.asked}", "SecretAccessKey": "hidden", "Token": "token"}
                body = json.dumps({**keys, "Expiration": "2999-01-01T00:00:00Z"}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        for name in ("AWS_ACCESS_KEY_ID", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}/keys"
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address)
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            yield Handler
            server.shutdown()
            thread.join()

    def test_keys_are_asked_for_once_and_again_when_refused(self, agent):
        assert isinstance(provider_for(StorageOptions().resolved({})), IdentityCredentials)
        now = 0.0
        keys = IdentityCredentials(clock=lambda: now)
        first = keys.get()
        assert keys.get() == first == Credentials("key-1", "hidden", "token")
        assert not keys.refused(first), "others would be refused too"
        now = 31.0
        assert keys.refused(first)
        assert keys.get().access_key == "key-2"

    def test_no_answer_says_where_keys_were_looked_for(self, agent, monkeypatch):
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/keys")
        with pytest.raises(StorageUnavailableError, match="no S3 credentials from the identity of this pod"):
            provider_for(StorageOptions().resolved({})).get()

    def test_keys_in_the_environment_go_first(self, agent, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        assert provider_for(StorageOptions().resolved({})).get().access_key == "a"
        assert agent.asked == 0


def test_a_secret_may_hold_any_character(tmp_path):
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id=a\naws_secret_access_key=b%c%(d)s=e\n")
    assert FileCredentials(str(path), "default").get().secret_key == "b%c%(d)s=e"
