"""What the trials' own accounts say, and what must follow from them: nothing durable lost, no step done too often.

Pure but for `read`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Life:
    """One process's account of what it did for one trial.

    Attributes:
        steps: (when, attempt, number within the attempt, iteration, stamp) of each result that it reported.
        durable: by attempt, the highest number that was answered durable.
        exploited: it was told to take over another trial's state.
    """

    trial: str
    name: str
    steps: list[tuple[float, int, int, int, str]] = field(default_factory=list)
    durable: dict[int, int] = field(default_factory=dict)
    exploited: bool = False

    @property
    def promised(self) -> set[str]:
        """Stamps of the results that it was told are durable."""
        return {stamp for _, attempt, number, _, stamp in self.steps if number <= self.durable.get(attempt, 0)}


@dataclass(frozen=True)
class Break:
    """Between the last step of a process and the first one of the next, of one trial.

    Attributes:
        stopped: when the last step was reported, in seconds since the epoch.
        resumed: when the next one was.
        repeated: steps that were done again.
        same_process: it was only stopped.
    """

    trial: str
    stopped: float
    resumed: float
    repeated: int
    same_process: bool = False


def read(folder: Path) -> list[Life]:
    """Read all accounts; of each trial in the order in which its processes began."""
    found: dict[tuple[str, str], Life] = {}
    first: dict[tuple[str, str], float] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue  # it was killed within the write
            note: dict[str, Any] = json.loads(line)
            key = note["trial"], note["life"]
            life = found.setdefault(key, Life(*key))
            first.setdefault(key, note["at"])
            if "number" in note:
                life.steps.append((note["at"], note["attempt"], note["number"], note["iteration"], note["stamp"]))
            if "durable" in note:
                attempt = note["attempt"]
                life.durable[attempt] = max(life.durable.get(attempt, 0), note["durable"])
                life.exploited |= note.get("decision") == "exploit"
    return [found[key] for key in sorted(found, key=lambda key: (key[0], first[key]))]


def lost(lives: Iterable[Life], stored: Mapping[str, list[Mapping[str, Any]]]) -> list[str]:
    """Return what was called durable and is not in the stored results, or is there twice.

    Args:
        lives: the accounts.
        stored: the lines of each trial's ``result.json``.
    """
    wrong = []
    stamps = {trial: [str(row.get("stamp")) for row in rows] for trial, rows in stored.items()}
    for life in lives:
        missing = life.promised - set(stamps.get(life.trial, ()))
        if missing:
            numbers = sorted(step[3] for step in life.steps if step[4] in missing)
            wrong.append(
                f"{life.trial}: {len(missing)} durable results are lost (iterations {numbers[:8]}) of {life.name}"
            )
    for trial, found in stamps.items():
        if len(found) != len(set(found)):
            wrong.append(f"{trial}: {len(found) - len(set(found))} results are stored twice")
    return wrong


def breaks(lives: Iterable[Life], still_s: float) -> list[Break]:
    """Return where training stopped for longer than `still_s`, or was begun again by another process."""
    by_trial: dict[str, list[Life]] = defaultdict(list)
    for life in lives:
        if life.steps:
            by_trial[life.trial].append(life)
    found = []
    for trial, those in by_trial.items():
        for before, after in zip([None, *those], those, strict=False):
            if before is not None:
                repeated = 0
                if not before.exploited:
                    repeated = max(0, before.steps[-1][3] - after.steps[0][3] + 1)
                found.append(Break(trial, before.steps[-1][0], after.steps[0][0], repeated))
            for one, two in zip(after.steps, after.steps[1:], strict=False):
                if two[0] - one[0] > still_s:
                    found.append(Break(trial, one[0], two[0], 0, same_process=True))
    return found
