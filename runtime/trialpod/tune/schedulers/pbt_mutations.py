"""What Population Based Training may do to a config: the mutations, and one step of exploration.

A mutation is a list of values, a domain (``tune.loguniform(1e-4, 1e-1)``), its form in a manifest
(``{loguniform: [1e-4, 1e-1]}``), a function that draws a value (Python only), or a dict of mutations for a nested
config.

Invariants:

* A perturbed value lies inside its domain, and on its grid when it is quantised.
* A value of a list or a choice moves to a neighbour in it; it is never multiplied.
* All randomness comes from the `random.Random` that is passed in, except a user's own function's.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trialpod.errors import InvalidInputError, WrongTypeError, nearest
from trialpod.protocol.values import number, real_number, same_value
from trialpod.tune.schedulers.metric_scheduler import is_number
from trialpod.tune.search import sample
from trialpod.tune.search.sample import Categorical, Domain, Float, Function, Integer

Mutations = dict[str, Any]

_DOMAINS: dict[str, Callable[..., Domain]] = {
    "uniform": sample.uniform,
    "quniform": sample.quniform,
    "loguniform": sample.loguniform,
    "qloguniform": sample.qloguniform,
    "randn": sample.randn,
    "qrandn": sample.qrandn,
    "randint": sample.randint,
    "qrandint": sample.qrandint,
    "lograndint": sample.lograndint,
    "qlograndint": sample.qlograndint,
    "choice": sample.choice,
}


def compiled_mutations(given: Any, path: str = "hyperparam_mutations") -> Mutations:
    """Return mutations with every leaf a `Domain` or a function, and nested dicts in between."""
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"{path} must map names of parameters to what they may be, got {given!r}",
            parameter="hyperparam_mutations",
        )
    return {_checked_key(key, path): _compiled(value, f"{path}[{key!r}]") for key, value in given.items()}


def missing_keys(config: Mapping[str, Any], mutations: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the parameters that are mutated and that the config does not have, as "a/b"."""
    missing: list[str] = []
    for key, mutation in mutations.items():
        if key not in config:
            missing.append(prefix + key)
        elif isinstance(mutation, dict):
            inner = config[key]
            missing += missing_keys(inner if isinstance(inner, Mapping) else {}, mutation, f"{prefix}{key}/")
    return missing


