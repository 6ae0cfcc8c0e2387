"""How free resources are handed to running trials: the functions that `ResourceChangingScheduler` calls.

Both start from what every trial was given at first and add multiples of `increase_by`. What "all" is, is either given
(`total_resources`) or what the experiment may use.

Invariants:

* No trial gets less than it started with.
* Together the trials get no more than there is, less `reserve_resources`, as long as their start fits in it.
* Resources other than cpu and gpu stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.values import real_number
from trialpod.tune.placement_groups import plain_resources
from trialpod.tune.schedulers.metric_scheduler import check_mode, comparable
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView

DIVISIBLE = ("cpu", "gpu")

Resources = dict[str, float]


class DistributeResources:
    """Shares what is free evenly among all live trials."""

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
        total_resources: Mapping[str, float] | None = None,
    ) -> None:
        """Make an allocation function.

        Args:
            add_bundles: has to be False: a trial is one process and has one bundle.
            increase_by: the unit in which resources are added, ``{"cpu": 2}``; None is one gpu for trials that have
                one, else one cpu.
            increase_by_times: most units that one trial gets; below 1 there is no limit.
            reserve_resources: what is kept back.
            total_resources: what all trials together may have; None is what the experiment may use.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        if add_bundles:
            raise InvalidInputError(
                "add_bundles must be False: a trial is one process with one bundle, which grows by increase_by",
                parameter="add_bundles",
            )
        if isinstance(increase_by_times, bool) or not isinstance(increase_by_times, int):
            raise InvalidInputError(
                f"increase_by_times must be a whole number, got {increase_by_times!r}", parameter="increase_by_times"
            )
        self.increase_by = _divisible(increase_by, "increase_by")
        if increase_by is not None and not any(self.increase_by.values()):
            raise InvalidInputError(
                f"increase_by must add some cpu or gpu, such as {{'cpu': 1}}, got {increase_by!r}",
                parameter="increase_by",
            )
        self.increase_by_times = increase_by_times
        self.reserve_resources = _divisible(reserve_resources, "reserve_resources")
        self.total_resources = None if total_resources is None else _divisible(total_resources, "total_resources")

    def __call__(
        self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any], scheduler: Any
    ) -> Any:
        """Return the resources that the trial should have now, or None to leave them as they are.

        Args:
            tune_controller: the experiment.
            trial: the trial that reported.
            result: what it reported.
            scheduler: the calling `ResourceChangingScheduler`, which knows what trials started with.

        Raises:
            InvalidInputError: it is not known what all trials together may have.
        """
        iteration = real_number(result.get("training_iteration"))
        if iteration is None or iteration < 1:
            return None
        base = dict(scheduler.base_trial_resources)
        unit = self.increase_by or ({"gpu": 1.0} if base.get("gpu") else {"cpu": 1.0})
        given = self.total_resources if self.total_resources is not None else tune_controller.total_resources()
        if not given:
            raise InvalidInputError(
                "it is not known what all trials together may use; give the resources_allocation_function "
                "total_resources, such as {'cpu': 16}",
                parameter="resources_allocation_function",
            )
        total = {name: given.get(name, 0.0) - self.reserve_resources.get(name, 0.0) for name in DIVISIBLE}
        live = [view for view in tune_controller.get_trials() if view.status not in ("TERMINATED", "ERROR")]
        now = {view.trial_id: tune_controller.resources(view) for view in live}
        mine = now.get(trial.trial_id) or base
        added = {name: mine.get(name, 0.0) - base.get(name, 0.0) for name in DIVISIBLE}
        free = {name: total[name] - sum(used.get(name, 0.0) for used in now.values()) for name in DIVISIBLE}
        units = _fitting(free, unit)
        if units < 0:
            added = {name: max(added[name] + unit.get(name, 0.0) * units, 0.0) for name in DIVISIBLE}
        elif units > 0:
            limit = self._limit(trial, live, now, base, unit, total)
            grown = {name: added[name] + unit.get(name, 0.0) * units for name in DIVISIBLE}
            if limit is not None:
                # What the trial has already is not taken away while there is enough for all.
                grown = {n: max(min(grown[n], unit.get(n, 0.0) * limit), added[n]) for n in DIVISIBLE}
            added = grown
        new = {**base, **{name: base.get(name, 0.0) + added[name] for name in DIVISIBLE}}
        return {name: amount for name, amount in new.items() if amount}

    def _limit(
        self,
        trial: TrialView,
        live: Sequence[TrialView],
        now: Mapping[str, Resources],
        base: Resources,
        unit: Resources,
        total: Resources,
    ) -> int | None:
        """Return how many units the trial may have in all; None means unlimited."""
        left = {name: total[name] - base.get(name, 0.0) * len(live) for name in DIVISIBLE}
        share = math.ceil(max(_fitting(left, unit), 0) / max(len(live), 1))
        return min(share, self.increase_by_times) if self.increase_by_times > 0 else share


class DistributeResourcesToTopJob(DistributeResources):
    """Gives all that is free to the best trial; what others got before stays with them."""

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        total_resources: Mapping[str, float] | None = None,
    ) -> None:
        """Make an allocation function.

        Args:
            add_bundles: has to be False: a trial is one process and has one bundle.
            increase_by: the unit in which resources are added; None is one gpu for trials that have one, else a cpu.
            increase_by_times: most units that one trial gets; below 1 there is no limit.
            reserve_resources: what is kept back.
            metric: the result key to compare; None takes the scheduler's.
            mode: "min" or "max"; None takes the scheduler's.
            total_resources: what all trials together may have; None is what the experiment may use.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        super().__init__(add_bundles, increase_by, increase_by_times, reserve_resources, total_resources)
        check_mode(mode)
        self.metric = metric
        self.mode = mode

    def _limit(
        self,
        trial: TrialView,
        live: Sequence[TrialView],
        now: Mapping[str, Resources],
        base: Resources,
        unit: Resources,
        total: Resources,
    ) -> int | None:
        if not self.metric or self.mode not in ("min", "max"):
            raise InvalidInputError(
                "DistributeResourcesToTopJob compares trials by a metric; set metric and mode in it, in the base "
                "scheduler, or in the experiment"
            )
        most = self.increase_by_times if self.increase_by_times > 0 else None
        ranked = sorted(live, key=self._score, reverse=True)
        for view in ranked:
            used = now[view.trial_id]
            if most is None or any(
                used.get(name, 0.0) - base.get(name, 0.0) < amount * most for name, amount in unit.items() if amount
            ):
                return most if view.trial_id == trial.trial_id else 0
        return 0

    def _score(self, trial: TrialView) -> float:
        value = real_number(trial.last_result.get(self.metric or ""))
        return -math.inf if value is None else comparable(-value if self.mode == "min" else value)


ALLOCATIONS: dict[str, type[DistributeResources]] = {
    "distribute": DistributeResources,
    "distribute_to_top_job": DistributeResourcesToTopJob,
}
"""What a manifest may name as resources_allocation_function."""


def _divisible(given: Mapping[str, Any] | None, name: str) -> Resources:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"{name} must map names of resources to amounts, such as {{'cpu': 1}}, got {given!r}", parameter=name
        )
    resources = plain_resources(given, name)
    for key in resources:
        if key not in DIVISIBLE:
            raise InvalidInputError(f"{name}[{key!r}]: only {' and '.join(DIVISIBLE)} are shared out", parameter=name)
    return resources


def _fitting(amounts: Resources, unit: Resources) -> int:
    """Return how many units fit into the amounts; negative when they are overdrawn."""
    return math.floor(min(amounts[name] / amount for name, amount in unit.items() if amount) + 1e-9)
