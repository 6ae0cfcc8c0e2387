"""How good the configs are that tuners find, for what they cost: trialpod beside peers, in one simulator.

    python benchmarks/quality [--quick | --full] [--methods asha+optuna ray-optuna-asha ...] [--tasks lcbench noise-*]

Tasks are chosen by name, family or pattern; by default all development tasks. docs/tuning-quality.md has the method.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path

from environments import CACHE, PACKAGES, REQUIREMENTS, install_packages
from methods import NAMED, find
from report import Results, page, plot, summary
from runs import Data, Job, Run, run_all
from simulator import Conditions
from tasks.references import load_reference
from tasks.task import Task

OWN = ["auto+auto", "asha+optuna", "fifo+random"]
FULL_PEERS = ["ray-random", "ray-asha", "ray-optuna-asha", "optuna-hyperband", "syne-kde", "top-k"]
QUICK_TASKS = ["crossing", "noise", "opposed", "grown"]


def main() -> int:
    """Run what the options say, print the summary and write the results."""
    options = _parse()
    lcbench = Path(options.lcbench) if options.lcbench else CACHE / "lcbench"
    found_lcbench = (lcbench / "model.onnx").exists() and not options.quick
    if not found_lcbench and not options.quick:
        if options.lcbench:
            raise SystemExit(f"there is no model.onnx in {lcbench}")
        print(f"{lcbench} has no model.onnx: the tasks of LCBench are left out (docs/tuning-quality.md)")
    data = Data(lcbench if found_lcbench else None, CACHE, PACKAGES if options.quick else install_packages())
    tasks = choose(list(data.tasks().values()), options.tasks, held_out=options.held_out)
    if options.list:
        for task in tasks:
            print(f"{task.name:<32}{task.family:<14}{'held-out' if task.held_out else 'development'}")
        return 0
    if not tasks:
        raise SystemExit(f"no task matches {' '.join(options.tasks)}; --list shows them")
    conditions = Conditions(budget=options.budget, overhead=options.overhead)
    seeds = tuple(range(options.seeds))
    wanted = [(method, task.name) for task in tasks for method in options.methods]
    lines = [line for file in options.reuse for line in Path(file).read_text().splitlines()]
    runs = [
        run
        for run in (Run.from_data(json.loads(line)) for line in lines)
        if (run.method, run.task) in wanted and run.seed in seeds and run.overhead == options.overhead
    ]
    reused = Counter((run.method, run.task) for run in runs)
    jobs = [Job(*pair, seeds, conditions) for pair in wanted if reused[pair] < len(seeds)]
    runs = [run for run in runs if reused[run.method, run.task] == len(seeds)]
    folder, side = Path(options.out), "held-out" if options.held_out else "development"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (folder / f"{side}.jsonl").open("w") as file:
        for run in runs:
            file.write(json.dumps(run.as_data()) + "\n")
        for run in run_all(jobs, data, options.processes, lambda line: print(line, file=sys.stderr, flush=True)):
            runs.append(run)
            file.write(json.dumps(run.as_data()) + "\n")
            file.flush()
    for task in tasks:
        load_reference(task, CACHE / "references")
    results = Results({task.name: task for task in tasks}, options.methods, runs)
    print(summary(results))
    remark = (
        f"{len(tasks)} {side} tasks, {options.seeds} seeds each; budget {options.budget:g} full trainings, "
        f"{conditions.workers} workers, {options.overhead:.0%} of a full training for each start and resume. "
        f"Python {platform.python_version()}; peers: {_versions(options.methods)}. "
        f"{len(jobs)} of {len(wanted)} pairs of method and task were run for this, in "
        f"{(time.monotonic() - began) / 60:.0f} minutes."
    )
    plot(results, folder / f"{side}.svg")
    (folder / f"{side}.md").write_text(page(results, f"The {side} tasks", [remark]))
    print(f"wrote {folder}/{side}.md, .svg and .jsonl")
    return 0


def _versions(methods: list[str]) -> str:
    programs = {"ray": "ray", "optuna": "ray", "syne": "syne-tune", "smac": "smac"}
    used = {programs[name.partition("-")[0]] for name in methods if name.partition("-")[0] in programs}
    return ", ".join(package for name in sorted(used) for package in REQUIREMENTS[name] if "==" in package) or "none"


def choose(tasks: list[Task], wanted: list[str], *, held_out: bool) -> list[Task]:
    """Return the tasks of one side of the split that are wanted by name, family or pattern; all without any."""
    return [
        task
        for task in tasks
        if task.held_out == held_out
        and (not wanted or any(each == task.family or fnmatch.fnmatch(task.name, each) for each in wanted))
    ]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few tasks without data to fetch")
    parser.add_argument("--full", action="store_true", help="beside the peers")
    parser.add_argument("--methods", nargs="+", help=f"SCHEDULER+SEARCHER of trialpod, or of {', '.join(NAMED)}")
    parser.add_argument("--tasks", nargs="+", help="names, families or patterns of tasks")
    parser.add_argument("--seeds", type=int, help="runs of each method on each task: 3, with --quick 1")
    parser.add_argument("--budget", type=float, default=40.0, help="in full trainings of the median config")
    parser.add_argument("--overhead", type=float, default=0.01, help="of a start, as a share of a full training")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="at once")
    parser.add_argument("--lcbench", default=os.environ.get("LCBENCH_SURROGATE"), help="folder with model.onnx")
    parser.add_argument("--held-out", action="store_true", help="the held-out tasks: only for the final report")
    parser.add_argument("--out", default="build/quality", help="folder for the page, the plot and all runs")
    parser.add_argument("--reuse", nargs="+", default=[], help="files of earlier runs, not to be repeated")
    parser.add_argument("--list", action="store_true", help="show the tasks and end")
    options = parser.parse_args()
    if options.seeds is None:
        options.seeds = 1 if options.quick else 3
    if options.methods is None:
        options.methods = OWN + (FULL_PEERS if options.full else [])
    if options.tasks is None:
        options.tasks = QUICK_TASKS if options.quick else []
    for name in options.methods:
        try:
            find(name)
        except ValueError as error:
            parser.error(str(error))
    return options


if __name__ == "__main__":
    raise SystemExit(main())
