"""Keys for an S3 storage: one set of them, what gives them, and keys that are made and handed over by others.

Handed over are short-lived keys: in a cluster, by the operator.

Invariants:

* Keys are in this process's memory only. Secrets never appear in messages or representations.
* They are exchanged well before they expire, at a moment drawn at random: trials that started together do not ask
  together. While one thread asks, the others continue with the keys that still hold.
* The issuer may be away: the keys at hand serve until they expire, and after that `get` raises what a storage
  that is away raises. So a checkpoint waits, and is not lost.
* A server that refuses keys for another reason than their age (a policy) does not make this process ask without end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from trialpod.errors import StorageError
from trialpod.protocol.backoff import _uniform
from trialpod.storage.base import StorageUnavailableError

MIN_REFRESH_INTERVAL_S = 10.0
"""Minimum interval between requests for new keys while the old ones hold."""

REFUSED_AGAIN_S = 30.0
"""Keys that are refused although they are younger than this are not exchanged: others would be refused too."""

_MARGIN = 0.05
_MAX_MARGIN_S = 60.0


@dataclass(frozen=True)
class Credentials:
    """One set of keys."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


class CredentialsProvider(Protocol):
    """Gives the keys to sign the next request with."""

    @property
    def source(self) -> str:
        """Where they come from, in words for a message."""
        ...

    def get(self) -> Credentials:
        """Return the keys that hold now; raise StorageError, saying where they were looked for, if there are none."""
        ...

    def refused(self, credentials: Credentials) -> bool:
        """Note that the server refused these keys; tell whether there are others now, so that trying again helps."""
        ...


@dataclass(frozen=True)
class Supply:
    """What was handed over.

    Attributes:
        credentials: the keys.
        lifetime_s: seconds from now until they expire.
    """

    credentials: Credentials
    lifetime_s: float


@dataclass(frozen=True)
class _Held:
    credentials: Credentials
    since: float
    due: float
    expires: float


class SuppliedCredentials:
    """Keys that are asked for when they are needed, and again before they expire.

    Args:
        ask: returns new keys; raises StorageUnavailableError when there are none now.
        clock: monotonic seconds.
        uniform: a number in [0, 1), for jitter.
    """

    source = "the report service"

    def __init__(
        self,
        ask: Callable[[], Supply],
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = _uniform,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._uniform = uniform
        self._asking = threading.Lock()
        self._held: _Held | None = None
        self._not_before = 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def get(self) -> Credentials:
        """Return keys that hold.

        Raises:
            StorageUnavailableError: there are none, and none can be had now.
        """
        held, now = self._held, self._clock()
        if held is not None and now < max(held.due, self._not_before) and now < held.expires:
            return held.credentials
        holds = held is not None and now < held.expires
        if not self._asking.acquire(blocking=not holds):
            assert held is not None
            return held.credentials
        try:
            if self._held is held:  # else another thread has just renewed them
                try:
                    self._renew()
                except StorageUnavailableError:
                    if not holds:
                        raise
                    self._not_before = self._clock() + MIN_REFRESH_INTERVAL_S * (0.5 + 0.5 * self._uniform())
            assert self._held is not None
            return self._held.credentials
        finally:
            self._asking.release()

    def refused(self, credentials: Credentials) -> bool:
        """Exchange keys that the server refused, unless they are new; tell whether there are others now."""
        with self._asking:
            held = self._held
            if held is None or held.credentials != credentials:
                return True
            if self._clock() < held.since + REFUSED_AGAIN_S:
                return False
            try:
                self._renew()
            except StorageUnavailableError:
                return False
            return True

    def _renew(self) -> None:
        supply = self._ask()
        now, lifetime = self._clock(), supply.lifetime_s
        due = now + lifetime * (0.5 + 0.25 * self._uniform())
        expires = now + lifetime - min(_MARGIN * lifetime, _MAX_MARGIN_S)
        self._held = _Held(supply.credentials, now, due, expires)
        self._not_before = 0.0


_supplier: CredentialsProvider | None = None


def supply(provider: CredentialsProvider | None) -> None:
    """Set the issuer of keys for storages that this process opens from now on, when their options ask for that."""
    global _supplier
    _supplier = provider


def supplier() -> CredentialsProvider:
    """Return the issuer of keys.

    Raises:
        StorageError: there are none.
    """
    if _supplier is None:
        raise StorageError(
            "the keys of this storage are handed out by the report service, and only to the process of a trial; "
            "use keys of your own here: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return _supplier
