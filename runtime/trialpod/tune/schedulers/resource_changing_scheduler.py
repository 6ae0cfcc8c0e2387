"""Changes the resources of trials while another scheduler decides which of them continue.

Invariants:

* Decisions other than CONTINUE are the base scheduler's, unchanged.
* All trials start with the same resources; a trial's are changed only when the allocation function returns others
  than it has. It then resumes from its newest checkpoint, so trials that save none start again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.protocol.messages import EVERY_RESULT, Horizon
from trialpod.tune.placement_groups import DEFAULT_RESOURCES, PlacementGroupFactory, to_resources
from trialpod.tune.plugins.catalogue import SCHEDULERS, algorithm
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.resource_distribution import ALLOCATIONS, DistributeResources
from trialpod.tune.schedulers.trial_scheduler import ControllerView, Exploit, TrialScheduler, TrialView

AllocationFunction = Callable[..., Any]
_DEFAULT = "distribute"


@algorithm("resource_changing")
class ResourceChangingScheduler(TrialScheduler):
    """Asks an allocation function after each result which resources the trial should have."""

    ABOUT = ("given what is free", "trials can use more CPUs or GPUs than they start with")

    NAME = "resource_changing"

    def __init__(
        self,
        base_scheduler: TrialScheduler | Mapping[str, Any] | str | None = None,
        resources_allocation_function: AllocationFunction | Mapping[str, Any] | str | None = _DEFAULT,
    ) -> None:
        """Make a scheduler.

        Args:
            base_scheduler: decides about trials: an object, a name, or ``{"name": ..., "parameters": {...}}``;
                None is first in, first out.
            resources_allocation_function: called as ``f(tune_controller, trial, result, scheduler)``, returns
                resources or None; a function, "distribute", "distribute_to_top_job", or a mapping as above; None
                changes nothing.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        self._base = _made_scheduler(base_scheduler)
        self._allocate = _made_allocation(resources_allocation_function)
        self._base_resources: dict[str, float] | None = None
        self._changed: set[str] = set()
        self.time_slicing = self._base.time_slicing
        self.changes_configs = self._base.changes_configs
        self.pending_trials = self._base.pending_trials
        self.several_metrics = self._base.several_metrics
        self.saves_at_horizon = self._base.saves_at_horizon  # a change of resources pauses, which saves

    @property
    def metric(self) -> str | None:  # type: ignore[override]
        """The base scheduler's."""
        return self._base.metric

    @property
    def mode(self) -> str | None:  # type: ignore[override]
        """The base scheduler's."""
        return self._base.mode

    @property
    def needs_metric(self) -> bool:  # type: ignore[override]
        """Whether the base scheduler or the allocation function cannot do without one."""
        if hasattr(self._allocate, "metric") and not self._allocate.metric:
            return True
        return self._base.needs_metric

    @property
    def objectives(self) -> list[Objective]:
        """The base scheduler's, where it compares trials by several."""
        return list(getattr(self._base, "objectives", []))

    @property
    def time_attr(self) -> str | None:
        """What the base scheduler measures progress by, if it does."""
        return getattr(self._base, "time_attr", None)

    @property
    def first_rung(self) -> float | None:
        """Where the base scheduler judges a new trial first, if it knows."""
        return getattr(self._base, "first_rung", None)

    @property
    def base_scheduler(self) -> TrialScheduler:
        """The scheduler that decides which trials continue."""
        return self._base

    @property
    def base_trial_resources(self) -> dict[str, float]:
        """What every trial starts with."""
        return dict(self._base_resources or DEFAULT_RESOURCES)

    @property
    def _base_trial_resources(self) -> PlacementGroupFactory:
        """The same, as Ray Tune's users ask for it in their allocation functions."""
        names = {"cpu": "CPU", "gpu": "GPU"}
        return PlacementGroupFactory([{names.get(key, key): n for key, n in self.base_trial_resources.items()}])

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Hand metric and mode to the base scheduler and, where it has none, to the allocation function."""
        accepted = self._base.set_search_properties(metric, mode, **spec)
        self._tell_allocation(metric, mode)
        return accepted

    def set_objectives(self, objectives: Sequence[Objective]) -> None:
        """Hand the objectives to the base scheduler, and the first of them to the allocation function."""
        base: Any = self._base  # `several_metrics` says that it has the method
        base.set_objectives(objectives)
        self._tell_allocation(None, None)

    def _tell_allocation(self, metric: str | None, mode: str | None) -> None:
        for name, value in (("metric", self._base.metric or metric), ("mode", self._base.mode or mode)):
            if hasattr(self._allocate, name) and not getattr(self._allocate, name):
                setattr(self._allocate, name, value)

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Remember what trials start with.

        Raises:
            InvalidInputError: this one starts with something else.
        """
        given = dict(tune_controller.resources(trial))
        if self._base_resources is None:
            self._base_resources = given
        elif trial.trial_id not in self._changed and given != self._base_resources:
            raise InvalidInputError(
                f"resource_changing needs trials that start with the same resources; the first one had "
                f"{self._base_resources}, trial {trial.trial_id} has {given}"
            )
        self._base.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Tell the base scheduler."""
        self._base.on_trial_error(tune_controller, trial)

    def on_trial_result(
        self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]
    ) -> str | Exploit:
        """Return what the base scheduler decides; when the trial continues, change its resources if need be.

        Raises:
            InvalidInputError: the allocation function returned no resources.
        """
        decision = self._base.on_trial_result(tune_controller, trial, result)
        self.filled_rung = self._base.filled_rung
        if decision != self.CONTINUE or self._allocate is None:
            return decision
        wanted = self._allocate(tune_controller, trial, result, self)
        if wanted is None:
            return decision
        new = to_resources(wanted, "the answer of resources_allocation_function")
        if new != {name: amount for name, amount in tune_controller.resources(trial).items() if amount}:
            self._changed.add(trial.trial_id)
            tune_controller.set_resources(trial, new)
        return decision

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Tell the base scheduler."""
        self._base.on_trial_complete(tune_controller, trial, result)

    def on_trial_stopped(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Tell the base scheduler."""
        inform = getattr(self._base, "on_trial_stopped", self._base.on_trial_complete)
        inform(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Tell the base scheduler."""
        self._base.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return what the base scheduler chooses."""
        return self._base.choose_trial_to_run(tune_controller)

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return every result, because each may change the resources; only the base scheduler's if none does."""
        if self._allocate is None:
            return self._base.horizons(trial)
        return [Horizon("training_iteration", EVERY_RESULT), *self._base.horizons(trial)]

    def reason(self) -> dict[str, Any]:
        """Return the base scheduler's reason."""
        return self._base.reason()

    def policy_log(self, since: int = 0) -> dict[str, list[str]]:
        """Return the base scheduler's history of exploits, if it keeps one."""
        log = getattr(self._base, "policy_log", None)
        files: dict[str, list[str]] = log(since) if log is not None else {}
        return files

    @property
    def num_perturbations(self) -> int:
        """How many exploits the base scheduler's history has."""
        return int(getattr(self._base, "num_perturbations", 0))

    def debug_string(self) -> str:
        """Return the base scheduler's line, and how many trials were changed."""
        base = getattr(self._base, "debug_string", lambda: type(self._base).__name__)()
        return f"{self.NAME}: {len(self._changed)} trials changed\n{base}"

    def get_state(self) -> dict[str, Any]:
        """Return what trials start with, which were changed, and the base scheduler's state."""
        return {
            "version": 1,
            "base_resources": self._base_resources,
            "changed": sorted(self._changed),
            "base": self._base.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._base_resources, self._changed = state["base_resources"], set(state["changed"])
        self._base.set_state(state["base"])
        self.set_search_properties(None, None)


def _made_scheduler(given: Any) -> TrialScheduler:
    if given is None:
        return FIFOScheduler()
    if isinstance(given, TrialScheduler):
        return given
    name, parameters = _named(given, "base_scheduler")
    try:
        made: TrialScheduler = SCHEDULERS.create(name, parameters)
    except InvalidInputError as error:
        error.parameter = ("base_scheduler", "parameters", *error.parameter)
        raise
    return made


def _made_allocation(given: Any) -> Any:
    if given is None or (callable(given) and not isinstance(given, type)):
        return given
    name, parameters = _named(given, "resources_allocation_function")
    if name not in ALLOCATIONS:
        guess = nearest(name, ALLOCATIONS)
        hint = f" Did you mean {guess!r}?" if guess else ""
        raise InvalidInputError(
            f"unknown resources_allocation_function {name!r}.{hint} Known are {', '.join(ALLOCATIONS)}",
            parameter="resources_allocation_function",
        )
    import inspect

    cls: type[DistributeResources] = ALLOCATIONS[name]
    known = inspect.signature(cls).parameters
    for key in parameters:
        if key not in known:
            guess = nearest(str(key), known)
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise InvalidInputError(
                f"resources_allocation_function {name!r} has no parameter {key!r}.{hint} Allowed are "
                f"{', '.join(sorted(known))}",
                parameter="resources_allocation_function",
            )
    try:
        return cls(**parameters)
    except InvalidInputError as error:
        error.parameter = ("resources_allocation_function", "parameters", *error.parameter)
        raise


def _named(given: Any, argument: str) -> tuple[str, dict[str, Any]]:
    """Return name and parameters from "asha" or {"name": "asha", "parameters": {...}}."""
    if isinstance(given, str):
        return given, {}
    if (
        isinstance(given, Mapping)
        and set(given) <= {"name", "parameters"}
        and isinstance(given.get("name"), str)
        and isinstance(given.get("parameters") or {}, Mapping)
    ):
        return given["name"], dict(given.get("parameters") or {})
    raise InvalidInputError(
        f"{argument} must be a name, or a mapping with name and parameters such as {{'name': 'asha', 'parameters': "
        f"{{'max_t': 9}}}}, got {given!r}",
        parameter=argument,
    )
