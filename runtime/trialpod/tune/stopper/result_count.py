"""Counts the results of each trial, and says where its n-th result will be without looking at every one.

A horizon needs a value that grows with each result. ``iterations_since_restore`` does, by one, but starts again with
each attempt. When the engine announces attempts (`on_attempt_start`), the n-th result is located exactly. Otherwise
the count may have to be met by a new attempt from its beginning, and the horizon is set so low that it is right then,
too. ``training_iteration`` is a second horizon, for results that carry nothing else.
"""

from __future__ import annotations

from typing import Any

from trialpod.protocol.messages import EVERY_RESULT, Horizon

_ATTRIBUTE = "iterations_since_restore"


class ResultCount:
    """Results per trial, and per trial's latest attempt."""

    def __init__(self) -> None:
        self._total: dict[str, int] = {}
        self._in_attempt: dict[str, int | None] = {}  # None: no attempt was announced

    def on_attempt_start(self, trial_id: str) -> None:
        """A new process of the trial is about to report its first result."""
        self._in_attempt[trial_id] = 0

    def add(self, trial_id: str) -> int:
        """Count one result; return how many there are."""
        count = self._total.get(trial_id, 0) + 1
        self._total[trial_id] = count
        announced = self._in_attempt.get(trial_id)
        if announced is not None:
            self._in_attempt[trial_id] = announced + 1
        return count

    def horizons(self, trial_id: str, wanted: int) -> list[Horizon]:
        """Return where the trial must wait so that its `wanted`-th result is not passed."""
        remaining = wanted - self._total.get(trial_id, 0)
        if remaining <= 1:
            return [Horizon("training_iteration", EVERY_RESULT)]
        in_attempt = self._in_attempt.get(trial_id) or 0
        return [Horizon(_ATTRIBUTE, float(in_attempt + remaining)), Horizon("training_iteration", float(wanted))]

    def forget(self, trial_id: str) -> None:
        """Drop what is known of a trial that has ended."""
        self._total.pop(trial_id, None)
        self._in_attempt.pop(trial_id, None)

    def get_state(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return {trial_id: [total, self._in_attempt.get(trial_id)] for trial_id, total in self._total.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the counts."""
        self._total = {trial_id: total for trial_id, (total, _) in state.items()}
        self._in_attempt = {trial_id: attempt for trial_id, (_, attempt) in state.items()}
