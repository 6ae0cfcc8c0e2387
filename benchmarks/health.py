"""Memory, file descriptors and threads of trialpod's processes over a long run: do they stay flat?

    .venv/bin/python benchmarks/health.py    # all three runs; prints the table, draws docs/images/health.png
    .venv/bin/python benchmarks/health.py --only results --count results=20000

The processes are looked at from outside, in ``/proc``, whenever another hundredth of the work is done.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKLOAD = ROOT / "benchmarks" / "workloads" / "long_run.py"
COUNTS = {"results": 100_000, "trials": 10_000, "checkpoints": 5_000}
WHAT = {
    "results": "results of one trial",
    "trials": "trials of one result, processes reused",
    "checkpoints": "checkpoints of one trial to S3",
}
WARM_UP = 0.2
"""From this part of the run on nothing should grow: pools, caches and imports are there."""
_POLL_S = 0.005


@dataclass(frozen=True)
class Sample:
    """One look at a process: how much of the work is done, bytes of memory of its own, and what it has open."""

    done: int
    memory: int
    descriptors: int
    threads: int


@dataclass
class Health:
    """A run: samples of each of its processes, by role ("shell", "fork server", "runner")."""

    kind: str
    count: int
    seconds: float = 0.0
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def after_warm_up(self, role: str) -> list[Sample]:
        """Return the samples after the beginning."""
        return [sample for sample in self.samples.get(role, ()) if sample.done >= WARM_UP * self.count]

    def growth(self, role: str) -> int:
        """Return by how many bytes its memory has grown from then on: the last tenth against the first."""
        later = self.after_warm_up(role)
        tenth = max(1, len(later) // 10)
        first = sorted(sample.memory for sample in later[:tenth])[tenth // 2]
        last = sorted(sample.memory for sample in later[-tenth:])[tenth // 2]
        return last - first

    def growth_each(self, role: str) -> float:
        """Return the same for each result, trial or checkpoint."""
        later = self.after_warm_up(role)
        return self.growth(role) / max(1, 0.9 * (later[-1].done - later[0].done))


def watch(kind: str, count: int, folder: Path, storage: str, env: Mapping[str, str] | None = None) -> Health:
    """Run one of the workloads and look at its processes meanwhile.

    Args:
        kind: of `COUNTS`.
        count: how many results, trials or checkpoints.
        folder: an empty one, for its files.
        storage: where the experiment is kept.
        env: variables beside this process's.

    Raises:
        RuntimeError: it failed; the message has what it said.
    """
    progress = folder / "progress"
    progress.touch()
    health = Health(kind, count)
    began = time.monotonic()
    command = [sys.executable, str(WORKLOAD), kind, str(count), storage]
    variables = {**os.environ, **(env or {}), "PROGRESS": str(progress), "TRIALPOD_WORK_DIR": str(folder / "work")}
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=output, stderr=output)
        next_at = 0.0
        try:
            while process.poll() is None:
                done = progress.stat().st_size
                if done >= next_at:
                    _look(process.pid, done, health)
                    next_at = done + count / 100
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
    health.seconds = time.monotonic() - began
    if process.returncode != 0 or progress.stat().st_size < count:
        text = (folder / "output").read_text(errors="replace")
        raise RuntimeError(f"the run of {count} {kind} failed with status {process.returncode}: {text[-2000:]}")
    return health


def _look(shell: int, done: int, health: Health) -> None:
    servers = [
        pid for pid in _children(shell) if b"trialpod.runner.fork_server.server" in _read(f"/proc/{pid}/cmdline")
    ]
    runners = sorted(pid for server in servers for pid in _children(server))
    for role, pids in (("shell", [shell]), ("fork server", servers[:1]), ("runner", runners[:1])):
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                health.samples.setdefault(role, []).append(_sample(pid, done))


def _sample(pid: int, done: int) -> Sample:
    status = dict(line.split(":", 1) for line in _read(f"/proc/{pid}/status").decode().splitlines())
    if "RssAnon" not in status:
        raise ValueError("it has ended")
    memory = int(status["RssAnon"].split()[0]) * 1024
    return Sample(done, memory, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def table_of(runs: list[Health]) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        "| run | process | memory at 20% | at the end | growth for each | descriptors at 20%, at the end | threads |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        what = f"{run.count:,} {WHAT[run.kind]} ({run.seconds:.0f} s)"
        for role in run.samples:
            later = run.after_warm_up(role)
            if len(later) < 2:
                continue
            first, last = later[0], later[-1]
            lines.append(
                f"| {what} | {role} | {first.memory / 1e6:.1f} MB | {last.memory / 1e6:.1f} MB "
                f"| {run.growth_each(role):.1f} bytes | {first.descriptors}, {last.descriptors} "
                f"| {first.threads}, {last.threads} |"
            )
            what = ""
    return "\n".join(lines)


def draw(runs: list[Health], path: Path) -> None:
    """Draw memory and descriptors of each run."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"shell": "#0072B2", "runner": "#D55E00", "fork server": "#009E73"}
    figure, rows = plt.subplots(2, len(runs), figsize=(3.2 * len(runs), 4.4), squeeze=False, sharex="col")
    for column, run in enumerate(runs):
        for role, samples in run.samples.items():
            done = [sample.done for sample in samples]
            rows[0][column].plot(done, [sample.memory / 1e6 for sample in samples], color=colours[role], label=role)
            rows[1][column].plot(done, [sample.descriptors for sample in samples], color=colours[role])
        rows[0][column].set_title(WHAT[run.kind], fontsize=9)
        rows[1][column].locator_params(axis="x", nbins=4)
        for row in rows:
            row[column].set_ylim(bottom=0)
            row[column].spines[["top", "right"]].set_visible(False)
    rows[0][0].set_ylabel("memory (MB)")
    rows[1][0].set_ylabel("file descriptors")
    rows[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(COUNTS))
    parser.add_argument("--count", action="append", default=[], metavar="KIND=N")
    parser.add_argument("--image", type=Path, default=ROOT / "docs" / "images" / "health.png")
    arguments = parser.parse_args()
    counts = {**COUNTS, **{key: int(value) for key, _, value in (each.partition("=") for each in arguments.count)}}
    runs = []
    for kind in arguments.only or COUNTS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if kind == "checkpoints":
                runs.append(_with_minio(counts[kind], folder))
            else:
                runs.append(watch(kind, counts[kind], folder, str(folder / "storage")))
        print(table_of(runs[-1:]), flush=True)
    draw(runs, arguments.image)
    return 0


def _with_minio(count: int, folder: Path) -> Health:
    sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "local")]
    from minio_server import ACCESS_KEY, SECRET_KEY, MinioServer

    with MinioServer(folder / "minio") as server:
        server.storage("s3://long/here")
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        return watch("checkpoints", count, folder, "s3://long/here", {"AWS_ENDPOINT_URL": server.endpoint, **keys})


if __name__ == "__main__":
    sys.exit(main())
