"""How good the configs are that tuners find, for what they cost: trialpod beside peers, in one simulator.

    python benchmarks/quality [--methods asha+optuna random ...] [--tasks lcbench noise-*] [--seeds 3]

Tasks are chosen by name, family or pattern; by default all development tasks. docs/tuning-quality.md has the method.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
from pathlib import Path

from report import Results, summary
from runs import Data, Job, run_all
from simulator import Conditions
from tasks.references import load_reference
from tasks.task import Task

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench-quality"
OVERHEADS = (0.0, 0.01, 0.05)
DEFAULT_METHODS = ["fifo+random", "asha+random", "asha+optuna"]


def main() -> int:
    """Run what the options say, print the summary and write the results."""
    options = _parse()
    lcbench = Path(options.lcbench) if options.lcbench else CACHE / "lcbench"
    if not (lcbench / "model.onnx").exists():
        if options.lcbench:
            raise SystemExit(f"there is no model.onnx in {lcbench}")
        print(f"{lcbench} has no model.onnx: the tasks of LCBench are left out (docs/tuning-quality.md)")
    data = Data(lcbench if (lcbench / "model.onnx").exists() else None, CACHE, CACHE / "packages")
    tasks = choose(list(data.tasks().values()), options.tasks, held_out=options.held_out)
    if options.list:
        for task in tasks:
            print(f"{task.name:<28}{task.family:<14}{'held-out' if task.held_out else 'development'}")
        return 0
    if not tasks:
        raise SystemExit(f"no task matches {' '.join(options.tasks)}; --list shows them")
    conditions = Conditions(budget=options.budget, overhead=options.overhead)
    jobs = [
        Job(method, task.name, tuple(range(options.seeds)), conditions)
        for task in tasks
        for method in options.methods
    ]
    found = list(run_all(jobs, data, options.processes, lambda line: print(line, file=sys.stderr, flush=True)))
    for task in tasks:
        load_reference(task, CACHE / "references")
    results = Results({task.name: task for task in tasks}, options.methods, found)
    print(summary(results))
    if options.json:
        Path(options.json).write_text(json.dumps([run.as_data() for run in found]))
    return 0


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
    parser.add_argument("--methods", nargs="+", default=DEFAULT_METHODS, help="SCHEDULER+SEARCHER, or names of peers")
    parser.add_argument("--tasks", nargs="+", default=[], help="names, families or patterns of tasks")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method on each task")
    parser.add_argument("--budget", type=float, default=40.0, help="in full trainings of the median config")
    parser.add_argument("--overhead", type=float, default=0.01, help="of a start, as a share of a full training")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="at once")
    parser.add_argument("--lcbench", default=os.environ.get("LCBENCH_SURROGATE"), help="folder with model.onnx")
    parser.add_argument("--held-out", action="store_true", help="the held-out tasks: only for the final report")
    parser.add_argument("--json", help="file for all runs")
    parser.add_argument("--list", action="store_true", help="show the tasks and end")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
