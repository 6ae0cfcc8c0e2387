"""The trials that could start, in the order in which a scheduler would choose them.

An engine tells what changed since it was last asked (`waiting_changes`), so that a choice costs the same however many
trials wait. A controller that cannot tell is asked for all of its waiting trials each time.

Invariants:

* A trial is in the order while it waits and the scheduler's `key` gives it a place.
* What a key depends on, apart from the trial's queue, is announced by `touch`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
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
        self._told = False  # by a controller that knows what changed

    def touch(self, trial_id: str) -> None:
        """The trial's key may have changed."""
        self._touched[trial_id] = None

    def refresh(self, controller: ControllerView) -> None:
        """Take in what changed since the last call."""
        ask = getattr(controller, "waiting_changes", None)
        self._told = ask is not None
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

    def after(self, least: Key = ()) -> Iterator[tuple[Key, TrialView]]:
        """Yield the trials from the key `least` on, with their keys; not to be changed meanwhile."""
        for at in range(bisect_left(self._order, (least, "")), len(self._order)):
            key, trial_id = self._order[at]
            yield key, self._waiting[trial_id].trial

    def next_key(self, least: Key) -> Key | None:
        """Return the first key from `least` on."""
        at = bisect_left(self._order, (least, ""))
        return self._order[at][0] if at < len(self._order) else None

    def can_start(self, controller: ControllerView, trial: TrialView) -> bool:
        """Return whether a trial of this order can start now: the budget may hold back paused ones."""
        return not self._told or controller.has_resources_for_trial(trial)

    def first(self, controller: ControllerView, least: Key = ()) -> TrialView | None:
        """Return the first trial from the key `least` on that can start now."""
        return next((trial for _, trial in self.after(least) if self.can_start(controller, trial)), None)

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
