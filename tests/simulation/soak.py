"""Runs the simulation with new seeds for as long as one likes, or one seed again with all that happens in it.

    make soak SOAK_MINUTES=30      new seeds on all cores; a line a minute; exit status 1 when anything did not hold
    make soak SOAK_SEED=4711       that seed of a cluster, with its timeline; local-4711: that one of a machine
    make soak SOAK_PLAN=FILE       a plan that an earlier run wrote down, with its timeline

What failed is in build/soak, each seed with the fewest faults that still make it fail. One worker also runs the fuzz
tests now and then, with examples of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parents[0] / "unit" / part) for part in ("cluster", "storage"))]

from sim_local import simulate_local  # noqa: E402
from sim_local_plan import LOCAL_KINDS, LocalPlan, local_plan_from_text, local_plan_of  # noqa: E402
from sim_plan import FEATURES, KINDS, Plan, plan_from_text, shrunk, soak_plan_of  # noqa: E402
from sim_world import Outcome, simulate  # noqa: E402
from soak_fuzz import Fuzzed, Fuzzing  # noqa: E402

PLACE = HERE.parents[1] / "build" / "soak"
ENOUGH = 300
"""From so many seeds on every kind of fault must have happened."""
COLLECT_EVERY = 20
LOCAL = "local-"
"""Before the seed of a machine, where those of clusters have nothing."""
ANY_KINDS = (*dict.fromkeys((*KINDS, *LOCAL_KINDS)), *FEATURES)


def run(plan: Plan | LocalPlan, *, keep: bool = False) -> Outcome:
    """Let a plan happen, on a machine or in a cluster."""
    return simulate_local(plan, keep=keep) if isinstance(plan, LocalPlan) else simulate(plan, keep=keep)


def named(plan: Plan | LocalPlan) -> str:
    """Return by what a seed is chosen."""
    return f"{LOCAL if isinstance(plan, LocalPlan) else ''}{plan.seed}"


def read_plan(text: str) -> Plan | LocalPlan:
    """Read the text of a plan of either kind."""
    return plan_from_text(text) if "experiments" in text or "watch_delay_s" in text else local_plan_from_text(text)


def work(first: int, step: int, end_at: float, results: Any, fuzzes: bool) -> None:
    """Run every `step`-th seed until the time is over."""
    import gc

    seed = first
    fuzzing = Fuzzing(first) if fuzzes else None
    while time.time() < end_at:
        for plan in (soak_plan_of(seed), local_plan_of(2 * seed), local_plan_of(2 * seed + 1)):
            outcome = run(plan)
            outcome.timeline = []
            results.put((named(plan), outcome))
            if outcome.violations:
                results.put(write_down(plan, outcome))
        if fuzzing is not None and (found := fuzzing.turn()) is not None:
            results.put(found)
        seed += step
        if seed // step % COLLECT_EVERY == 0:
            gc.collect()
    results.put(None)


def write_down(plan: Plan | LocalPlan, outcome: Outcome) -> str:
    """Keep a failing seed with the fewest faults that it needs; return where."""
    least = shrunk(plan, lambda candidate: bool(run(candidate).violations))
    again = run(least, keep=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    path = PLACE / f"seed-{named(plan)}.json"
    found = {"violations": outcome.violations, "of the least": again.violations, "plan": json.loads(least.text())}
    path.write_text(json.dumps(found, indent=1))
    path.with_suffix(".timeline").write_text("\n".join(again.timeline) + "\n")
    return str(path)


def keep_fuzzed(found: Fuzzed) -> str:
    """Keep what a failing fuzz test printed; return where."""
    PLACE.mkdir(parents=True, exist_ok=True)
    path = PLACE / f"fuzz-{time.time():.0f}.txt"
    path.write_text(f"{found.command}\n\n{found.output}")
    return str(path)


def replay(plan: Plan | LocalPlan) -> int:
    """Run one plan and print its timeline."""
    outcome = run(plan, keep=True)
    print(plan.text())
    print("\n".join(outcome.timeline))
    print(f"{outcome.events} events in {outcome.virtual_s:.1f} s of its time, timeline {outcome.digest}")
    for violation in outcome.violations:
        print(f"VIOLATION: {violation}")
    return 1 if outcome.violations else 0


def soak(minutes: float, first: int, workers: int) -> int:
    """Run new seeds; return the exit status."""
    results: Any = multiprocessing.Queue()
    end_at = time.time() + 60.0 * minutes
    processes = [
        multiprocessing.Process(
            target=work, args=(first + number, workers, end_at, results, number == 0), daemon=True
        )
        for number in range(workers)
    ]
    for process in processes:
        process.start()
    seeds = local = events = failed = fuzzed = 0
    hours = 0.0
    fired: Counter[str] = Counter()
    running, next_line = workers, time.time() + 60.0
    while running:
        try:
            found = results.get(timeout=1.0)
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                print("a worker has died", flush=True)
                return 1
            found = ""
        if found is None:
            running -= 1
        elif isinstance(found, str):
            if found:
                print(f"VIOLATION: {found}", flush=True)
        elif isinstance(found, Fuzzed):
            fuzzed += not found.out_of_time
            if found.failed:
                failed += 1
                print(f"VIOLATION: {keep_fuzzed(found)}: {found.command}", flush=True)
        else:
            name, outcome = found
            seeds += 1
            local += name.startswith(LOCAL)
            events += outcome.events
            hours += outcome.virtual_s / 3600.0
            fired.update(outcome.fired)
            if outcome.violations:
                failed += 1
                print(f"seed {name}: {outcome.violations[0].splitlines()[0]}", flush=True)
        if time.time() >= next_line or not running:
            next_line += 60.0
            kinds = ", ".join(f"{kind} {fired[kind]}" for kind in ANY_KINDS)
            print(
                f"{seeds} seeds ({local} of one machine), {events} events, {hours:.1f} h, {fuzzed} fuzzed, "
                f"{failed} violations; {kinds}",
                flush=True,
            )
    missing = [kind for kind in ANY_KINDS if not fired[kind]]
    if seeds >= ENOUGH and missing:
        print(f"these faults and features never happened, so nothing is known about them: {', '.join(missing)}")
        return 1
    return 1 if failed else 0


def main() -> int:
    """Do what the environment says."""
    if plan := os.environ.get("SOAK_PLAN"):
        found = json.loads(Path(plan).read_text())
        return replay(read_plan(json.dumps(found.get("plan", found))))
    if seed := os.environ.get("SOAK_SEED"):
        number = int(seed.removeprefix(LOCAL))
        return replay(local_plan_of(number) if seed.startswith(LOCAL) else soak_plan_of(number))
    minutes = float(os.environ.get("SOAK_MINUTES") or 30)
    first = int(os.environ.get("SOAK_FIRST") or time.time())
    return soak(minutes, first, int(os.environ.get("SOAK_WORKERS") or os.cpu_count() or 1))


if __name__ == "__main__":
    sys.exit(main())
