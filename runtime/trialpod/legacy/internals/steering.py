"""What lets a `TrialRunner` follow an experiment step by step: it runs in a thread, and these two are its reins.

Invariants: the engine decides as in every experiment; what a script asks of a trial is what a scheduler would answer.
Nothing waits for the script: between two of its steps the experiment continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from trialpod.errors import TrialpodError
from trialpod.protocol.messages import Horizon
from trialpod.tune.callback import Callback
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import (
    ControllerView,
    Exploit,
    TrialScheduler,
    TrialView,
    learns_of_own_stops,
)
from trialpod.tune.trial import Trial


class EndedByScriptError(TrialpodError):
    """The script does not want the experiment to continue."""


class StepWatch(Callback):
    """Counts the experiment's events, and knows its trials."""

    def __init__(self) -> None:
        self._happened = threading.Condition()
        self._events = 0
        self._seen = 0
        self._cancelled = False
        self._over = False
        self.trials: list[Trial] = []
        """All trials so far; they follow what happens."""

    def __reduce__(self) -> tuple[type[StepWatch], tuple[()]]:
        """Travel without anything: a stored one watches nothing."""
        return StepWatch, ()

    def setup(self, *_args: Any, **info: Any) -> None:
        """The experiment is ready."""
        self._tell()

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """End the experiment if the script wants that."""
        if self._cancelled:
            raise EndedByScriptError("TrialRunner.cleanup() was called")

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """An event has been processed."""
        if len(trials) > len(self.trials):
            self.trials = list(trials)
        self._tell()

    def cancel(self) -> None:
        """Have the experiment end with its next event."""
        self._cancelled = True

    def over(self) -> None:
        """Nothing more will happen."""
        self._over = True
        self._tell()

    def wait(self) -> None:
        """Return when an event has been processed since this last returned, or the experiment is over."""
        with self._happened:
            self._happened.wait_for(lambda: self._over or self._events > self._seen)
            self._seen = self._events

    def _tell(self) -> None:
        with self._happened:
            self._events += 1
            self._happened.notify_all()


class SteeredScheduler(TrialScheduler):
    """A scheduler that also carries out what a script asks for, at the next result.

    Args:
        scheduler: decides on everything else; None is first in, first out.
    """

    def __init__(self, scheduler: TrialScheduler | None = None) -> None:
        self.scheduler = scheduler or FIFOScheduler()
        self.orders: dict[str, str] = {}
        """trial_id -> PAUSE or STOP; written by the script's thread, shared by copies."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SteeredScheduler:
        import copy

        copied = SteeredScheduler(copy.deepcopy(self.scheduler, memo))
        copied.orders = self.orders
        return copied

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel without the orders."""
        return SteeredScheduler, (self.scheduler,)

    @property
    def saves_at_horizon(self) -> bool:  # type: ignore[override]
        """As the scheduler's own."""
        return self.scheduler.saves_at_horizon

    @property
    def time_slicing(self) -> bool:  # type: ignore[override]
        """As the scheduler's own."""
        return self.scheduler.time_slicing

    @property
    def changes_configs(self) -> bool:  # type: ignore[override]
        """As the scheduler's own."""
        return self.scheduler.changes_configs

    @property
    def pending_trials(self) -> int:  # type: ignore[override]
        """As the scheduler's own."""
        return self.scheduler.pending_trials

    @property
    def needs_metric(self) -> bool:  # type: ignore[override]
        """As the scheduler's own."""
        return self.scheduler.needs_metric

    @property
    def several_metrics(self) -> bool:  # type: ignore[override]
        """As the scheduler's own."""
        return self.scheduler.several_metrics

    @property
    def metric(self) -> str | None:  # type: ignore[override]
        """As the scheduler's own."""
        return self.scheduler.metric

    @property
    def mode(self) -> str | None:  # type: ignore[override]
        """As the scheduler's own."""
        return self.scheduler.mode

    @property
    def objectives(self) -> list[Objective]:
        """As the scheduler's own."""
        return list(getattr(self.scheduler, "objectives", []))

    @property
    def time_attr(self) -> str | None:
        """As the scheduler's own."""
        return getattr(self.scheduler, "time_attr", None)

    @property
    def first_rung(self) -> float | None:
        """As the scheduler's own."""
        return getattr(self.scheduler, "first_rung", None)

    @property
    def base_scheduler(self) -> TrialScheduler:
        """As the scheduler's own."""
        return getattr(self.scheduler, "base_scheduler", self.scheduler)

    @property
    def num_perturbations(self) -> int:
        """As the scheduler's own."""
        return int(getattr(self.scheduler, "num_perturbations", 0))

    def policy_log(self, since: int = 0) -> dict[str, list[str]]:
        """As the scheduler's own, if it keeps one."""
        log = getattr(self.scheduler, "policy_log", None)
        files: dict[str, list[str]] = log(since) if log is not None else {}
        return files

    def set_objectives(self, objectives: Sequence[Objective]) -> None:  # noqa: D102
        scheduler: Any = self.scheduler  # `several_metrics` says that it has the method
        scheduler.set_objectives(objectives)

    def debug_string(self) -> str:  # noqa: D102
        return self.scheduler.debug_string()

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:  # noqa: D102
        return self.scheduler.set_search_properties(metric, mode, **spec)

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:  # noqa: D102
        self.scheduler.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:  # noqa: D102
        self.scheduler.on_trial_error(tune_controller, trial)

    def on_trial_result(
        self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]
    ) -> str | Exploit:
        """Answer as asked for, else as the scheduler does."""
        self.filled_rung = None
        order = self.orders.pop(trial.trial_id, None)
        self._stop_others(tune_controller)
        if order == self.STOP:
            if not learns_of_own_stops(self):
                self.scheduler.on_trial_complete(tune_controller, trial, result)
            return order
        answer = self.scheduler.on_trial_result(tune_controller, trial, result)
        self.filled_rung = self.scheduler.filled_rung
        return order if order is not None and answer in (self.CONTINUE, self.NOOP) else answer

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Pass it on."""
        self.orders.pop(trial.trial_id, None)
        self.scheduler.on_trial_complete(tune_controller, trial, result)

    def on_trial_stopped(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Pass it on."""
        self.orders.pop(trial.trial_id, None)
        inform = getattr(self.scheduler, "on_trial_stopped", self.scheduler.on_trial_complete)
        inform(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:  # noqa: D102
        self.scheduler.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:  # noqa: D102
        return self.scheduler.choose_trial_to_run(tune_controller)

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return every result: the script may ask for something at any time."""
        return TrialScheduler.horizons(self, trial)

    def reason(self) -> dict[str, Any]:  # noqa: D102
        return self.scheduler.reason()

    def get_state(self) -> dict[str, Any]:  # noqa: D102
        return self.scheduler.get_state()

    def set_state(self, state: dict[str, Any]) -> None:  # noqa: D102
        self.scheduler.set_state(state)

    def _stop_others(self, tune_controller: ControllerView) -> None:
        """Stop the trials that may not report soon: those that wait."""
        for trial_id, order in list(self.orders.items()):
            trial = tune_controller.get_trial(trial_id)
            if order == self.STOP and trial is not None and trial.status in ("PENDING", "PAUSED"):
                del self.orders[trial_id]
                if not learns_of_own_stops(self):
                    self.scheduler.on_trial_remove(tune_controller, trial)
                tune_controller.stop_trial(trial)
