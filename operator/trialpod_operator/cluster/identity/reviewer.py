"""Who sent a request: the pod that a bound service account token belongs to, asked of the API server and remembered.

A token that is seen for the first time may be known without a question, by the API server's keys (`token_keys`).

What the API server says is `status` of a TokenReview (authentication.k8s.io/v1). A token that is bound to a pod makes
it name that pod in ``user.extra``; nothing that the caller says about itself is believed.

Invariants:

* What cannot be a valid token of this audience (its shape, audience, expiry) never reaches the API server; unknown
  tokens reach it at a bounded rate, in all and from one address.
* A token is asked about once at a time, however many requests carry it, and then at most every five minutes.
* When all pods come back at once, as after a restart, some are queued, and the others are asked to come back
  one after the other.
* Memory is bounded. Tokens are kept as SHA-256 only, and never appear in a message.
* No answer from the API server is never taken for a "no": the caller is to try again. One whom the server has known
  stays known until the token expires: trials report on while the server is away.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import inspect
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from trialpod.errors import TrialpodError
from trialpod_operator.cluster.names import TOKEN_AUDIENCE
from trialpod_operator.reports.rate import Rate, RateLimiter
from trialpod_operator.reports.server import Answer, Peer, error
from trialpod_operator.reports.service import ReportService

logger = logging.getLogger(__name__)

Review = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Asks the API server about a token, with the audience, and returns the TokenReview's ``status`` as JSON data."""

PodOf = Callable[[str], Awaitable["PodIdentity | None"]]
"""Returns the pod that a token belongs to where that is certain; None says nothing."""

_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_ACCOUNT = "system:serviceaccount:"
_MAX_TOKEN_BYTES = 12 * 1024
_CLOCK_SKEW_S = 60.0
_OVERALL = "all"
_LATEST_S = 10.0


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod, as the API server knows it."""

    namespace: str
    pod_name: str
    pod_uid: str


class NotAuthenticatedError(TrialpodError):
    """The request proves no identity (401); the message says why."""


class ReviewUnavailableError(TrialpodError):
    """The identity cannot be found out now (503).

    Attributes:
        retry_after_s: after how many seconds it may be.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class _Known:
    identity: PodIdentity | None  # None: no identity, because of `why`
    until: float  # seconds since the epoch; then the server is asked again
    expires: float = 0.0  # until then it holds when the server does not answer
    why: str = ""


