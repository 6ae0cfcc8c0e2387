"""Where an experiment's data is, and the keys to it: for the operator itself, and for the pods of its trials.

The keys come from the Secret that the experiment names. The operator reads it and keeps the keys in files of its own,
which the storage client reads again when they change. So rotated keys need no restart of anything.

Pods get them in one of two ways. Without `scopedCredentials` they mount the same Secret. With it they mount nothing,
and ask the report service for short-lived keys (`key_issuer`).

An operator may have keys of its own, in files that no user can read (`keys_dir`). They serve only experiments below
one prefix for each namespace, the default storage's, only at its server, and never leave the operator: pods always
get short-lived ones.
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trialpod.errors import StorageError, TrialpodError
from trialpod.storage.options import StorageOptions
from trialpod.storage.registry import storage_class
from trialpod_operator.api.models import ScopedCredentials, StorageSpec, TuneExperiment
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import names

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_OPTIONAL = ("AWS_SESSION_TOKEN", names.CA_KEY)
NAMESPACE = "{namespace}"
"""In the URI of the default storage: the experiment's namespace."""


class StorageProblemError(TrialpodError):
    """The experiment's storage cannot be used as the manifest stands; `reason` is the word for programs."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class StorageLocation:
    """An experiment's location in its storage."""

    uri: str  # of the experiment itself
    own: StorageOptions  # for the operator
    pods: StorageOptions  # for the trials
    scoped: ScopedCredentials | None = None  # trials get short-lived keys, so


@dataclass(frozen=True, kw_only=True)
class StorageRules:
    """What the operator's settings say about storages.

    Attributes:
        default: for experiments whose manifest has none; ``{namespace}`` in its URI is the experiment's.
        keys_dir: the operator's own keys for what is below the default's URI, as files; "" = it has none.
        always_scoped: pods never mount a Secret with keys.
        scoped: how short-lived keys are made where the manifest does not say, and always for the operator's own.
    """

    default: StorageSpec | None = None
    keys_dir: str = ""
    always_scoped: bool = False
    scoped: ScopedCredentials = field(default_factory=ScopedCredentials)

    def managed(self, storage: StorageSpec | None) -> bool:
        """Return whether the operator's own keys open this storage of an experiment, see `with_storage`."""
        return bool(self.keys_dir) and storage is not None and not storage.credentials_secret

    def scoped_for(self, storage: StorageSpec | None) -> ScopedCredentials | None:
        """Return how the pods' short-lived keys are made; None when pods mount the Secret."""
        if storage is None:
            return None
        if self.managed(storage):
            return self.scoped
        if storage.scoped_credentials is not None:
            return storage.scoped_credentials
        return self.scoped if self.always_scoped and storage.credentials_secret else None


def with_storage(experiment: TuneExperiment, namespace: str, rules: StorageRules) -> TuneExperiment:
    """Return the experiment with the storage that holds for it.

    Args:
        experiment: a valid manifest.
        namespace: that the experiment is in.
        rules: the operator's settings.

    Raises:
        StorageProblemError: it has none that trials in a cluster can use, or none that it may use.
    """
    default = rules.default
    if default is not None:
        default = msgspec.structs.replace(default, uri=default.uri.replace(NAMESPACE, namespace))
    storage = experiment.spec.storage or default
    if storage is None:
        raise StorageProblemError(
            Reason.STORAGE_MISSING,
            "spec.storage is missing and the operator has no default; name a bucket: "
            'storage: {uri: "s3://bucket/prefix", endpoint: ..., credentialsSecret: ...}',
        )
    _check_capabilities(storage)
    if rules.managed(storage):
        storage = _within(storage, default)
        _check_pickle(experiment, default)
    elif storage.scoped_credentials is not None and not storage.credentials_secret:
        raise StorageProblemError(
            Reason.SCOPED_CREDENTIALS_NEED_SECRET,
            "spec.storage.scopedCredentials needs spec.storage.credentialsSecret: the Secret with the keys that the "
            "operator derives the trials' keys from",
        )
    if experiment.spec.storage is storage:
        return experiment
    return msgspec.structs.replace(experiment, spec=msgspec.structs.replace(experiment.spec, storage=storage))


def _check_capabilities(storage: StorageSpec) -> None:
    """Refuse a storage that cannot serve an experiment in a cluster."""
    if "?" in storage.uri:  # a server in it would be that of the bucket for the whole process, for all experiments
        raise StorageProblemError(
            Reason.INVALID_SPEC,
            f"spec.storage.uri is {storage.uri}, with a query; in a cluster, the server is in spec.storage.endpoint",
        )
    try:
        found = storage_class(storage.uri)
    except StorageError as error:
        raise StorageProblemError(Reason.STORAGE_UNSUPPORTED, f"spec.storage.uri: {error}") from error
    if not found.is_shared:
        raise StorageProblemError(
            Reason.STORAGE_NOT_SHARED,
            f"spec.storage.uri is {storage.uri!r}; in a cluster it has to be a storage that all pods see, such as "
            "s3://bucket/prefix",
        )
    if not found.has_conditional_writes:
        raise StorageProblemError(
            Reason.STORAGE_UNSUPPORTED,
            f"spec.storage.uri is {storage.uri!r}; in a cluster the storage must make one of several concurrent "
            "writers win, as s3:// does",
        )
    if storage.scoped_credentials is not None and not found.has_scoped_credentials:
        raise StorageProblemError(
            Reason.SCOPED_CREDENTIALS_IMPOSSIBLE,
            f"spec.storage.scopedCredentials: the storage of {storage.uri!r} has no credentials for a part of it",
        )


