"""The API server's public keys for service account tokens: they tell a pod by its token without a TokenReview.

A TokenReview says three things: that the API server has signed the token, whom it is for, and that the pod that it is
bound to exists. The first two are in the token and its signature, the third is what the watch of pods shows. A review
is a request for each trial; the keys are two requests in five minutes.

Invariants:

* A token is known by them once. When that was five minutes ago, the API server is asked (`reviewer`), so that a token
  that it withdraws is refused as soon as with reviews alone, except after a restart of the operator.
* Nothing is refused here. About what these keys and the watch do not confirm, the API server is asked: an unknown key
  or algorithm, another issuer, a pod that the watch has not shown or that is being deleted, keys that cannot be read.
* Keys are used for five minutes, which is how long the answer to a review is believed.
* Only signatures of public keys count, RS256 to RS512 and ES256 to ES512 (RFC 7518), and only of a key that is for
  this algorithm. What a token says of its key is no more than the name of one of those that the API server gave.

Signatures, issuer and audience are checked by PyJWT; times here, by a clock that is passed in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from trialpod_operator.cluster.cache import Object
from trialpod_operator.cluster.identity.reviewer import PodIdentity
from trialpod_operator.cluster.names import TOKEN_AUDIENCE

logger = logging.getLogger(__name__)

MAX_AGE_S = 300.0
"""How long keys are used."""

RETRY_S = 60.0
"""How long no keys are asked for after they could not be read."""

TIMEOUT_S = 5.0

MIN_RSA_BITS = 2048

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")

_HEADER = {"alg", "kid", "typ"}
_OPTIONS: jwt.types.Options = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}

FetchKeys = Callable[[], Awaitable[tuple[str, Mapping[str, Any]]]]
"""Asks the API server for its issuer and its key set (RFC 7517)."""

FindPod = Callable[[str, str, str], Object | None]
"""Returns the pod of that namespace, name and uid as the watch has shown it last; None when it has not."""


@dataclass(frozen=True)
class _Keys:
    issuer: str
    keys: Mapping[str, jwt.PyJWK]
    until: float


class TokenKeys:
    """Says which pod a token belongs to, where that is certain. Owned by the event loop.

    Args:
        fetch: asks for the keys.
        find_pod: looks for a pod in what the watch has shown.
        audience: what tokens must be made for.
        clock: monotonic seconds.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        fetch: FetchKeys,
        find_pod: FindPod,
        *,
        audience: str = TOKEN_AUDIENCE,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._fetch = fetch
        self._find_pod = find_pod
        self._audience = audience
        self._clock = clock
        self._wall_clock = wall_clock
        self._keys = _Keys("", {}, float("-inf"))
        self._fetching: asyncio.Future[None] | None = None

    async def pod_of(self, token: str) -> PodIdentity | None:
        """Return the pod that a token is bound to; None says nothing about it."""
        if self._clock() >= self._keys.until:
            if self._fetching is None:
                self._fetching = asyncio.ensure_future(self._renew())
            # A caller that leaves while waiting must not end it for the others.
            await asyncio.shield(self._fetching)
        claims = self._verified(token)
        if claims is None:
            return None
        found = _bound_pod(claims)
        if found is None:
            return None
        bound, account = found
        pod = self._find_pod(bound.namespace, bound.pod_name, bound.pod_uid)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return None
        return bound if (pod.get("spec") or {}).get("serviceAccountName") == account else None

    async def _renew(self) -> None:
        asked_at = self._clock()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                issuer, document = await self._fetch()
            keys = read_keys(document)
            self._keys = _Keys(issuer, keys, asked_at + (MAX_AGE_S if issuer and keys else RETRY_S))
        except Exception as error:  # noqa: BLE001 - without keys, tokens are reviewed one by one
            logger.info("tokens are reviewed one by one; the API server's keys cannot be read: %s", error)
            self._keys = _Keys("", {}, self._clock() + RETRY_S)
        finally:
            self._fetching = None

    def _verified(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a token that a key of the API server has signed for us, and that holds now."""
        keys, now = self._keys, self._wall_clock()
        try:
            header = jwt.get_unverified_header(token)
            key = keys.keys.get(header.get("kid", "")) if header.keys() <= _HEADER else None
            if key is None:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=keys.issuer,
                options=_OPTIONS,
            )
            return claims if claims.get("nbf", 0.0) <= now < claims["exp"] else None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None


def read_keys(document: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """Return the public keys of a key set by their names; what is none that tokens are signed with is left out."""
    found: dict[str, jwt.PyJWK] = {}
    for each in document.get("keys") or ():
        if each.get("use", "sig") != "sig" or not isinstance(each.get("kid"), str) or not each["kid"]:
            continue
        try:
            key = jwt.PyJWK(each)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        weak = isinstance(key.key, rsa.RSAPublicKey) and key.key.key_size < MIN_RSA_BITS
        if key.algorithm_name in ALGORITHMS and not weak:
            found[each["kid"]] = key
    return found


def _bound_pod(claims: Mapping[str, Any]) -> tuple[PodIdentity, str] | None:
    """Return the pod that a service account's token is bound to, and the name of the account."""
    about = claims.get("kubernetes.io")
    if not isinstance(about, dict):
        return None
    pod, account = about.get("pod"), about.get("serviceaccount")
    if not isinstance(pod, dict) or not isinstance(account, dict):
        return None
    values = about.get("namespace"), pod.get("name"), pod.get("uid"), account.get("name")
    if not all(isinstance(value, str) and value for value in values):
        return None
    namespace, name, uid, account_name = map(str, values)
    if claims.get("sub") != f"system:serviceaccount:{namespace}:{account_name}":
        return None
    return PodIdentity(namespace, name, uid), account_name
