"""Search spaces in the terms of the libraries, as scripts for Ray Tune give them to a searcher, read into Tune's own.

Invariants: a space that is none of the library's is returned as it is; what has no counterpart in Tune is refused. No
library is imported: a space's own classes say what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.search import sample
from trialpod.tune.search.sample import Domain, SearchSpaceError

_NUMBERS_IN_A_PAIR = 2
_DISCRETE, _CONTINUOUS, _GRID = range(3)
"""The kinds of ZOOpt's dimensions, ``zoopt.ValueType``."""


def read_library_space(user: str, space: Any) -> Any:
    """Return the space of a searcher in Tune's terms.

    Args:
        user: the name of the searcher's class.
        space: a search space of Tune's or of the searcher's library.

    Raises:
        InvalidInputError: a parameter, or a relation between parameters, has no counterpart in Tune.
    """
    reader = _READERS.get(user)
    return space if reader is None or space is None else reader(user, space)


def _refused(user: str, name: str, what: Any) -> InvalidInputError:
    return InvalidInputError(
        f"{user}: {name!r} of the search space is {what}, which has no counterpart; use tune.uniform, tune.randint, "
        "tune.choice or the like",
        parameter="space",
    )


def _between(low: Any, high: Any, *, whole: bool = False, log: bool = False) -> Domain:
    """Return a domain from `low` to `high`, both included."""
    if whole:
        return sample.lograndint(int(low), int(high) + 1) if log else sample.randint(int(low), int(high) + 1)
    return sample.loguniform(float(low), float(high)) if log else sample.uniform(float(low), float(high))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == _NUMBERS_IN_A_PAIR and all(map(_is_number, value))


def _bayesopt(_user: str, space: Any) -> Any:
    """Read ``{"x": (0, 20)}``."""
    if not isinstance(space, Mapping) or not space or not all(map(_is_pair, space.values())):
        return space
    return {name: _between(low, high) for name, (low, high) in space.items()}


def _bohb(user: str, space: Any) -> Any:
    """Read a ``ConfigSpace.ConfigurationSpace``."""
    if not type(space).__module__.startswith("ConfigSpace"):
        return space
    if space.conditions or space.forbidden_clauses:
        raise InvalidInputError(
            f"{user}: the ConfigurationSpace has conditions or forbidden clauses, which have no counterpart; search "
            "all parameters, or draw those that depend on others with tune.sample_from",
            parameter="space",
        )
    return {name: _hyperparameter(user, name, found) for name, found in dict(space).items()}


def _hyperparameter(user: str, name: str, found: Any) -> Any:
    match type(found).__name__:
        case "UniformFloatHyperparameter":
            return _between(found.lower, found.upper, log=found.log)
        case "UniformIntegerHyperparameter":
            return _between(found.lower, found.upper, whole=True, log=found.log)
        case "CategoricalHyperparameter" if len({round(float(p), 9) for p in found.probabilities}) == 1:
            return sample.choice(list(found.choices))
        case "CategoricalHyperparameter":
            raise _refused(user, name, "a choice with weights")
        case "OrdinalHyperparameter":
            return sample.choice(list(found.sequence))
        case "Constant":
            return found.value
    raise _refused(user, name, f"a {type(found).__name__}")


def _zoopt(user: str, space: Any) -> Any:
    """Read ``{"x": (ValueType.CONTINUOUS, [0, 20], 0.01)}``, ZOOpt's `dim_dict`."""
    if not isinstance(space, Mapping) or not space or not all(map(_is_dimension, space.values())):
        return space
    return {name: _dimension(user, name, *found) for name, found in space.items()}


def _is_dimension(value: Any) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) > 1
        and value[0] in (_DISCRETE, _CONTINUOUS, _GRID)
        and isinstance(value[1], (list, tuple))
    )


def _dimension(user: str, name: str, kind: int, values: Any, precision: Any = None, *_order: Any) -> Any:
    if kind == _GRID:
        return sample.choice(list(values))
    if not _is_pair(values):
        raise _refused(user, name, f"between {values!r}")
    if kind == _DISCRETE:
        return _between(*values, whole=True)
    try:
        return sample.quniform(float(values[0]), float(values[1]), precision)
    except (SearchSpaceError, TypeError):  # no step, or one that does not divide the bounds
        return _between(*values)


def _ax(user: str, space: Any) -> Any:
    """Read ``[{"name": "x", "type": "range", "bounds": [0, 20]}]``."""
    if not isinstance(space, (list, tuple)) or not all(
        isinstance(each, Mapping) and "name" in each for each in space
    ):
        return space
    return {each["name"]: _ax_parameter(user, each) for each in space}


def _ax_parameter(user: str, found: Mapping[str, Any]) -> Any:
    match found.get("type"):
        case "range" if _is_pair(found.get("bounds")):
            low, high = found["bounds"]
            kind = found.get("value_type") or ("int" if isinstance(low, int) and isinstance(high, int) else "float")
            return _between(low, high, whole=kind == "int", log=bool(found.get("log_scale")))
        case "choice":
            return sample.choice(list(found.get("values") or ()))
        case "fixed":
            return found.get("value")
    raise _refused(user, found["name"], dict(found))


def _nevergrad(user: str, space: Any) -> Any:
    """Read a ``ng.p.Dict``, or a dict of ``ng.p.Scalar(...)`` and the like."""
    if type(space).__module__.startswith("nevergrad.") and isinstance(getattr(space, "_content", None), dict):
        space = space._content  # noqa: SLF001 - iterating gives values in some releases and parameters in others
    elif not isinstance(space, Mapping) or not any(map(_is_nevergrad, space.values())):
        return space
    return {
        name: _nevergrad_parameter(user, name, found) if _is_nevergrad(found) else found
        for name, found in space.items()
    }


def _is_nevergrad(value: Any) -> bool:
    return type(value).__module__.startswith("nevergrad.")


def _nevergrad_parameter(user: str, name: str, found: Any) -> Any:
    kind = type(found).__name__
    if kind in ("Choice", "TransitionChoice"):
        return sample.choice(list(found.choices.value))
    if kind == "Constant":
        return found.value
    if kind == "Dict":
        return _nevergrad(user, found)
    low, high = found.bounds if kind in ("Scalar", "Log") else (None, None)
    if low is None or high is None:
        raise _refused(user, name, f"a {kind}" if kind not in ("Scalar", "Log") else f"a {kind} without bounds")
    low, high = (float(f"{bound.item():.12g}") for bound in (low, high))  # a Log keeps the exponents of its bounds
    return _between(low, high, whole=found.integer, log=kind == "Log")


def _hebo(user: str, space: Any) -> Any:
    """Read a ``DesignSpace``."""
    parameters = getattr(space, "para_config", None)
    if not type(space).__module__.startswith("hebo.") or not isinstance(parameters, list):
        return space
    return {found["name"]: _hebo_parameter(user, found) for found in parameters}


def _hebo_parameter(user: str, found: Mapping[str, Any]) -> Any:
    kind = found.get("type")
    if kind in ("num", "int", "pow", "pow_int"):
        log = str(kind).startswith("pow")
        return _between(found["lb"], found["ub"], whole=str(kind).endswith("int"), log=log)
    if kind in ("cat", "bool"):
        return sample.choice([False, True] if kind == "bool" else list(found["categories"]))
    raise _refused(user, found["name"], f"of the type {kind!r}")


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "AxSearch": _ax,
    "BayesOptSearch": _bayesopt,
    "HEBOSearch": _hebo,
    "NevergradSearch": _nevergrad,
    "TuneBOHB": _bohb,
    "ZOOptSearch": _zoopt,
}
