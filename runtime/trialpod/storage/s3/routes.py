"""Other ways to the S3 servers of buckets, for a process that does not reach them by their address.

A server inside a cluster is reached through the cluster's API server, say. A backend registers such a way for a
bucket; what opens a place in that bucket later, in this process, uses it, unless it is given an endpoint.

Invariants: the way is looked for when it is first needed, once. Requests are signed for the server's own address.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from trialpod.storage.s3.credentials import CredentialsProvider

Dial = Callable[[float], socket.socket]
"""Connects to the server within so many seconds, and returns a connected stream socket of any family.

Raises:
    OSError: it cannot.
"""


@dataclass(frozen=True)
class Route:
    """How to reach an S3 server.

    Attributes:
        endpoint: its URL as it is known where it runs; requests are signed for this host.
        dial: connects to it; None = by its address.
        credentials: where the keys come from; None = the environment.
        ca_pem: certificates to trust; "" = the system's.
    """

    endpoint: str
    dial: Dial | None = None
    credentials: CredentialsProvider | None = None
    ca_pem: str = ""


class _Entry:
    def __init__(self, find: Callable[[], Route | None]) -> None:
        self.find = find
        self.lock = threading.Lock()
        self.found: list[Route | None] = []


_entries: dict[str, _Entry] = {}


def register(bucket: str, find: Callable[[], Route | None]) -> None:
    """Register the way to a bucket's server.

    Args:
        bucket: its name.
        find: returns the way, None when the server is reached directly; called when it is first needed.
    """
    _entries[bucket] = _Entry(find)


def route_to(bucket: str) -> Route | None:
    """Return the way to a bucket's server, None when none other than its address is known.

    Raises:
        TrialpodError: what `find` raises; it is called again the next time.
    """
    entry = _entries.get(bucket)
    if entry is None:
        return None
    with entry.lock:
        if not entry.found:
            entry.found.append(entry.find())
        return entry.found[0]


def registered(bucket: str) -> bool:
    """Return whether a way to this bucket's server is registered."""
    return bucket in _entries


def forget() -> None:
    """Forget all ways."""
    _entries.clear()
