"""The experiments of a cluster, each for those who may see it: state and reason from the resources, the rest stored.

What a user may see is asked for each request (`Reviews`): `list` for the list, `get` for one. The resources and the
storage are read with this process's permissions, the storage as the operator reads it: with the keys that the
experiment names, or the operator's own.

Invariants:

* What a user may not see is not found: no user learns names of other namespaces.
* An id is looked up, and never used as a path. What is stored of another namespace's experiment is refused.
* Nothing is written, to the API server or to a storage.
* A storage that does not answer holds a thread for seconds only: the threads are all users'.
* Models are bounded in number. One that has not been viewed for a while is dropped, with its copy of the journal.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.storage.registry import open_storage
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster import names, storage_access
from trialpod_operator.cluster.storage_access import StorageRules
from trialpod_operator.cluster.stored_manifest import check_stored
from trialpod_operator.cluster_ui.reviews import Reviews
from trialpod_operator.kube_client.api import KubeClient
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.ui_experiments import standing_of, summary_of
from trialpod_operator.ui.access import Json, NoSuchExperimentError, User
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.reading import stored_document

MAX_MODELS = 20
IDLE_S = 600.0
"""Maximum time that a model is kept without a request for it."""

RESOURCE_INTERVAL_S = 5.0
"""Minimum interval between two reads of a resource, or of the list."""

SECRET_INTERVAL_S = 60.0
"""Minimum interval between two reads of the Secret with a storage's keys."""

STORAGE_RETRY_S = 3.0
"""How long a request to a storage is retried: the page shows what is known, and asks again."""

