"""What a user can do about results that exist already."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remedies:
    """What a user can do about results that are there already, in the words of the interface that they use."""

    new_name: str = 'RunConfig(name="another name")'
    fresh: str = 'RunConfig(if_exists="fresh")'
    budget: str = "num_samples, time budgets, max_concurrent_trials, max_failures"
