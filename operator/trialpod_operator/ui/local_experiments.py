"""The experiments of this machine, or of a bucket, for the server.

Invariants:

* A list reads the journals that have grown since the last one, and no others.
* A model that a stream uses is not dropped for room.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.layout import EXPERIMENT_KEY, TRIALPOD_DIR
from trialpod.storage.parallel import run_all
from trialpod.storage.registry import local_folder, normalize_uri, open_storage
from trialpod_operator.experiment.replica.journal_layout import JOURNAL
from trialpod_operator.ui.access import Json, NoSuchExperimentError, User
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.reading import INTERRUPTED, RUNNING, activity, experiments_below, is_experiment

REFRESH_S = 1.0
"""Minimum interval at which a list reads an experiment again."""

MAX_MODELS = 20
"""Models that are kept; of more experiments, the least recently viewed are dropped, and read again on demand."""


_AT_ONCE = 16

LIST_S = 10.0
"""Minimum interval at which the names below a prefix of a bucket are asked for again."""

_Version = tuple[tuple[str | int, ...], ...]
"""The names, sizes and times of a journal's files: equal while nothing is appended."""


@dataclass(frozen=True, slots=True)
class _Summary:
    version: _Version | None  # of the journal that it was read from; None: it has to be read again
    checked_at: float
    shown: Json


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
        self._listing = threading.Lock()  # guards what follows
        self._summaries: dict[str, _Summary] = {}
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
        with self._listing:
            now, names = self._clock(), self._names()
            known = {name: self._summaries[name] for name in names if name in self._summaries}
            due = [name for name in names if name not in known or not 0 <= now - known[name].checked_at < REFRESH_S]
            versions = self._versions(due)
            changed = {name for name in due if self._is_changed(name, known.get(name), versions[name])}
            for name in due:
                if name in changed:
                    known[name] = self._read(name, versions[name], now, changed)
                else:
                    known[name] = _Summary(known[name].version, now, known[name].shown)
            self._summaries = known
            return sorted((known[name].shown for name in names), key=lambda each: -(each["updated"] or 0.0))

    def model(self, user: User, experiment_id: str) -> ExperimentModel:
        """Return the model of the experiment of that name."""
        with self._lock:
            known = self._models.pop(experiment_id, None)
            if known is None:
                known = self._made(experiment_id)
            self._models[experiment_id] = known
            dropped = self._overflow({experiment_id})
        for model in dropped:
            model.close()
        return known

    def reads_logs(self, user: User, experiment_id: str) -> bool:
        """Return True: a user that runs this may read the files."""
        return True

    def close(self) -> None:
        """Remove the copies of what is in a bucket."""
        with self._lock:
            models = list(self._models.values())
        for model in models:
            model.close()

    def _is_changed(self, name: str, known: _Summary | None, version: _Version | None) -> bool:
        if known is None or (version is not None and version != known.version):
            return True
        state = known.shown["state"]
        return state in (RUNNING, INTERRUPTED) and self._is_interrupted(name) != (state == INTERRUPTED)

    def _read(self, name: str, version: _Version | None, now: float, changed: Collection[str]) -> _Summary:
        with self._lend(name, changed) as model:
            model.refresh(0.0)
            return _Summary(None if model.stale else version, now, model.summary())

    @contextlib.contextmanager
    def _lend(self, name: str, changed: Collection[str]) -> Iterator[ExperimentModel]:
        """Yield the model of an experiment that a list reads.

        It is kept, because what grows is to be read again, unless all others grow too or are in use: with more of
        them than `MAX_MODELS`, each would be dropped before its next turn.
        """
        with contextlib.ExitStack() as use:
            with self._lock:
                model = self._models.get(name)
                if model is None:
                    model = self._models[name] = self._new(name)
                    dropped = self._overflow(changed)
                    if len(self._models) > MAX_MODELS:
                        dropped.append(self._models.pop(name))
                    for each in dropped:
                        use.callback(each.close)
                use.enter_context(model.in_use())
            yield model

    def _overflow(self, stay: Collection[str]) -> list[ExperimentModel]:
        """Take out those for which there is no room, the least recently viewed first."""
        dropped = []
        for name in list(self._models):
            if len(self._models) <= MAX_MODELS:
                break
            if name not in stay and not self._models[name].used:
                dropped.append(self._models.pop(name))
        return dropped

    def _names(self) -> Sequence[str]:
        if self._bucket is not None:
            return self._bucket.names()
        if self._one is not None:
            return [self._one.name]
        assert self._root is not None
        return [path.name for path in experiments_below(self._root)]

    def _has(self, name: str) -> bool:
        """Return whether a listing has the name, so that no id leads out of the folder."""
        if self._bucket is not None or self._one is not None:
            return name in self._names()
        assert self._root is not None
        return self._root / name in experiments_below(self._root)

    def _made(self, name: str) -> ExperimentModel:
        if not self._has(name):
            raise NoSuchExperimentError(f"there is no experiment {name!r} here")
        return self._new(name)

    def _new(self, name: str) -> ExperimentModel:
        if self._bucket is not None:
            location = self._bucket.location(name)
        else:
            location = self._one or Location(self._folder(name))
        return ExperimentModel(location, clock=self._clock, interrupted=lambda: self._is_interrupted(name))

    def _folder(self, name: str) -> Path:
        assert self._root is not None
        return self._root if self._one is not None else self._root / name

    def _is_interrupted(self, name: str) -> bool:
        if self._bucket is not None:
            return False
        found = activity(self._folder(name), orphans=False)
        return not (found.runs or found.other_host)

    def _versions(self, names: Sequence[str]) -> dict[str, _Version | None]:
        """Return what tells whether journals have grown; None for one that cannot be read now."""
        if self._bucket is None:
            return {name: _version_of(self._folder(name)) for name in names}
        return self._bucket.versions(names)


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

    def versions(self, names: Sequence[str]) -> dict[str, _Version | None]:
        """Return the keys and sizes of the journals of `names`; None where the storage does not answer."""
        below, found = self._listed(), dict[str, _Version | None]()

        def ask(name: str) -> None:
            storage = self._storage.sub(name) if name in below else self._storage
            try:
                found[name] = tuple(storage.sizes(JOURNAL).items())
            except StorageError:  # reading it says why
                found[name] = None

        run_all([partial(ask, name) for name in names], _AT_ONCE)
        return found

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


def _version_of(folder: Path) -> _Version | None:
    try:
        with os.scandir(folder / JOURNAL) as found:
            files = sorted((each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in found)
        files.append((EXPERIMENT_KEY, 0, os.stat(folder / EXPERIMENT_KEY).st_mtime_ns))
    except OSError:  # it has not begun, or files go meanwhile: reading it says what
        return None
    return tuple(files)
