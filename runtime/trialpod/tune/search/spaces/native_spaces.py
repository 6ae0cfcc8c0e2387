"""Search spaces in the terms of the libraries, as ``convert_search_space`` of each searcher returns them in Ray.

What is returned remembers the space that it was made of, so that a searcher that gets it searches that one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trialpod.tune.search.library import require
from trialpod.tune.search.sample import Categorical, Constant, Domain, Float, Integer, SearchSpaceError
from trialpod.tune.search.spaces.variants import path_text, scan

_ORIGIN = "_trialpod_space"


class ConvertedSpace(dict[str, Any]):
    """Parameters in the terms of a library, by name."""

    _trialpod_space: dict[str, Any]


class ConvertedList(list[Any]):
    """Parameters in the terms of a library, in order."""

    _trialpod_space: dict[str, Any]


def original_space(space: Any) -> Any:
    """Return what a converted space was made of; every other space as it is."""
    return getattr(space, _ORIGIN, space)


def converted(user: str, space: dict[str, Any]) -> Any:
    """Return a search space in the terms of the library of the searcher `user`."""
    domains, grids = scan(space)
    if grids:
        raise SearchSpaceError(
            f"{path_text(grids[0][0])}: {user} searches no grids; use choice in place of grid_search"
        )
    named = [(path_text(path), domain) for path, domain in domains if not isinstance(domain, Constant)]
    made = _LIBRARIES[user](user, named)
    if user == "HyperOptSearch":  # whose spaces are nested, and have constants
        made = ConvertedSpace(_placed(space, made))
    setattr(made, _ORIGIN, space)
    return made


def _placed(space: dict[str, Any], made: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Return a space with what was made in the places of its domains."""
    found: dict[str, Any] = {}
    for key, value in space.items():
        name = f"{above}{key}"
        found[key] = _placed(value, made, f"{name}/") if isinstance(value, dict) else made.get(name, value)
    return found


def _refused(user: str, name: str, domain: Domain) -> SearchSpaceError:
    return SearchSpaceError(f"{name}: {user} has no counterpart for {domain!r}")


def _kind(domain: Domain) -> str:
    if isinstance(domain, (Float, Integer)):
        return f"{type(domain).__name__.lower()} {domain.kind}"
    return "choice" if isinstance(domain, Categorical) else ""


def _optuna(user: str, named: list[tuple[str, Domain]]) -> Any:
    made = require("optuna.distributions", "optuna>=5", user)
    space = ConvertedSpace()
    for name, domain in named:
        if isinstance(domain, Categorical):
            space[name] = made.CategoricalDistribution(domain.categories)
        elif isinstance(domain, Float) and domain.kind != "normal":
            log = domain.kind == "loguniform"
            step = None if log else domain.q
            space[name] = made.FloatDistribution(domain.lower, domain.upper, log=log, step=step)
        elif isinstance(domain, Integer):
            log = domain.kind == "loguniform"
            high = domain.upper if domain.q not in (None, 1) else domain.upper - 1
            space[name] = made.IntDistribution(domain.lower, high, log=log, step=1 if log else domain.q or 1)
        else:
            raise _refused(user, name, domain)
    return space


def _hyperopt(user: str, named: list[tuple[str, Domain]]) -> Any:
    library = require("hyperopt", "hyperopt>=0.3", user)
    hp, whole = library.hp, library.pyll.scope.int
    space = ConvertedSpace()
    for name, domain in named:
        if isinstance(domain, Categorical):
            space[name] = hp.choice(name, domain.categories)
        elif isinstance(domain, Float):
            bounds: tuple[float, float] = (domain.lower, domain.upper)
            kind = domain.kind
            if kind == "loguniform":
                bounds = (math.log(domain.lower), math.log(domain.upper))
            elif kind == "normal":
                bounds = (domain.mean, domain.sd)
            space[name] = (
                getattr(hp, kind)(name, *bounds)
                if domain.q is None
                else getattr(hp, f"q{kind}")(name, *bounds, domain.q)
            )
        elif isinstance(domain, Integer):
            upper = domain.upper if domain.q not in (None, 1) else domain.upper - 1
            if domain.kind == "loguniform":
                space[name] = whole(
                    hp.qloguniform(name, math.log(domain.lower), math.log(upper), float(domain.q or 1))
                )
            else:
                space[name] = whole(hp.quniform(name, domain.lower, upper, float(domain.q or 1)))
        else:
            raise _refused(user, name, domain)
    return space


