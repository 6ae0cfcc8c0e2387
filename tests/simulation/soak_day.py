"""Simulates a day of a cluster and says whether anything grows that should level out.

    make soak-day                          24 hours with 500 running trials
    make soak-day HOURS=2 SIZE=50          less of both
    make soak-day DAY_SEED=7               other faults
    make soak-day DAY_MINUTES=20           as many hours as it gets through in 20 minutes of this machine's time
    make soak-day HOURS=6 DAY_STEP_S=75 DAY_TTL_S=900     short trials for a short day: else it only warms up
    make soak-day DAY_IMAGE=docs/images/soak-day.svg
    tests/simulation/soak_day.py build/soak-day/samples.jsonl IMAGE    the table and graph of an earlier run

Exit status 1: a figure grows, or a rule of the simulation does not hold. Samples, table and graph are in
build/soak-day.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parents[0] / "unit" / part) for part in ("cluster", "storage"))]

import sim_day_samples as samples_module  # noqa: E402
from sim_day import LANES, STEP_S, TTL_S, Day, DayWorld, simulate_day  # noqa: E402
from sim_day_samples import Sample  # noqa: E402

FOLDER = Path(os.environ.get("DAY_FOLDER") or HERE.parents[1] / "build" / "soak-day")


def main() -> int:
    """Do what the environment and the command line say."""
    if len(sys.argv) == 3:
        lines = Path(sys.argv[1]).read_text().splitlines()
        return report([Sample(**json.loads(line)) for line in lines], Path(sys.argv[2]))
    given = os.environ.get
    end_at = time.monotonic() + 60.0 * float(given("DAY_MINUTES") or 1e9)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "samples.jsonl", "w") as file:

        def on_sample(world: DayWorld, sample: Sample) -> None:
            file.write(json.dumps(asdict(sample)) + "\n")
            file.flush()
            print(
                f"hour {sample.hour:.2f}: {sample.running} running, {world.trials_ended} trials of {world.judged} "
                f"experiments judged, {sample.memory / 1e6:.0f} MB, {sample.cpu_s:.0f} s of processor time",
                flush=True,
            )
            if time.monotonic() > end_at:
                world.day_end = world.loop.time()

        day = Day(
            hours=float(given("HOURS") or 24),
            running=int(given("SIZE") or 500),
            operators=int(given("DAY_OPERATORS") or 2),
            seed=int(given("DAY_SEED") or 1),
            lanes=int(given("DAY_LANES") or LANES),
            step_s=float(given("DAY_STEP_S") or STEP_S),
            ttl_s=int(given("DAY_TTL_S") or TTL_S),
            on_sample=on_sample,
        )
        outcome, world = simulate_day(day)
    fired = ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.fired.items()))
    print(f"{outcome.virtual_s / 3600.0:.2f} hours; {world.trials_ended} trials and {world.results} results judged")
    print(f"what happened: {fired}")
    for violation in outcome.violations:
        print(f"VIOLATION: {violation}")
    try:
        status = report(world.samples, Path(given("DAY_IMAGE") or FOLDER / "soak-day.svg"))
    except ValueError as error:  # a violation has ended it early, or DAY_MINUTES
        print(error)
        status = 1
    return 1 if outcome.violations else status


def report(samples: list[Sample], image: Path) -> int:
    """Print the table, draw the graph; return the exit status."""
    table = samples_module.table_of(samples)
    print(table)
    (FOLDER / "table.md").write_text(table + "\n")
    samples_module.draw(samples, image)
    grows = samples_module.growing(samples)
    for each in grows:
        print(f"GROWS: {each}")
    return 1 if grows else 0


if __name__ == "__main__":
    sys.exit(main())