def _within(storage: StorageSpec, default: StorageSpec | None) -> StorageSpec:
    """Return a storage that the operator's keys are used for, at the server that they are for."""
    assert default is not None  # `OperatorOptions` ensures it
    allowed = default.uri.rstrip("/")
    if storage.uri != default.uri and not f"{storage.uri.rstrip('/')}/".startswith(f"{allowed}/"):
        raise StorageProblemError(
            Reason.STORAGE_NOT_ALLOWED,
            f"spec.storage.uri is {storage.uri}, and the operator's keys open only {allowed} for this namespace; use "
            "that, leave spec.storage out, or name a Secret of your own by spec.storage.credentialsSecret",
        )
    if storage.endpoint not in (None, default.endpoint):
        raise StorageProblemError(
            Reason.STORAGE_NOT_ALLOWED,
            f"spec.storage.endpoint is {storage.endpoint}, and the operator's keys are for "
            f"{default.endpoint or 'Amazon S3'}; leave it out, or name a Secret of your own by credentialsSecret",
        )
    return msgspec.structs.replace(storage, endpoint=default.endpoint)


def _check_pickle(experiment: TuneExperiment, default: StorageSpec | None) -> None:
    """Refuse a pickled Trainable outside what the operator's keys are used for: trials get keys that read it."""
    assert default is not None  # `OperatorOptions` ensures it
    pickle = experiment.spec.trainable.pickle
    if pickle is None:
        return
    allowed = f"{default.uri.rstrip('/')}/"
    key = pickle.uri.removeprefix(allowed)
    if key == pickle.uri or "?" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise StorageProblemError(
            Reason.STORAGE_NOT_ALLOWED,
            f"spec.trainable.pickle.uri is {pickle.uri}, and the operator's keys open only what is below {allowed} "
            "for this namespace; store it there, or name a Secret of your own by spec.storage.credentialsSecret",
        )


def secret_data(storage: StorageSpec, secret: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return the files for the keys of a storage.

    Args:
        storage: of the experiment.
        secret: the Secret that it names, None when there is no such Secret.

    Raises:
        StorageProblemError: the Secret is missing or incomplete.
    """
    name = storage.credentials_secret
    if not name:
        return {}
    if secret is None:
        raise StorageProblemError(
            Reason.SECRET_NOT_FOUND, f"the Secret {name} (spec.storage.credentialsSecret) is not there; create it"
        )
    data = secret.get("data") or {}
    files: dict[str, bytes] = {}
    for key in (*KEYS, *_OPTIONAL):
        if key in data:
            try:
                files[key] = base64.b64decode(data[key], validate=True)
            except binascii.Error:
                raise StorageProblemError(Reason.SECRET_INVALID, f"the Secret {name}: {key} is not base64") from None
    missing = [key for key in KEYS if not files.get(key)]
    if missing:
        raise StorageProblemError(
            Reason.SECRET_INVALID, f"the Secret {name} has no {' and no '.join(missing)}; add it"
        )
    return files


def write_secret(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write the keys for the operator's own use; unchanged files stay untouched."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in (*KEYS, *_OPTIONAL):
        path = directory / name
        if name not in files:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_bytes() != files[name]:
            temporary = directory / f".{name}.tmp"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(files[name])
            os.replace(temporary, path)


def read_secret(directory: Path) -> dict[str, bytes]:
    """Return what `write_secret` wrote; empty when it wrote nothing."""
    paths = [directory / name for name in (*KEYS, *_OPTIONAL)]
    return {path.name: path.read_bytes() for path in paths if path.exists()}


def remove_secret(directory: Path) -> None:
    """Remove what `write_secret` wrote."""
    shutil.rmtree(directory, ignore_errors=True)


def location(
    experiment: TuneExperiment, directory: Path, files: Mapping[str, bytes], rules: StorageRules
) -> StorageLocation:
    """Return where the experiment is and how to reach it.

    Args:
        experiment: with its storage, see `with_storage`.
        directory: the operator's copy of the keys.
        files: what is in it.
        rules: the operator's settings.

    Raises:
        StorageProblemError: the operator's own keys are not there.
    """
    storage = experiment.spec.storage
    assert storage is not None
    if rules.managed(storage):
        directory = Path(rules.keys_dir)
        files = read_secret(directory)
        if not all(files.get(key) for key in KEYS):
            raise StorageProblemError(
                Reason.OPERATOR_KEYS_MISSING,
                f"the operator's own keys for the storage are incomplete: {' and '.join(KEYS)} have to be in its "
                "Secret; an administrator has to add what is missing",
            )
    common = StorageOptions(endpoint=storage.endpoint or "", create_bucket=storage.create_bucket)
    own, pods = common, common
    if files:
        name = f"the Secret {storage.credentials_secret}" if storage.credentials_secret else "the operator's Secret"
        own = msgspec.structs.replace(common, credentials_dir=str(directory), credentials_name=name)
        pods = msgspec.structs.replace(common, credentials_dir=names.STORAGE_SECRET_DIR, credentials_name=name)
    if names.CA_KEY in files:
        own = msgspec.structs.replace(own, ca_file=str(directory / names.CA_KEY))
        pods = msgspec.structs.replace(pods, ca_file=f"{names.STORAGE_SECRET_DIR}/{names.CA_KEY}")
    scoped = rules.scoped_for(storage)
    if scoped is not None:
        pods = StorageOptions(
            endpoint=common.endpoint,
            credentials_from="reports",
            ca_pem=files.get(names.CA_KEY, b"").decode("utf-8", "replace"),
        )
    return StorageLocation(
        uri=f"{storage.uri.rstrip('/')}/{experiment.name}",
        own=msgspec.structs.replace(own, share_connections=True).resolved({}),
        # A pod's own environment must not change where its checkpoints go.
        pods=pods.resolved({}),
        scoped=scoped,
    )
