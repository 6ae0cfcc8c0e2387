"""SRacos, the classification-based optimiser of ZOOpt.

Source: Hu, Qian, Yu, "Sequential Classification-Based Optimization for Direct Policy Search", AAAI 2017. It moves on
with every question, so a restored searcher asks the same questions again. It waits for the results of its first
points; until then, and while `parallel_num` trials are unfinished, there is no suggestion. A stopped trial counts
with its last value, a failed one as the worst.
"""

from __future__ import annotations

import math
import sys
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.search.library import require, seeded
from trialpod.tune.search.library_searcher import Ending, LibrarySearcher
from trialpod.tune.search.spaces.flat_space import Dimension, Values
from trialpod.tune.search.spaces.native_spaces import converted

_PACKAGE = ("zoopt", "zoopt>=0.4.2", "ZOOptSearch")
_BUDGET = 100
_PRECISION = 1e-10
_TRIES = 20


@algorithm("zoopt")
class ZOOptSearch(LibrarySearcher):
    """Searches with ZOOpt.

    Args:
        algo: "asracos" or "sracos", in any case, which are the same here.
        budget: trials in all, which decides how many of them are spread out first; 4 or more, 100 if it is None.
        space: the search space, when the experiment has none; also ZOOpt's dimensions,
            ``{"x": (ValueType.CONTINUOUS, [0, 20], 0.01)}``.
        metric: what to optimise; None takes the experiment's.
        mode: "min" or "max".
        points_to_evaluate: configs to try first.
        parallel_num: trials at a time.
        seed: None takes the experiment's.
        evaluated_rewards: the metric of each of `points_to_evaluate`, when it is known.
        warm_start: the directory or URI of an earlier experiment to learn from.
        dim_dict: the name that Ray Tune has for `space`.

    Raises:
        InvalidInputError: an argument cannot be used, or ZOOpt is not installed.
    """

    ABOUT = ("`pip install 'trialpod[zoopt]'`", "many cheap trials")

    LIBRARY: ClassVar = (_PACKAGE[:2],)
    _OBJECTS: ClassVar = ("_racos", "_solutions", "_types", "_parameter")

    @staticmethod
    def convert_search_space(spec: dict[str, Any]) -> Any:
        """Return a search space in the terms of the library."""
        return converted("ZOOptSearch", spec)

    def __init__(
        self,
        algo: str = "asracos",
        budget: int | None = _BUDGET,
        space: dict[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        parallel_num: int = 1,
        *,
        seed: int | None = None,
        evaluated_rewards: list[Any] | None = None,
        warm_start: str | None = None,
        dim_dict: dict[str, Any] | None = None,
    ) -> None:
        if space is not None and dim_dict is not None:
            raise InvalidInputError("ZOOptSearch: space and dim_dict mean the same; give one", parameter="dim_dict")
        budget = _BUDGET if budget is None else budget
        algo = algo.lower() if isinstance(algo, str) else algo
        space = dim_dict if space is None else space
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards, seed, warm_start)
        if algo not in ("asracos", "sracos"):
            raise InvalidInputError(
                f"ZOOptSearch: algo must be 'asracos' or 'sracos', got {algo!r}", parameter="algo"
            )
        for name, value, least in (("budget", budget, 4), ("parallel_num", parallel_num, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInputError(f"ZOOptSearch: {name} must be {least} or more, got {value!r}", parameter=name)
        self._budget = budget
        self._parallel = parallel_num

    def _open(self) -> None:
        zoopt = require(*_PACKAGE)
        racos = require("zoopt.algos.opt_algorithms.racos.sracos", *_PACKAGE[1:])
        self._types = zoopt.ValueType
        with seeded(self._seed_of("start")):
            dimensions = zoopt.Dimension2([self._dimension(d) for d in self.flat.dimensions])
            self._parameter = zoopt.Parameter(budget=self._budget)
            self._racos = racos.SRacosTune(
                dimension=dimensions, parameter=self._parameter, parallel_num=self._parallel
            )
        self._solutions: dict[int, Any] = {}

    def _ask(self, number: int, seed: int) -> Values | str | None:
        solution = self._solution(seed)
        if solution is None or isinstance(solution, str):
            return solution
        found = zip(self.flat.dimensions, solution.get_x(), strict=True)
        values = self.flat.canonical({d.name: _outward(d, x) for d, x in found})
        self._solutions[number] = solution
        return values

    def _take(self, number: int, values: Values) -> None:
        solution = self._solution(self._seed_of(number))
        if solution is None or isinstance(solution, str):
            return  # it learns only from points of which it knows
        full = self.flat.complete(values)
        solution.set_x([_inward(d, full[d.name]) for d in self.flat.dimensions])
        self._solutions[number] = solution

    def _again(self, number: int, values: Values, *, preset: bool) -> None:
        if preset or self._ask(number, self._seed_of(number)) != values:
            if number in self._solutions:
                full = self.flat.complete(values)
                self._solutions[number].set_x([_inward(d, full[d.name]) for d in self.flat.dimensions])
            else:
                self._take(number, values)

    def _tell(self, number: int, values: Values, ending: Ending) -> None:
        solution = self._solutions.pop(number, None)
        if solution is not None:
            loss = self._loss(ending)
            with seeded(self._seed_of(f"tell/{number}")):
                self._racos.complete(solution, sys.float_info.max if loss is None else loss)

    def _solution(self, seed: int) -> Any:
        with seeded(seed):
            for _ in range(_TRIES):
                found = self._racos.suggest()
                if not isinstance(found, str):
                    break  # else: it met only known points, where it happened to look
            if self._racos.init_num == self._parameter.get_train_size():
                # The question after the first phase is answered by None and closes a gate until all results of that
                # phase are there. It is asked at once, so that it does not matter whether others ask.
                self._racos.suggest()
        return self.FINISHED if isinstance(found, str) else found

    def _dimension(self, d: Dimension) -> tuple[Any, ...]:
        if d.kind == "choice":
            return (self._types.GRID, list(range(len(d.options))))
        low, high = (math.log(d.low), math.log(d.high)) if d.log else (d.low, d.high)
        if d.kind == "whole" and not d.log:
            return (self._types.DISCRETE, [int(low), int(high)], True)
        return (self._types.CONTINUOUS, [low, high], _PRECISION)


def _outward(d: Dimension, x: Any) -> Any:
    return math.exp(x) if d.log else (int(x) if d.kind != "real" else float(x))


def _inward(d: Dimension, value: Any) -> Any:
    return math.log(value) if d.log else value
