"""`Checkpoint`: a reference to a directory that holds a model's state.

Both forms that Ray has had are here: the reference to a directory, and the one that is made from a dict or bytes.
`StoredCheckpoint` is one in a storage that has no path on this machine; it is fetched when it is read.

Invariants: a Checkpoint never copies or removes anything by itself; only `to_directory` and its like make a copy. Its
metadata is one JSON object in ``.metadata.json`` inside the directory, so it travels with the checkpoint. A directory
that was made here for a dict is gone when the object or the process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from trialpod.compat.activation import under_ray
from trialpod.errors import (
    CheckpointError,
    InvalidInputError,
    MissingCheckpointError,
    NotSupportedError,
    WrongTypeError,
)
from trialpod.storage.layout import MANIFEST_FILE

if TYPE_CHECKING:
    from trialpod.protocol.messages import CheckpointInfo
    from trialpod.storage.base import Storage

METADATA_FILE = ".metadata.json"

_BYTES_KEY = "bytes_data"
_OLDER_NAMES = ("uri", "value", "dir_or_data", "local_path", "_local_path")
"""What older scripts ask a checkpoint for; all but the first are its path."""


class Checkpoint:
    """A checkpoint in a local directory, or below ``s3://``.

    Args:
        path: the directory, or its URI.
        filesystem: None, or a file system of pyarrow or fsspec that `path` is in: of this machine, or of S3.
        local_path: an older name of `path`.
        uri: the same.
        data_dict: a dict that the checkpoint holds, instead of a path, as for `from_dict`.

    Raises:
        InvalidInputError: `path` is not a path.
        NotSupportedError: `filesystem` is another one.
    """

    def __new__(cls, *_args: Any, data_dict: dict[str, Any] | None = None, **_named: Any) -> Any:
        """Make one; of a dict, one that holds it."""
        if data_dict is not None and cls is Checkpoint:
            return object.__new__(DictCheckpoint)
        return object.__new__(cls)

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        filesystem: Any = None,
        *,
        local_path: str | os.PathLike[str] | None = None,
        uri: str | None = None,
        data_dict: dict[str, Any] | None = None,
    ) -> None:
        path = next((each for each in (path, local_path, uri) if each is not None), None)
        if filesystem is not None:
            from trialpod.tune.location.filesystems import uri_of

            path = uri_of("Checkpoint(filesystem=...)", path, filesystem)
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            hint = "; a dict becomes one by Checkpoint.from_dict(...)" if isinstance(path, dict) else ""
            raise WrongTypeError(f"Checkpoint({str(path)[:80]!r}): needs the path of a directory{hint}")
        self.path: str = os.fspath(path).removeprefix("file://")

    @property
    def filesystem(self) -> Any:
        """The file system of pyarrow that the checkpoint is in.

        Raises:
            InvalidInputError: pyarrow is not installed.
        """
        from trialpod.tune.location.filesystems import arrow_filesystem

        return arrow_filesystem(self.__dict__.get("path", ""))  # what has no path yet gets one on this machine

    def __fspath__(self) -> str:
        """Return its directory: what older scripts were given in its place is a path."""
        if self._is_remote:
            raise InvalidInputError(
                f"{self.path} is not a local directory; read it in `with checkpoint.as_directory() as path:`"
            )
        return self.path

    def __repr__(self) -> str:
        return f"Checkpoint(filesystem={'s3' if self._is_remote else 'local'}, path={self.path})"

    def __eq__(self, other: object) -> bool:
        if under_ray():  # where two objects are never equal
            return self is other
        return isinstance(other, Checkpoint) and os.path.abspath(self.path) == os.path.abspath(other.path)

    def __hash__(self) -> int:
        return hash(os.path.abspath(self.path))

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a checkpoint that refers to the local directory `path`."""
        return cls(path)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Checkpoint:
        """Return a checkpoint that holds a dict.

        The dict is written when the checkpoint is; what is changed in it before that is changed in the checkpoint.

        Raises:
            InvalidInputError: `data` is not a dict.
        """
        return DictCheckpoint(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> Checkpoint:
        """Return the checkpoint that `to_bytes` made these bytes of. Unpickles: the bytes must be the user's own.

        Raises:
            CheckpointError: they are not a checkpoint.
        """
        import pickle

        if not isinstance(data, bytes):
            raise InvalidInputError(f"Checkpoint.from_bytes needs bytes, not {type(data).__name__}")
        try:
            loaded = pickle.loads(data)
        except Exception as error:
            raise CheckpointError(
                f"these {len(data)} bytes are not a checkpoint: {type(error).__name__}: {error}"
            ) from error
        # A pickle of anything but a dict is kept as it is.
        return DictCheckpoint(loaded if isinstance(loaded, dict) else {_BYTES_KEY: data})

    @classmethod
    def from_uri(cls, uri: str) -> Checkpoint:
        """Return the checkpoint at a URI: a ``file://`` path, or ``s3://``, also one that a trial has written.

        Raises:
            InvalidInputError: the URI is none, or of another scheme.
            CheckpointError: a trial's checkpoint of that name is not there.
        """
        from trialpod.tune.checkpoints import remote_folders

        folder = remote_folders.local_path(uri)
        if folder is not None:
            return Checkpoint(folder)
        found = remote_folders.find(uri)
        return Checkpoint(uri.rstrip("/")) if found is None else StoredCheckpoint(*found)

    @classmethod
    def from_checkpoint(cls, other: Checkpoint) -> Checkpoint:
        """Return `other`: there is one class for all frameworks."""
        return other

    def to_air_checkpoint(self, *_args: Any) -> Checkpoint:
        """Return itself: what older scripts got from a trial was another class."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the dict that the checkpoint holds, or else its files in a dict that `from_dict` understands.

        Unpickles: the checkpoint must be the user's own.

        Raises:
            CheckpointError: the checkpoint is not there, or its dict cannot be read.
        """
        from trialpod.tune.checkpoints.dict_files import FILES_KEY, files_of, read_state

        with self.as_directory() as folder:
            state = read_state(folder)
            return {FILES_KEY: files_of(folder)} if state is None else state

    def to_bytes(self) -> bytes:
        """Return the checkpoint as bytes, for `from_bytes`."""
        from trialpod.tune.checkpoints.dict_files import pickled

        data = self.to_dict()
        kept = data.get(_BYTES_KEY)
        if len(data) == 1 and isinstance(kept, bytes):
            return kept
        return pickled(data, "the dict of the checkpoint")

    def to_uri(self, uri: str) -> str:
        """Copy the checkpoint to a URI, ``file://`` or ``s3://``, and return it.

        Raises:
            InvalidInputError: the URI is none, or of another scheme.
            StorageError: it cannot be written.
        """
        from trialpod.tune.checkpoints import remote_folders

        folder = remote_folders.local_path(uri)
        if folder is not None:
            self.to_directory(folder)
            return uri
        with self.as_directory() as source:
            remote_folders.upload(source, uri)
        return uri

    def get_internal_representation(self) -> tuple[str, Any]:
        """Return the kind of the checkpoint and where it is."""
        return ("uri" if self._is_remote else "local_path"), self.path

    def get_preprocessor(self) -> NoReturn:
        """Raise: preprocessors belong to Ray Data.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            "preprocessors belong to Ray Data; keep yours in the checkpoint's directory or dict like the rest"
        )

    def set_preprocessor(self, preprocessor: Any) -> NoReturn:
        """Raise: preprocessors belong to Ray Data.

        Raises:
            NotSupportedError: always.
        """
        self.get_preprocessor()

    def __getattr__(self, attribute: str) -> Any:
        if attribute not in _OLDER_NAMES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")
        if attribute != "uri":
            return self.path
        return self.path if "://" in self.path else f"file://{os.path.abspath(self.path)}"

    @property
    def _is_remote(self) -> bool:
        return "path" in self.__dict__ and "://" in self.path

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the checkpoint into a directory and return its path.

        Args:
            path: created if missing; None makes a new temporary directory, which is the caller's to remove.

        Raises:
            CheckpointError: the checkpoint's directory does not exist.
        """
        import shutil
        import tempfile

        if self._is_remote:
            from trialpod.tune.checkpoints.remote_folders import download

            return download(self.path, path)
        self._check()
        target = tempfile.mkdtemp(prefix="trialpod-checkpoint-") if path is None else os.fspath(path)
        shutil.copytree(
            self.path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_FILE)
        )  # a copy may be changed: it has no checksums
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a local directory to read the checkpoint from; read only, it may be the checkpoint itself.

        Raises:
            CheckpointError: the checkpoint's directory does not exist.
        """
        if self._is_remote:
            import shutil

            folder = self.to_directory()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
        self._check()
        yield self.path

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata; empty if none was ever set.

        Raises:
            CheckpointError: the metadata file is damaged.
        """
        file = os.path.join(self.path, METADATA_FILE)
        try:
            if self._is_remote:
                from trialpod.tune.checkpoints.remote_folders import read_file

                metadata = json.loads(read_file(self.path, METADATA_FILE))
            else:
                with open(file, encoding="utf-8") as stream:
                    metadata = json.load(stream)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CheckpointError(f"the checkpoint metadata in {file} is not valid JSON: {error}") from error
        if not isinstance(metadata, dict):
            raise CheckpointError(f"the checkpoint metadata in {file} is not a JSON object")
        return metadata

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata.

        Args:
            metadata: anything that JSON can hold.

        Raises:
            CheckpointError: the checkpoint's directory does not exist.
            InvalidInputError: JSON cannot hold it.
            NotSupportedError: a trial has stored the checkpoint in a bucket, where nothing of it is changed.
        """
        try:
            text = json.dumps(metadata)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"the checkpoint metadata cannot be written as JSON: {error}") from error
        if self._is_remote:
            from trialpod.tune.checkpoints.remote_folders import write_file

            write_file(self.path, METADATA_FILE, text.encode())
            return
        self._check()
        if os.path.exists(os.path.join(self.path, MANIFEST_FILE)):
            from trialpod.storage.checkpoints.local import replace_file

            replace_file(self.path, METADATA_FILE, text.encode())
            return
        file = os.path.join(self.path, METADATA_FILE)
        with open(f"{file}.tmp", "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(f"{file}.tmp", file)

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to the metadata, replacing values under the same keys."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def _check(self) -> None:
        if not os.path.isdir(self.path):
            raise MissingCheckpointError(
                f"the checkpoint directory {self.path} does not exist; it was removed or never written"
            )


class DictCheckpoint(Checkpoint):
    """A checkpoint made of a dict; its directory is written when `path` is asked for.

    Args:
        data: the dict. One that `Checkpoint.to_dict` made of files becomes files again.

    Raises:
        InvalidInputError: it is not a dict.
    """

    def __init__(self, data: Any = None, *, data_dict: Any = None) -> None:
        data = data_dict if data is None else data
        if not isinstance(data, dict):
            raise InvalidInputError(f"Checkpoint.from_dict needs a dict, not {type(data).__name__}")
        self._data = data

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "uri":
            return None  # it is nowhere before it is stored
        if attribute != "path":
            return super().__getattr__(attribute)
        import shutil
        import tempfile
        import weakref

        from trialpod.tune.checkpoints.dict_files import write_into

        folder = tempfile.mkdtemp(prefix="trialpod-checkpoint-")
        weakref.finalize(self, shutil.rmtree, folder, True)
        write_into(self._data, folder)
        self.path = folder
        return folder

    def __repr__(self) -> str:
        return f"Checkpoint.from_dict(<dict with {', '.join(map(repr, list(self._data)[:8]))}>)"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[type[DictCheckpoint], tuple[dict[str, Any]]]:
        """Travel as the dict."""
        return DictCheckpoint, (self._data,)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the dict."""
        return dict(self._data)

    def get_internal_representation(self) -> tuple[str, Any]:
        """Return the kind of the checkpoint and the dict."""
        return "data_dict", self._data


