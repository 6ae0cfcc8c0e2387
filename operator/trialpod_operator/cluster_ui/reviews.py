"""Who a user is, and what the user may do: asked of the API server, and believed for seconds.

Nothing that a request says of its user is believed but the bearer token. A TokenReview says whose it is, without an
audience: so it has to be one for the API server itself, and the token of a trial's pod, which is for the operator, is
none. A SubjectAccessReview says what that user may do.

Invariants:

* Tokens are kept as SHA-256 only, and are in no message, log or representation.
* Memory is bounded, and so is the rate of reviews of tokens that are not known. It limits no user whose token was
  accepted within the last hour: guessed tokens lock out no session.
* No answer is never taken for a "yes": what cannot be asked is a `ReviewUnavailableError`.
* Every method may be called from any thread. One question is asked once at a time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from trialpod.errors import TrialpodError
from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.cluster import names
from trialpod_operator.kube_client.api import ClusterUnreachableError
from trialpod_operator.reports.rate import Rate, RateLimiter
from trialpod_operator.ui.access import User

Json = dict[str, Any]
T = TypeVar("T")

BELIEVED_S = 10.0
"""How long an answer of the API server counts."""

ACCEPTED_S = 3600.0
"""How long a token that the API server accepted is reviewed again without counting as unknown."""

SIZE = 10_000
MAX_TOKEN_BYTES = 16 * 1024
UNKNOWN_TOKENS = Rate(per_s=20.0, burst=100.0)
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_LOCKS = 64

Ask = Callable[[str, Json], Mapping[str, Any]]
"""Posts a review to a path of the API server; raises `ApiError` or `ClusterUnreachableError`."""


class ReviewUnavailableError(TrialpodError):
    """The API server cannot be asked now who a user is, or what the user may do."""


class Reviews:
    """Asks the API server.

    Args:
        ask: posts a review, with this process's own permissions.
        clock: monotonic seconds.
    """

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._users: _Believed[User | None] = _Believed(clock)
        self._permissions: _Believed[bool] = _Believed(clock)
        self._limit_lock = threading.Lock()  # guards what follows
        self._accepted: OrderedDict[bytes, float] = OrderedDict()  # hash of a token -> until when; oldest first
        self._unknown = RateLimiter(UNKNOWN_TOKENS, clock=clock)

    def user(self, token: str) -> User | None:
        """Return whose token it is; None: it is not valid, or not for the API server.

        Raises:
            ReviewUnavailableError: the API server cannot be asked, or too many unknown tokens are sent.
        """
        if not token or len(token) > MAX_TOKEN_BYTES or not token.isascii() or not token.isprintable():
            return None

        digest = hashlib.sha256(token.encode()).digest()

        def ask() -> User | None:
            with self._limit_lock:
                known = self._accepted.get(digest, 0.0) > self._clock()
                wait = 0.0 if known else self._unknown.take("all")
            if wait > 0.0:
                raise ReviewUnavailableError("too many tokens wait to be checked; try again in a minute")
            found = _user_of(self._answer(TOKEN_REVIEWS, "TokenReview", {"token": token}))
            self._record(digest, accepted=found is not None)
            return found

        found = self._users.get(digest, ask)
        return None if found is None else dataclasses.replace(found, token=token)

    def may(self, user: User, verb: str, resource: str, namespace: str = "", name: str = "") -> bool:
        """Return whether a user may do something to trialpod's resources, or read a pod's log.

        Args:
            user: as `user` returned it.
            verb: such as "list".
            resource: such as "tuneexperiments", or "pods/log".
            namespace: "" = all of them.
            name: of the one; "" = all.

        Raises:
            ReviewUnavailableError: the API server cannot be asked.
        """
        kind, _, part = resource.partition("/")
        group = "" if kind == "pods" else names.GROUP
        attributes = {"verb": verb, "group": group, "resource": kind, "namespace": namespace, "name": name}
        if part:
            attributes["subresource"] = part
        spec: Json = {"user": user.name, "uid": user.uid, "groups": list(user.groups), "extra": user.extra}
        # Not the token: two tokens of one user have the same permissions, unless they say other things of the user.
        identity = (user.name, user.uid, user.groups, tuple(sorted((k, tuple(v)) for k, v in user.extra.items())))

        def ask() -> bool:
            body = {**{key: value for key, value in spec.items() if value}, "resourceAttributes": attributes}
            status = self._answer(ACCESS_REVIEWS, "SubjectAccessReview", body)
            return status.get("allowed") is True and status.get("denied") is not True

        return self._permissions.get((identity, verb, resource, namespace, name), ask)

    def _record(self, digest: bytes, *, accepted: bool) -> None:
        with self._limit_lock:
            self._accepted.pop(digest, None)
            if accepted:
                self._accepted[digest] = self._clock() + ACCEPTED_S
            while len(self._accepted) > SIZE:
                self._accepted.popitem(last=False)

    def _answer(self, path: str, kind: str, spec: Json) -> Mapping[str, Any]:
        group = path.removeprefix("/apis/").rpartition("/")[0]
        try:
            answer = self._ask(path, {"apiVersion": group, "kind": kind, "spec": spec})
        except ClusterUnreachableError as error:
            raise ReviewUnavailableError("the API server does not answer; try again") from error
        except ApiError as error:
            # Its message may repeat the question, and with it the token.
            raise ReviewUnavailableError(
                f"the API server refuses a {kind} ({error.status}); this page's service account needs the right to "
                "create it"
            ) from None
        return answer.get("status") or {}


def _user_of(status: Mapping[str, Any]) -> User | None:
    found = status.get("user") or {}
    if status.get("authenticated") is not True or not found.get("username"):
        return None
    extra = {str(key): [str(each) for each in value] for key, value in (found.get("extra") or {}).items()}
    return User(
        name=str(found["username"]),
        uid=str(found.get("uid") or ""),
        groups=tuple(str(each) for each in found.get("groups") or ()),
        extra=extra,
    )


class _Believed(Generic[T]):
    """Answers that count for a while; the oldest are forgotten first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._asking = tuple(threading.Lock() for _ in range(_LOCKS))

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        """Return the answer, asked for if none counts any more."""
        with self._asking[hash(key) % _LOCKS]:
            with self._lock:
                known = self._found.get(key)
            now = self._clock()
            if known is not None and now < known[0]:
                return known[1]
            found = ask()
            with self._lock:
                self._found.pop(key, None)
                self._found[key] = (now + BELIEVED_S, found)
                while len(self._found) > SIZE or next(iter(self._found.values()))[0] <= now:
                    self._found.popitem(last=False)
            return found
