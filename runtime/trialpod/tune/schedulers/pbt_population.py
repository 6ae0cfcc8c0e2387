"""The population of Population Based Training, kept in order of score and of time.

Invariants:

* `ranked` has the live trials with a score, ascending; ties count for the trial that was created later, as in Ray.
* `_copyable` has those of `ranked` that may be copied: their score is not NaN, and they have a committed checkpoint.
* No time is NaN, so that everything can be sorted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import Any

from trialpod.tune.schedulers.metric_scheduler import comparable, decoded, encoded
from trialpod.tune.schedulers.trial_scheduler import ControllerView
from trialpod.tune.schedulers.waiting_trials import remove

Entry = tuple[float, int, str]


class Member:
    """A trial in the population; `Population.change` changes what others are compared with."""

    __slots__ = ("live", "number", "perturbed_at", "score", "tag", "train_time")

    def __init__(self, number: int, tag: str) -> None:
        self.number = number  # in order of creation
        self.tag = tag  # as the trial was created
        self.live = True
        self.score: float | None = None  # at its latest perturbation time; greater is better
        self.train_time: float = 0.0
        self.perturbed_at: float = 0.0


class Population:
    """All trials, with the live ones in order.

    Args:
        skips_nan: whether a trial with a score of NaN is not ranked, as in Ray; else it is the worst.
    """

    def __init__(self, *, skips_nan: bool) -> None:
        self._skips_nan = skips_nan
        self.members: dict[str, Member] = {}
        self.ranked: list[Entry] = []
        self._copyable: list[Entry] = []
        self._times: list[Entry] = []
        self._touched: dict[str, None] = {}  # whose checkpoint is to be looked at

    def add(self, trial_id: str, tag: str) -> None:
        """Add a new trial."""
        member = self.members[trial_id] = Member(len(self.members), tag)
        self._enter(trial_id, member)

    def change(
        self, trial_id: str, *, live: bool | None = None, score: float | None = None, train_time: float | None = None
    ) -> None:
        """Change what is given of a trial."""
        member = self.members[trial_id]
        self._leave(trial_id, member)
        member.live = member.live if live is None else live
        member.score = member.score if score is None else score
        member.train_time = member.train_time if train_time is None else train_time
        self._enter(trial_id, member)

    # -- in order of time -------------------------------------------------------------------------------------------

    @property
    def least_time(self) -> float | None:
        """The least time of a live trial; None when there is none."""
        return self._times[0][0] if self._times else None

    @property
    def greatest_time(self) -> float:
        """The greatest time of a live trial."""
        return self._times[-1][0]

    def live_members(self) -> list[Member]:
        """Return the live trials."""
        return [self.members[trial_id] for _, _, trial_id in self._times]

    # -- in order of score ------------------------------------------------------------------------------------------

    def rank(self, trial_id: str) -> int:
        """Return the rank of a ranked trial, 1 being the best."""
        return len(self.ranked) - bisect_left(self.ranked, self._entry(trial_id, self.members[trial_id]))

    def is_among_lowest(self, trial_id: str, count: int) -> bool:
        """Return whether a trial is one of the lowest `count`."""
        member = self.members[trial_id]
        return count > 0 and self._is_ranked(member) and self._entry(trial_id, member) <= self.ranked[count - 1]

    def refresh(self, controller: ControllerView) -> None:
        """Look which of the trials that changed have a checkpoint; of all, where the controller does not say."""
        ask = getattr(controller, "waiting_changes", None)
        first, changes = (True, []) if ask is None else ask(self)
        if first:
            self._copyable, self._touched = [], {trial_id: None for _, _, trial_id in self.ranked}
        for change in changes:
            self._touched[change.trial.trial_id] = None
        for trial_id in self._touched:
            member = self.members.get(trial_id)
            if member is None or not self._is_ranked(member) or math.isnan(member.score or 0.0):
                continue
            entry = self._entry(trial_id, member)
            view = controller.get_trial(trial_id)
            self._discard_copyable(entry)
            if view is not None and view.checkpoint is not None:
                insort(self._copyable, entry)
        self._touched.clear()

    def sources(self, count: int) -> list[Entry]:
        """Return which of the highest `count` trials, at least one, may be copied, ascending by score."""
        return self._copyable[bisect_left(self._copyable, self.ranked[len(self.ranked) - count]) :]

    # -- state ------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, list[Any]]:
        """Return all trials as JSON data."""
        return {
            trial_id: [
                member.tag,
                member.live,
                None if member.score is None else encoded(member.score),
                member.train_time,
                member.perturbed_at,
            ]
            for trial_id, member in self.members.items()
        }

    def set_state(self, state: dict[str, list[Any]]) -> None:
        """Restore into an empty population what `get_state` returned."""
        for number, (trial_id, (tag, live, score, train_time, perturbed_at)) in enumerate(state.items()):
            member = self.members[trial_id] = Member(number, tag)
            member.live, member.score = live, None if score is None else decoded(score)
            member.train_time, member.perturbed_at = train_time, perturbed_at
            if member.live:
                self._times.append((member.train_time, number, trial_id))
            if self._is_ranked(member):
                self.ranked.append(self._entry(trial_id, member))
        self._times.sort()
        self.ranked.sort()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _is_ranked(self, member: Member) -> bool:
        score = member.score
        return member.live and score is not None and not (self._skips_nan and math.isnan(score))

    @staticmethod
    def _entry(trial_id: str, member: Member) -> Entry:
        return comparable(math.nan if member.score is None else member.score), member.number, trial_id

    def _enter(self, trial_id: str, member: Member) -> None:
        if member.live:
            insort(self._times, (member.train_time, member.number, trial_id))
        if self._is_ranked(member):
            insort(self.ranked, self._entry(trial_id, member))
            self._touched[trial_id] = None

    def _leave(self, trial_id: str, member: Member) -> None:
        if member.live:
            remove(self._times, (member.train_time, member.number, trial_id))
        if self._is_ranked(member):
            entry = self._entry(trial_id, member)
            remove(self.ranked, entry)
            self._discard_copyable(entry)

    def _discard_copyable(self, entry: Entry) -> None:
        at = bisect_left(self._copyable, entry)
        if self._copyable[at : at + 1] == [entry]:
            del self._copyable[at]