class StoredCheckpoint(Checkpoint):
    """A checkpoint whose directory on this machine is made when `path` is asked for.

    Args:
        trial_uri: where its trial's checkpoints are ("s3://bucket/prefix/experiment/trial").
        info: which of them it is.
        storage: that place, opened; None opens it when it is needed, as the environment says.

    Attributes:
        uri: where it is.
        path: a local copy, verified, in the folder that TRIALPOD_SCRATCH_DIR names or the system's temporary one,
            gone when this process ends; `to_directory` makes one that stays. Asking for it raises CheckpointError
            when the checkpoint is missing or damaged, StorageError when the storage or the local disk refuses.
    """

    def __init__(self, trial_uri: str, info: CheckpointInfo, storage: Storage | None = None) -> None:
        self.uri = f"{trial_uri}/{info.name}"
        self._trial_uri = trial_uri
        self._info = info
        self._storage = storage

    def __getattr__(self, attribute: str) -> str:
        if attribute != "path":
            return str(super().__getattr__(attribute))
        from trialpod.tune.checkpoints.copies import COPIES

        self.path = COPIES.get(self._identity, self._info, self._open)
        return self.path

    def __repr__(self) -> str:
        return f"Checkpoint(uri={self.uri!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredCheckpoint) and not under_ray():
            return self._identity == other._identity
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[type[StoredCheckpoint], tuple[str, CheckpointInfo]]:
        """Travel without the local copy, which is of this process."""
        return StoredCheckpoint, (self._trial_uri, self._info)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Download the checkpoint into a directory and return its path; see `Checkpoint.to_directory`."""
        if "path" in self.__dict__:
            return super().to_directory(path)
        import tempfile
        from pathlib import Path

        from trialpod.storage.base import storage_error
        from trialpod.tune.checkpoints.copies import download

        target = tempfile.mkdtemp(prefix="trialpod-checkpoint-") if path is None else os.fspath(path)
        try:
            os.makedirs(target, exist_ok=True)
            if os.listdir(target):
                return super().to_directory(target)  # never half of it over files of the user's
        except OSError as error:
            raise storage_error(error, "cannot make the folder", target) from error
        download(self._open(), self._info, Path(target))
        return target

    @property
    def _identity(self) -> tuple[str, int, float]:
        return self.uri, self._info.attempt, self._info.time

    def _open(self) -> Storage:
        from trialpod.storage.registry import open_storage

        return self._storage if self._storage is not None else open_storage(self._trial_uri)
