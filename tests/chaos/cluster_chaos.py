"""Runs rounds of chaos in the test cluster for as long as one likes, or one seed again.

    make chaos-cluster CHAOS_MINUTES=30      new seeds; a line a round; exit status 1 when anything did not hold, or,
                                             of 25 minutes or more, a kind of fault never happened
    make chaos-cluster CHAOS_SEED=4711       that seed again: the same faults at the same planned moments

What a round that violated something left (plan, logs of the operator and of trials, events, objects, accounts of the
trials, the bucket) is in build/chaos-cluster. Nobody else can use the cluster meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from cluster_access import Cluster, not_inside  # noqa: E402
from cluster_faults import scale  # noqa: E402
from cluster_plan import DEAL, KINDS, SHORT, Plan, plan_of  # noqa: E402
from cluster_round import PLACE, Report, run_round  # noqa: E402
from operator_release import Operator  # noqa: E402


def seeds() -> list[Plan] | None:
    """Return the plans that the environment names, or None for new ones."""
    named = os.environ.get("CHAOS_SEED", "")
    return [SHORT if seed == "0" else plan_of(int(seed)) for seed in named.split()] if named else None


WHOLE_MINUTES = 25.0
"""A run of this length has time for every kind of fault, and has failed when one never happened."""


def never(reports: list[Report]) -> list[str]:
    """Return the kinds of faults that did not happen."""
    happened = {done.fault.kind for report in reports for done in report.done if not done.missed}
    return [kind for kind in KINDS if kind not in happened]


def table(reports: list[Report]) -> str:
    """Return what each kind of fault has cost."""
    costs: dict[str, list[tuple[float, int]]] = defaultdict(list)
    times: dict[str, int] = defaultdict(int)
    for report in reports:
        for kind, seconds, steps in report.costs:
            costs[kind].append((seconds, steps))
        for done in report.done:
            times[done.fault.kind] += not done.missed
    lines = ["fault                                 times  breaks  s median  s most  steps most"]
    for kind in (*KINDS, "nothing"):
        found = sorted(costs[kind])
        if kind == "nothing" and not found:
            continue
        middle = found[len(found) // 2][0] if found else 0.0
        most = max((seconds for seconds, _ in found), default=0.0)
        steps = max((steps for _, steps in found), default=0)
        lines.append(f"{kind:38}{times[kind]:5}{len(found):8}{middle:10.1f}{most:8.1f}{steps:12}")
    return "\n".join(lines)


def main() -> int:
    """Do what the environment says; return the exit status."""
    if reason := not_inside():
        print(reason)
        return 2
    cluster = Cluster()
    cluster.sweep_namespaces()
    operator = Operator.install(cluster)
    named = seeds()
    minutes = float(os.environ.get("CHAOS_MINUTES") or 30)
    long = named is None and minutes >= WHOLE_MINUTES
    began = time.monotonic()
    end_at = began + 60.0 * minutes
    seed = int(os.environ.get("CHAOS_FIRST") or time.time() // DEAL * DEAL)
    reports: list[Report] = []
    while named or (named is None and time.monotonic() < end_at):
        plan = named.pop(0) if named else plan_of(seed)
        seed += 1
        report = run_round(cluster, operator, plan)
        reports.append(report)
        print(report.line(), flush=True)
        for violation in report.violations:
            print(f"  VIOLATION: {violation}", flush=True)
        if report.place:
            print(f"  kept in {report.place}", flush=True)
        _account(report)
    print(table(reports))
    violations = sum(len(report.violations) for report in reports)
    faults = sum(not done.missed for report in reports for done in report.done)
    took = (time.monotonic() - began) / 60
    print(f"{len(reports)} rounds, {took:.0f} minutes, {faults} faults: {violations} violations")
    missing = never(reports)
    if missing:
        print(f"never happened: {', '.join(missing)}")
    scale(operator, 1)
    return 1 if violations or (long and missing) else 0


def _account(report: Report) -> None:
    """Add the round to the account of all rounds."""
    PLACE.mkdir(parents=True, exist_ok=True)
    faults = [{"kind": each.fault.kind, "missed": each.missed, "about": each.about} for each in report.done]
    line = {
        "seed": report.plan.seed, "violations": report.violations, "faults": faults, "costs": report.costs,
        "end_s": round(report.end_s, 1), "took_s": round(report.took_s, 1), "phases": report.phases,
    }  # fmt: skip
    with open(PLACE / "rounds.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
