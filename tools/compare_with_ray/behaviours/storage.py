"""Where things are stored: names, folders, artifacts, sync configuration."""

# ruff: noqa: F821  # `probe`, `raised` and `printed` come from ask.py

from __future__ import annotations

import os
import tempfile
from typing import Any

from ray import tune


def _writes(config: dict[str, Any]) -> None:
    open("artifact.txt", "w").write("a")
    os.makedirs("sub", exist_ok=True)
    open("sub/b.txt", "w").write("b")
    tune.report({"a": 1})


def _tree(path: str) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(root, name), path)
        for root, _, names in os.walk(path)
        for name in names
        if "tfevents" not in name and not name.startswith(".")
    )


def _fit(folder: str, **kwargs: Any) -> Any:
    return tune.Tuner(_writes, run_config=tune.RunConfig(storage_path=folder, verbose=0, **kwargs)).fit()


@probe
def artifacts(folder: str) -> dict[str, Any]:
    synced = _fit(folder, name="s", sync_config=tune.SyncConfig(sync_artifacts=True))[0]
    at_end = _fit(
        folder, name="f", sync_config=tune.SyncConfig(sync_artifacts=True, sync_artifacts_on_checkpoint=False)
    )
    return {
        "synced": [name for name in _tree(synced.path) if name.startswith(("artifact", "sub"))],
        "synced at the end": [name for name in _tree(at_end[0].path) if name.startswith(("artifact", "sub"))],
        "standard files": [n for n in _tree(synced.path) if n.startswith(("params", "result", "progress"))],
    }


@probe
def paths(folder: str) -> dict[str, Any]:
    import pyarrow.fs

    relative = f"{folder}/rel"
    os.makedirs(relative)
    os.chdir(relative)
    local = pyarrow.fs.LocalFileSystem()
    return {
        "file URI": lambda: _fit(f"file://{folder}/uri", name="u").experiment_path,
        "a relative path": lambda: os.path.relpath(_fit("./here", name="r").experiment_path, folder),
        "a home path": lambda: tune.RunConfig(storage_path="~/x").storage_path == os.path.expanduser("~/x"),
        "a path object": lambda: _fit(__import__("pathlib").Path(folder) / "po", name="p").experiment_path,
        "a file system": lambda: _fit(f"{folder}/fs", name="f", storage_filesystem=local).experiment_path,
        "a name with a slash": lambda: _fit(folder, name="a/b").experiment_path,
        "an unknown scheme": lambda: _fit("nothing://bucket/x", name="n").experiment_path,
        "no permission": lambda: _fit("/proc/none", name="n").experiment_path,
        "a file in its place": lambda: _fit(_file(folder), name="n").experiment_path,
        "local_dir": lambda: tune.RunConfig(local_dir=folder),
        "upload_dir": lambda: tune.SyncConfig(upload_dir="s3://x"),
        "syncer": lambda: tune.SyncConfig(syncer="auto"),
        "default name": lambda: os.path.basename(_fit(folder).experiment_path).split("_")[1],
        "defaults of SyncConfig": lambda: [
            tune.SyncConfig().sync_period,
            tune.SyncConfig().sync_timeout,
            tune.SyncConfig().sync_artifacts,
            tune.SyncConfig().sync_artifacts_on_checkpoint,
        ],
    }


def _file(folder: str) -> str:
    open(f"{folder}/file", "w").close()
    return f"{folder}/file"


@probe
def checkpoint_objects(folder: str) -> dict[str, Any]:
    import pyarrow.fs

    os.makedirs(f"{folder}/d/in")
    open(f"{folder}/d/in/x", "w").write("1")
    checkpoint = tune.Checkpoint.from_directory(f"{folder}/d")
    checkpoint.set_metadata({"k": 1})
    with checkpoint.as_directory() as path:
        same = os.path.realpath(path) == os.path.realpath(f"{folder}/d")
        other_inside = sorted(os.listdir(path))
    with_fs = tune.Checkpoint(f"{folder}/d", pyarrow.fs.LocalFileSystem())
    target = tempfile.mkdtemp(dir=folder)
    return {
        "path": checkpoint.path,
        "filesystem": type(checkpoint.filesystem).__name__,
        "as_directory is the folder": same,
        "inside": other_inside,
        "to_directory": lambda: [checkpoint.to_directory(target) == target, _tree(target)],
        "to_directory without a path": lambda: _tree(checkpoint.to_directory()),
        "metadata": checkpoint.get_metadata(),
        "metadata is replaced": lambda: [checkpoint.set_metadata({"z": 2}), checkpoint.get_metadata()],
        "metadata is updated": lambda: [checkpoint.update_metadata({"y": 3}), checkpoint.get_metadata()],
        "metadata of a number": lambda: checkpoint.set_metadata(5),
        "file URI": lambda: tune.Checkpoint(f"file://{folder}/d").path,
        "equal": [checkpoint == with_fs, checkpoint == tune.Checkpoint(f"{folder}/other")],
        "hash": lambda: hash(checkpoint) is not None,
        "repr": lambda: repr(checkpoint),
        "pickled": lambda: __import__("pickle").loads(__import__("pickle").dumps(checkpoint)).path,
        "of a Path": lambda: tune.Checkpoint(__import__("pathlib").Path(folder) / "d").path,
        "no argument": lambda: tune.Checkpoint(),
        "attributes": sorted(
            k
            for k in ("as_directory", "to_directory", "from_directory", "path", "filesystem")
            if hasattr(checkpoint, k)
        ),
    }
