"""Ax: Gaussian processes and acquisition functions of BoTorch.

Source: Olson et al., "Ax: A Platform for Adaptive Experimentation", AutoML 2025. A stopped trial counts with its last
value; one that failed like the worst; one that still runs is known as pending.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError, NotSupportedError
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.ax_constraints import holds, renamed
from trialpod.tune.search.library import require, seeded
from trialpod.tune.search.refit_searcher import RefitSearcher
from trialpod.tune.search.spaces.flat_space import Dimension, Values
from trialpod.tune.search.spaces.native_spaces import converted

_PACKAGE = ("ax.api.client", "ax-platform>=1.3", "AxSearch")


@algorithm("ax")
class AxSearch(RefitSearcher):
    """Searches with Ax.

    Args:
        space: the search space, when the experiment has none; also a list of Ax's parameters, as dicts.
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first.
        parameter_constraints: such as "x1 + x2 <= 2", over parameters that are numbers; with spaces around
            their names, and nothing but numbers, + - * / ( ) and a comparison beside them.
        outcome_constraints: not supported.
        ax_client: not supported.
        initial: results of random points before the model begins.
        seed: None takes the experiment's.
        evaluated_rewards: the metric of each of `points_to_evaluate`, when it is known.
        warm_start: the directory or URI of an earlier experiment to learn from.
        max_concurrent: how many trials may be unfinished at a time.

    Raises:
        InvalidInputError: an argument cannot be used, or Ax is not installed.
        NotSupportedError: constraints on results, or a client, are given.
    """

    ABOUT = ("`pip install 'trialpod[ax]'` (brings PyTorch)", "few, very expensive trials")

    LIBRARY: ClassVar = (_PACKAGE[:2],)

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> Any:
        """Return a search space in the terms of the library."""
        return converted("AxSearch", spec)

    def __init__(
        self,
        space: dict[str, Any] | list[dict[str, Any]] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        parameter_constraints: list[str] | None = None,
        outcome_constraints: list[str] | None = None,
        ax_client: Any = None,
        *,
        initial: int = 5,
        seed: int | None = None,
        evaluated_rewards: list[Any] | None = None,
        warm_start: str | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards, seed, warm_start, max_concurrent)
        if outcome_constraints:
            raise NotSupportedError(
                f"AxSearch(outcome_constraints={outcome_constraints!r}): constraints on results are not supported; "
                "use OptunaSearch(constraints=[...]), whose constraints are metrics that are met up to 0"
            )
        if ax_client is not None:
            raise NotSupportedError(
                "AxSearch(ax_client=...): a client is not supported; give space, parameter_constraints and seed"
            )
        if isinstance(initial, bool) or not isinstance(initial, int) or initial < 1:
            raise InvalidInputError(f"AxSearch: initial must be 1 or more, got {initial!r}", parameter="initial")
        if parameter_constraints is not None and (
            not isinstance(parameter_constraints, (list, tuple))
            or not all(isinstance(each, str) for each in parameter_constraints)
        ):
            raise InvalidInputError(
                f'AxSearch: parameter_constraints must be a list such as ["x1 + x2 <= 2"], '
                f"got {parameter_constraints!r}",
                parameter="parameter_constraints",
            )
        self.initial = initial
        self._limits = list(parameter_constraints or [])

    def _open(self) -> None:
        super()._open()
        self._ax_constraints()  # refuses what is none

    def _propose(self, points: list[Values], losses: list[float], pending: list[Values], seed: int) -> Values:
        module = require(*_PACKAGE)
        require("ax.utils.common.logger", *_PACKAGE[1:]).set_ax_logger_levels(logging.ERROR)
        with seeded(seed):
            client = module.Client(random_seed=seed % 2**31)
            client.configure_experiment(
                parameters=[_parameter(i, d) for i, d in enumerate(self.flat.dimensions)],
                parameter_constraints=self._ax_constraints(),
            )
            client.configure_optimization(objective="-loss")
            client.configure_generation_strategy(
                initialization_budget=1, initialize_with_center=False, use_existing_trials_for_initialization=True
            )
            for values, loss in zip(points, losses, strict=True):
                trial = client.attach_trial(parameters=self._inward(values))
                client.complete_trial(trial_index=trial, raw_data={"loss": loss})
            for values in pending:
                client.attach_trial(parameters=self._inward(values))
            (found,) = client.get_next_trials(max_trials=1).values()
        return {d.name: found[f"p{i}"] for i, d in enumerate(self.flat.dimensions)}

    def _allowed(self, values: Values) -> bool:
        inward = self._inward(values)
        return all(holds(each, inward) for each in self._ax_constraints())

    def _inward(self, values: Values) -> dict[str, Any]:
        return {f"p{i}": values[d.name] for i, d in enumerate(self.flat.dimensions)}

    def _ax_constraints(self) -> list[str]:
        """Return the constraints with Ax's names, which cannot have every character that ours can."""
        names = {d.name: f"p{i}" for i, d in enumerate(self.flat.dimensions)}
        return [renamed(each, names) for each in self._limits]


def _parameter(index: int, d: Dimension) -> Any:
    configs = require("ax.api.configs", *_PACKAGE[1:])
    name = f"p{index}"
    if d.kind == "choice":
        return configs.ChoiceParameterConfig(
            name=name, values=list(range(len(d.options))), parameter_type="int", is_ordered=False
        )
    whole = d.kind == "whole"
    return configs.RangeParameterConfig(
        name=name,
        bounds=(d.low, d.high),
        parameter_type="int" if whole else "float",
        scaling="log" if d.log else "linear",
    )