class TokenReviewer:
    """Finds out who a bearer token belongs to.

    Args:
        review: asks the API server.
        pod_of: knows a token without asking, None when nothing does.
        clock: seconds since the epoch, as in a token's expiry.
        audience: what tokens must be made for.
        cache_s: how long a "yes" is believed at most; it is never believed longer than the token is valid.
        refused_s: how long a "no" is believed.
        timeout_s: how long the API server may take.
        reviews: how many reviews in all.
        reviews_per_source: how many for one address.
        waiting: how many reviews wait for the API server at a time.
        size: how many tokens are remembered.
    """

    def __init__(
        self,
        review: Review,
        pod_of: PodOf | None = None,
        *,
        clock: Callable[[], float] = time.time,
        audience: str = TOKEN_AUDIENCE,
        cache_s: float = 300.0,
        refused_s: float = 10.0,
        timeout_s: float = 10.0,
        reviews: Rate = Rate(per_s=50.0, burst=500.0),  # noqa: B008 - immutable
        reviews_per_source: Rate = Rate(per_s=10.0, burst=100.0),  # noqa: B008 - immutable
        waiting: int = 256,
        size: int = 16_384,
    ) -> None:
        self._review = review
        self._pod_of = pod_of
        self._waiting = waiting
        self._turn_s = 1.0 / reviews.per_s
        self._next_turn = 0.0  # when the next deferred caller comes back
        self._clock = clock
        self._audience = audience
        self._cache_s = cache_s
        self._refused_s = refused_s
        self._timeout_s = timeout_s
        self._size = size
        self._overall = RateLimiter(reviews, clock=clock)
        self._per_source = RateLimiter(reviews_per_source, clock=clock)
        self._accepted: OrderedDict[bytes, _Known] = OrderedDict()
        self._refused: OrderedDict[bytes, _Known] = OrderedDict()  # apart: garbage cannot push out what is good
        self._asked: dict[bytes, asyncio.Task[_Known]] = {}

    def cached(self, authorization: bytes | None) -> PodIdentity | None:
        """Return the identity if it is known already; None says nothing about the token."""
        if authorization is None:
            return None
        known = self._accepted.get(_digest(authorization))
        return known.identity if known is not None and self._clock() < known.until else None

    async def identify(self, authorization: bytes | None, source: str = "") -> PodIdentity:
        """Return the pod that the token of an Authorization header belongs to.

        Args:
            authorization: the header's value, None if there is none.
            source: the address that the request came from; what it may ask is bounded apart.

        Raises:
            NotAuthenticatedError: it proves no identity.
            ReviewUnavailableError: it cannot be found out now.
        """
        if authorization is None:
            raise NotAuthenticatedError("the request has no Authorization header; a pod sends its projected token")
        key = _digest(authorization)
        now = self._clock()
        known = self._recall(self._accepted, key, now) or self._recall(self._refused, key, now)
        if known is None:
            token, expires = self._checked(authorization, now)
            if self._pod_of is not None and key not in self._accepted and key not in self._asked:
                identity = await self._pod_of(token)
                if identity is not None:
                    self._accept(key, identity, expires)
                    return identity
            task = self._asked.get(key)
            if task is None:
                self._admit(source)
                task = asyncio.ensure_future(self._ask(token, key, expires))
                self._asked[key] = task
                task.add_done_callback(lambda done: self._answered(key, done))
            # A caller that leaves while waiting must not end the review for the others.
            try:
                known = await asyncio.shield(task)
            except ReviewUnavailableError:
                known = self._known_before(key)
                if known is None:
                    raise
        if known.identity is None:
            raise NotAuthenticatedError(known.why)
        return known.identity

    def _admit(self, source: str) -> None:
        wait = self._per_source.take(source) if source else 0.0
        if wait == 0.0 and (len(self._asked) >= self._waiting or self._overall.take(_OVERALL) > 0.0):
            now = self._clock()
            self._next_turn = min(max(self._next_turn, now) + self._turn_s, now + _LATEST_S)
            wait = self._next_turn - now
        if wait > 0.0:
            raise ReviewUnavailableError("too many tokens to be reviewed; try again", wait)

    def _checked(self, authorization: bytes, now: float) -> tuple[str, float]:
        """Return the token and when it expires; raise NotAuthenticatedError if it cannot be a valid one."""
        scheme, _, value = authorization.partition(b" ")
        value = value.strip()
        if scheme.lower() != b"bearer" or not value:
            raise NotAuthenticatedError("the Authorization header is not of the form 'Bearer <token>'")
        if len(value) > _MAX_TOKEN_BYTES:
            raise NotAuthenticatedError(f"the token is longer than {_MAX_TOKEN_BYTES} bytes")
        claims = _claims(value)
        audiences = claims.get("aud")
        if self._audience not in (audiences if isinstance(audiences, list) else [audiences]):
            raise NotAuthenticatedError(
                f"the token is not made for the audience {self._audience}; mount a projected serviceAccountToken "
                "with that audience"
            )
        expires = claims.get("exp")
        if isinstance(expires, bool) or not isinstance(expires, (int, float)):
            raise NotAuthenticatedError("the token has no exp claim")
        if now >= expires:
            raise NotAuthenticatedError("the token has expired; the kubelet writes a new one in time, read it again")
        begins = claims.get("nbf", 0)
        if isinstance(begins, (int, float)) and now < begins - _CLOCK_SKEW_S:
            raise NotAuthenticatedError("the token is not valid yet; are the clocks of the nodes right?")
        return value.decode("ascii"), float(expires)

    async def _ask(self, token: str, key: bytes, expires: float) -> _Known:
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._review(token)
        except TimeoutError as error:
            raise ReviewUnavailableError(
                f"the API server did not review the token in {self._timeout_s:g} s"
            ) from error
        # Any error of the client library means that there is no answer.
        except Exception as error:
            logger.warning("a token cannot be reviewed: %s: %s", type(error).__name__, str(error)[:300])
            raise ReviewUnavailableError("the API server cannot review the token now; try again") from error
        now = self._clock()
        try:
            identity = _identity(status, self._audience)
        except NotAuthenticatedError as error:
            known = _Known(None, now + self._refused_s, why=str(error))
            self._remember(self._refused, key, known)
            return known
        return self._accept(key, identity, expires)

    def _accept(self, key: bytes, identity: PodIdentity, expires: float) -> _Known:
        known = _Known(identity, min(expires, self._clock() + self._cache_s), expires)
        self._remember(self._accepted, key, known)
        return known

    def _answered(self, key: bytes, task: asyncio.Task[_Known]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled():
            task.exception()  # raised in its waiters; without one it is dropped

    def _known_before(self, key: bytes) -> _Known | None:
        """Return what the server last said of a token that has not expired; it is asked again in a while."""
        known, now = self._accepted.get(key), self._clock()
        if known is None or now >= known.expires:
            return None
        self._accepted[key] = replace(known, until=min(known.expires, now + self._refused_s))
        return known

    @staticmethod
    def _recall(cache: OrderedDict[bytes, _Known], key: bytes, now: float) -> _Known | None:
        known = cache.get(key)
        if known is None:
            return None
        if now >= known.until:
            if now >= known.expires:
                del cache[key]
            return None
        cache.move_to_end(key)
        return known

    def _remember(self, cache: OrderedDict[bytes, _Known], key: bytes, known: _Known) -> None:
        cache[key] = known
        cache.move_to_end(key)
        now = self._clock()
        while cache and (len(cache) > self._size or now >= _end(next(iter(cache.values())))):
            cache.popitem(last=False)


def _end(known: _Known) -> float:
    return max(known.until, known.expires)


def _digest(authorization: bytes) -> bytes:
    return hashlib.sha256(authorization).digest()


def _claims(token: bytes) -> dict[str, Any]:
    """Return the claims of a signed JWT (RFC 7519), unverified."""
    parts = token.split(b".")
    try:
        if len(parts) != 3 or not parts[2]:
            raise ValueError
        header, claims = (
            msgspec.json.decode(base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True))
            for part in parts[:2]
        )
        base64.b64decode(parts[2] + b"=" * (-len(parts[2]) % 4), altchars=b"-_", validate=True)
        if not isinstance(header, dict) or not isinstance(claims, dict) or header.get("alg") in (None, "none"):
            raise ValueError
    except (ValueError, RecursionError, binascii.Error, msgspec.MsgspecError):
        raise NotAuthenticatedError("the token is not a signed JWT") from None
    return claims


