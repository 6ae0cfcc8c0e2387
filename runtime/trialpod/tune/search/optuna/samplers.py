"""Makes Optuna's samplers by name, and gives each suggestion random numbers of its own."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod.tune.search.library import require
from trialpod.tune.search.spaces.flat_space import FlatSpace

_CLASSES = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "nsgaii": "NSGAIISampler",
    "nsgaiii": "NSGAIIISampler",
    "qmc": "QMCSampler",
    "bruteforce": "BruteForceSampler",
    "grid": "GridSampler",
}
_NEEDS = {"cmaes": ("cmaes", "cmaes"), "gp": ("torch", "torch")}
_CROSSOVERS = {
    "uniform": "UniformCrossover",
    "blxalpha": "BLXAlphaCrossover",
    "spx": "SPXCrossover",
    "sbx": "SBXCrossover",
    "vsbx": "VSBXCrossover",
    "undx": "UNDXCrossover",
}
_OURS = ("self", "seed", "search_space", "constraints_func", "base_sampler")
"""Arguments of samplers that are not for users: they follow from the experiment."""

STATELESS = frozenset({"TPESampler", "RandomSampler", "GPSampler"})
"""Samplers that keep nothing of a suggestion but its parameters, so that an earlier one needs no computation."""

_DEPTH = 4
MAX_GRID_POINTS = 100_000
"""So many points a sampler may go through: Optuna makes a list of all of them."""
_MAX_NUMBERS = 100_000
"""The most of an argument for which Optuna makes so many numbers at once."""
_NUMBERS: dict[str, tuple[Any, float, float]] = {
    "n_startup_trials": (numbers.Integral, 0, math.inf),
    "n_ei_candidates": (numbers.Integral, 1, _MAX_NUMBERS),
    "popsize": (numbers.Integral, 2, _MAX_NUMBERS),
    "population_size": (numbers.Integral, 2, math.inf),
    "dividing_parameter": (numbers.Integral, 1, math.inf),
    "prior_weight": (numbers.Real, 0, math.inf),
    "sigma0": (numbers.Real, 0, math.inf),
    "mutation_prob": (numbers.Real, 0, 1),
    "crossover_prob": (numbers.Real, 0, 1),
    "swapping_prob": (numbers.Real, 0, 1),
}
"""Arguments that are numbers, with their kind, the least and the most of each."""
_SWITCHES = (
    "consider_prior",
    "consider_magic_clip",
    "consider_endpoints",
    "multivariate",
    "warn_independent_sampling",
)
"""Arguments that are true or false, beside those whose default is."""
_FUNCTIONS = (
    "gamma",
    "weights",
    "elite_population_selection_strategy",
    "child_generation_strategy",
    "after_trial_strategy",
)
_OBJECTS = ("independent_sampler", "mutation", "reference_points", "source_trials")
"""With the functions, the arguments that only a script can give; Optuna's own objects among them."""


def parse_sampler(given: Any) -> tuple[str, dict[str, Any]]:
    """Return the canonical name of a sampler and its arguments."""
    arguments = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = arguments.pop("name", None)
    key = _canonical(name) if isinstance(name, str) else ""
    if key not in _CLASSES:
        guess = nearest(key, _CLASSES) if key else None
        hint = f" Did you mean {guess!r}?" if guess else ""
        raise InvalidInputError(
            f"OptunaSearch: sampler {given!r} is unknown.{hint} Known are {', '.join(sorted(_CLASSES))}; with "
            "arguments it is written {name: nsgaii, population_size: 20}",
            parameter="sampler",
        )
    optuna = require("optuna", "optuna>=5", "OptunaSearch")
    if key in _NEEDS:
        require(*_NEEDS[key], f"OptunaSearch(sampler={name!r})")
    parameters = inspect.signature(getattr(optuna.samplers, _CLASSES[key])).parameters
    known = {each: parameter.default for each, parameter in parameters.items() if each not in _OURS}
    for argument, value in arguments.items():
        if argument not in known:
            guess = nearest(str(argument), known)
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise InvalidInputError(
                f"OptunaSearch: sampler {name!r} has no argument {argument!r}.{hint} Allowed are {_listed(known)}",
                parameter="sampler",
            )
        needed = _needed(argument, value, known[argument])
        if needed is not None:
            raise InvalidInputError(
                f"OptunaSearch: {argument} of sampler {name!r} must be {needed}, got {value!r}", parameter="sampler"
            )
    return key, arguments


