"""A search algorithm for reading: it suggests nothing, so that a replay takes all trials from the journal."""

from __future__ import annotations

from typing import Any

from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion


class RecordedSearch(SearchAlgorithm):
    """Suggests nothing.

    Args:
        total: how many trials there will be, where that is known.

    Attributes:
        left: how many trials the records still bring; whoever replays them may keep it up to date.
    """

    transparent = True

    def __init__(self, total: int | None) -> None:
        self._total = total
        self.left = 0

    @property
    def total(self) -> int | None:
        """What was given."""
        return self._total

    @property
    def finished(self) -> bool:
        """Whether the records bring no further trial."""
        return self.left == 0

    def set_num_samples(self, num_samples: int) -> None:
        """Change nothing."""

    def next_suggestion(self) -> Suggestion | None:
        """Return None."""
        return None

    def get_state(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Ignore it."""