def filled(config: Mapping[str, Any], mutations: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy of the config in which missing parameters are drawn from their mutations."""
    result = copy.deepcopy(dict(config))
    for key, mutation in mutations.items():
        if isinstance(mutation, dict):
            inner = result.get(key)
            result[key] = filled(inner if isinstance(inner, Mapping) else {}, mutation, rng)
        elif key not in result:
            result[key] = _draw(mutation, rng)
    return result


def explore(
    config: Mapping[str, Any],
    mutations: Mapping[str, Any],
    resample_probability: float,
    perturbation_factors: Sequence[float],
    rng: random.Random,
    *,
    compatible: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a perturbed copy of the config, and what was done to each parameter."""
    result, operations = copy.deepcopy(dict(config)), dict[str, Any]()
    for key, mutation in mutations.items():
        old = result.get(key)
        if isinstance(mutation, dict):
            inner = old if isinstance(old, Mapping) else {}
            result[key], operations[key] = explore(
                inner, mutation, resample_probability, perturbation_factors, rng, compatible=compatible
            )
        elif rng.random() < resample_probability or key not in result:
            result[key], operations[key] = _draw(mutation, rng), "resample"
        elif isinstance(mutation, Categorical) and not (
            compatible and not isinstance(mutation, _Listed) and _multiplies(old)
        ):
            result[key], operations[key] = _shifted(old, mutation, rng)
        elif isinstance(old, bool):
            operations[key] = "unchanged"  # a flag has no neighbours; drawing it again is what flips it
        elif (now := _exact_number(old)) is None:
            result[key], operations[key] = _draw(mutation, rng), "resample"
        else:
            factor = perturbation_factors[rng.randrange(len(perturbation_factors))]
            scaled = now * factor
            if compatible:
                result[key] = round(scaled) if isinstance(now, int) else scaled
                operations[key] = f"* {factor}"
                continue
            whole = isinstance(now, int) and not isinstance(mutation, Float)
            inside = _inside(round(scaled) if whole else scaled, mutation)
            result[key] = inside
            clipped = not whole and inside != scaled
            operations[key] = f"* {factor}" + (" (kept in its domain)" if clipped else "")
    return result, operations


def picked(config: Mapping[str, Any], mutations: Mapping[str, Any]) -> dict[tuple[str | int, ...], Any]:
    """Return the mutated parameters of a config by their paths."""
    found: dict[tuple[str | int, ...], Any] = {}
    for key, mutation in mutations.items():
        if key not in config:
            continue
        if isinstance(mutation, dict) and isinstance(config[key], Mapping):
            found.update({(key, *path): value for path, value in picked(config[key], mutation).items()})
        else:
            found[key,] = config[key]
    return found


class _Listed(Categorical):
    """A list of values; `Categorical` itself is a ``tune.choice``."""


def _multiplies(value: Any) -> bool:
    return not isinstance(value, bool) and real_number(value) is not None


def _checked_key(key: Any, path: str) -> str:
    if not isinstance(key, str) or not key:
        raise InvalidInputError(
            f"{path}: names of parameters are strings, got {key!r}", parameter="hyperparam_mutations"
        )
    return key


def _compiled(value: Any, path: str) -> Any:
    if isinstance(value, Function):
        raise InvalidInputError(
            f"{path}: tune.sample_from cannot be used here; use a domain, a list, or a function",
            parameter="hyperparam_mutations",
        )
    if isinstance(value, Domain):
        return value
    if isinstance(value, (list, tuple)):
        if not value:
            raise InvalidInputError(f"{path} needs at least one value", parameter="hyperparam_mutations")
        return _Listed(value)
    if isinstance(value, Mapping):
        return _compiled_mapping(value, path)
    if callable(value):
        return value
    raise WrongTypeError(
        f"{path} must be a list of values, a domain such as tune.loguniform(1e-4, 1e-1), a dict for a nested config, "
        f"or a function, got {value!r}",
        parameter="hyperparam_mutations",
    )


def _compiled_mapping(value: Mapping[Any, Any], path: str) -> Any:
    if not value:
        raise InvalidInputError(
            f"{path} is empty; give what the parameter may be, such as [16, 32, 64]", parameter="hyperparam_mutations"
        )
    if len(value) != 1:
        return compiled_mutations(value, path)
    ((name, arguments),) = value.items()
    if name not in _DOMAINS:
        guess = nearest(str(name), _DOMAINS) if isinstance(arguments, (list, tuple)) else None
        if guess is not None and len(arguments) in (2, 3) and all(is_number(item) for item in arguments):
            raise InvalidInputError(
                f"{path}: unknown distribution {name!r}; did you mean {guess!r}? Known are {', '.join(_DOMAINS)}",
                parameter="hyperparam_mutations",
            )
        return compiled_mutations(value, path)
    try:
        if isinstance(arguments, Mapping):
            return _DOMAINS[name](**arguments)
        if not isinstance(arguments, (list, tuple)):
            raise InvalidInputError(f"{name} takes a list of arguments, got {arguments!r}")
        return _DOMAINS[name](arguments) if name == "choice" else _DOMAINS[name](*arguments)
    except (InvalidInputError, TypeError) as error:
        raise InvalidInputError(f"{path}: {error}", parameter="hyperparam_mutations") from None


def _draw(mutation: Any, rng: random.Random) -> Any:
    return mutation.draw(rng) if isinstance(mutation, Domain) else mutation()


def _shifted(old: Any, choices: Categorical, rng: random.Random) -> tuple[Any, str]:
    """Return a neighbour of `old` in its list, or a drawn value when it is not in it."""
    index = next((i for i, known in enumerate(choices.categories) if _same(known, old)), None)
    if index is None:
        return choices.draw(rng), "resample"
    step = rng.choice((-1, 1))
    moved = min(max(index + step, 0), len(choices) - 1)
    side = "left" if step < 0 else "right"
    return choices[moved], f"shift {side}" + (" (noop)" if moved == index else "")


def _same(one: Any, other: Any) -> bool:
    mine, theirs = _exact_number(one), _exact_number(other)
    return mine == theirs if mine is not None and theirs is not None else same_value(one, other)


def _exact_number(value: Any) -> int | float | None:
    """Return what `real_number` does, but every integer as it is: a seed may have more than 64 bits."""
    found = number(value)
    return None if isinstance(found, bool) else found


def _inside(value: Any, mutation: Any) -> Any:
    """Return the value of the domain that is closest to `value`."""
    if isinstance(mutation, Float):
        number = float(value)
        if mutation.q is not None:
            number = round(number / mutation.q) * mutation.q
        return min(max(number, mutation.lower), mutation.upper)
    if isinstance(mutation, Integer):
        step = mutation.q or 1
        first = -(-mutation.lower // step)
        last = mutation.upper - 1 if step == 1 else mutation.upper // step
        return min(max(round(value / step), first), last) * step
    return value
