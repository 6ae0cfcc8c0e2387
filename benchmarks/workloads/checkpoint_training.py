"""What the checkpoint workloads train: a function that makes files and reports them, and times what it sees.

What it has seen is appended to ``seen.jsonl`` in the run's folder. A checkpoint of trialpod is committed when the
server has the object of its manifest, which is looked for in the server's own folder: that costs no request.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from system import SYSTEM, tune

_COMMIT_S = 60.0
_LOOK_S = 0.001


def make(folder: Path, kind: str, index: int, scale: float) -> None:
    """Make the files of checkpoint `index`; of "near" and "near_file" only a hundredth changes."""
    folder.mkdir(exist_ok=True)
    count, size = {
        "one": (1, 1_000_000_000),
        "ten": (10, 100_000_000),
        "small": (1000, 10_000),
        "near": (100, 1_000_000),
        "near_file": (1, 100_000_000),
    }[kind]
    size = max(int(size * scale), 100)
    if kind == "near_file" and index:
        with open(folder / "file-0000", "r+b") as file:
            file.seek(index * (size // 100))
            file.write(os.urandom(size // 100))
        return
    for number in [index] if kind == "near" and index else range(count):
        with open(folder / f"file-{number:04d}", "wb") as file:
            file.writelines(os.urandom(min(8_000_000, size - start)) for start in range(0, size, 8_000_000))


def train(config: dict[str, Any]) -> None:
    """Report `config["count"]` checkpoints, each when the one before is committed."""
    place = Path(config["place"])
    folder = Path(tempfile.mkdtemp(dir=place))
    for index in range(config["count"]):
        make(folder, config["kind"], index, config["scale"])
        os.sync()  # what was just made must not be on its way to the disk in what follows
        copy = place / "copy"
        start = time.perf_counter()
        shutil.copytree(folder, copy)
        copied = time.perf_counter() - start
        shutil.rmtree(copy)
        checkpoint = tune.Checkpoint.from_directory(folder)
        start = time.perf_counter()
        tune.report({"index": index}, checkpoint=checkpoint)
        blocked = time.perf_counter() - start
        if SYSTEM == "trialpod":
            _wait_for_manifest(place, index)
        committed = time.perf_counter() - start
        with open(place / "seen.jsonl", "a") as seen:
            seen.write(json.dumps({"copy_s": copied, "blocked_s": blocked, "committed_s": committed}) + "\n")


def _wait_for_manifest(place: Path, index: int) -> None:
    until = time.monotonic() + _COMMIT_S
    trial = None
    while time.monotonic() < until:
        if trial is None:
            trial = next((place / "server" / "data").glob("bench/here/checkpoints/*/checkpoint_000000"), None)
        elif (trial.parent / f"checkpoint_{index:06d}" / ".trialpod-manifest.json" / "xl.meta").exists():
            return
        time.sleep(_LOOK_S)
    raise RuntimeError(f"checkpoint {index} was not committed within {_COMMIT_S:.0f} s")
