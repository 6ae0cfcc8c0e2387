"""Stops nothing."""

from __future__ import annotations

from typing import Any

from trialpod.protocol.messages import Horizon
from trialpod.tune.stopper.stopper import Stopper


class NoopStopper(Stopper):
    """The stopper of an experiment without one."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False."""
        return False

    def stop_all(self) -> bool:
        """Return False."""
        return False

    def horizons(self, trial_id: str) -> list[Horizon]:
        """Return none."""
        return []

    def get_state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Accept what `get_state` returned."""
