"""File systems of pyarrow and fsspec as users of Ray Tune give them, and as what they stand for here: a URI.

Neither package is imported: a caller that passes such an object has them. Keys in such an object become the variables
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN of this process, from which its trials have them; they
are written nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError, NotSupportedError
from trialpod.storage.s3.routes import remember

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def uri_of(where: str, path: object, filesystem: Any) -> str:
    """Return the path or URI that a path in a file system is."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidInputError(f"{where}: give storage_path too, the path in that file system: 'bucket/prefix'")
    text = os.fspath(path)
    if "://" in text:
        raise InvalidInputError(
            f"{where}: the path in a file system has no scheme, so not {text!r} but {text.partition('://')[2]!r}; or "
            "leave the file system out"
        )
    kind = type(filesystem).__name__
    if kind == "SubTreeFileSystem":
        return uri_of(where, f"{filesystem.base_path.rstrip('/')}/{text.lstrip('/')}", filesystem.base_fs)
    if kind == "PyFileSystem" and hasattr(filesystem.handler, "fs"):
        filesystem = filesystem.handler.fs
    protocols = _protocols(filesystem)
    if kind == "LocalFileSystem" or protocols & {"file", "local"}:
        return text
    if kind == "S3FileSystem" and not protocols:
        return _s3(where, text, _arrow_options(filesystem))
    if protocols & {"s3", "s3a"}:
        return _s3(where, text, _fsspec_options(filesystem))
    raise NotSupportedError(
        f"{where}: a {kind} is not supported; give storage_path a folder or an s3:// URI, or take a file system of "
        "S3 or of this machine"
    )


def _protocols(filesystem: Any) -> set[str]:
    found = getattr(filesystem, "protocol", ())
    return {found} if isinstance(found, str) else set(found)


def _arrow_options(filesystem: Any) -> Mapping[str, Any]:
    """Return what an S3FileSystem was made with: only its pickled form tells."""
    _, arguments = filesystem.__reduce__()[:2]
    options: Mapping[str, Any] = arguments[0]
    return {
        "key": options.get("access_key"),
        "secret": options.get("secret_key"),
        "token": options.get("session_token"),
        "endpoint": options.get("endpoint_override"),
        "scheme": options.get("scheme"),
        "region": options.get("region"),
        "anonymous": options.get("anonymous"),
    }


def _fsspec_options(filesystem: Any) -> Mapping[str, Any]:
    client = getattr(filesystem, "client_kwargs", None) or {}
    return {
        "key": getattr(filesystem, "key", None),
        "secret": getattr(filesystem, "secret", None),
        "token": getattr(filesystem, "token", None),
        "endpoint": getattr(filesystem, "endpoint_url", None) or client.get("endpoint_url"),
        "region": client.get("region_name"),
        "anonymous": getattr(filesystem, "anon", False),
    }


def _s3(where: str, path: str, options: Mapping[str, Any]) -> str:
    if options.get("anonymous"):
        raise NotSupportedError(f"{where}: nothing can be stored without keys (anonymous access)")
    uri = f"s3://{path.strip('/')}"
    remember(uri, endpoint=_endpoint(options), region=str(options.get("region") or ""))
    keys = [str(options.get(name) or "") for name in ("key", "secret", "token")]
    if keys[0] and keys[1]:
        for name, value in zip(_KEYS, keys, strict=True):
            if value:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
    return uri


def _endpoint(options: Mapping[str, Any]) -> str:
    endpoint = str(options.get("endpoint") or "").rstrip("/")
    if not endpoint or "://" in endpoint:
        return endpoint
    return f"{options.get('scheme') or 'https'}://{endpoint}"


def arrow_filesystem(place: str) -> Any:
    """Return pyarrow's file system for a path or an ``s3://`` URI, with the server, region and keys used here."""
    try:
        from pyarrow import fs
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            "a pyarrow file system needs the package pyarrow, which is not installed: pip install pyarrow; or use "
            "trialpod.storage.base.open_storage(path)"
        ) from error
    if "://" not in place or place.startswith("file://"):
        return fs.LocalFileSystem()
    from trialpod.storage.options import StorageOptions
    from trialpod.storage.s3.providers import provider_for
    from trialpod.storage.s3.routes import endpoint_of, region_of

    options = StorageOptions(endpoint=endpoint_of(place), region=region_of(place)).resolved()
    keys = provider_for(options).get()
    scheme, _, host = options.endpoint.partition("://")
    return fs.S3FileSystem(
        access_key=keys.access_key,
        secret_key=keys.secret_key,
        session_token=keys.token or None,
        endpoint_override=host,
        scheme=scheme,
        region=options.region,
    )
