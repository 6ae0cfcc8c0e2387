"""One set of keys for an S3 server, and what gives them.

Invariant: secrets never appear in messages or representations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


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
