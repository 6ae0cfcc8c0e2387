"""Opens the storage of an experiment from a user's desk.

A server inside the cluster is reached through the API server, by a port-forward to a pod of its Service; requests are
signed for the address that the manifest names. The keys are those of the experiment's Secret when the user may read
it, else those of this process (environment variables, a credentials file). They stay in memory. Where the environment
names an endpoint, that one is tried first, with this process's keys if it has any. A plug-in's storage is opened with
what this process has.

Invariants: what cannot be opened is a `DeskStorageError` that says why, and what would help, within seconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.s3.routes import Route
from trialpod_operator.cluster import names
from trialpod_operator.kube_client.port_forward import PortForward, PortForwardError
from trialpod_operator.kube_client.service_address import ServiceAddress, service_address, service_of_ip

if TYPE_CHECKING:
    from trialpod.storage.base import Storage
    from trialpod.storage.s3.credentials import Credentials
    from trialpod.storage.s3.storage import S3Storage
    from trialpod_operator.kube_client.client import Experiments

logger = logging.getLogger(__name__)

Json = dict[str, Any]

CONNECT_S = 3.0
FORWARD_S = 10.0
RETRY_S = 2.0
_OWN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
_OWN_ENDPOINT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


class DeskStorageError(StorageError):
    """The storage of an experiment cannot be read from here."""


@dataclass(frozen=True)
class StorageLocation:
    """Where an experiment is kept, and how its pods reach that."""

    uri: str
    endpoint: str = ""
    secret: str = ""


@dataclass(frozen=True)
class _Way:
    """One way to the server.

    Attributes:
        endpoint: its URL; "" = Amazon's.
        own: it is this process's own endpoint.
        address: of the Service to forward to; None = no port-forward.
    """

    endpoint: str
    own: bool = False
    address: ServiceAddress | None = None


def location_of(item: Mapping[str, Any], facts: Mapping[str, str]) -> StorageLocation:
    """Return where an experiment is kept.

    Args:
        item: the TuneExperiment.
        facts: what the operator says of itself, for experiments that take its default storage.
    """
    storage = (item.get("spec") or {}).get("storage") or default_storage(facts)
    uri = str((item.get("status") or {}).get("storageUri") or "")
    if not uri and storage.get("uri"):
        uri = f"{str(storage['uri']).rstrip('/')}/{item['metadata']['name']}"
    return StorageLocation(uri, str(storage.get("endpoint") or ""), str(storage.get("credentialsSecret") or ""))


def default_storage(facts: Mapping[str, str]) -> Json:
    """Return the operator's default storage, empty when it has none or has not published it."""
    try:
        found = json.loads(facts.get(names.STORAGE_ANNOTATION) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def own_endpoint(environ: Mapping[str, str]) -> str:
    """Return the S3 server that the environment names, "" when it names none."""
    return next((environ[name].rstrip("/") for name in _OWN_ENDPOINT if environ.get(name)), "")


@contextlib.contextmanager
def opened(
    api: Experiments, item: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, Storage]]:
    """Yield the URI and the storage of an experiment.

    Args:
        api: its namespace.
        item: the TuneExperiment.
        environ: this process's keys and endpoint.

    Raises:
        DeskStorageError: it cannot be opened from here.
    """
    from trialpod.storage.registry import local_folder, open_storage, scheme_of

    storage: Storage
    location = location_of(item, api.operator_facts())
    if not location.uri:
        raise DeskStorageError("it is not known yet where the experiment is kept")
    if local_folder(location.uri) is not None:
        yield location.uri, open_storage(location.uri)
        return
    if scheme_of(location.uri) == "s3":
        storage, _ = reach(api, location, environ)
    else:
        from trialpod.storage.options import StorageOptions

        storage = open_storage(location.uri, StorageOptions(endpoint=location.endpoint))
    try:
        yield location.uri, storage
    finally:
        storage.close()


def reach(
    api: Experiments, location: StorageLocation, environ: Mapping[str, str] = os.environ
) -> tuple[S3Storage, Route]:
    """Open a place in a bucket, and return how it was reached.

    Args:
        api: the namespace of the experiment.
        location: where it is.
        environ: this process's keys and endpoint.

    Raises:
        DeskStorageError: it cannot be opened from here.
    """
    problems: list[tuple[_Way, str]] = []
    for way in _ways(api, location, environ):
        try:
            return _open(api, location, way, environ)
        except (StorageError, InvalidInputError, PortForwardError) as error:
            problems.append((way, str(error)))
            if isinstance(error, DeskStorageError):
                break  # it is the keys that are missing, whatever the way
    raise DeskStorageError(_explained(problems))


