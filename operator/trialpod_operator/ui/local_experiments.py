"""The experiments of this machine, or one in a bucket, for the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from trialpod.errors import InvalidInputError
from trialpod.storage.registry import local_folder
from trialpod_operator.ui.access import Json, NoSuchExperimentError, User
from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.place import Place
from trialpod_operator.view.reading import activity, is_experiment

REFRESH_S = 1.0
"""Minimum interval at which a list reads an experiment again."""

MAX_MODELS = 20
"""Models that are kept; of more experiments, those that nobody looks at are read again when they are asked for."""


class LocalExperiments:
    """An experiment, or those in a folder.

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
        self._one: Place | None = None
        self._root = folder
        if folder is None or is_experiment(folder):
            self._one = Place(uri)
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
        """Return True: who runs this may read the files."""
        return True

    def close(self) -> None:
        """Remove the copies of what is in a bucket."""
        for model in self._models.values():
            model.close()

    def _names(self) -> list[str]:
        if self._one is not None:
            return [self._one.name]
        assert self._root is not None
        return sorted(path.name for path in self._root.iterdir() if is_experiment(path))

    def _made(self, name: str) -> ExperimentModel:
        # Only names that a listing has, so that no id leads out of the folder.
        if name not in self._names():
            raise NoSuchExperimentError(f"there is no experiment {name!r} here")
        if self._one is not None:
            place = self._one
        else:
            assert self._root is not None
            place = Place(self._root / name)
        return ExperimentModel(place, clock=self._clock, interrupted=lambda: _is_interrupted(place))


def _is_interrupted(place: Place) -> bool:
    folder = local_folder(place.uri)
    if folder is None:
        return False
    found = activity(Path(folder))
    return not (found.runs or found.elsewhere)
