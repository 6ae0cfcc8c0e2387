"""Chaos on real processes of this machine, with new seeds for as long as one likes, or with one seed again.

    make chaos CHAOS_MINUTES=30    a line for each round; ends with exit status 1 at the first violation
    make chaos CHAOS_SEED=4711     that seed: the same faults at the same moments of progress
    CHAOS_KEEP_GOING=1             continue after a violation, and tell all at the end

The folder of a round with a violation is kept below build/chaos, with everything that its runs said.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "local")]

from local_checks import IN_ANY_ORDER, costs, violations  # noqa: E402
from local_plan import ALL_KINDS, Plan, plan_of  # noqa: E402
from local_round import Chaos, Round  # noqa: E402

PLACE = HERE.parents[1] / "build" / "chaos"
ENOUGH = 60
"""After so many rounds every kind of fault must have happened."""


class Rounds:
    """Runs rounds, and remembers the undisturbed ones that they are compared with.

    Args:
        place: for the folders of rounds.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._undisturbed: dict[Any, Round] = {}

    def run(self, plan: Plan) -> tuple[Round | None, list[str]]:
        """Run a plan; return what happened and what did not hold. Its folder is removed when all is well."""
        folder = self.place / f"seed-{plan.seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            undisturbed = self._reference(plan) if plan.concurrency == 1 or plan.algorithm in IN_ANY_ORDER else None
            chaos = Chaos(plan, folder)
            found = chaos.run()
            problems = violations(found, undisturbed)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is a violation, too
            traceback.print_exc()
            return None, [f"the round itself failed: {error!r}"]
        if problems:
            keep(found, problems)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return found, problems

    def _reference(self, plan: Plan) -> Round:
        key = (plan.driver, *plan.reference)
        if key not in self._undisturbed:
            folder = self.place / f"undisturbed-{plan.seed}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            calm = replace(plan, faults=(), place="folder", concurrency=1, step_s=0.001)
            found = Chaos(calm, folder).run()
            problems = violations(found, None)
            if problems:
                raise AssertionError(f"the undisturbed run: {problems}")
            shutil.rmtree(folder, ignore_errors=True)
            self._undisturbed[key] = found
        return self._undisturbed[key]


def keep(found: Round, problems: list[str]) -> None:
    """Write down what happened, beside the files."""
    lines = [*problems, "", *(f"{done.at - found.began:8.3f} {done.fault} pid {done.pid}" for done in found.done)]
    for run in found.runs:
        lines += [
            "",
            f"{run.at - found.began:8.3f} a run ended: {run.status}",
            run.text[-20_000:],
            run.errors[-20_000:],
        ]
    (found.folder / "violations.txt").write_text("\n".join(lines) + "\n")
    moments = [{**fact, "at": round(fact["at"] - found.began, 4)} for fact in found.facts]
    (found.folder / "witnesses.jsonl").write_text("\n".join(map(json.dumps, moments)) + "\n")


def line_of(plan: Plan, found: Round | None, problems: list[str], seconds: float) -> str:
    """Return the line that tells of a round."""
    done = [each.fault.kind for each in found.done] if found is not None else []
    runs = len(found.runs) if found is not None else 0
    told = "ok" if not problems else "VIOLATION"
    return f"seed {plan.seed:<10} {plan!s:45} {seconds:5.1f} s  {runs} runs  {told}  {', '.join(done) or 'no fault'}"


def table_of(measured: dict[str, list[tuple[int | None, float | None]]]) -> str:
    """Return what the faults have cost, as a table in Markdown."""
    lines = [
        "| fault | times | repeated steps: median | most | seconds to the next result: median | most |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ALL_KINDS:
        if kind in measured:
            steps = [step for step, _ in measured[kind] if step is not None] or [0]
            seconds = [second for _, second in measured[kind] if second is not None] or [0.0]
            lines.append(
                f"| {kind} | {len(measured[kind])} | {statistics.median(steps):g} | {max(steps)} "
                f"| {statistics.median(seconds):.2f} | {max(seconds):.2f} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Run rounds as the environment says; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    minutes = float(os.environ.get("CHAOS_MINUTES") or 10)
    seed = os.environ.get("CHAOS_SEED")
    resume = bool(os.environ.get("CHAOS_KEEP_GOING"))
    disks = os.geteuid() == 0
    rounds = Rounds(PLACE)
    end_at = time.monotonic() + 60 * minutes
    measured: dict[str, list[tuple[int | None, float | None]]] = defaultdict(list)
    happened: Counter[str] = Counter()
    count = bad = 0
    while time.monotonic() < end_at or seed is not None:
        plan = plan_of(int(seed) if seed is not None else secrets.randbelow(10**8), disks=disks)
        began = time.monotonic()
        found, problems = rounds.run(plan)
        count += 1
        print(line_of(plan, found, problems, time.monotonic() - began), flush=True)
        if found is not None:
            happened.update(done.fault.kind for done in found.done)
            for kind, steps, seconds in costs(found):
                measured[kind].append((steps, seconds))
        if problems:
            bad += 1
            print("\n".join(f"  {problem}" for problem in problems), flush=True)
            print(f"  kept in {PLACE / f'seed-{plan.seed}'}; again: make chaos CHAOS_SEED={plan.seed}", flush=True)
        if seed is not None or (problems and not resume):
            break
    print(f"{count} rounds, {sum(happened.values())} faults, {bad} rounds with violations")
    print(table_of(measured))
    missing = [kind for kind in ALL_KINDS if not happened[kind] and (disks or kind != "fill disk")]
    if count >= ENOUGH and missing:
        print(f"these kinds of faults never happened: {', '.join(missing)}")
        return 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
