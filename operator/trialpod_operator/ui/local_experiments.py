"""The experiments of this machine, or of a bucket, for the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.layout import TRIALPOD_DIR
from trialpod.storage.parallel import run_all
from trialpod.storage.registry import local_folder, normalize_uri, open_storage
from trialpod_operator.ui.access import Json, NoSuchExperimentError, User
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.reading import activity, is_experiment

REFRESH_S = 1.0
"""Minimum interval at which a list reads an experiment again."""

MAX_MODELS = 20
"""Models that are kept; of more experiments, the least recently viewed are dropped, and read again on demand."""


_AT_ONCE = 16

LIST_S = 10.0
"""Minimum interval at which the names below a prefix of a bucket are asked for again."""


class LocalExperiments:
    """An experiment, or those in a folder or below a prefix of a bucket.

    A bucket is asked which of the two it is when it is viewed; while it does not answer, it is taken for one
    experiment, whose page says why it cannot be read.

    Args:
        uri: of the one experiment, or of the folder.
        clock: returns seconds since the epoch.

    Raises:
        InvalidInputError: there is neither.
    """

    def __init__(self, uri: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._models: dict[str, ExperimentModel] = {}
        folder = local_folder(uri)
        self._one: Location | None = None
        self._root = folder
        self._bucket = _Bucket(uri, clock) if folder is None else None
        if folder is None:
            return
        if is_experiment(folder):
            self._one = Location(uri)
        elif not folder.is_dir():
            raise InvalidInputError(f"{folder} does not exist; give an experiment, or a folder with some in it")

    def summaries(self, user: User, namespace: str = "") -> list[Json]:
        """Return all, the newest first."""
        found = []
        for name in self._names():
            model = self.model(user, name)
            model.refresh(0.0, max_age_s=REFRESH_S)
            found.append(model.summary())
        return sorted(found, key=lambda each: -(each["updated"] or 0.0))

    def model(self, user: User, experiment_id: str) -> ExperimentModel:
        """Return the model of the experiment of that name."""
        with self._lock:
            known = self._models.pop(experiment_id, None)
            if known is None:
                known = self._made(experiment_id)
            self._models[experiment_id] = known
            dropped = [self._models.pop(each) for each in list(self._models)[:-MAX_MODELS]]
        for model in dropped:
            model.close()
        return known

    def reads_logs(self, user: User, experiment_id: str) -> bool:
        """Return True: a user that runs this may read the files."""
        return True

    def close(self) -> None:
        """Remove the copies of what is in a bucket."""
        for model in self._models.values():
            model.close()

    def _names(self) -> Sequence[str]:
        if self._bucket is not None:
            return self._bucket.names()
        if self._one is not None:
            return [self._one.name]
        assert self._root is not None
        return sorted(path.name for path in self._root.iterdir() if is_experiment(path))

    def _made(self, name: str) -> ExperimentModel:
        # Only names that a listing has, so that no id leads out of the folder.
        if name not in self._names():
            raise NoSuchExperimentError(f"there is no experiment {name!r} here")
        if self._bucket is not None:
            location = self._bucket.location(name)
        elif self._one is not None:
            location = self._one
        else:
            assert self._root is not None
            location = Location(self._root / name)
        return ExperimentModel(location, clock=self._clock, interrupted=lambda: _is_interrupted(location))


class _Bucket:
    """What is at a URI: an experiment, or a prefix with experiments below it."""

    def __init__(self, uri: str, clock: Callable[[], float]) -> None:
        self._uri = normalize_uri(uri).rstrip("/")
        self._clock = clock
        # A refusal is reported at the first read: on the page, not by a command that ends.
        self._storage = open_storage(self._uri, check=False)
        self._lock = threading.Lock()  # guards what follows
        self._listed_at: float | None = None
        self._below: list[str] = []

    def names(self) -> Sequence[str]:
        """Return the names of the experiments."""
        return self._listed() or [self._name]

    def location(self, name: str) -> Location:
        """Return where one of `names` is."""
        if name not in self._listed():
            return Location(self._uri, self._storage)
        base, mark, query = self._uri.partition("?")
        return Location(f"{base}/{name}{mark}{query}", self._storage.sub(name), name)

    @property
    def _name(self) -> str:
        return self._uri.partition("?")[0].rpartition("/")[2]

    def _listed(self) -> Sequence[str]:
        with self._lock:
            now = self._clock()
            if self._listed_at is None or now - self._listed_at >= LIST_S:
                try:
                    self._below = self._experiments()
                except StorageError:  # the page of the one experiment says it
                    self._below = []
                self._listed_at = now
            return self._below

    def _experiments(self) -> list[str]:
        if self._storage.exists(TRIALPOD_DIR):
            return []
        found: list[str] = []
        run_all([partial(self._record, name, found) for name in self._storage.folders()], _AT_ONCE)
        return sorted(found)

    def _record(self, name: str, found: list[str]) -> None:
        if self._storage.exists(f"{name}/{TRIALPOD_DIR}"):
            found.append(name)


def _is_interrupted(location: Location) -> bool:
    folder = local_folder(location.uri)
    if folder is None:
        return False
    found = activity(Path(folder))
    return not (found.runs or found.elsewhere)
