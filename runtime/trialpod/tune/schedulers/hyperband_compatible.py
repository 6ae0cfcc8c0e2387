"""HyperBand by the rules of Ray Tune 2.60, for results that have to be Ray's.

What differs from the rules of `HyperBandScheduler`: the milestones of a bracket are truncated one after the other; a
bracket is cut down as soon as all of its trials so far are there, full or not (BOHB's variant: when it is full, or
nothing runs); at `max_t` a trial waits until its bracket is done; a trial that jumped over a rung can stay paused
until the experiment ends; a retried trial joins the bracket that is being filled then.

Invariants:

* A bracket compares the latest results of the trials in it; those that were stopped or have ended have left it.
* A trial that reached the milestone is paused (`WAITING`) until the bracket is cut down; one that passed is `READY`.
"""

from __future__ import annotations

import math
from typing import Any

from trialpod.tune.schedulers.metric_scheduler import decoded, encoded
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView
from trialpod.tune.schedulers.waiting_trials import Waiting, WaitingTrials

RUNNING, WAITING, READY = "running", "waiting", "ready"

CONTINUE, PAUSE, STOP = "CONTINUE", "PAUSE", "STOP"


class RayBracket:
    """The trials of one bracket, with the latest time and value of each.

    Args:
        size: how many trials it takes.
        milestone: of its first rung.
        halvings: how many times it is cut down.
        band: its number.
        column: its place in its band.
    """

    def __init__(self, size: int, milestone: float, halvings: int, band: int, column: int) -> None:
        self.place = band, column
        self.size, self.kept = size, size
        self.first = self.milestone = milestone
        self.halvings, self.left = halvings, halvings
        self.progress = 0.0
        self.processed = False
        self.members: dict[str, list[Any]] = {}  # [state, time or None, value or None]

    @property
    def full(self) -> bool:
        """Whether no further trial may join: as many are in it as may be on this rung."""
        return len(self.members) == self.kept

    @property
    def all_there(self) -> bool:
        """Whether every trial in it has reached the milestone."""
        return all((time or 0) >= self.milestone for _, time, _ in self.members.values())

    def get_state(self) -> dict[str, Any]:
        """Return the bracket as JSON data."""
        members = {
            trial_id: [state, time, None if value is None else encoded(value)]
            for trial_id, (state, time, value) in self.members.items()
        }
        return {**{name: value for name, value in vars(self).items() if name != "place"}, "members": members}

    @classmethod
    def from_state(cls, state: dict[str, Any], band: int, column: int) -> RayBracket:
        """Make the bracket that `get_state` described."""
        bracket = cls(state["size"], state["first"], state["halvings"], band, column)
        vars(bracket).update(state)
        bracket.members = {
            trial_id: [stage, time, None if value is None else decoded(value)]
            for trial_id, (stage, time, value) in state["members"].items()
        }
        return bracket


