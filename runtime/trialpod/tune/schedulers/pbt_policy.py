"""The history of Population Based Training in Ray Tune's file format, kept as data.

Ray writes `pbt_global.txt` with a line for each exploit, and for each trial that was changed
`pbt_policy_{trial_id}.txt` with the line of its own exploit after those of the trial that it was cloned from. A line
is a JSON list: tag of the changed trial, tag of its source, iteration of either, the source's config, the new config.

Invariants: entries are only ever added; a file's content is a function of them, so writing it again changes nothing.
"""

from __future__ import annotations

import json
from typing import Any

from trialpod.protocol.values import readable

GLOBAL_FILE = "pbt_global.txt"


def policy_file(trial_id: str) -> str:
    """Return the name of the file with a trial's schedule."""
    return f"pbt_policy_{trial_id}.txt"


class PolicyLog:
    """All exploits of an experiment."""

    def __init__(self) -> None:
        self._entries: list[tuple[list[Any], int | None]] = []  # the line, and which entry it builds on
        self._latest: dict[str, int] = {}  # trial_id -> its latest entry

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, trial_id: str, source_id: str, line: list[Any]) -> None:
        """Add the exploit of `source_id` by `trial_id`."""
        self._entries.append((line, self._latest.get(source_id)))
        self._latest[trial_id] = len(self._entries) - 1

    def files(self, since: int = 0) -> dict[str, list[str]]:
        """Return the whole content, in lines, of the files that the entries from number `since` on changed."""
        if since >= len(self._entries):
            return {}
        files = {
            policy_file(trial_id): [_text(line) for line in self._chain(latest)]
            for trial_id, latest in self._latest.items()
            if latest >= since
        }
        files[GLOBAL_FILE] = [_text(line) for line, _ in self._entries]
        return files

    def get_state(self) -> dict[str, Any]:
        """Return all entries as JSON data."""
        return {"entries": [[line, parent] for line, parent in self._entries], "latest": dict(self._latest)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._entries = [(line, parent) for line, parent in state["entries"]]
        self._latest = dict(state["latest"])

    def _chain(self, number: int | None) -> list[list[Any]]:
        lines: list[list[Any]] = []
        while number is not None:
            line, number = self._entries[number]
            lines.append(line)
        return lines[::-1]


def plain(value: Any) -> Any:
    """Return `value` as JSON data; what has no such form becomes its text."""
    return json.loads(json.dumps(readable(value), default=repr))


def _text(line: list[Any]) -> str:
    return json.dumps(line)
