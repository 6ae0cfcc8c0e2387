"""Search spaces and points in Optuna's terms.

Optuna sees the values that users wrote where it can (whole numbers with their step, plain options of a choice), and
positions where it cannot: of the grid of a quantised float or of logarithmic steps, and of options that are not plain
data.
"""

from __future__ import annotations

from typing import Any

from trialpod.tune.search.sample import Integer
from trialpod.tune.search.spaces.flat_space import Dimension, FlatSpace, Values


def distribution(dimension: Dimension) -> Any:
    """Return Optuna's distribution for a dimension."""
    from optuna import distributions  # type: ignore[import-not-found, unused-ignore]

    if dimension.kind == "choice":
        options = dimension.options if _shown(dimension) else range(len(dimension.options))
        return distributions.CategoricalDistribution(list(options))
    if dimension.kind == "real":
        return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)
    step = int(dimension.q or 1) if _stepped(dimension) else 1
    return distributions.IntDistribution(
        int(dimension.low) * step, int(dimension.high) * step, log=dimension.log, step=step
    )


def outer(dimension: Dimension, number: Any) -> Any:
    """Return what Optuna calls the parameter that `number` stands for."""
    if dimension.kind == "choice" and _shown(dimension):
        return dimension.options[number]
    return number * int(dimension.q or 1) if _stepped(dimension) else number


def inner(dimension: Dimension, parameter: Any) -> Any:
    """Return the number that Optuna's parameter stands for."""
    if dimension.kind == "choice":
        return dimension.encode(parameter) if _shown(dimension) else int(parameter)
    return parameter // int(dimension.q or 1) if _stepped(dimension) else parameter


class StaticSpace:
    """A search space that is data.

    Args:
        flat: the space.
        by_depth: ask for parameters of nested dicts after those above, as Ray does.
    """

    def __init__(self, flat: FlatSpace, *, by_depth: bool = False) -> None:
        self.flat = flat
        self._asked = sorted(flat.dimensions, key=lambda d: d.name.count("/")) if by_depth else flat.dimensions
        self.distributions = {d.name: distribution(d) for d in flat.dimensions}
        self.conditional = any(d.parent is not None for d in flat.dimensions)

    def suggest(self, trial: Any) -> Values:
        """Ask for all parameters of a trial; those of an option only while it is chosen."""
        values: Values = {}
        for d in self._asked:
            if d.parent is not None and values.get(d.parent[0]) != d.parent[1]:
                continue
            made = self.distributions[d.name]
            if d.kind == "choice":
                parameter = trial.suggest_categorical(d.name, made.choices)
            elif d.kind == "real":
                parameter = trial.suggest_float(d.name, made.low, made.high, log=made.log)
            else:
                parameter = trial.suggest_int(d.name, made.low, made.high, log=made.log, step=made.step)
            values[d.name] = inner(d, parameter)
        return values

    def parameters(self, values: Values) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of a point, and their distributions."""
        active = self.flat.active(values)
        return (
            {d.name: outer(d, values[d.name]) for d in active},
            {d.name: self.distributions[d.name] for d in active},
        )


def _stepped(dimension: Dimension) -> bool:
    return dimension.q is not None and not dimension.log and isinstance(dimension.domain, Integer)


def _shown(dimension: Dimension) -> bool:
    """Return whether Optuna can be shown the options themselves: plain data, all different."""
    options = dimension.options
    return all(o is None or isinstance(o, (bool, int, float, str)) for o in options) and len(set(options)) == len(
        options
    )
