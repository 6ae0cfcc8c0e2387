"""First in, first out: every trial runs to its end."""

from __future__ import annotations

from typing import Any

from trialpod.protocol.messages import Horizon
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialScheduler, TrialView


@algorithm("fifo")
class FIFOScheduler(TrialScheduler):
    """Starts pending trials in their order, then paused ones, and stops none. The default."""

    ABOUT = ("left alone", "every trial should run to its end")
    needs_metric = False

    def set_search_properties(self, metric: str | None, mode: str | None, **_spec: Any) -> bool:
        """Accept any metric: FIFO looks at none."""
        return True

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Return CONTINUE."""
        return self.CONTINUE

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return none: a trial never has to wait."""
        return []

    def debug_string(self) -> str:
        """Return its line."""
        return "Using FIFO scheduling algorithm."

    def get_state(self) -> dict[str, Any]:
        """Return nothing: the order of the trials is the engine's."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Accept what `get_state` returned."""