STORAGE_TIMEOUT_S = 10.0
"""Maximum time that a storage may be silent."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class ClusterLocation(Location):
    """Where one experiment is stored, as the operator reaches it.

    Args:
        experiment: its manifest, with the storage that holds for it.
        namespace: of the experiment.
        rules: the operator's settings.
        keys_dir: for the keys of the Secret that it names, and the copy of its journal; removed by `close`.
        secret: reads a Secret of the namespace; None: there is none of that name.
        clock: monotonic seconds.

    Attributes:
        namespace: of the experiment.

    Raises:
        StorageProblemError: the keys are missing.
        StorageError: the storage cannot be opened.
    """

    def __init__(
        self,
        experiment: TuneExperiment,
        namespace: str,
        rules: StorageRules,
        keys_dir: Path,
        secret: Callable[[str], Json | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert experiment.spec.storage is not None
        self.namespace = namespace
        self._manifest = experiment.spec.storage
        self._keys_dir = keys_dir
        self._secret = secret
        self._clock = clock
        files = self._read_keys()
        found = storage_access.location(experiment, keys_dir, files, rules)
        options = msgspec.structs.replace(
            found.own, create_bucket=False, retry_s=STORAGE_RETRY_S, timeout_s=STORAGE_TIMEOUT_S
        )
        storage = open_storage(found.uri, options, check=False)
        super().__init__(found.uri, storage, experiment.name, keys_dir / "copy")

    def refresh(self) -> None:
        """Bring the copy of the journal up to date, with the present keys of the Secret.

        Raises:
            InvalidInputError: there is no experiment, or one of another namespace.
            StorageError: the storage cannot be read.
        """
        if self._manifest.credentials_secret and self._clock() - self._keys_read_at >= SECRET_INTERVAL_S:
            with contextlib.suppress(TrialpodError):  # those that were read before may still open it
                self._read_keys()
        super().refresh()
        # Each time: another experiment may have begun where this one was deleted.
        if stored_document(self.directory).get("namespace", self.namespace) != self.namespace:
            raise InvalidInputError(
                "what is stored there is of an experiment of another namespace; give this one a spec.storage.uri "
                "or a metadata.name of its own"
            )

    def close(self) -> None:
        """Close the storage, and remove the copy and the keys."""
        super().close()
        self.storage.close()
        shutil.rmtree(self._keys_dir, ignore_errors=True)

    def _read_keys(self) -> dict[str, bytes]:
        self._keys_read_at = self._clock()
        name = self._manifest.credentials_secret
        if not name:
            return {}
        files = storage_access.secret_data(self._manifest, self._secret(name))
        storage_access.write_secret(self._keys_dir, files)
        return files


class _Known:
    """A model that is kept."""

    def __init__(self, uid: str, model: ExperimentModel) -> None:
        self.uid = uid
        self.model = model
        self.asked_at = 0.0


class ClusterExperiments:
    """The experiments of the namespaces that trialpod serves.

    Args:
        client: of the API server, with this process's permissions.
        reviews: what users may see.
        rules: the operator's settings for storages.
        work_dir: for keys and copies of journals; nothing in it outlives this process for long.
        namespaces: those that are served; empty = all.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        reviews: Reviews,
        rules: StorageRules,
        work_dir: Path,
        namespaces: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._reviews = reviews
        self._rules = rules
        self._work_dir = work_dir
        self._numbers = itertools.count(1)
        self._namespaces = namespaces
        self._clock = clock
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._listing = threading.Lock()
        self._listed: tuple[float, list[Json]] = (float("-inf"), [])
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._items: OrderedDict[tuple[str, str], tuple[float, Json]] = OrderedDict()

    def summaries(self, user: User, namespace: str = "") -> list[Json]:
        """Return those that `kubectl get tuneexperiments` would list for the user; of one namespace, if named."""
        found = [each for each in self._summaries() if not namespace or each["namespace"] == namespace]
        if self._reviews.may(user, "list", names.EXPERIMENTS):
            return found
        places = sorted({str(each["namespace"]) for each in found})
        seen = {each for each in places if self._reviews.may(user, "list", names.EXPERIMENTS, each)}
        return [each for each in found if each["namespace"] in seen]

    def model(self, user: User, experiment_id: str) -> ExperimentModel:
        """Return the model of the experiment "namespace.name", whose storage is opened for it."""
        namespace, _, name = experiment_id.partition(".")
        key = (namespace, name)
        if not self._may_see(user, *key):
            raise _absent(experiment_id)
        item = self._item(key)
        if item is None:
            self._drop(key)
            raise _absent(experiment_id)
        uid = str(item["metadata"].get("uid") or "")
        known = self._kept(key, uid)
        if known is None:
            with self._opening:  # one at a time: two that ask for the same one share it
                known = self._kept(key, uid) or self._open(key, uid, item)
        return known

    def reads_logs(self, user: User, experiment_id: str) -> bool:
        """Return whether the user may read the logs of the namespace's pods."""
        return self._reviews.may(user, "get", "pods/log", experiment_id.partition(".")[0])

    def drop_idle(self) -> None:
        """Drop the models that are no longer viewed."""
        with self._lock:
            now = self._clock()
            idle = [key for key, known in self._known.items() if now - known.asked_at >= IDLE_S]
            dropped = [self._known.pop(key) for key in idle]
            if now - self._listed[0] >= IDLE_S:
                self._listed = (float("-inf"), [])
        for known in dropped:
            known.model.close()

    def close(self) -> None:
        """Close all storages."""
        with self._lock:
            dropped = list(self._known.values())
            self._known.clear()
        for known in dropped:
            known.model.close()

    def _may_see(self, user: User, namespace: str, name: str) -> bool:
        if not all(_NAME.fullmatch(part) for part in (namespace, name)):
            return False
        if self._namespaces and namespace not in self._namespaces:
            return False
        return self._reviews.may(user, "get", names.EXPERIMENTS, namespace, name)

    def _kept(self, key: tuple[str, str], uid: str) -> ExperimentModel | None:
        with self._lock:
            known = self._known.get(key)
            if known is None or known.uid != uid:
                return None
            known.asked_at = self._clock()
            self._known.move_to_end(key)
            return known.model

    def _open(self, key: tuple[str, str], uid: str, item: Json) -> ExperimentModel:
        self._drop(key)
        namespace, name = key
        checked = check_stored(item)
        if checked.experiment is None:
            raise InvalidInputError(
                f"the manifest of {name} is invalid; `trialpod why {name} -n {namespace}` says why"
            )
        experiment = storage_access.with_storage(checked.experiment, namespace, self._rules)
        api = Experiments(self._client, namespace)
        # A folder of its own: an earlier model of the experiment may still be closing.
        keys_dir = self._work_dir / f"{uid}-{next(self._numbers)}"
        location = ClusterLocation(experiment, namespace, self._rules, keys_dir, api.secret, self._clock)
        model = ExperimentModel(location, standing=lambda: self._standing(key))
        made = _Known(uid, model)
        made.asked_at = self._clock()
        dropped = []
        with self._lock:
            self._known[key] = made
            while len(self._known) > MAX_MODELS:
                dropped.append(self._known.popitem(last=False)[1])
        for known in dropped:
            known.model.close()
        return model

    def _drop(self, key: tuple[str, str]) -> None:
        with self._lock:
            known = self._known.pop(key, None)
        if known is not None:
            known.model.close()

    def _standing(self, key: tuple[str, str]) -> Json:
        try:
            item = self._item(key)
        except TrialpodError:
            return {}  # the page shows what is stored
        return standing_of(item) if item is not None else {}

    def _item(self, key: tuple[str, str]) -> Json | None:
        with self._lock:
            read_at, item = self._items.get(key, (float("-inf"), {}))
        if self._clock() - read_at < RESOURCE_INTERVAL_S:
            return item
        found = Experiments(self._client, key[0]).find(key[1])
        with self._lock:
            self._items.pop(key, None)
            if found is not None:
                self._items[key] = (self._clock(), found)
            while len(self._items) > MAX_MODELS:
                self._items.popitem(last=False)
        return found

    def _summaries(self) -> list[Json]:
        with self._listing:
            read_at, found = self._listed
            if self._clock() - read_at < RESOURCE_INTERVAL_S:
                return found
            if self._namespaces:
                items = [each for one in self._namespaces for each in Experiments(self._client, one).all()]
            else:
                items = Experiments(self._client).all(everywhere=True)
            found = [_summary(item) for item in items]
            self._listed = (self._clock(), found)
            return found


def _summary(item: Mapping[str, Any]) -> Json:
    found = summary_of(item)
    return {**found, "id": f"{found['namespace']}.{found['name']}"}


def _absent(experiment_id: str) -> NoSuchExperimentError:
    return NoSuchExperimentError(f"there is no experiment {experiment_id[:300]!r} that you may see")
