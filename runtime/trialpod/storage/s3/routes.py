"""Where the S3 servers of buckets are, beyond what options and the environment say.

A URI may name its server and region: ``s3://bucket/prefix?endpoint=http://minio:9000``, or in Ray's form
``s3://bucket/prefix?endpoint_override=minio:9000&scheme=http&region=eu-west-1``. A caller with a user's URI removes
the query by `plain`, which remembers it: whatever opens a place in that bucket later, in this process, goes to the
same server. It goes before the environment's variables, not before what a manifest says.

A backend may register another way to a bucket's server, such as through a cluster's API server. What opens a place in
that bucket later, in this process, uses it, unless it is given an endpoint.

Invariants: a way is looked for when it is first needed, once. Requests are signed for the server's own address.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl

from trialpod.errors import InvalidInputError
from trialpod.storage.s3.credentials import CredentialsProvider

_endpoints: dict[str, str] = {}
_regions: dict[str, str] = {}
_IGNORED = ("allow_bucket_creation", "allow_bucket_deletion")  # of Ray's form; TRIALPOD_CREATE_BUCKET says it

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
    """Forget all servers and ways."""
    _entries.clear()
    _endpoints.clear()
    _regions.clear()


def plain(uri: str) -> str:
    """Return a URI without its query, and remember the server that it names; what is no ``s3://`` stays as it is.

    Raises:
        InvalidInputError: the query has something else in it.
    """
    if not uri.lower().startswith("s3://") or "?" not in uri:
        return uri
    place, _, query = uri.partition("?")
    found = dict(parse_qsl(query, keep_blank_values=True))
    endpoint = (found.pop("endpoint", "") or found.pop("endpoint_override", "")).rstrip("/")
    scheme, region = found.pop("scheme", "https"), found.pop("region", "")
    for name in _IGNORED:
        found.pop(name, None)
    if endpoint and "://" not in endpoint:
        endpoint = f"{scheme}://{endpoint}"
    if found or not (endpoint or region):
        raise InvalidInputError(
            f"storage {uri!r}: after '?' there can only be the server, as in "
            "s3://bucket/prefix?endpoint=http://host:9000, and region=..."
        )
    remember(place, endpoint=endpoint, region=region)
    return place


def remember(uri: str, *, endpoint: str = "", region: str = "") -> None:
    """Note the server and the region of a URI's bucket; what is empty is not changed."""
    if endpoint:
        _endpoints[_bucket(uri)] = endpoint
    if region:
        _regions[_bucket(uri)] = region


def endpoint_of(uri: str) -> str:
    """Return the server that an earlier URI has named for this one's bucket, "" if none has."""
    return _endpoints.get(_bucket(uri), "")


def region_of(uri: str) -> str:
    """Return the region that an earlier URI has named for this one's bucket, "" if none has."""
    return _regions.get(_bucket(uri), "")


def _bucket(uri: str) -> str:
    return uri.partition("://")[2].partition("/")[0].partition("?")[0]
