"""Nevergrad's optimisers: evolution strategies, particle swarms, differential evolution and others.

Source: Rapin, Teytaud, "Nevergrad - A gradient-free optimization platform", 2018. These optimisers move on with every
question, so a restored searcher asks the same questions again. A stopped trial counts with its last value; one
that failed does not count.
"""

from __future__ import annotations

from typing import Any, ClassVar

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.library import seeded
from trialpod.tune.search.library_searcher import Ending, LibrarySearcher
from trialpod.tune.search.nevergrad_library import nevergrad_library
from trialpod.tune.search.spaces.flat_space import Dimension, Values
from trialpod.tune.search.spaces.native_spaces import converted

_BUDGET = 100
"""Several of its optimisers, NGOpt above all, need the number of trials, and may be asked for more."""


@algorithm("nevergrad")
class NevergradSearch(LibrarySearcher):
    """Searches with an optimiser of Nevergrad.

    Args:
        optimizer: one of Nevergrad's (``ng.optimizers.OnePlusOne``), or its name in the registry ("NGOpt",
            "OnePlusOne", "DE", "PSO", ...).
        optimizer_kwargs: its arguments: ``budget`` (trials in all, 100) and ``num_workers`` (trials at a time).
        space: the search space, when the experiment has none; also of Nevergrad's (``ng.p.Dict(...)``).
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first.
        seed: None takes the experiment's.
        evaluated_rewards: the metric of each of `points_to_evaluate`, when it is known.
        warm_start: the directory or URI of an earlier experiment to learn from.
        max_concurrent: how many trials may be unfinished at a time.

    Raises:
        InvalidInputError: an argument cannot be used, or Nevergrad is not installed.
    """

    ABOUT = ("`pip install 'trialpod[nevergrad]'`", "many cheap trials; noise")

    _OBJECTS: ClassVar = ("_optimizer", "_candidates")

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> Any:
        """Return a search space in the terms of the library."""
        return converted("NevergradSearch", spec)

    def __init__(
        self,
        optimizer: Any = "NGOpt",
        optimizer_kwargs: dict[str, Any] | None = None,
        space: Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        *,
        seed: int | None = None,
        evaluated_rewards: list[Any] | None = None,
        warm_start: str | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        registry = nevergrad_library().optimizers.registry
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards, seed, warm_start, max_concurrent)
        if optimizer is None:
            optimizer = "NGOpt"
        elif not isinstance(optimizer, str):
            optimizer = _name_of(optimizer)
        if optimizer not in registry:
            guess = nearest(str(optimizer), list(registry))
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise InvalidInputError(
                f"NevergradSearch: optimizer {optimizer!r} is unknown to Nevergrad.{hint}", parameter="optimizer"
            )
        for name, value in (optimizer_kwargs or {}).items():
            if name not in ("budget", "num_workers"):
                raise InvalidInputError(
                    f"NevergradSearch: optimizer_kwargs has no {name!r}; it takes budget and num_workers",
                    parameter="optimizer_kwargs",
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInputError(
                    f"NevergradSearch: optimizer_kwargs: {name} must be 1 or more, got {value!r}",
                    parameter="optimizer_kwargs",
                )
        self._name = optimizer
        self._arguments = {"budget": _BUDGET, **(optimizer_kwargs or {})}

    def _open(self) -> None:
        ng = nevergrad_library()
        parameters = ng.p.Dict(**{d.name: _parameter(ng, d) for d in self.flat.dimensions})
        with seeded(self._seed_of("start")):
            import numpy as np

            parameters.random_state = np.random.RandomState(self._seed_of("start"))
            self._optimizer = ng.optimizers.registry[self._name](parametrization=parameters, **self._arguments)
        self._candidates: dict[int, Any] = {}

    def _ask(self, number: int, seed: int) -> Values:
        import numpy as np

        with seeded(seed):
            self._optimizer.parametrization.random_state.set_state(np.random.RandomState(seed).get_state())
            candidate = self._optimizer.ask()
        self._candidates[number] = candidate
        return self.flat.canonical(candidate.value)

    def _again(self, number: int, values: Values, *, preset: bool) -> None:
        if preset or self._ask(number, self._seed_of(number)) != values:
            self._take(number, values)

    def _take(self, number: int, values: Values) -> None:
        full = self.flat.complete(values)
        self._candidates[number] = self._optimizer.parametrization.spawn_child(new_value=full)

    def _tell(self, number: int, values: Values, ending: Ending) -> None:
        loss = self._loss(ending)
        candidate = self._candidates.get(number)
        if loss is not None and candidate is not None:
            del self._candidates[number]
            with seeded(self._seed_of(f"tell/{number}")):
                self._optimizer.tell(candidate, loss)


def _name_of(optimizer: Any) -> str:
    """Return the name in the registry of a class of optimisers, or of a family with its options."""
    if hasattr(optimizer, "parametrization"):
        raise InvalidInputError(
            f"NevergradSearch: optimizer {optimizer.name} is made for a space of its own; give its class, "
            "ng.optimizers.OnePlusOne for instance, the space and optimizer_kwargs={'budget': ...}",
            parameter="optimizer",
        )
    return str(getattr(optimizer, "name", None) or getattr(optimizer, "__name__", optimizer))


def _parameter(ng: Any, d: Dimension) -> Any:
    if d.kind == "choice":
        return ng.p.Choice(list(range(len(d.options))))
    made = ng.p.Log(lower=d.low, upper=d.high) if d.log else ng.p.Scalar(lower=d.low, upper=d.high)
    return made.set_integer_casting() if d.kind == "whole" else made
