"""Checkpoints to a real MinIO server, reported by one trial: what the training waits, and until they are committed.

trialpod is run as ``trialpod run`` with a manifest, Ray Tune as a Tuner with pyarrow's S3FileSystem. In trialpod's
runs minio-py and obstore send the same files to the same server, before and after.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from checkpoint_training import make, train
from s3_server import ACCESS_KEY, SECRET_KEY, Server
from system import SYSTEM, begin, finish, setting, size, timed_fit, tune

HERE = Path(__file__).resolve().parent
RAW_PYTHON = HERE.parents[1] / ".cache" / "bench-s3" / "venv" / "bin" / "python"
CLIENTS = ("minio-py", "obstore")


def run_trialpod(config: dict[str, Any], place: Path) -> None:
    """Run the experiment by the command line."""
    manifest = place / "experiment.json"
    spec = {
        "trainable": {"entrypoint": "checkpoint_training:train"},
        "searchSpace": config,
        "storage": {"uri": "s3://bench/here", "createBucket": True},
    }
    manifest.write_text(
        json.dumps(
            {
                "apiVersion": "trialpod.dev/v1alpha1",
                "kind": "TuneExperiment",
                "metadata": {"name": "checkpoints"},
                "spec": spec,
            }
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [str(Path(sys.executable).parent / "trialpod"), "run", "-q", str(manifest)]
    subprocess.run(command, env=environment, check=True)


def run_ray(config: dict[str, Any], server: Server) -> None:
    """Run the experiment by a Tuner."""
    from pyarrow.fs import S3FileSystem

    store = S3FileSystem(
        access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=server.endpoint, allow_bucket_creation=True
    )
    store.create_dir("bench")
    run_config = tune.RunConfig(name="checkpoints", storage_path="bench/here", storage_filesystem=store, verbose=0)
    timed_fit(tune.Tuner(train, param_space=config, run_config=run_config))


def raw_seconds(client: str, folder: Path, server: Server) -> list[float]:
    """Return how long a client takes to send the folder's files, for each of its settings."""
    request = {
        "client": client,
        "endpoint": server.endpoint,
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "bucket": "raw",
        "folder": str(folder),
    }
    os.sync()
    done = subprocess.run(
        [RAW_PYTHON, HERE / "raw_s3.py"], input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True
    )
    for objects in (server.data / "raw").iterdir():  # room for the next; they are not asked for again
        shutil.rmtree(objects)
    found: list[float] = json.loads(done.stdout)
    return found


def best(runs: list[list[float]]) -> float:
    """Return the time of the setting that is the fastest on average."""
    return min(statistics.mean(of_setting) for of_setting in zip(*runs, strict=True))


def main() -> None:
    place = Path.cwd()
    kind, count, scale = setting("kind", "one"), int(size("count", 1)), size("scale", 1.0)
    raw = bool(size("raw", 1)) and SYSTEM == "trialpod"
    config = {"kind": kind, "count": count, "scale": scale, "place": str(place)}
    took: dict[str, list[list[float]]] = {client: [] for client in CLIENTS}
    with Server(place / "server") as server:
        os.environ.update(server.environment())
        begin()
        files = place / "raw-files"
        if raw:
            make(files, kind, 0, scale)
            for client in CLIENTS:
                took[client].append(raw_seconds(client, files, server))
        moved = server.bytes_read()
        if SYSTEM == "ray":
            run_ray(config, server)
        else:
            run_trialpod(config, place)
        moved = server.bytes_read() - moved
        if raw:
            for client in reversed(CLIENTS):
                took[client].append(raw_seconds(client, files, server))
    seen = [json.loads(line) for line in (place / "seen.jsonl").read_text().splitlines()]
    copy_s, blocked_s, committed_s = (
        statistics.median(one[name] for one in seen) for name in ("copy_s", "blocked_s", "committed_s")
    )
    behind_s = statistics.median(one["committed_s"] - one["blocked_s"] for one in seen)
    changed = {"one": 1e9, "ten": 1e9, "small": 1e7 * count}.get(kind, 1e8 + 1e6 * (count - 1)) * scale
    each = {"one": 1e9, "ten": 1e9, "small": 1e7}.get(kind, 1e8) * scale
    figures = {
        "copy_s": copy_s,
        "blocked_s": blocked_s,
        "blocked_to_copy": statistics.median(one["blocked_s"] / one["copy_s"] for one in seen),
        "committed_s": committed_s,
        "behind_s": behind_s,
        "first_committed_s": seen[0]["committed_s"],
        "later_committed_s": statistics.median(one["committed_s"] for one in seen[1:] or seen),
        "mb_per_s": each / 1e6 / committed_s,
        "moved_mb": moved / 1e6,
        "moved_to_changed": moved / changed,
    }
    if raw:
        seconds = {client: best(runs) for client, runs in took.items()}
        figures |= {
            "minio_py_mb_per_s": each / 1e6 / seconds["minio-py"],
            "obstore_mb_per_s": each / 1e6 / seconds["obstore"],
            "of_raw": min(seconds.values()) / behind_s
            if SYSTEM == "trialpod"
            else min(seconds.values()) / committed_s,
            "of_raw_with_copy": min(seconds.values()) / committed_s,
        }
        figures["raw_runs"] = took  # type: ignore[assignment]
    finish(**figures)


if __name__ == "__main__":
    main()
