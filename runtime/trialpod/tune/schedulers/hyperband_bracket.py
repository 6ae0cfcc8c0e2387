"""One bracket of HyperBand: a set of trials that is cut down rung by rung.

Source: Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization" (2017). Bracket s of
max_t and eta starts with ``ceil((s_max + 1) / (s + 1) * eta**s)`` trials, which go to ``max_t / eta**s``; the best
``1/eta`` of them (rounded up, as Ray Tune has it; the paper rounds down) continue to the next rung, which is ``eta``
times as far.

Invariants:

* A trial is in one of the states RUNNING (has to reach the milestone), WAITING (has reached it), READY (has passed it
  and waits for a place) and LEFT (ended, by itself or by a decision).
* The last rung is always at `max_t`.
"""

from __future__ import annotations

import math
from typing import Any

from trialpod.tune.schedulers.metric_scheduler import comparable, decoded, encoded

RUNNING = "running"
WAITING = "waiting"
READY = "ready"
LEFT = "left"


class Member:
    """A trial in its bracket."""

    __slots__ = ("number", "seen", "state", "time", "value")

    def __init__(self) -> None:
        self.number = 0  # in the order in which they joined
        self.state = RUNNING
        self.seen = False  # has reported since it joined or came back
        self.time = 0.0
        self.value = math.nan


class Bracket:
    """The trials of a bracket and the rung that they are on."""

    def __init__(self, size: int, milestones: list[float], eta: float) -> None:
        """Make an empty bracket for `size` trials."""
        self.size = size
        self.milestones = milestones
        self.eta = eta
        self.rung = 0
        self.kept = size  # most trials that may be on this rung
        self.progress = 0.0  # time that its trials have run, in units of the time attribute
        self.members: dict[str, Member] = {}
        self.closed = False  # no trial joins any more
        self._work = self._total_work()

    @property
    def milestone(self) -> float:
        """Where the present rung ends."""
        return self.milestones[self.rung]

    @property
    def last_rung(self) -> bool:
        """Whether nothing is left to compare."""
        return self.rungs_left == 0

    @property
    def rungs_left(self) -> int:
        """How many times it will be cut down."""
        return len(self.milestones) - 1 - self.rung

    @property
    def full(self) -> bool:
        """Whether no further trial may join."""
        return self.closed or len(self.members) >= self.size

    def completion(self) -> float:
        """Return how much of its work is done, from 0 to 1."""
        return min(self.progress / self._work, 1.0)

    def record(self, member: Member, time: float, value: float) -> None:
        """Take a trial's result."""
        self.progress += time - member.time
        member.time, member.value, member.seen = time, value, True

    def all_wait(self) -> bool:
        """Return whether every trial that is still in has reached the milestone, and there is one."""
        states = {member.state for member in self.members.values()}
        return WAITING in states and not states & {RUNNING, READY}

    def halve(self, sign: float) -> tuple[list[tuple[str, int]], list[tuple[str, int]], int, float]:
        """Go to the next rung."""
        waiting = [trial_id for trial_id, member in self.members.items() if member.state == WAITING]
        # Stable, so that of equal trials those that joined last continue, as in Ray.
        waiting.sort(key=lambda trial_id: comparable(sign * self.members[trial_id].value))
        waiting.reverse()
        self.closed = True
        self.rung += 1
        self.kept = math.ceil(self.kept / self.eta - 1e-9)
        ranked = [(trial_id, rank) for rank, trial_id in enumerate(waiting, 1)]
        good, bad = ranked[: self.kept], ranked[self.kept :]
        return good, bad, len(ranked), self.members[good[-1][0]].value

    def get_state(self) -> dict[str, Any]:
        """Return the bracket as JSON data."""
        return {
            "size": self.size,
            "milestones": self.milestones,
            "rung": self.rung,
            "kept": self.kept,
            "progress": self.progress,
            "closed": self.closed,
            "members": {
                trial_id: [member.state, member.seen, member.time, encoded(member.value)]
                for trial_id, member in self.members.items()
            },
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], eta: float) -> Bracket:
        """Make the bracket that `get_state` described."""
        bracket = cls(state["size"], state["milestones"], eta)
        bracket.rung, bracket.kept = state["rung"], state["kept"]
        bracket.progress, bracket.closed = state["progress"], state["closed"]
        for trial_id, (stage, seen, time, value) in state["members"].items():
            member = bracket.members[trial_id] = Member()
            member.number = len(bracket.members)
            member.state, member.seen, member.time, member.value = stage, seen, time, decoded(value)
        return bracket

    def _total_work(self) -> float:
        """Estimate the time that all trials of the bracket run; only ratios between brackets matter."""
        first, last = self.milestones[0], self.milestones[-1]
        work, count, length = 0.0, self.size, first
        for _ in self.milestones:
            work += count * int(length)
            count = math.ceil(count / self.eta - 1e-9)
            length = int(min(length * self.eta, last - first))
        return max(work, first)
