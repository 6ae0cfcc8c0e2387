"""What trials did, from their own records: one file for each process that ran a trial, on the nodes' disk.

The trials of all systems write them with the same code, and name themselves: by Katib's name for them, or by their
parameter `x`. So a trial that ran twice and a step that was repeated are seen whatever the system says of itself.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PLACE = "/records"
"""Where trials find the folder."""

SOURCE = f'''
import json, os, time, uuid


class Record:
    """One run of a trial: a line when it begins, for each step, and when it ends."""

    def __init__(self, trial, x):
        self.file = open(f"{PLACE}/{{uuid.uuid4().hex}}.jsonl", "a", buffering=1)
        self.write(trial=trial, x=x, begin=True)

    def write(self, **what):
        self.file.write(json.dumps({{"at": time.time(), **what}}) + "\\n")


def steps_of(trial, x, steps, seconds, report):
    """The work: so many steps that take a while, each of which reports a value."""
    record = Record(trial, x)
    for step in range(1, steps + 1):
        time.sleep(seconds)
        record.write(step=step)
        report(x * step / steps)
    record.write(end=True)
    record.file.close()
'''


@dataclass
class Ran:
    """One process that ran a trial."""

    trial: str
    x: float
    began: float
    steps: list[tuple[int, float]]
    ended: bool

    @property
    def last(self) -> float:
        """When it wrote its last line."""
        return self.steps[-1][1] if self.steps else self.began


def read(folder: Path) -> list[Ran]:
    """Return all processes that ran trials, in the order in which they began."""
    found = []
    for file in folder.glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
        if lines:
            steps = [(line["step"], line["at"]) for line in lines if "step" in line]
            found.append(Ran(lines[0]["trial"], lines[0]["x"], lines[0]["at"], steps, "end" in lines[-1]))
    return sorted(found, key=lambda ran: ran.began)


@dataclass
class Account:
    """What the records say of an experiment."""

    trials: int
    steps: int
    ran_twice: int
    """Trials that more than one process ran."""
    steps_repeated: int
    same_parameters: int
    """Trials with the parameters of an earlier one."""
    most_at_once: int


def account(found: list[Ran]) -> Account:
    """Sum up."""
    processes = Counter(ran.trial for ran in found)
    executed = Counter((ran.trial, step) for ran in found for step, _ in ran.steps)
    changes = sorted([(ran.began, 1) for ran in found] + [(ran.last, -1) for ran in found])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return Account(
        trials=len(processes),
        steps=sum(executed.values()),
        ran_twice=sum(count > 1 for count in processes.values()),
        steps_repeated=sum(count - 1 for count in executed.values()),
        same_parameters=len(processes) - len({ran.x for ran in found}),
        most_at_once=most,
    )
