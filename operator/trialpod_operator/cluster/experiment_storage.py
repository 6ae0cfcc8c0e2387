"""Where one experiment is stored, with which keys, and what it has on the operator's own disk."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import threading
import time
from pathlib import Path

from trialpod_operator.api.api_errors import ForbiddenError
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import storage_access
from trialpod_operator.cluster.key_issuer import KeyIssuer
from trialpod_operator.cluster.services import Services

SECRET_INTERVAL_S = 60.0
"""Minimum interval between two reads of the Secret with the storage's keys."""

REFUSED_INTERVAL_S = 10.0
"""The same while the storage refuses them."""

_PREFIX = ".removed-"

AFTER_S = 30.0
"""What a killed process left is removed that much later: the attempts of all experiments are answered first."""

PAUSE_S = 0.02
"""Between two trials' folders that are removed."""


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
        self.unreadable: ForbiddenError | storage_access.StorageProblemError | None = None
        """Why the Secret could not be read last, while the keys from before are used."""

    @property
    def work_dir(self) -> Path:
        """The folder of the open experiment; the storage has all that counts."""
        return Path(self._services.options.work_dir) / "experiments" / self._uid

    @property
    def keys_dir(self) -> Path:
        """The folder of the Secret's files."""
        return Path(self._services.options.work_dir) / "keys" / self._uid

    def location(self, experiment: TuneExperiment) -> storage_access.StorageLocation:
        """Return where the experiment is stored, and how the operator and pods reach it."""
        rules = self._services.options.storage_rules
        return storage_access.location(experiment, self.keys_dir, self._keys, rules)

    async def refresh_keys(self, experiment: TuneExperiment, *, refused: bool, in_use: bool) -> None:
        """Read the Secret with the keys again, if that is due.

        Args:
            experiment: the manifest.
            refused: the storage refuses the keys.
            in_use: the experiment is open: it continues with the keys that it has if the Secret is gone or forbidden.

        Raises:
            StorageProblemError: the Secret or a key in it is missing.
            ApiError: it cannot be read.
        """
        storage = experiment.spec.storage
        assert storage is not None
        now = self._services.clock()
        interval = REFUSED_INTERVAL_S if refused else SECRET_INTERVAL_S
        if not storage.credentials_secret:
            self.unreadable = None
            return
        if self._keys and now - self._keys_read_at < interval:
            return
        try:
            secret = await self._services.kube.get(paths.secrets(self._namespace), storage.credentials_secret)
            keys = storage_access.secret_data(storage, secret)
        except (ForbiddenError, storage_access.StorageProblemError) as error:
            if not in_use or not self._keys:
                raise
            self.unreadable = error
            self._keys_read_at = now - interval + REFUSED_INTERVAL_S
            return
        self.unreadable = None
        self._keys = keys
        self._keys_read_at = now
        storage_access.write_secret(self.keys_dir, self._keys)

    def expire_keys(self) -> None:
        """Have the next refresh read the Secret: its keys may have been corrected."""
        self._keys_read_at = 0.0

    def key_issuer(self, experiment: TuneExperiment, location: storage_access.StorageLocation) -> KeyIssuer | None:
        """Return what makes short-lived keys for attempts; None where pods mount the Secret."""
        if location.scoped is None:
            return None
        pickle = experiment.spec.trainable.pickle
        return KeyIssuer(
            self._key,
            location.uri,
            location.own,
            location.scoped,
            pickle.uri if pickle is not None else "",
            lambda: self._services.enqueue(self._key),
        )

    def remove_files(self) -> None:
        """Remove what the experiment has on the operator's disk."""
        self._services.remove_folder(self.work_dir)
        storage_access.remove_secret(self.keys_dir)


class FolderRemoval:
    """Removes folders: one is gone at once, and what was in it is removed in the background.

    One thread does that for all: fifty experiments may open at once. What a process that ended had no time to remove
    goes with the next folder beside it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next two
        self._parents: set[Path] = set()
        self._running = False

    def __call__(self, folder: Path) -> None:
        """Remove a folder.

        Args:
            folder: which need not exist; the names used here are not used by others beside it.

        Raises:
            OSError: it cannot be renamed.
        """
        for number in itertools.count():
            location = folder.with_name(f"{_PREFIX}{number}")
            try:
                os.rename(folder, location)  # an empty folder would be replaced by it, which is as good
                break
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        with self._lock:
            self._parents.add(folder.parent)
            begins, self._running = not self._running, True
        if begins:
            threading.Thread(target=self._run, name="trialpod-scrap", daemon=True).start()

    def _run(self) -> None:
        time.sleep(AFTER_S)
        while True:
            with self._lock:
                if not self._parents:
                    self._running = False
                    return
                parent = self._parents.pop()
            with contextlib.suppress(OSError):  # the parent may be removed meanwhile, and then all is removed
                _remove_all(parent)


def _remove_all(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        for each in os.listdir(path):
            shutil.rmtree(path / each, ignore_errors=True)
            time.sleep(PAUSE_S)
        shutil.rmtree(path, ignore_errors=True)
