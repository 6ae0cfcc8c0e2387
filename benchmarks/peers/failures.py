"""What is lost when a part of a system is killed in the middle of an experiment, or a node is drained.

A part is killed as a crash would end it: SIGKILL for all processes of its containers. The kubelet, or the system,
starts it again.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from typing import Any

import records
from access import OTHER_NODE
from measure import processes_of, until
from peer import Part, Peer, Run, Work

WORK = Work(trials=24, steps=8, step_s=0.5)
BEGUN = 12
"""The fault comes when so many trials have begun."""

LIMIT_S = 480.0
BEGIN_S = 240.0


def disturb(peer: Peer, run: Run, part: Part | None) -> dict[str, Any]:
    """Run an experiment, kill a part of the system in the middle (None: drain a node), return what became of it."""
    began = peer.start(run)
    if not until(lambda: len(records.read(run.records)) >= BEGUN, BEGIN_S):
        return {"problem": f"{BEGUN} trials had not begun after {BEGIN_S:.0f} s: {peer.state(run)[1]}"}
    at = time.time()
    if part is None:
        pods = [pod for pod in run.space.list("pods") if pod["spec"].get("nodeName") == OTHER_NODE]
        concerned = sum(pod["status"].get("phase") == "Running" for pod in pods)
        _drain(run)
    else:
        killed = [pid for pod in peer.pods_of(part, run) for pid in processes_of(pod)]
        if not killed:
            return {"problem": f"the {part.name} has no process to kill"}
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        concerned = len(killed)
    try:
        ended = until(lambda: peer.state(run)[0], LIMIT_S - (time.time() - began))
        return {"concerned": concerned, **outcome(peer, run, began, at, ended=bool(ended))}
    finally:
        if part is None:
            run.space.kubectl("uncordon", OTHER_NODE)


def outcome(peer: Peer, run: Run, began: float, at: float | None, *, ended: bool) -> dict[str, Any]:
    """Return what an experiment's records and its system say of it."""
    took = time.time() - began
    found = records.read(run.records)
    with_result = peer.results(run)
    finished = {ran.trial for ran in found if ran.ended and (at is None or ran.last < at)}
    again = {ran.trial for ran in found if at is not None and ran.began > at} & finished
    return {
        "ended": ended,
        "state": peer.state(run)[1],
        "took_s": round(took, 1),
        "after_fault_s": round(took - (at - began), 1) if at else None,
        "trials": run.work.trials,
        "with_result": len(with_result),
        "finished_before_and_lost": len(finished - with_result),
        "finished_before_and_run_again": len(again),
        **asdict(records.account(found)),
    }


def _drain(run: Run) -> None:
    run.space.kubectl(
        "drain", OTHER_NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s",
        check=False, timeout=150,
    )  # fmt: skip
