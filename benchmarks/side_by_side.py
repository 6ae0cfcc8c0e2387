"""Measures trialpod beside Ray Tune: each workload on both in turn, a fresh process each time, as one table.

Only ratios of the same run mean something: absolute times differ from machine to machine and from hour to hour.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from measuring import Measured, measure
from rows import WORKLOADS, Workload
from scratch_environment import RAY, RAY_PACKAGES, S3_PACKAGES, make_environment
from table import render
from workloads.leftovers import adopt_orphans

ROOT = Path(__file__).resolve().parent.parent
Results = dict[str, dict[str, list[Measured]]]


def main() -> int:
    """Run what the command line asks for."""
    args = _arguments()
    chosen = [workload for workload in WORKLOADS if not args.only or workload.name in args.only]
    systems = {"trialpod": Path(sys.executable)}
    if not args.no_ray:
        systems["ray"] = make_environment(ROOT, "ray", RAY_PACKAGES, "use --no-ray to measure without it")
    if any(workload.needs_s3 for workload in chosen):
        if subprocess.run([ROOT / "tools" / "build_minio"], check=False, stdout=subprocess.DEVNULL).returncode != 0:
            raise SystemExit("the checkpoint rows need MinIO; tools/build_minio failed")
        make_environment(ROOT, "s3", S3_PACKAGES, "the checkpoint rows need it")
    adopt_orphans()
    machine = facts(args)
    print(machine, flush=True)
    results: Results = {workload.name: {system: [] for system in systems} for workload in chosen}
    for workload in chosen:
        for repeat in range(args.repeats):
            for system, python in systems.items():
                if system == "ray" and repeat >= args.ray_repeats:
                    continue
                results[workload.name][system].append(_measure_loudly(workload, system, python, repeat))
    print()
    print(render(chosen, results))
    if args.json:
        _write(args.json, chosen, results, machine)
    failed = [name for name, by_system in results.items() if any(run.problem for run in by_system["trialpod"])]
    return 1 if failed else 0


def facts(args: argparse.Namespace) -> str:
    """Return when and on what machine this runs."""
    cpus = [line for line in _lines("/proc/cpuinfo") if line.startswith("processor")]
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "?")
    memory = next(int(line.split()[1]) // 1024**2 for line in _lines("/proc/meminfo") if "MemTotal" in line)
    load = _lines("/proc/loadavg")[0].split()[0]
    other = "" if args.no_ray else f", {args.ray_repeats} of {RAY}"
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {len(cpus)} cores ({model}), {memory} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, load {load} at the start, "
        f"{args.repeats} runs of each workload{other}"
    )


def _measure_loudly(workload: Workload, system: str, python: Path, repeat: int) -> Measured:
    print(f"{workload.name} on {system}, run {repeat + 1} ... ", end="", file=sys.stderr, flush=True)
    start = time.monotonic()
    measured = measure(workload, system, python, ROOT / ".cache" / "bench-ray" / "work")
    shown = measured.problem or ", ".join(
        f"{figure.key} {measured.figures[figure.key]:.6g}"
        for figure in workload.figures
        if figure.key in measured.figures
    )
    print(f"{shown} ({time.monotonic() - start:.1f} s)", file=sys.stderr, flush=True)
    return measured


def _write(path: str, chosen: list[Workload], results: Results, machine: str) -> None:
    document = {
        "machine": machine,
        "workloads": {
            workload.name: {
                system: [run.figures or {"problem": run.problem} for run in runs]
                for system, runs in results[workload.name].items()
            }
            for workload in chosen
        },
    }
    Path(path).write_text(json.dumps(document, indent=2) + "\n")


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each (default: 3)")
    parser.add_argument(
        "--ray-repeats", type=int, metavar="N", help="fewer runs on Ray, which takes nearly all of the time"
    )
    parser.add_argument("--no-ray", action="store_true", help="measure trialpod alone")
    parser.add_argument("--json", metavar="FILE", help="write all figures of all runs there too")
    args = parser.parse_args()
    if args.ray_repeats is None:
        args.ray_repeats = args.repeats
    return args


if __name__ == "__main__":
    sys.exit(main())