def _identity(status: Mapping[str, Any], audience: str) -> PodIdentity:
    """Return what a TokenReview's status says; raise NotAuthenticatedError if it does not identify a pod."""
    if status.get("authenticated") is not True:
        why = str(status.get("error") or "")[:200]
        raise NotAuthenticatedError("the API server does not accept the token" + (f": {why}" if why else ""))
    if audience not in (status.get("audiences") or ()):
        raise NotAuthenticatedError(f"the API server does not confirm the token's audience {audience}")
    user = status.get("user") or {}
    name = str(user.get("username") or "")
    namespace, _, account = name.removeprefix(_ACCOUNT).partition(":")
    if not name.startswith(_ACCOUNT) or not namespace or not account:
        raise NotAuthenticatedError(f"the token belongs to {name[:100] or 'no user'}, not to a service account")
    extra = user.get("extra") or {}
    found = []
    for key in (_POD_NAME, _POD_UID):
        values = extra.get(key)
        if not isinstance(values, list) or len(values) != 1 or not isinstance(values[0], str) or not values[0]:
            raise NotAuthenticatedError(
                "the token is not bound to a pod; only the projected token of a trial's pod is accepted"
            )
        found.append(values[0])
    return PodIdentity(namespace=namespace, pod_name=found[0], pod_uid=found[1])


CALLER_REQUESTS = Rate(per_s=500.0, burst=2000.0)
"""A sender that lingers 5 ms makes 200 calls a second at most; decisions at a horizon come on top of that."""

CALLER_BYTES = Rate(per_s=16.0 * 1024 * 1024, burst=64.0 * 1024 * 1024)


class Gate:
    """The handler of a `ReportServer` in a cluster: identity, rate limit, then the call.

    A known caller is served without a task. A refused one may retry: 401 while tokens rotate, 429 and 503 with a
    Retry-After.

    Args:
        service: serves the calls.
        reviewer: identifies the caller.
        limiter: what one pod may ask for; by default `CALLER_REQUESTS` and `CALLER_BYTES`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        service: ReportService,
        reviewer: TokenReviewer,
        limiter: RateLimiter | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._reviewer = reviewer
        self._limiter = limiter or RateLimiter(CALLER_REQUESTS, CALLER_BYTES, clock=clock)

    def __call__(self, path: str, body: bytes, peer: Peer) -> Answer | Awaitable[Answer]:
        """Answer one request."""
        authorization = peer.header(b"authorization")
        caller = self._reviewer.cached(authorization)
        if caller is None:
            return self._identify(path, body, authorization, peer.address)
        return self._serve(path, body, caller)

    async def _identify(self, path: str, body: bytes, authorization: bytes | None, address: str) -> Answer:
        try:
            caller = await self._reviewer.identify(authorization, address)
        except NotAuthenticatedError as problem:
            return error(401, str(problem))
        except ReviewUnavailableError as problem:
            return error(503, str(problem), problem.retry_after_s)
        answer = self._serve(path, body, caller)
        return await answer if inspect.isawaitable(answer) else answer

    def _serve(self, path: str, body: bytes, caller: PodIdentity) -> Answer | Awaitable[Answer]:
        wait = self._limiter.take(caller.pod_uid, len(body))
        if wait > 0.0:
            return error(
                429, f"pod {caller.pod_name} calls too often or sends too much; wait {math.ceil(wait)} s", wait
            )
        return self._service.handle(path, body, caller)
