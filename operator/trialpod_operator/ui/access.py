"""Who may see and do what. The server asks; one machine and a cluster answer differently.

On one machine the user is the person with the printed link: it has a token that opens one session, whose cookie the
browser then sends. In a cluster the user is whom the API server takes their token for.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trialpod.errors import TrialpodError
from trialpod_operator.view.model import ExperimentModel

Json = dict[str, Any]

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class NoSuchExperimentError(TrialpodError):
    """There is no experiment of that id, or the user may not know of it."""


class ActionDeniedError(TrialpodError):
    """The user may not do that, or it cannot be done here."""


@dataclass(frozen=True, slots=True)
class User:
    """The user who sent a request.

    Attributes:
        name: for people.
        uid: as the cluster has it.
        groups: the same.
        extra: the same.
        token: with which the user may act in the cluster; in no message and no representation.
    """

    name: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict)
    token: str = field(default="", repr=False)


class Experiments(Protocol):
    """The experiments that are served."""

    def summaries(self, user: User, namespace: str = "") -> list[Json]:
        """Return what the list of experiments shows, of those that the user may see; of one namespace, if named."""
        ...

    def model(self, user: User, experiment_id: str) -> ExperimentModel:
        """Return the read model of an experiment.

        Raises:
            NoSuchExperimentError: there is none that the user may see.
        """
        ...

    def reads_logs(self, user: User, experiment_id: str) -> bool:
        """Return whether the user may see what the experiment's trials have printed."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Actions(Protocol):
    """What can be done to an experiment from the page."""

    def listed(self, user: User, model: ExperimentModel) -> list[Json]:
        """Return each action with the command that it equals, and whether the user may do it and why not."""
        ...

    def perform(self, user: User, model: ExperimentModel, action: str, arguments: Json) -> str:
        """Do it, and return what was done, in a sentence.

        Raises:
            ActionDeniedError: the user may not.
        """
        ...


class Sessions:
    """Tokens that open one session each, and the sessions.

    Args:
        renewed: told the next token when one was used: a link opens one session.
    """

    def __init__(self, renewed: Callable[[str], None] = lambda _token: None) -> None:
        self._lock = threading.Lock()
        self._renewed = renewed
        self._token = secrets.token_urlsafe(24)
        self._sessions: dict[str, tuple[User, str]] = {}

    @property
    def token(self) -> str:
        """The token of the next session."""
        return self._token

    def open(self, token: str) -> str | None:
        """Return the cookie of a new session; None when the token is not, or no longer, valid."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = secrets.token_urlsafe(24)
            cookie = self._add(User("local"))
        self._renewed(self._token)
        return cookie

    def find(self, cookie: str) -> tuple[User, str] | None:
        """Return the user of a session and the token that its changes need; None when there is no such session."""
        return self._sessions.get(cookie)

    def _add(self, user: User) -> str:
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = (user, secrets.token_urlsafe(24))
        while len(self._sessions) > 1000:
            del self._sessions[next(iter(self._sessions))]
        return cookie


class AllowedHosts:
    """The values of the Host header that are answered: some names, and loopback with any port.

    A port-forward listens on a port that is chosen at random. No page of another name reaches these: its requests
    have its own name in them.

    Args:
        names: "name" or "name:port"; a name without a port stands for all ports of it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(each.lower() for each in names)

    def __contains__(self, host: object) -> bool:
        text = str(host).lower()
        name, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if not name or not port.isdecimal():
            name = text
        return text in self._names or name in self._names or name in LOOPBACK_NAMES


def allowed_hosts(port: int, more: Sequence[str] = ()) -> frozenset[str]:
    """Return the values of the Host header that are answered: a page of another name that resolves to here is not."""
    ports = {f"{name}:{port}" for name in LOOPBACK_NAMES}
    return frozenset({*ports, *(LOOPBACK_NAMES if port == 80 else ()), *more})
