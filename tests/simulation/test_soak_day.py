"""A day in small: nothing grows, and what does is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any
from unittest import mock

import pytest
import sim_day_server
from sim_day import Day, simulate_day
from sim_day_samples import FIGURES, Sample, growing

from trialpod_operator.cluster import experiment_storage
from trialpod_operator.cluster.cache import ObjectCache

pytestmark = pytest.mark.once

SMALL = Day(
    hours=0.75, running=12, lanes=6, seed=40, step_s=20.0, ttl_s=60, sample_s=75.0, fault_rate=5.0, judge_every=2
)
MORE = 1.25
"""Of what so few trials have, a tenth is no growth."""
QUIET = replace(SMALL, hours=0.5, fault_rate=0.0, operators=1)
"""A new process of an operator has nothing that the one before had kept: so none dies."""


def sampled(growth: float) -> list[Sample]:
    """Return a day with figures that go up and down, and grow by so much of themselves each hour."""
    samples = []
    for number in range(1, 145):
        hour = number / 6.0
        value = 1000.0 * (1.0 + growth * hour) * (1.3 if number % 7 == 0 else 0.8 if number % 5 == 0 else 1.0)
        samples.append(Sample(**{each.name: value for each in fields(Sample)} | {"hour": hour}))
    return samples


class TestCriterion:
    def test_what_goes_up_and_down_levels_out(self) -> None:
        assert growing(sampled(0.0)) == []

    def test_growth_of_two_percent_an_hour_is_found(self) -> None:
        assert len(growing(sampled(0.02))) == len(FIGURES)

    def test_few_samples_say_nothing(self) -> None:
        with pytest.raises(ValueError, match="too few"):
            growing(sampled(0.0)[:10])


@pytest.fixture
def _short_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour, for which a server keeps events, is longer than the small day."""
    monkeypatch.setattr(sim_day_server, "EVENTS_FOR_S", 180.0)


@contextmanager
def leak(owner: Any, name: str, replaced: Any) -> Iterator[None]:
    with mock.patch.object(owner, name, replaced):
        yield


@pytest.mark.slow
class TestSmallDay:
    @pytest.mark.usefixtures("_short_events")
    def test_everything_levels_out(self) -> None:
        outcome, world = simulate_day(SMALL)
        assert outcome.violations == []
        assert world.trials_ended > 150
        assert {"operator dies", "operator replaced", "store away", "node lost"} <= outcome.fired.keys()
        # Memory is not looked at: of a process that is young it grows, by what is imported late.
        assert [each for each in growing(world.samples, MORE) if not each.startswith("memory")] == []

    def test_a_cache_that_forgets_nothing_is_noticed(self) -> None:
        def keep(cache: ObjectCache, objects: dict[str, Any], name: str, item: Any, *, deleted: bool) -> None:
            if not deleted:
                objects[name] = item

        with leak(ObjectCache, "_put", keep):
            _, world = simulate_day(QUIET)
        assert any("caches" in each for each in growing(world.samples, MORE))

    def test_folders_that_stay_are_noticed(self) -> None:
        with leak(experiment_storage.FolderRemoval, "__call__", lambda _self, _folder: None):
            _, world = simulate_day(QUIET)
        assert any("disks" in each for each in growing(world.samples, MORE))
