"""Where an experiment of a `Tuner` is: always in a directory of this machine, and maybe kept in a storage elsewhere.

Invariant: a directory that belongs to another place is never written to. ``experiment.json`` in it says whose it is.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from trialpod import variables
from trialpod.errors import InvalidInputError, StorageError
from trialpod.storage.base import Storage
from trialpod.storage.layout import EXPERIMENT_FILE, TRIALPOD_DIR
from trialpod.storage.registry import local_folder, normalize_uri, open_storage

DEFAULT_STORAGE = "~/trialpod-results"
"""Default parent directory of experiments."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where an experiment is, or the parent of experiments.

    Attributes:
        directory: absolute path on this machine.
        uri: where it is kept elsewhere ("s3://bucket/prefix"), without "/" at the end; "" = only in the directory.
    """

    directory: str
    uri: str = ""

    def __str__(self) -> str:
        return self.uri or self.directory

    def named(self, name: str) -> Location:
        """Return the location of the experiment `name` below this one."""
        return Location(os.path.join(self.directory, name), f"{self.uri}/{name}" if self.uri else "")

    def storage(self) -> Storage:
        """Open where the experiment is kept."""
        return open_storage(str(self))

    @property
    def begun_here(self) -> bool:
        """Whether this machine has the experiment that is kept at `uri`."""
        return bool(self.uri) and kept_at(self.directory) == self.uri

    def check_directory(self) -> None:
        """Refuse a directory that has another experiment in it: of the same name, and kept somewhere else."""
        kept = kept_at(self.directory)
        if kept is not None and kept != self.uri:
            raise InvalidInputError(
                f"{self.directory} holds an experiment of this name that is kept "
                f"{f'in {kept}' if kept else 'only there'}, not {f'in {self.uri}' if self.uri else 'only there'}; "
                f"choose another RunConfig(name=...), set {variables.WORK_DIR} to another folder, or move "
                "that directory away"
            )


def resolve(storage: str | os.PathLike[str]) -> Location:
    """Return the parent of experiments that a storage path names: a plain path, ``file://`` or ``s3://``."""
    try:
        text = normalize_uri(os.fspath(storage))
        folder = local_folder(text)
    except StorageError as error:
        raise InvalidInputError(str(error)) from error
    if folder is not None:
        return Location(str(folder.absolute()))
    work = Path(os.environ.get(variables.WORK_DIR) or DEFAULT_STORAGE).expanduser().absolute()
    return Location(str(work), text.rstrip("/"))


def experiment_location(path: str | os.PathLike[str]) -> Location:
    """Return the place of an experiment, given its directory or its URI."""
    location = resolve(path)
    if not location.uri:
        return location
    parent, _, name = location.uri.rpartition("/")
    if parent.count("/") < 2 or not name:
        raise InvalidInputError(f"{os.fspath(path)!r} names no experiment; give s3://bucket/prefix/name")
    return Location(os.path.join(location.directory, name), location.uri)


def kept_at(directory: str | os.PathLike[str]) -> str | None:
    """Return the URI where the experiment in a directory is kept, "" if only there, None if there is none."""
    try:
        stored = json.loads(Path(directory, TRIALPOD_DIR, EXPERIMENT_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return str(stored.get("storage") or "") if isinstance(stored, dict) else None
