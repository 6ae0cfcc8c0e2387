"""Algorithms in the engine that follows a decider: they choose nothing, and say what the decider said of its own."""

from __future__ import annotations

from typing import Any

from trialpod.protocol.messages import Horizon
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import TrialView
from trialpod_operator.experiment.decisions.messages import View
from trialpod_operator.experiment.records import RecordedSearch


class FollowedSearch(RecordedSearch):
    """Suggests nothing: suggestions come as events, and which of them become trials is recorded.

    Args:
        total: how many trials there are for so many samples, where that is known.
        num_samples: the samples.
    """

    defers = True
    listens = False
    transparent = True

    def __init__(self, total: int | None = None, num_samples: int = 1) -> None:
        super().__init__(None)
        self.view = View()
        self._each = None if total is None or num_samples < 1 else total // num_samples
        self._samples = num_samples

    @property
    def total(self) -> int | None:
        """What the decider said; what the manifest says while there is none."""
        if self.view.total is not None or self._each is None or self._samples < 1:
            return self.view.total
        return self._each * self._samples

    def set_num_samples(self, num_samples: int) -> None:
        """Take in how many the manifest asks for now."""
        self._samples = num_samples

    @property
    def finished(self) -> bool:
        """What the decider said."""
        return self.view.search_ended

    def request(self) -> None:
        """Do nothing: the decider has asked."""

    def on_answer(self, created: object, error: str) -> None:
        """Do nothing: the decider knows."""


class FollowedScheduler(FIFOScheduler):
    """Decides nothing. Its horizons are those that the decider named; without any, every result has to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.view = View()
        self.named: dict[str, list[Horizon]] = {}

    @property
    def saves_at_horizon(self) -> bool:  # type: ignore[override]
        """What the decider said."""
        return self.view.saves_at_horizon

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return what the decider named."""
        return self.named.get(trial.trial_id, [Horizon()])

    def get_state(self) -> dict[str, Any]:
        """Return nothing: the state is the decider's."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Ignore it; it may be a pickle."""
