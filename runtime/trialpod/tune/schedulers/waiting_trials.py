"""The trials that could start, in the order in which a scheduler would choose them.

The engine's controller says what changed since it was last asked (`waiting_changes`), so that a choice costs the same
however many trials wait. One without that method is asked for all of its waiting trials each time.

Invariants:

* A trial is in the order while it waits and the scheduler's `key` gives it a place.
* What a key depends on, apart from the trial's queue, is announced by `touch`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView

Key = tuple[Any, ...]


class Waiting(NamedTuple):
    """A trial, and where it waits.

    Attributes:
        trial: the trial.
        queue: "pending" or "paused"; "" when it does not wait (any more).
        number: orders paused trials, first come first.
    """

    trial: TrialView
    queue: Literal["pending", "paused", ""]
    number: int = 0


class WaitingTrials:
    """A sorted list of the waiting trials.

    Args:
        key: returns where a waiting trial belongs, different for any two; None leaves it out.
    """

    def __init__(self, key: Callable[[Waiting], Key | None]) -> None:
        self._key = key
        self._waiting: dict[str, Waiting] = {}
        self._keys: dict[str, Key] = {}
        self._order: list[tuple[Key, str]] = []
        self._touched: dict[str, None] = {}
        self._incremental = False  # whether the controller says what changed

    def touch(self, trial_id: str) -> None:
        """The trial's key may have changed."""
        self._touched[trial_id] = None

    def refresh(self, controller: ControllerView) -> None:
        """Take in what changed since the last call."""
        ask = getattr(controller, "waiting_changes", None)
        self._incremental = ask is not None
        first, changes = (True, _all_of(controller)) if ask is None else ask(self)
        if first:
            self._begin(changes)
            return
        for change in changes:
            trial_id = change.trial.trial_id
            self._touched[trial_id] = None
            if change.queue:
                self._waiting[trial_id] = change
            else:
                self._waiting.pop(trial_id, None)
        for trial_id in self._touched:
            self._place(trial_id)
        self._touched.clear()

    def begin_choice(self, controller: ControllerView) -> None:
        """Take in what changed, and let a planned budget compute again what running trials have ahead of them.

        The budget does so when it is asked about a paused trial. Asked at every choice, it does not depend on whether
        the trial that is chosen was pending or paused.
        """
        self.refresh(controller)
        next(iter(controller.paused_trials()), None)

    def first(self, controller: ControllerView, least: Key = (), below: Key | None = None) -> TrialView | None:
        """Return the first trial from the key `least` on that can start now: a budget may hold back paused ones."""
        for at in range(bisect_left(self._order, (least, "")), len(self._order)):
            key, trial_id = self._order[at]
            if below is not None and key >= below:
                break
            trial = self._waiting[trial_id].trial
            if not self._incremental or controller.has_resources_for_trial(trial):
                return trial
        return None

    def next_groups(self, least: int) -> list[tuple[int, int]]:
        """Return how the keys with the first number from `least` on begin: that number, each with a second one."""
        found: list[tuple[int, int]] = []
        at = bisect_left(self._order, ((least,), ""))
        while at < len(self._order) and (not found or self._order[at][0][0] == found[0][0]):
            first, second = self._order[at][0][:2]
            found.append((first, second))
            at = bisect_left(self._order, ((first, second + 1), ""))
        return found

    # -- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, changes: list[Waiting]) -> None:
        self._touched.clear()
        self._waiting = {change.trial.trial_id: change for change in changes if change.queue}
        keys = {trial_id: self._key(waiting) for trial_id, waiting in self._waiting.items()}
        self._keys = {trial_id: key for trial_id, key in keys.items() if key is not None}
        self._order = sorted((key, trial_id) for trial_id, key in self._keys.items())

    def _place(self, trial_id: str) -> None:
        waiting, before = self._waiting.get(trial_id), self._keys.get(trial_id)
        key = None if waiting is None else self._key(waiting)
        if key == before:
            return
        if before is not None:
            del self._keys[trial_id]
            remove(self._order, (before, trial_id))
        if key is not None:
            self._keys[trial_id] = key
            insort(self._order, (key, trial_id))


def remove(order: list[Any], entry: Any) -> None:
    """Remove an entry from a sorted list that has it."""
    del order[bisect_left(order, entry)]


def _all_of(controller: ControllerView) -> list[Waiting]:
    found = [Waiting(trial, "pending") for trial in controller.pending_trials()]
    return found + [Waiting(trial, "paused", number) for number, trial in enumerate(controller.paused_trials())]
