"""S3 servers that URIs name: ``s3://bucket/prefix?endpoint=http://minio:9000``, and their regions.

Ray's form is understood too: ``s3://bucket/prefix?endpoint_override=minio:9000&scheme=http&region=eu-west-1``.

A caller with a user's URI removes the query by `plain`, which remembers it: whatever opens a place in that
bucket later, in this process, goes to the same server. It goes before the environment's variables, not before what a
manifest says.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from trialpod.errors import InvalidInputError

_endpoints: dict[str, str] = {}
_regions: dict[str, str] = {}
_IGNORED = ("allow_bucket_creation", "allow_bucket_deletion")  # of Ray's form; TRIALPOD_CREATE_BUCKET says it


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


def forget() -> None:
    """Forget all servers."""
    _endpoints.clear()
    _regions.clear()


def _bucket(uri: str) -> str:
    return uri.partition("://")[2].partition("/")[0].partition("?")[0]