def _listed(known: Mapping[str, Any]) -> str:
    from_script = sorted(each for each in known if each in _FUNCTIONS or each in _OBJECTS)
    plain = ", ".join(sorted(set(known).difference(from_script))) or "none"
    return plain + (f"; in a script also {', '.join(from_script)}" if from_script else "")


def _needed(argument: str, value: Any, default: Any) -> str | None:
    """Return what an argument of a sampler must be; None where it is that."""
    if value is None and default is None:
        return None
    if argument in _NUMBERS:
        kind, least, most = _NUMBERS[argument]
        if isinstance(value, kind) and not isinstance(value, bool) and least <= value <= most and value < math.inf:
            return None
        what = "a whole number" if kind is numbers.Integral else "a number"
        return f"{what} of at least {least}" if most == math.inf else f"{what} from {least} to {most}"
    if argument in _SWITCHES or isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if argument in _FUNCTIONS:
        return None if callable(value) else "a function, which only a script can give"
    return "an object of Optuna, which only a script can give" if argument in _OBJECTS and _is_plain(value) else None


def _is_plain(value: Any) -> bool:
    """Return whether a value is data that a manifest can have."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (str, int, float, Mapping))


def make_sampler(given: Any, seed: int, space: FlatSpace | None) -> Any:
    """Return a sampler."""
    name, arguments = parse_sampler(given)
    optuna = require("optuna", "optuna>=5", "OptunaSearch")
    made = getattr(optuna.samplers, _CLASSES[name])
    if "crossover" in arguments:
        arguments["crossover"] = _crossover(optuna, arguments["crossover"])
    if name in ("grid", "bruteforce") and space is not None:
        _check_finite(name, space)
    if name == "grid":
        arguments["search_space"] = _grid(space)
    try:
        return made(seed=seed, **arguments)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"OptunaSearch: sampler {name!r} refuses its arguments: {error}", parameter="sampler"
        ) from error


def reseed(sampler: Any, seed: int, depth: int = _DEPTH) -> None:
    """Make what `sampler` draws next depend on `seed` alone."""
    for name, part in list(vars(sampler).items()):
        kind = type(part).__name__
        if kind == "LazyRandomState":
            part.rng.seed(seed)
        elif kind == "Generator" or kind == "RandomState":
            continue
        elif hasattr(part, "sample_independent") and depth:
            reseed(part, seed ^ depth, depth - 1)
        elif name == "_gprs_cache_list":
            setattr(sampler, name, None)  # fitted models: only a shortcut, but it changes the last digits


def _canonical(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").removesuffix("sampler")


def _crossover(optuna: Any, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    key = _canonical(given).removesuffix("crossover")
    if key not in _CROSSOVERS:
        guess = nearest(key, _CROSSOVERS)
        hint = f" Did you mean {guess!r}?" if guess else ""
        raise InvalidInputError(
            f"OptunaSearch: crossover {given!r} is unknown.{hint} Known are {', '.join(sorted(_CROSSOVERS))}",
            parameter="sampler",
        )
    return getattr(optuna.samplers.nsgaii, _CROSSOVERS[key])()


def _grid(space: FlatSpace | None) -> dict[str, list[Any]]:
    if space is None:
        raise InvalidInputError(
            "OptunaSearch: sampler 'grid' needs a search space that is not a function", parameter="sampler"
        )
    from trialpod.tune.search.optuna.static_space import outer

    return {d.name: [outer(d, number) for number in range(int(d.low), int(d.high) + 1)] for d in space.dimensions}


def _check_finite(name: str, space: FlatSpace) -> None:
    for dimension in space.dimensions:
        if dimension.kind not in ("whole", "choice"):
            raise InvalidInputError(
                f"OptunaSearch: sampler {name!r} cannot go through all of {dimension.name}, {dimension.domain!r}; "
                "use quniform, randint or choice",
                parameter="sampler",
            )
    sizes = [int(dimension.high) - int(dimension.low) + 1 for dimension in space.dimensions]
    points = math.prod(sizes) if name == "grid" else max(sizes, default=0)  # the other lists one parameter at a time
    if points > MAX_GRID_POINTS:
        what = "the search space has" if name == "grid" else "a parameter has"
        raise InvalidInputError(
            f"OptunaSearch: sampler {name!r} goes through at most {MAX_GRID_POINTS} points, and {what} {points}; use "
            "quniform or qrandint with a larger step, fewer parameters, or the sampler tpe, qmc or random",
            parameter="sampler",
        )
