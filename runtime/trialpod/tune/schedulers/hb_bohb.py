"""HyperBand as BOHB needs it: the bracket with the most and shortest trials comes first.

Source: Falkner, Klein, Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale" (2018). A model of
the search space learns most from many short runs, so these come first; results at a rung carry their budget, because
the model is kept per budget.

Invariants: those of `HyperBandScheduler`; and a bracket that is not full is cut down only when no trial runs, so that
the search algorithm has seen all there is to see.
"""

from __future__ import annotations

from typing import Any

from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.schedulers.hyperband import HyperBandScheduler
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView

BUDGET_KEY = "hyperband_info/budget"
"""Where a result says which rung it belongs to."""


@algorithm("hb_bohb")
class HyperBandForBOHB(HyperBandScheduler):
    """Runs brackets of successive halving, the one with the most and shortest trials first."""

    ABOUT = ("the same, largest bracket first", "a search algorithm that learns from budgets")

    NAME = "hb_bohb"
    LARGEST_FIRST = True

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Decide as HyperBand does; write the budget into a result that reached the milestone."""
        if self._ray is not None:
            at = self._ray.milestone(trial.trial_id)
            time, value = self._read(result)
            if time is not None and value is not None and at is not None and time >= at:
                result[BUDGET_KEY] = at
            return super().on_trial_result(tune_controller, trial, result)
        milestone = self._bracket(trial).milestone
        time, value = self._read(result)
        if time is not None and value is not None and time >= milestone:
            result[BUDGET_KEY] = milestone
        return super().on_trial_result(tune_controller, trial, result)

    def _level(self, number: int) -> int:
        return self._levels[-1 - number % len(self._levels)]

    def _rank_of_brackets(self, numbers: list[int]) -> list[int]:
        return sorted(numbers)

    def _no_trial_joins(self, tune_controller: ControllerView) -> bool:
        none_runs = next(iter(tune_controller.running_trials()), None) is None
        return none_runs and super()._no_trial_joins(tune_controller)
