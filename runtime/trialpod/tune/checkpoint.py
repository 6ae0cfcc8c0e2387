"""`Checkpoint`: a reference to a directory that holds a model's state.

Invariants: a Checkpoint never copies or removes anything by itself; only `to_directory` makes a copy. Its metadata
is one JSON object in ``.metadata.json`` inside the directory, so it travels with the checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from trialpod.errors import CheckpointError, InvalidInputError

METADATA_FILE = ".metadata.json"


class Checkpoint:
    """A checkpoint in a local directory.

    Args:
        path: the directory.
        filesystem: accepted for compatibility; only None (the local file system) is supported.

    Raises:
        InvalidInputError: `filesystem` is given.
    """

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        if filesystem is not None:
            raise InvalidInputError("Checkpoint(filesystem=...) is not supported; give the path of a local directory")
        self.path: str = os.fspath(path)
        self.filesystem = None

    def __repr__(self) -> str:
        return f"Checkpoint(path={self.path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and os.path.abspath(self.path) == os.path.abspath(other.path)

    def __hash__(self) -> int:
        return hash(os.path.abspath(self.path))

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a checkpoint that refers to the local directory `path`."""
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the checkpoint into a directory and return its path.

        Args:
            path: created if missing; None makes a new temporary directory, which is the caller's to remove.

        Raises:
            CheckpointError: the checkpoint's directory does not exist.
        """
        import shutil
        import tempfile

        self._check()
        target = tempfile.mkdtemp(prefix="trialpod-checkpoint-") if path is None else os.fspath(path)
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a local directory to read the checkpoint from; read only, it may be the checkpoint itself.

        Raises:
            CheckpointError: the checkpoint's directory does not exist.
        """
        self._check()
        yield self.path

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata; empty if none was ever set.

        Raises:
            CheckpointError: the metadata file is damaged.
        """
        file = os.path.join(self.path, METADATA_FILE)
        try:
            with open(file, encoding="utf-8") as stream:
                metadata = json.load(stream)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CheckpointError(f"the checkpoint metadata in {file} is no JSON: {error}") from error
        if not isinstance(metadata, dict):
            raise CheckpointError(f"the checkpoint metadata in {file} is no JSON object")
        return metadata

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata.

        Args:
            metadata: anything that JSON can hold.

        Raises:
            CheckpointError: the checkpoint's directory does not exist.
        """
        self._check()
        file = os.path.join(self.path, METADATA_FILE)
        text = json.dumps(metadata)
        with open(f"{file}.tmp", "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(f"{file}.tmp", file)

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to the metadata, replacing values under the same keys."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def _check(self) -> None:
        if not os.path.isdir(self.path):
            raise CheckpointError(
                f"the checkpoint directory {self.path} does not exist; it was removed or never written"
            )
