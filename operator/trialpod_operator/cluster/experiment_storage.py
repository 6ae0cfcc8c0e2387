"""Where one experiment is stored, with which keys, and what it has on the operator's own disk."""

from __future__ import annotations

from pathlib import Path

from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import storage_access
from trialpod_operator.cluster.background_removal import remove_in_background
from trialpod_operator.cluster.key_issuer import KeyIssuer
from trialpod_operator.cluster.services import Services

SECRET_INTERVAL_S = 60.0
"""Minimum interval between two reads of the Secret with the storage's keys."""

REFUSED_INTERVAL_S = 10.0
"""The same while the storage refuses them."""


class ExperimentStorage:
    """The storage of one experiment. Owned by the event loop.

    Args:
        key: "namespace/name".
        uid: of the TuneExperiment.
        services: what all experiments share.
    """

    def __init__(self, key: str, uid: str, services: Services) -> None:
        self._key = key
        self._uid = uid
        self._namespace = key.partition("/")[0]
        self._services = services
        self._keys: dict[str, bytes] = {}  # the files of the Secret
        self._keys_read_at = 0.0

    @property
    def work_dir(self) -> Path:
        """The folder of the open experiment; the storage has all that counts."""
        return Path(self._services.options.work_dir) / "experiments" / self._uid

    @property
    def keys_dir(self) -> Path:
        """The folder of the Secret's files."""
        return Path(self._services.options.work_dir) / "keys" / self._uid

    def place(self, experiment: TuneExperiment) -> storage_access.StoragePlace:
        """Return where the experiment is stored, and how the operator and pods reach it."""
        rules = self._services.options.storage_rules
        return storage_access.place(experiment, self.keys_dir, self._keys, rules)

    async def refresh_keys(self, experiment: TuneExperiment, *, refused: bool) -> None:
        """Read the Secret with the keys again, if that is due.

        Args:
            experiment: the manifest.
            refused: the storage refuses the keys.

        Raises:
            StorageProblemError: the Secret or a key in it is missing.
            ApiError: it cannot be read.
        """
        storage = experiment.spec.storage
        assert storage is not None
        now = self._services.clock()
        interval = REFUSED_INTERVAL_S if refused else SECRET_INTERVAL_S
        if not storage.credentials_secret or (self._keys and now - self._keys_read_at < interval):
            return
        secret = await self._services.kube.get(paths.secrets(self._namespace), storage.credentials_secret)
        self._keys = storage_access.secret_data(storage, secret)
        self._keys_read_at = now
        storage_access.write_secret(self.keys_dir, self._keys)

    def expire_keys(self) -> None:
        """Have the next refresh read the Secret: its keys may have been corrected."""
        self._keys_read_at = 0.0

    def key_issuer(self, experiment: TuneExperiment, place: storage_access.StoragePlace) -> KeyIssuer | None:
        """Return what makes short-lived keys for attempts; None where pods mount the Secret."""
        if place.scoped is None:
            return None
        pickle = experiment.spec.trainable.pickle
        return KeyIssuer(
            self._key,
            place.uri,
            place.own,
            place.scoped,
            pickle.uri if pickle is not None else "",
            lambda: self._services.enqueue(self._key),
        )

    def remove_files(self) -> None:
        """Remove what the experiment has on the operator's disk."""
        remove_in_background(self.work_dir)
        storage_access.remove_secret(self.keys_dir)
