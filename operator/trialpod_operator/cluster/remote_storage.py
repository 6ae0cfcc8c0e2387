"""Opens the storage of an experiment from a user's desk.

The keys are those of this process when it has any (environment variables, a credentials file); else those of the
experiment's Secret, when the user may read it. They stay in memory.

Invariants: what cannot be opened is a `DeskStorageError` that says why, and what would help, within seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trialpod.errors import TrialpodError
from trialpod_operator.cluster import names

if TYPE_CHECKING:
    from trialpod.storage.base import Storage
    from trialpod.storage.credentials import Credentials
    from trialpod_operator.cluster.client import Experiments

Json = dict[str, Any]

CONNECT_S = 3.0
RETRY_S = 2.0
_OWN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
_OWN_ENDPOINT = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class DeskStorageError(TrialpodError):
    """The storage of an experiment cannot be read from here."""


@dataclass(frozen=True)
class StoragePlace:
    """Where an experiment is kept, and how its pods reach that."""

    uri: str
    endpoint: str = ""
    secret: str = ""


def place_of(item: Mapping[str, Any], facts: Mapping[str, str]) -> StoragePlace:
    """Return where an experiment is kept.

    Args:
        item: the TuneExperiment.
        facts: what the operator says of itself, for experiments that take its default storage.
    """
    storage = (item.get("spec") or {}).get("storage")
    if not storage:
        text = facts.get(names.STORAGE_ANNOTATION) or "{}"
        try:
            storage = json.loads(text)
        except ValueError:
            storage = {}
    uri = str((item.get("status") or {}).get("storageUri") or "")
    if not uri and storage.get("uri"):
        uri = f"{str(storage['uri']).rstrip('/')}/{item['metadata']['name']}"
    return StoragePlace(uri, str(storage.get("endpoint") or ""), str(storage.get("credentialsSecret") or ""))


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
    from trialpod.errors import InvalidInputError, StorageError
    from trialpod.storage.base import local_folder, open_storage
    from trialpod.storage.options import StorageOptions
    from trialpod.storage.s3 import S3Storage, parse_uri
    from trialpod.storage.s3_client import S3Client

    place = place_of(item, api.operator_facts())
    if not place.uri:
        raise DeskStorageError("it is not known yet where the experiment is kept")
    if local_folder(place.uri) is not None:
        yield place.uri, open_storage(place.uri)
        return
    own_endpoint = any(environ.get(name) for name in _OWN_ENDPOINT)
    options = StorageOptions(
        endpoint="" if own_endpoint else place.endpoint, connect_timeout_s=CONNECT_S, retry_s=RETRY_S
    )
    with contextlib.ExitStack() as stack:
        provider: SecretKeys | None = None
        if place.secret and not any(environ.get(name) for name in _OWN_KEYS):
            files = _secret_files(api, place.secret)
            provider = SecretKeys(place.secret, files)
            if authority := files.get(names.CA_KEY):
                file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="trialpod-", suffix=".pem"))
                file.write(authority)
                file.flush()
                options.ca_file = file.name
        try:
            resolved = options.resolved(environ)
            storage = S3Storage.open(
                place.uri, client=S3Client(parse_uri(place.uri)[0], resolved, credentials=provider)
            )
        except (StorageError, InvalidInputError) as error:
            raise DeskStorageError(f"{error}{_remedy(options.endpoint, place)}") from error
        try:
            yield place.uri, storage
        finally:
            storage.close()


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
        from trialpod.storage.credentials import Credentials

        def text(key: str) -> str:
            return self._files.get(key, b"").decode(errors="replace").strip()

        return Credentials(text("AWS_ACCESS_KEY_ID"), text("AWS_SECRET_ACCESS_KEY"), text("AWS_SESSION_TOKEN"))

    def refused(self, credentials: Credentials) -> bool:
        """Return False: there are no others."""
        return False


def _secret_files(api: Experiments, name: str) -> dict[str, bytes]:
    from trialpod_operator.api.models import StorageSpec
    from trialpod_operator.cluster.client import ForbiddenError
    from trialpod_operator.cluster.storage_access import StorageProblemError, secret_data

    try:
        secret = api.secret(name)
        return secret_data(StorageSpec(uri="s3://any", credentials_secret=name), secret)
    except ForbiddenError as error:
        raise DeskStorageError(
            f"this process has no keys, and may not read the Secret {name}: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        ) from error
    except StorageProblemError as error:
        raise DeskStorageError(str(error)) from error


def _remedy(endpoint: str, place: StoragePlace) -> str:
    host = urlsplit(endpoint or place.endpoint).hostname or ""
    parts = host.split(".")
    if not endpoint or len(parts) < 2 or (len(parts) > 2 and parts[2] != "svc"):
        return ""
    service, namespace = parts[0], parts[1]
    port = urlsplit(endpoint).port or 80
    return (
        f". {host} is an address inside the cluster; from here: kubectl -n {namespace} port-forward svc/{service} "
        f"9000:{port} & export AWS_ENDPOINT_URL_S3=http://127.0.0.1:9000"
    )