class RayHyperBand:
    """All brackets.

    Args:
        max_t: where trials end.
        eta: one in so many passes a rung.
        stop_last: whether `max_t` ends a trial.
        largest_first: BOHB's variant.
    """

    def __init__(self, max_t: float, eta: float, *, stop_last: bool, largest_first: bool) -> None:
        self.max_t, self.eta, self.stop_last, self.largest_first = max_t, eta, stop_last, largest_first
        self.levels = round(math.log(max_t) / math.log(eta)) + 1
        self.bands: list[list[RayBracket | None]] = [[]]
        self.filling: RayBracket | None = None
        self.places: dict[str, RayBracket] = {}
        self.stopped = 0
        self._count = 0
        self._joined: dict[str, int] = {}  # in which order trials joined their brackets
        self._waiting = WaitingTrials(self._turn)

    def add(self, trial_id: str) -> None:
        """Put a trial into the bracket that is being filled."""
        if self.filling is None or self.filling.full:
            self.filling = self._next_bracket()
        if trial_id not in self.filling.members:
            self._count += 1
            self._joined[trial_id] = self._count
        self.filling.members[trial_id] = [RUNNING, None, None]
        self.places[trial_id] = self.filling
        self._waiting.touch(trial_id)

    def report(self, trial_id: str, time: float, value: float, waiting: Any) -> tuple[str, list[str], dict[str, Any]]:
        """Take a result."""
        bracket = self.places[trial_id]
        member = bracket.members[trial_id]
        bracket.progress += time - (member[1] or 0)
        member[:] = [RUNNING, time, value]
        self._waiting.touch(trial_id)
        if self._continues(bracket, trial_id):
            return CONTINUE, [], {}
        member[0] = WAITING
        if self.largest_first and (
            not bracket.full or not all(waiting(other) for other in bracket.members if other != trial_id)
        ):
            return PAUSE, [], {"rule": "rung", "rung": bracket.milestone}
        return self._process(bracket, trial_id)

    def leave(self, trial_id: str) -> tuple[list[str], dict[str, Any]]:
        """A trial has ended; return the others that are stopped, and the evidence."""
        bracket = self.places[trial_id]
        self._drop(bracket, [trial_id])
        if self._finished(bracket) or bracket.processed:
            return [], {}
        _, others, evidence = self._process(bracket, None)
        return others, evidence

    def choose(
        self, controller: ControllerView, anything_runs: bool
    ) -> tuple[TrialView | None, list[str], dict[str, Any]]:
        """Return the trial to start, the trials that are stopped, and the evidence."""
        chosen = self._ready(controller)
        stopped: list[str] = []
        evidence: dict[str, Any] = {}
        if chosen is None and self.largest_first and not anything_runs:
            for bracket in self._all():
                if all(state == RUNNING for state, _, _ in bracket.members.values()):
                    continue
                _, others, evidence = self._process(bracket, None)
                stopped += others
                # A planned budget is asked only now, when the next milestone is known.
                chosen = self._ready(controller)
                if chosen is not None:
                    break
        return chosen, stopped, evidence

    def milestone(self, trial_id: str) -> float | None:
        """Return the time at which a trial must be asked about next; None: never again."""
        bracket = self.places[trial_id]
        return None if not self.stop_last and bracket.left == 0 else bracket.milestone

    def lines(self) -> list[str]:
        """Return a line about each bracket."""
        return [
            f"bracket {number}: {len(bracket.members)} of {bracket.size} trials, milestone {bracket.milestone:g}"
            for number, bracket in enumerate(each for band in self.bands for each in band if each is not None)
        ]

    def get_state(self) -> dict[str, Any]:
        """Return all brackets as JSON data."""
        numbers = {id(bracket): number for number, bracket in enumerate(self._all())}
        return {
            "bands": [[None if each is None else each.get_state() for each in band] for band in self.bands],
            "filling": None if self.filling is None else numbers[id(self.filling)],
            "places": {trial_id: numbers[id(bracket)] for trial_id, bracket in self.places.items()},
            "stopped": self.stopped,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.bands = [
            [None if each is None else RayBracket.from_state(each, number, at) for at, each in enumerate(band)]
            for number, band in enumerate(state["bands"])
        ]
        found = self._all()
        self.filling = None if state["filling"] is None else found[state["filling"]]
        self.places = {trial_id: found[number] for trial_id, number in state["places"].items()}
        self.stopped = state["stopped"]
        self._joined = {}
        for bracket in found:
            self._joined.update((trial_id, number) for number, trial_id in enumerate(bracket.members))
        self._count = max(self._joined.values(), default=0)
        self._waiting = WaitingTrials(self._turn)

    # -- inside -------------------------------------------------------------------------------------------------

    def _all(self) -> list[RayBracket]:
        return [bracket for band in self.bands for bracket in band if bracket is not None]

    def _next_bracket(self) -> RayBracket:
        while True:
            if len(self.bands[-1]) == self.levels:
                self.bands.append([])
            band = self.bands[-1]
            s = self.levels - len(band) - 1 if self.largest_first else len(band)
            milestone = int(self.max_t * self.eta ** (-s))
            if milestone:
                size = math.ceil(self.levels / (s + 1) * self.eta**s)
                bracket = RayBracket(size, milestone, s, len(self.bands) - 1, len(band))
                band.append(bracket)
                return bracket
            band.append(None)

    def _continues(self, bracket: RayBracket, trial_id: str) -> bool:
        if not self.stop_last and bracket.left == 0:
            return True
        return bool((bracket.members[trial_id][1] or 0) < bracket.milestone)

    def _finished(self, bracket: RayBracket) -> bool:
        return self.stop_last and bracket.left == 0 and bracket.all_there

    def _process(self, bracket: RayBracket, current: str | None) -> tuple[str, list[str], dict[str, Any]]:
        """Cut a bracket down, if all are there; return what becomes of `current`, and who else is stopped."""
        evidence: dict[str, Any] = {"rule": "rung", "rung": bracket.milestone}
        if not bracket.all_there:
            return PAUSE, [], evidence
        if self._finished(bracket):
            others = [other for other, member in bracket.members.items() if other != current and member[0] != RUNNING]
            self._drop(bracket, others)
            return STOP, others, {"rule": "max_t", "max_t": self.max_t}
        bracket.processed = True
        good, bad = self._halved(bracket)
        action = PAUSE
        stopped: list[str] = []
        for trial_id in bad:
            self.stopped += 1
            if trial_id == current:
                action = STOP
            else:
                stopped.append(trial_id)
        self._drop(bracket, bad)
        for trial_id in good:
            if self._continues(bracket, trial_id):
                if trial_id == current:
                    action = CONTINUE
                    bracket.members[trial_id][0] = RUNNING
                    self._waiting.touch(trial_id)
                elif bracket.members[trial_id][0] == WAITING:
                    bracket.members[trial_id][0] = READY
                    self._waiting.touch(trial_id)
            elif self._finished(bracket):
                if trial_id == current:
                    action = STOP
                else:
                    stopped.append(trial_id)
                self._drop(bracket, [trial_id])
        return action, stopped, {**evidence, "compared": len(good) + len(bad), "kept": len(good)}

    def _halved(self, bracket: RayBracket) -> tuple[list[str], list[str]]:
        if bracket.left == 0:  # without `stop_last`
            return list(bracket.members), []
        bracket.left -= 1
        bracket.kept = math.ceil(bracket.kept / self.eta)
        bracket.milestone = int(min(bracket.milestone * self.eta, self.max_t))
        ranked = sorted(bracket.members, key=lambda trial_id: bracket.members[trial_id][2])
        return ranked[-bracket.kept :], ranked[: -bracket.kept]

    def _drop(self, bracket: RayBracket, trial_ids: list[str]) -> None:
        for trial_id in trial_ids:
            bracket.members.pop(trial_id, None)
            self._waiting.touch(trial_id)

    def _turn(self, waiting: Waiting) -> tuple[int, int, int] | None:
        """Return the band, the column and the place in its bracket of a trial that does not wait for others."""
        trial_id = waiting.trial.trial_id
        bracket = self.places.get(trial_id)
        member = None if bracket is None else bracket.members.get(trial_id)
        if bracket is None or member is None or member[0] == WAITING:
            return None
        return *bracket.place, self._joined[trial_id]

    def _ready(self, controller: ControllerView) -> TrialView | None:
        waiting, band = self._waiting, 0
        waiting.begin_choice(controller)
        while places := waiting.next_groups(band):
            band = places[0][0]
            brackets = [bracket for place in places if (bracket := self.bands[band][place[1]]) is not None]
            if not self.largest_first:
                brackets.sort(key=self._completion)
            for bracket in brackets:
                column = bracket.place[1]
                trial = waiting.first(controller, (band, column), (band, column + 1))
                if trial is not None:
                    return trial
            band += 1
        return None

    def _completion(self, bracket: RayBracket) -> float:
        if self._finished(bracket):
            return 1.0
        return min(bracket.progress / self._work(bracket), 1.0)

    def _work(self, bracket: RayBracket) -> float:
        count: float = bracket.size
        length, first = bracket.first, bracket.first
        work = 0.0
        for _ in range(bracket.halvings + 1):
            work += int(count) * int(length)
            count = math.ceil(count / self.eta)
            length = int(min(length * self.eta, self.max_t - first))
        return work
