"""Deletes an experiment's stored data when its TuneExperiment is deleted with `deletionPolicy: Delete`.

What is stored in the same place by an experiment of another namespace is not its data; nor is what a new experiment
has begun there while this process was stopped and another operator completed the deletion.

The effort is bounded: an experiment that cannot be deleted from its storage for `GIVE_UP_S` is released with a
warning, because an object that cannot be deleted blocks its whole namespace. What is left then has to be
removed by hand. Removing the finalizer by hand does the same at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.deletion import delete_experiment
from trialpod.storage.registry import open_storage
from trialpod_operator.api.api_errors import ForbiddenError
from trialpod_operator.api.models import API_VERSION, KIND, TuneExperiment
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names, storage_access
from trialpod_operator.cluster.pods.rejected import request_refusal
from trialpod_operator.cluster.services import Services
from trialpod_operator.cluster.stored_manifest import check_stored
from trialpod_operator.experiment.stored import namespace_in

logger = logging.getLogger(__name__)

GIVE_UP_S = 600.0
NO_KEYS_GIVE_UP_S = 60.0
"""When the Secret with the keys is gone too, as it is when the whole namespace goes, waiting helps little."""

SLICE_S = 10.0
"""Maximum time that one reconcile pass deletes; the next one continues."""

RETRY_DELAY_S = 5.0
MAX_RETRY_DELAY_S = 60.0
PODS_GONE_S = 60.0
"""Maximum time that the deletion waits for the experiment's pods to end: they write checkpoints until then."""


async def update_finalizer(services: Services, key: str, item: Mapping[str, Any], experiment: TuneExperiment) -> bool:
    """Have the finalizer on the object exactly when its data is to go with it; return False if it is gone."""
    namespace, name = key.split("/")
    storage = experiment.spec.storage
    wanted = storage is not None and storage.deletion_policy == "Delete"
    present: list[str] = list(item["metadata"].get("finalizers") or [])
    if wanted == (names.STORAGE_FINALIZER in present):
        return True
    changed = [each for each in present if each != names.STORAGE_FINALIZER]
    if wanted:
        changed.append(names.STORAGE_FINALIZER)
    body = {"metadata": {"finalizers": changed, "resourceVersion": item["metadata"].get("resourceVersion")}}
    patched = await services.kube.patch(paths.experiments(namespace), name, body)
    services.cache.update_experiment(patched or item, deleted=patched is None)
    return patched is not None


async def delete_stored(
    services: Services, key: str, item: Mapping[str, Any], keys: Path, waited: float
) -> float | None:
    """Delete the data and take the finalizer off; return in how many seconds to try again, None when it is done.

    Args:
        services: what all experiments share.
        key: "namespace/name".
        item: the object, which is being deleted.
        keys: folder for the storage's keys.
        waited: seconds since this operator began to. By what the object says it could be anything, as clocks differ,
            and pods whose time is cut short continue writing after the deletion.
    """
    namespace, name = key.split("/")
    # Objects of another kind go with the experiment: their pods are waited for.
    pods = [pod for pod in services.cache.pods(key) if "pod" not in pod] + services.cache.all_parts(key)
    if pods and waited < PODS_GONE_S:
        for pod in pods:
            if not pod["metadata"].get("deletionTimestamp") and names.OBJECT_LABEL not in pod["metadata"]["labels"]:
                await _delete_pod(services, key, pod["metadata"]["name"], waited)
        return 1.0
    try:
        if not await _delete(services, namespace, item, keys):
            return 0.1  # there is more; other experiments' work goes in between
    except (StorageError, InvalidInputError, storage_access.StorageProblemError) as error:
        lasting = isinstance(error, storage_access.StorageProblemError)
        if waited < (NO_KEYS_GIVE_UP_S if lasting else GIVE_UP_S):
            logger.warning("the data of %s cannot be deleted yet: %s", key, error)
            return max(RETRY_DELAY_S, min(waited / 4, MAX_RETRY_DELAY_S))
        logger.error("the data of %s stays where it is, it could not be deleted: %s", key, error)
    left = [each for each in item["metadata"].get("finalizers") or [] if each != names.STORAGE_FINALIZER]
    body = {"metadata": {"finalizers": left or None, "resourceVersion": item["metadata"].get("resourceVersion")}}
    await services.kube.patch(paths.experiments(namespace), name, body)
    storage_access.remove_secret(keys)
    return None


async def _delete_pod(services: Services, key: str, name: str, waited: float) -> None:
    """Ask a pod to end; the others are not to write on because an admission rule protects this one."""
    error = await paths.refusal(services.kube.delete(paths.pods(key.partition("/")[0]), name))
    if error is not None:
        logger.log(logging.DEBUG if waited else logging.WARNING, "%s: a pod cannot be deleted: %s", key, error)


async def _delete(services: Services, namespace: str, item: Mapping[str, Any], keys: Path) -> bool:
    """Delete for a while; return whether nothing is left."""
    status = item.get("status") or {}
    if not (status.get("startTime") or status.get("storageUri")) and check_stored(item).experiment is None:
        return True  # it never ran, so it has no data
    experiment = storage_access.with_storage(_located(item), namespace, services.options.storage_rules)
    storage = experiment.spec.storage
    assert storage is not None
    if storage.deletion_policy != "Delete":
        return True  # it was changed, and no pass came between the change and the deletion
    files: dict[str, bytes] = {}
    if storage.credentials_secret:
        secret, forbidden = None, None
        try:
            secret = await services.kube.get(paths.secrets(namespace), storage.credentials_secret)
        except ForbiddenError as error:
            forbidden = error
        # A namespace that is deleted loses its Secrets first; the keys that were read before still open the storage.
        files = storage_access.read_secret(keys) if secret is None else {}
        if not files and forbidden is not None:
            why = request_refusal(forbidden)
            raise storage_access.StorageProblemError(why.reason, why.text) from forbidden
        files = files or storage_access.secret_data(storage, secret)
        storage_access.write_secret(keys, files)
    location = storage_access.location(experiment, keys, files, services.options.storage_rules)
    options = msgspec.structs.replace(location.own, retry_s=5.0, create_bucket=False)

    def is_own(stored: bytes) -> bool:
        owner = namespace_in(stored)
        if owner in ("", namespace):
            return True
        logger.warning("the data at %s stays: it is of an experiment of namespace %s", location.uri, owner)
        return False

    def delete() -> bool:
        storage = open_storage(location.uri, options)
        until = time.monotonic() + SLICE_S
        try:
            return delete_experiment(storage, lambda: until - time.monotonic(), services.kube.may_change, is_own).done
        finally:
            storage.close()

    return await asyncio.get_running_loop().run_in_executor(None, delete)


def _located(item: Mapping[str, Any]) -> TuneExperiment:
    """Return what of the experiment says where it is; the rest of its spec may have become invalid since it ran.

    Raises:
        StorageProblemError: its storage is invalid too.
    """
    storage = (item.get("spec") or {}).get("storage")
    spec = {"trainable": {"entrypoint": "none:none"}} | ({"storage": storage} if storage is not None else {})
    metadata = {"name": item["metadata"]["name"]}
    checked = check_stored({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    if checked.experiment is None:
        raise storage_access.StorageProblemError(Reason.INVALID_SPEC, "; ".join(map(str, checked.problems)))
    return checked.experiment
