"""The interface of trial schedulers, with Ray Tune's method names and signatures.

A scheduler sees the results of all trials and decides which go on. It runs inside the engine, so it must be
deterministic: no clock, no I/O, no global random source. Its state is data (`get_state`), so that it survives a
restart of the operator.

Two methods have no counterpart in Ray:

* `horizons` tells at which result of a trial the scheduler must next be asked. Up to there the trial goes on without
  waiting for an answer. The contract: for every result before the horizon `on_trial_result` would return CONTINUE
  whatever the other trials do. The default, every result, is always right.
* `reason` explains the latest decision as data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from trialpod.protocol.messages import EVERY_RESULT, Horizon


class TrialView(Protocol):
    """What a scheduler may know of a trial."""

    @property
    def trial_id(self) -> str:
        """The trial's id."""
        ...

    @property
    def status(self) -> str:
        """PENDING, RUNNING, PAUSED, TERMINATED or ERROR."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """The trial's parameters."""
        ...

    @property
    def last_result(self) -> dict[str, Any]:
        """Its latest result, flattened; empty before the first."""
        ...


class ControllerView(Protocol):
    """What a scheduler may know of the experiment; Ray calls this argument ``tune_controller``."""

    def get_trials(self) -> Sequence[TrialView]:
        """Return all trials in order of creation."""
        ...

    def get_trial(self, trial_id: str) -> TrialView | None:
        """Return one trial."""
        ...

    def pending_trials(self) -> Iterable[TrialView]:
        """Return the trials that could start now, first come first."""
        ...

    def paused_trials(self) -> Iterable[TrialView]:
        """Return the trials that a scheduler paused and that could go on, first come first."""
        ...


class TrialScheduler:
    """Base class: subclasses override what they need."""

    CONTINUE = "CONTINUE"
    PAUSE = "PAUSE"
    STOP = "STOP"
    NOOP = "NOOP"

    time_slicing: bool = False
    """True when the scheduler pauses trials in favour of waiting ones: the engine then always keeps one waiting."""

    metric: str | None = None
    mode: str | None = None

    def set_search_properties(self, metric: str | None, mode: str | None, **_spec: Any) -> bool:
        """Take metric and mode from the experiment; return False when the scheduler has its own already.

        The caller turns False into an error, because two sources of truth for one setting hide mistakes.
        """
        if (self.metric and metric) or (self.mode and mode):
            return False
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        return True

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Called when a trial is created, and again when a failed one is queued for a retry."""

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Called when an attempt of a trial failed, before a possible retry."""

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Return CONTINUE, PAUSE or STOP (or NOOP) for the trial that reported `result` (flattened)."""
        raise NotImplementedError

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Called when a trial ended without the scheduler stopping it; `result` is its last."""

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Called when a pending or paused trial is stopped from outside."""

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return the trial to start next, a pending or a paused one, or None to start nothing now."""
        raise NotImplementedError

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return where `trial` must next wait for a decision; an empty list means nowhere."""
        return [Horizon("training_iteration", EVERY_RESULT)]

    def reason(self) -> dict[str, Any]:
        """Return why the latest decision other than CONTINUE was made, as JSON data."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, on an object made with the same arguments."""
        raise NotImplementedError