def _ways(api: Experiments, location: StorageLocation, environ: Mapping[str, str]) -> Iterator[_Way]:
    if own := own_endpoint(environ):
        yield _Way(own, own=True)
        if not location.endpoint:
            return
    direct = _Way(location.endpoint.rstrip("/"))
    address = service_address(location.endpoint, api.namespace)
    if address is not None and address.certain and not environ.get(_IN_CLUSTER):
        yield _Way(direct.endpoint, address=address)
        yield direct
        return
    yield direct
    if address is None and location.endpoint:
        address = service_of_ip(lambda path: api.client.request("GET", path), location.endpoint, api.namespace)
    if address is not None:
        yield _Way(direct.endpoint, address=address)


def _open(
    api: Experiments, location: StorageLocation, way: _Way, environ: Mapping[str, str]
) -> tuple[S3Storage, Route]:
    from trialpod.storage.options import StorageOptions
    from trialpod.storage.s3.client import S3Client
    from trialpod.storage.s3.storage import S3Storage, parse_uri

    forward = None if way.address is None else PortForward(api.client.access, way.address)
    keys, files = _keys(api, location.secret, environ, own_first=way.own)
    options = StorageOptions(
        endpoint=way.endpoint,
        connect_timeout_s=CONNECT_S if forward is None else FORWARD_S,
        retry_s=RETRY_S,
        ca_pem=files.get(names.CA_KEY, b"").decode(errors="replace"),
    ).resolved(environ)
    route = Route(
        options.endpoint,
        dial=None if forward is None else forward.dial,
        credentials=keys,
        ca_pem=options.ca_pem,
    )
    client = S3Client(parse_uri(location.uri)[0], options, credentials=keys, dial=route.dial)
    if forward is not None:
        forward.check(FORWARD_S)
        logger.info("%s is reached by a port-forward", way.endpoint)
    return S3Storage.open(location.uri, client=client), route


def _explained(problems: list[tuple[_Way, str]]) -> str:
    """Return one message for all ways that were tried."""
    forwarded = [(way, text) for way, text in problems if way.address is not None]
    direct = [text for way, text in problems if way.address is None]
    if not forwarded:
        return "; ".join(direct)
    way, text = forwarded[0]
    host = urlsplit(way.endpoint).hostname
    found = (
        f"{'; '.join(direct)}. {host} is an address inside the cluster, and the port-forward to it fails: {text}"
        if direct
        else text
    )
    return f"{found}; or set AWS_ENDPOINT_URL_S3 to an address of the S3 server that is reachable from here"


def _keys(
    api: Experiments, secret: str, environ: Mapping[str, str], *, own_first: bool
) -> tuple[SecretKeys | None, dict[str, bytes]]:
    """Return the keys of the Secret, or None for those of this process; and what else is in the Secret.

    Raises:
        DeskStorageError: there are none.
    """
    own = any(environ.get(name) for name in _OWN_KEYS)
    if not secret or (own and own_first):
        return None, {}
    try:
        files = _secret_files(api, secret)
    except DeskStorageError:
        if own:
            return None, {}
        raise
    return SecretKeys(secret, files), files


class SecretKeys:
    """The keys of a Secret, in memory.

    Args:
        name: of the Secret.
        files: its content.
    """

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        self.source = f"the Secret {name}"
        self._files = files

    def get(self) -> Credentials:
        """Return the keys."""
        from trialpod.storage.s3.credentials import Credentials

        def text(key: str) -> str:
            return self._files.get(key, b"").decode(errors="replace").strip()

        return Credentials(text("AWS_ACCESS_KEY_ID"), text("AWS_SECRET_ACCESS_KEY"), text("AWS_SESSION_TOKEN"))

    def refused(self, credentials: Credentials) -> bool:
        """Return False: there are no others."""
        return False


def _secret_files(api: Experiments, name: str) -> dict[str, bytes]:
    from trialpod_operator.api.models import StorageSpec
    from trialpod_operator.cluster.storage_access import StorageProblemError, secret_data
    from trialpod_operator.kube_client.client import MissingRightError

    try:
        secret = api.secret(name)
        return secret_data(StorageSpec(uri="s3://any", credentials_secret=name), secret)
    except MissingRightError as error:
        raise DeskStorageError(
            f"this process has no keys, and may not read the Secret {name}: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        ) from error
    except StorageProblemError as error:
        raise DeskStorageError(str(error)) from error
