"""Short-lived keys in the process of a trial: exchanged in time, and kept while nobody hands out others."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

import pytest

from trialpod.errors import StorageError
from trialpod.protocol.messages import CredentialsAnswer
from trialpod.storage.base import StorageDeniedError, StorageUnavailableError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.client import Rejection, S3Client
from trialpod.storage.s3.credentials import Credentials, CredentialsProvider, SuppliedCredentials, Supply, supply
from trialpod.storage.s3.errors import Answer, ErrorAnswerError
from trialpod.storage.s3.providers import IdentityCredentials, provider_for


class Desk:
    """Hands out keys, unless it is closed. It is the clock, too."""

    def __init__(self, lifetime_s: float = 1000.0) -> None:
        self.now = 50.0
        self.asked = 0
        self.open = True
        self.lifetime_s = lifetime_s

    def ask(self) -> Supply:
        self.asked += 1
        if not self.open:
            raise StorageUnavailableError("the desk is closed")
        return Supply(Credentials(f"key-{self.asked}", "secret", "token"), self.lifetime_s)

    def keys(self, uniform: float = 0.5) -> SuppliedCredentials:
        return SuppliedCredentials(self.ask, clock=lambda: self.now, uniform=lambda: uniform)


def test_keys_are_asked_for_once_while_they_are_fresh() -> None:
    desk = Desk()
    keys = desk.keys()
    assert [keys.get().access_key for _ in range(3)] == ["key-1"] * 3
    desk.now += 600
    assert keys.get().access_key == "key-1"
    desk.now += 50
    assert keys.get().access_key == "key-2"


@pytest.mark.parametrize("uniform", [0.0, 0.99])
def test_keys_are_renewed_between_half_and_75_percent_of_life(uniform: float) -> None:
    desk = Desk()
    keys = desk.keys(uniform)
    keys.get()
    desk.now += 499
    keys.get()
    assert desk.asked == 1
    desk.now += 252
    assert keys.get().access_key == "key-2"


def test_old_keys_serve_while_renewal_is_retried() -> None:
    desk = Desk()
    keys = desk.keys()
    keys.get()
    desk.open = False
    desk.now += 700
    for _ in range(100):
        assert keys.get().access_key == "key-1"
    assert desk.asked == 2
    desk.now += 11
    keys.get()
    assert desk.asked == 3
    desk.open = True
    desk.now += 11
    assert keys.get().access_key == "key-4"


def test_expired_keys_make_the_storage_unavailable() -> None:
    desk = Desk()
    keys = desk.keys()
    keys.get()
    desk.open = False
    desk.now += 951  # the last twentieth of their life is kept back
    with pytest.raises(StorageUnavailableError, match="closed"):
        keys.get()
    desk.open = True
    assert keys.get().access_key == "key-3"


def test_refused_keys_are_exchanged_unless_they_are_new() -> None:
    desk = Desk()
    keys = desk.keys()
    first = keys.get()
    assert not keys.refused(first)
    assert desk.asked == 1
    desk.now += 31
    assert keys.refused(first)
    assert keys.get().access_key == "key-2"
    assert keys.refused(first), "there are others already"
    assert desk.asked == 2
    desk.now += 31
    desk.open = False
    assert not keys.refused(keys.get())


def test_others_continue_with_the_old_keys_while_one_thread_asks() -> None:
    desk = Desk()
    asking, answer = threading.Event(), threading.Event()

    def ask() -> Supply:
        made = desk.ask()
        if desk.asked > 1:
            asking.set()
            assert answer.wait(60)
        return made

    keys = SuppliedCredentials(ask, clock=lambda: desk.now, uniform=lambda: 0.0)
    keys.get()
    desk.now += 600
    thread = threading.Thread(target=keys.get)
    thread.start()
    assert asking.wait(60)
    assert keys.get().access_key == "key-1"
    answer.set()
    thread.join(60)
    assert keys.get().access_key == "key-2"


def test_storage_finds_issued_keys_or_names_their_absence() -> None:
    options = StorageOptions(credentials_from="reports").resolved({"AWS_ACCESS_KEY_ID": "mine"})
    with pytest.raises(StorageError, match="handed out by the report service"):
        provider_for(options)
    keys = Desk().keys()
    supply(keys)
    try:
        assert provider_for(options) is keys
    finally:
        supply(None)


def test_nothing_that_is_printed_shows_a_secret() -> None:
    keys = Desk().keys()
    made = Supply(keys.get(), 1.0)
    answer = CredentialsAnswer(access_key="key", secret_key="secret", token="token", lifetime_s=9.0)
    shown = f"{keys!r} {keys.get()!r} {made!r} {answer!r} {answer} {[answer]} {answer.__rich_repr__()}"
    assert "key" in shown
    assert "secret'" not in shown
    assert "token'" not in shown


class TokenService:
    """Makes other keys for each provider that asks, as Amazon's does. It is the clock, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        self.asked = 0
        monkeypatch.setattr("minio.credentials.IamAwsProvider", self._provider)

    def _provider(self, http_client: object) -> Any:
        import minio.credentials

        self.asked += 1
        keys = minio.credentials.Credentials(f"key-{self.asked}", "secret", "token")
        return minio.credentials.StaticProvider(keys.access_key, keys.secret_key, keys.session_token)

    def keys(self) -> IdentityCredentials:
        return IdentityCredentials(clock=lambda: self.now)


class TestIdentity:
    """Keys of a pod's own role."""

    @pytest.fixture
    def service(self, monkeypatch: pytest.MonkeyPatch) -> TokenService:
        return TokenService(monkeypatch)

    def test_refused_keys_are_exchanged_unless_they_are_new(self, service: TokenService) -> None:
        keys = service.keys()
        first = keys.get()
        assert not keys.refused(first)
        assert service.asked == 1
        service.now += 31
        assert keys.refused(first)
        assert keys.get().access_key == "key-2"
        assert keys.refused(first), "there are others already"
        assert service.asked == 2

    def test_denied_role_is_reported_within_its_patience(self, service: TokenService) -> None:
        denied_for_s = denied(service, service.keys())
        assert 2.0 < denied_for_s < 6.0
        assert service.asked == 1


def test_keys_that_always_change_are_no_reason_to_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing:
        source = "the test"

        def get(self) -> Credentials:
            return Credentials("key", "secret")

        def refused(self, credentials: Credentials) -> bool:
            return True

    assert 2.0 < denied(TokenService(monkeypatch), Changing()) < 6.0


def denied(clock: TokenService, keys: CredentialsProvider) -> float:
    """Make a request that the server always denies; return how long that took."""
    tries = 0

    def operation(_minio: object) -> NoReturn:
        nonlocal tries
        tries += 1
        assert tries < 50, "retried without a delay"
        raise ErrorAnswerError(Answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>"))

    def sleep(seconds: float) -> None:
        clock.now += seconds

    options = StorageOptions(endpoint="http://127.0.0.1:1").resolved({})
    client = S3Client("bucket", options, credentials=keys, clock=lambda: clock.now, sleep=sleep, uniform=lambda: 0.5)
    before = clock.now
    with pytest.raises(Rejection) as caught:
        client.run("cannot read it", operation)
    assert isinstance(caught.value.failure.error, StorageDeniedError)
    return clock.now - before