def _bayesopt(user: str, named: list[tuple[str, Domain]]) -> Any:
    space = ConvertedSpace()
    for name, domain in named:
        if not isinstance(domain, Float) or domain.kind == "normal":
            raise _refused(user, name, domain)
        space[name] = (domain.lower, domain.upper)
    return space


def _zoopt(user: str, named: list[tuple[str, Domain]]) -> Any:
    types = require("zoopt", "zoopt>=0.4", user).ValueType
    space = ConvertedSpace()
    for name, domain in named:
        kind = _kind(domain)
        if isinstance(domain, Float) and kind == "float uniform":
            space[name] = (types.CONTINUOUS, [domain.lower, domain.upper], domain.q or 1e-12)
        elif isinstance(domain, Integer) and kind == "integer uniform":
            space[name] = (types.DISCRETE, [domain.lower, domain.upper - 1], True)
        elif isinstance(domain, Categorical):
            space[name] = (types.GRID, domain.categories)
        else:
            raise _refused(user, name, domain)
    return space


def _ax(user: str, named: list[tuple[str, Domain]]) -> Any:
    made = ConvertedList()
    for name, domain in named:
        if isinstance(domain, Categorical):
            made.append({"name": name, "type": "choice", "values": domain.categories})
            continue
        kind = _kind(domain)
        if not isinstance(domain, (Float, Integer)) or domain.kind == "normal":
            raise _refused(user, name, domain)
        whole = isinstance(domain, Integer)
        made.append(
            {
                "name": name,
                "type": "range",
                "bounds": [domain.lower, domain.upper - 1 if whole else domain.upper],
                "value_type": "int" if whole else "float",
                "log_scale": kind.endswith("loguniform"),
            }
        )
    return made


def _hebo(user: str, named: list[tuple[str, Domain]]) -> Any:
    types = {
        "float uniform": "num",
        "float loguniform": "pow",
        "integer uniform": "int",
        "integer loguniform": "pow_int",
    }
    parameters: list[dict[str, Any]] = []
    for name, domain in named:
        if isinstance(domain, Categorical):
            parameters.append({"name": name, "type": "cat", "categories": list(domain.categories)})
            continue
        if not isinstance(domain, (Float, Integer)) or _kind(domain) not in types:
            raise _refused(user, name, domain)
        upper = domain.upper - 1 if isinstance(domain, Integer) else domain.upper
        parameters.append({"name": name, "type": types[_kind(domain)], "lb": domain.lower, "ub": upper})
    return require("hebo.design_space.design_space", "HEBO>=0.3.6", user).DesignSpace().parse(parameters)


def _nevergrad(user: str, named: list[tuple[str, Domain]]) -> Any:
    from trialpod.tune.search.nevergrad_library import nevergrad_library

    ng = nevergrad_library()
    space: dict[str, Any] = {}
    for name, domain in named:
        if isinstance(domain, Categorical):
            space[name] = ng.p.Choice(choices=domain.categories)
        elif isinstance(domain, (Float, Integer)) and domain.kind != "normal":
            whole = isinstance(domain, Integer)
            upper = domain.upper - 1 if whole else domain.upper
            log = domain.kind == "loguniform"
            made = ng.p.Log(lower=domain.lower, upper=upper) if log else ng.p.Scalar(lower=domain.lower, upper=upper)
            space[name] = made.set_integer_casting() if whole else made
        else:
            raise _refused(user, name, domain)
    return ng.p.Dict(**space)


def _bohb(user: str, named: list[tuple[str, Domain]]) -> Any:
    library = require("ConfigSpace", "ConfigSpace>=1", user)
    space = library.ConfigurationSpace()
    for name, domain in named:
        if isinstance(domain, Categorical):
            space.add(library.CategoricalHyperparameter(name, choices=domain.categories))
        elif isinstance(domain, (Float, Integer)) and domain.kind != "normal":
            whole = isinstance(domain, Integer)
            make = library.UniformIntegerHyperparameter if whole else library.UniformFloatHyperparameter
            upper = domain.upper - 1 if whole else domain.upper
            space.add(make(name, lower=domain.lower, upper=upper, log=domain.kind == "loguniform"))
        else:
            raise _refused(user, name, domain)
    return space


_LIBRARIES: dict[str, Callable[[str, list[tuple[str, Domain]]], Any]] = {
    "OptunaSearch": _optuna,
    "HyperOptSearch": _hyperopt,
    "BayesOptSearch": _bayesopt,
    "ZOOptSearch": _zoopt,
    "AxSearch": _ax,
    "HEBOSearch": _hebo,
    "NevergradSearch": _nevergrad,
    "TuneBOHB": _bohb,
}
