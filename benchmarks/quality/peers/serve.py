"""The peer's side of the line protocol: one JSON object a line on standard input, one answer a line.

Runs in the peer's own environment, so it needs nothing but the standard library. Whatever a library prints to
standard output goes to standard error.

| request | answer |
|---|---|
| {"do": "begin", "problem": {...}} | {} |
| {"do": "next", "now": s} | {"trial": id, "config": {...}}, {"trial": id} to resume, or {} for none |
| {"do": "report", "trial": id, "step": n, "value": v, "now": s} | {"decision": "continue", "stop" or "pause"} |
| {"do": "ended", "trial": id, "decision": d, "now": s} | {} |

An error ends the process; the last line of standard error says which.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Protocol


class Peer(Protocol):
    """What a peer's program implements; see `tuners.tuner.Tuner`."""

    def begin(self, problem: dict[str, Any]) -> None:
        """Forget everything and begin with a task."""
        ...

    def next(self) -> tuple[str, dict[str, Any] | None] | None:
        """Return a trial with its config, one to resume without, or None."""
        ...

    def report(self, trial: str, step: int, value: float) -> str:
        """Return "continue", "stop" or "pause"."""
        ...

    def ended(self, trial: str, decision: str) -> None:
        """The trial left its worker."""
        ...


def serve(peer: Peer) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if request["do"] == "begin":
            peer.begin(request["problem"])
        elif request["do"] == "next":
            start = peer.next()
            if start is not None:
                answer = {"trial": start[0]} | ({} if start[1] is None else {"config": start[1]})
        elif request["do"] == "report":
            answer = {"decision": peer.report(request["trial"], request["step"], request["value"])}
        else:
            peer.ended(request["trial"], request["decision"])
        answers.write(json.dumps(answer, default=_plain) + "\n")
        answers.flush()


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number."""
    return value.item()
