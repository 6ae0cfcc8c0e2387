"""The distributions of a search space: Ray Tune's names, bounds and sampling rules, on the standard library alone.

Invariants:

* A domain never changes; `quantized`, `uniform` and so on return new ones.
* All randomness comes from the generator that is passed in: Python's, or NumPy's in the very calls that Ray makes.
* A sampled value always satisfies its domain's `is_valid`. Rounding errors of logarithms and of multiples of `q` are
  cut back to the bounds; NumPy's draws stay as Ray has them.
* Bounds are checked when a domain is made. Errors are `SearchSpaceError` and name the argument.

Quantised integers are drawn over the indices of the grid, so that every multiple of `q` is equally likely (the rule
of Ray 2.60; up to 2.4x it rounded, which gave the edges half their weight).
"""

from __future__ import annotations

import math
import numbers
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError
from trialpod.protocol.values import same_value
from trialpod.tune.search.spaces.numpy_draws import NumpyDraws, generator_of, grid_bounds

UNBOUNDED = math.inf
_EMPTY = "choice needs at least one value to choose from"


class SearchSpaceError(InvalidInputError):
    """A distribution that cannot be drawn from; `argument` names the argument at fault, when it is one."""

    def __init__(self, message: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class SearchSpaceTypeError(SearchSpaceError, TypeError):
    """A distribution that was given something of a wrong type."""


class Sampler:
    """How the values of a domain are drawn, for code that asks as it does in Ray; `Domain.draw` draws them."""

    def __str__(self) -> str:
        return type(self).__name__


class BaseSampler(Sampler):
    """How the values of a function are drawn."""


class Uniform(Sampler):
    """Each value equally likely."""


class LogUniform(Sampler):
    """Logarithms uniform.

    Args:
        base: of the logarithm; it changes nothing.
    """

    def __init__(self, base: float = 10) -> None:
        self.base = base


class Normal(Sampler):
    """Normally distributed.

    Args:
        mean: the mean.
        sd: the standard deviation.
    """

    def __init__(self, mean: float = 0.0, sd: float = 1.0) -> None:
        self.mean, self.sd = mean, sd


class Grid(Sampler):
    """Each value once."""


class Quantized(Sampler):
    """Multiples of a number.

    Args:
        sampler: how the values are drawn that are rounded.
        q: of what they are multiples.
    """

    def __init__(self, sampler: Sampler, q: float) -> None:
        self.sampler, self.q = sampler, q

    def get_sampler(self) -> Sampler:
        """Return how the values are drawn that are rounded."""
        return self.sampler


_PLAIN = 1e16
"""Whole numbers below are shown without a point, as they were written."""
_ROUNDING = 1e-12
"""Maximum relative error of a multiple of `q`."""


class Domain:
    """The values that one parameter may take, and how they are drawn."""

    @property
    def sampler(self) -> dict[str, Any]:
        """How values are drawn, as data: ``{"name": "loguniform", "base": 10}``; with ``"q"`` when quantised."""
        return {"name": type(self).__name__.lower()}

    def get_sampler(self) -> Sampler:
        """Return how values are drawn, as an object."""
        return Uniform()

    def set_sampler(self, sampler: Sampler, allow_override: bool = False) -> None:
        """Refuse another way to draw: it is chosen when a domain is made.

        Raises:
            SearchSpaceError: always.
        """
        raise SearchSpaceError(
            f"{self!r} draws its values in one way; make another one: .uniform(), .loguniform(), .normal() and "
            ".quantized() return it, and tune.sample_from(function) draws in a way of your own",
            "sampler",
        )

    def cast(self, value: Any) -> Any:
        """Return a value as the type that this domain draws."""
        return value

    def is_grid(self) -> bool:
        """Return whether each value is tried, instead of one drawn; such a domain is a `grid_search`."""
        return False

    def is_function(self) -> bool:
        """Return whether a function of the user makes the values."""
        return False

    def draw(self, rng: random.Random | NumpyDraws, config: Any = None) -> Any:
        """Return one value; `config` is what a `sample_from` function may look at."""
        raise NotImplementedError

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Return one value, or `size` values when `size` is not 1.

        Args:
            config: what a `sample_from` function may look at; a list of them, one for each value.
            size: how many values.
            random_state: a seed, or a generator of NumPy or of Python. None is NumPy's global generator where the
                script uses NumPy, else the operating system's entropy.
        """
        rng = generator_of(random_state)
        if size == 1:
            return self.draw(rng, config[0] if isinstance(config, list) else config)
        if isinstance(rng, NumpyDraws) and isinstance(self, (Float, Integer)):
            return self.draw_many(rng, size)
        configs = config if isinstance(config, list) else [config] * size
        return [self.draw(rng, each) for each in configs]

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` can come out of this domain (the step `q` is not looked at, as in Ray)."""
        raise NotImplementedError

    @property
    def domain_str(self) -> str:
        """The values in short, for messages: ``(0.1, 0.9)``."""
        return "(unknown)"

    def __repr__(self) -> str:
        details = ", ".join(f"{key}={value}" for key, value in self.sampler.items() if key != "name")
        return f"{self.sampler['name']}{self.domain_str}{f' [{details}]' if details else ''}"


class Constant(Domain):
    """A value that is taken as it is, even where it looks like a distribution or a grid."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def draw(self, rng: random.Random | NumpyDraws, config: Any = None) -> Any:
        """Return the value."""
        return self.value

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` equals the constant."""
        return equal(value, self.value)

    @property
    def domain_str(self) -> str:
        """The value."""
        return f"({self.value!r})"


class Float(Domain):
    """Real numbers: uniform, log-uniform or normal, optionally on multiples of `q`."""

    def __init__(
        self,
        lower: float | None,
        upper: float | None,
        kind: str = "uniform",
        *,
        base: float = 10.0,
        mean: float = 0.0,
        sd: float = 1.0,
        q: float | None = None,
    ) -> None:
        """Make a domain; `tune.uniform`, `loguniform`, `randn` and their q-twins are shorter ways to write it.

        Bounds that are None are none: then only `normal` can draw.
        """
        self.kind, self.base, self.mean, self.sd, self.q = kind, base, mean, sd, q
        if lower is None or upper is None:
            self.lower = -UNBOUNDED if lower is None else _real(lower, "lower")
            self.upper = UNBOUNDED if upper is None else _real(upper, "upper")
            return
        if kind == "normal":
            self.lower, self.upper = -UNBOUNDED, UNBOUNDED
            return
        self.lower, self.upper = lower, upper
        if kind == "loguniform":
            _check_positive_bounds(lower)
            _check_base(base)
        if lower != upper or not under_ray():
            _check_order(lower, upper)
        if q is not None:
            for argument, bound in (("lower", lower), ("upper", upper)):
                if not math.isclose(bound / q, round(bound / q), abs_tol=1e-9):
                    nearby = round(round(bound / q) * q, 12)
                    raise SearchSpaceError(
                        f"{argument} {bound!r} is not a multiple of q {q!r}; use {nearby:g}, or another q",
                        argument,
                    )

    @property
    def sampler(self) -> dict[str, Any]:
        """How values are drawn, as data."""
        info: dict[str, Any] = {"name": self.kind}
        if self.kind == "loguniform":
            info["base"] = self.base
        elif self.kind == "normal":
            info.update(mean=self.mean, sd=self.sd)
        if self.q is not None:
            info["q"] = self.q
        return info

    def uniform(self) -> Float:
        """Return this domain with each number between the bounds equally likely."""
        return self._with("uniform")

    def loguniform(self, base: float = 10) -> Float:
        """Return this domain with uniform logarithms; `base` changes nothing."""
        return self._with("loguniform", base=_real(base, "base"))

    def normal(self, mean: float = 0.0, sd: float = 1.0) -> Float:
        """Return the normal distribution; the domain must have no bounds.

        Raises:
            SearchSpaceError: it has bounds other than 0, or `sd` is negative.
        """
        for argument, bound in (("lower", self.lower), ("upper", self.upper)):
            if bound and math.isfinite(bound):
                raise SearchSpaceError(f"{argument} must be None for a normal distribution, got {bound!r}", argument)
        return Float(None, None, "normal", mean=_real(mean, "mean"), sd=_deviation(sd), q=self.q)

    def quantized(self, q: float) -> Float:
        """Return this domain with values rounded to multiples of `q`; both bounds must be multiples of it."""
        return Float(*self._bounds, self.kind, base=self.base, mean=self.mean, sd=self.sd, q=_step(q))

    def get_sampler(self) -> Sampler:
        """Return how values are drawn, as an object."""
        return _sampler_of(self, Normal(self.mean, self.sd) if self.kind == "normal" else None)

    def cast(self, value: Any) -> float:
        """Return a value as float."""
        return float(value)

    def draw_many(self, rng: NumpyDraws, size: int) -> Any:
        """Return `size` values, drawn together."""
        self._check_bounds()
        lower, upper = (self.lower, self.upper) if self.q is None else grid_bounds(self.lower, self.upper, self.q)
        if self.kind == "normal":
            values = rng.normal(self.mean, self.sd, size)
        elif self.kind == "loguniform":
            values = rng.loguniform(lower, upper, size)
        else:
            values = rng.uniform(lower, upper, size)
        return values if self.q is None else [float(round(value / self.q) * self.q) for value in values.tolist()]

    @property
    def _bounds(self) -> tuple[float | None, float | None]:
        return (
            self.lower if math.isfinite(self.lower) else None,
            self.upper if math.isfinite(self.upper) else None,
        )

    def _with(self, kind: str, base: float = 10.0) -> Float:
        if self.kind not in ("uniform", kind):
            raise SearchSpaceError(f"the domain is {self.kind} already; choose one distribution")
        made = Float(*self._bounds, kind, base=base, q=self.q)
        made._check_bounds()
        return made

    def _check_bounds(self) -> None:
        if self.kind == "normal":
            return
        for argument, bound in (("lower", self.lower), ("upper", self.upper)):
            if not math.isfinite(bound):
                raise SearchSpaceError(f"{argument} must be a number for {self.kind} draws, got None", argument)

    def draw(self, rng: random.Random | NumpyDraws, config: Any = None) -> float:
        """Return one number."""
        if isinstance(rng, NumpyDraws):
            return float(self.draw_many(rng, 1)[0])
        self._check_bounds()
        if self.kind == "normal":
            value = rng.normalvariate(self.mean, self.sd)
        elif self.kind == "loguniform":
            value = _draw_log(rng, self.lower, self.upper, self.base)
        else:
            value = rng.uniform(self.lower, self.upper)
        if self.q is not None:
            value = round(value / self.q) * self.q
        return min(max(value, self.lower), self.upper)

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` is a number between the bounds.

        A multiple of `q` is one also when it misses a bound by its rounding error, as NumPy's draws do.
        """
        if not _is_number(value):
            return False
        if self.lower <= value <= self.upper:
            return True
        bounds = () if self.q is None else (self.lower, self.upper)
        return any(math.isclose(value, bound, rel_tol=_ROUNDING) for bound in bounds)

    @property
    def domain_str(self) -> str:
        """The bounds."""
        return f"({_shown(self.lower)}, {_shown(self.upper)})"


class Integer(Domain):
    """Whole numbers: uniform or log-uniform, optionally on multiples of `q`.

    `upper` itself is never drawn when `q` is None or 1, as Ray has it, and can be drawn otherwise.
    """

    def __init__(
        self, lower: int, upper: int, kind: str = "uniform", *, base: float = 10.0, q: int | None = None
    ) -> None:
        """Make a domain; `randint`, `lograndint` and their q-twins are the ways to call it."""
        self.lower, self.upper, self.kind, self.base, self.q = lower, upper, kind, base, q
        if kind == "loguniform":
            _check_positive_bounds(lower)
            _check_base(base)
        step = 1 if q is None else q
        self._first = -(-lower // step)
        self._stop = upper if step == 1 else upper // step + 1
        if step == 1:
            _check_order(lower, upper)
        elif lower > upper:
            raise SearchSpaceError(f"upper must not be below lower, got {upper} and {lower}", "upper")
        elif self._first >= self._stop:
            raise SearchSpaceError(
                f"q: there is no multiple of {q} from {lower} to {upper}; use a smaller q or wider bounds", "q"
            )

    @property
    def sampler(self) -> dict[str, Any]:
        """How values are drawn, as data."""
        info: dict[str, Any] = {"name": self.kind}
        if self.kind == "loguniform":
            info["base"] = self.base
        if self.q is not None:
            info["q"] = self.q
        return info

    def uniform(self) -> Integer:
        """Return this domain with each number equally likely."""
        return self._with("uniform")

    def loguniform(self, base: float = 10) -> Integer:
        """Return this domain with uniform logarithms; `base` changes nothing."""
        return self._with("loguniform", base=_real(base, "base"))

    def quantized(self, q: int) -> Integer:
        """Return this domain with the multiples of `q` only; then `upper` counts unless `q` is 1."""
        return Integer(self.lower, self.upper, self.kind, base=self.base, q=_whole_step(q))

    def get_sampler(self) -> Sampler:
        """Return how values are drawn, as an object."""
        return _sampler_of(self)

    def cast(self, value: Any) -> int:
        """Return a value as int."""
        return int(value)

    def draw_many(self, rng: NumpyDraws, size: int) -> Any:
        """Return `size` values, drawn together."""
        if self.kind == "loguniform":
            values = rng.loguniform(self._first, self._stop, size).astype(int)
        else:
            values = rng.integers(self._first, self._stop, size)
        return values if self.q is None else [int(value) * self.q for value in values]

    def _with(self, kind: str, base: float = 10.0) -> Integer:
        if self.kind not in ("uniform", kind):
            raise SearchSpaceError(f"the domain is {self.kind} already; choose one distribution")
        return Integer(self.lower, self.upper, kind, base=base, q=self.q)

    def draw(self, rng: random.Random | NumpyDraws, config: Any = None) -> int:
        """Return one number."""
        if isinstance(rng, NumpyDraws):
            return int(self.draw_many(rng, 1)[0])
        if self.kind == "loguniform":
            index = math.floor(_draw_log(rng, self._first, self._stop, self.base))
            index = min(max(index, self._first), self._stop - 1)
        else:
            index = rng.randrange(self._first, self._stop)
        return index if self.q is None else index * self.q

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` is a whole number that the bounds allow."""
        if not _is_number(value) or value != int(value):
            return False
        at_end = value == self.upper and (self.q not in (None, 1) or under_ray())
        return self.lower <= value < self.upper or at_end

    @property
    def domain_str(self) -> str:
        """The bounds."""
        return f"({self.lower}, {self.upper})"


class Categorical(Domain):
    """One of the listed values, each equally likely."""

    def __init__(self, categories: Sequence[Any]) -> None:
        self.categories = list(categories)
        if not self.categories and not under_ray():
            raise SearchSpaceError(_EMPTY, "categories")

    @property
    def sampler(self) -> dict[str, Any]:
        """How values are drawn, as data."""
        return {"name": "choice"}

    def draw(self, rng: random.Random | NumpyDraws, config: Any = None) -> Any:
        """Return one of the values."""
        if not self.categories:
            raise SearchSpaceError(_EMPTY, "categories")
        if isinstance(rng, NumpyDraws):
            return self.categories[int(rng.indices(len(self.categories))[0])]
        return self.categories[rng.randrange(len(self.categories))]

    def uniform(self) -> Categorical:
        """Return this domain: each value is equally likely already."""
        return Categorical(self.categories)

    def grid(self) -> Categorical:
        """Return this domain as a grid: each value is tried, as with `grid_search`."""
        return _GridOf(self.categories)

    def is_valid(self, value: Any) -> bool:
        """Return whether `value` is among them."""
        return any(equal(value, category) for category in self.categories)

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, item: int) -> Any:
        return self.categories[item]

    @property
    def domain_str(self) -> str:
        """The values."""
        return f"{self.categories}"


class _GridOf(Categorical):
    """What `Categorical.grid` returns."""

    def get_sampler(self) -> Sampler:
        """Return how values are drawn, as an object."""
        return Grid()

    def is_grid(self) -> bool:
        """Return True."""
        return True


class _Spec(dict[str, Any]):
    """A config as the function of a `sample_from` sees it: ``spec.config.lr``, ``spec["config"]["lr"]`` work, too."""

    def __missing__(self, key: str) -> Any:
        if key == "config":
            return self
        raise KeyError(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the config has no parameter {name!r}") from None


class Function(Domain):
    """What a function of the user returns; see `sample_from`."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func
        self.pass_config = _takes(func, object())
        if not self.pass_config and not _takes(func):
            raise SearchSpaceError(
                f"the function of sample_from must take the config or nothing, got {func!r}", "func"
            )

    @property
    def sampler(self) -> dict[str, Any]:
        """How values are drawn, as data."""
        return {"name": "sample_from"}

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Return one value, or `size` values when `size` is not 1; `config` is a dict, or a list of them."""
        if isinstance(config, list):
            return super().sample([_Spec(each) for each in config], size, random_state)
        return super().sample(_Spec(config or {}), size, random_state)

    def draw(self, rng: random.Random | NumpyDraws, config: Any = None) -> Any:
        """Call the function; its own randomness, if it has any, is its own."""
        return self.func(config) if self.pass_config else self.func()

    def is_function(self) -> bool:
        """Return True."""
        return True

    def get_sampler(self) -> Sampler:
        """Return how values are drawn, as an object."""
        return BaseSampler()

    def is_valid(self, value: Any) -> bool:
        """Return True: nothing is known of a function's values."""
        return True

    @property
    def domain_str(self) -> str:
        """The function's name."""
        return f"({getattr(self.func, '__name__', 'function')})"


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal; arrays are when type, shape and contents are."""
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - the user's own ``==`` may raise anything, and that of an array does
        return same_value(one, other)


def uniform(lower: float, upper: float) -> Float:
    """Draw a float between `lower` and `upper`."""
    return Float(_real(lower, "lower"), _real(upper, "upper"))


def quniform(lower: float, upper: float, q: float) -> Float:
    """Draw a float between the bounds, rounded to a multiple of `q`; both bounds must be multiples of it."""
    return Float(_real(lower, "lower"), _real(upper, "upper"), q=_step(q))


def loguniform(lower: float, upper: float, base: float = 10) -> Float:
    """Draw a float between the bounds whose logarithm is uniform; `base` changes nothing but rounding."""
    return Float(_real(lower, "lower"), _real(upper, "upper"), "loguniform", base=_real(base, "base"))


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Float:
    """Draw as `loguniform` does, rounded to a multiple of `q`; both bounds must be multiples of it."""
    return Float(_real(lower, "lower"), _real(upper, "upper"), "loguniform", base=_real(base, "base"), q=_step(q))


def randn(mean: float = 0.0, sd: float = 1.0) -> Float:
    """Draw from the normal distribution with this mean and standard deviation."""
    return Float(0.0, 0.0, "normal", mean=_real(mean, "mean"), sd=_deviation(sd))


def qrandn(mean: float, sd: float, q: float) -> Float:
    """Draw as `randn` does, rounded to a multiple of `q`."""
    return Float(0.0, 0.0, "normal", mean=_real(mean, "mean"), sd=_deviation(sd), q=_step(q))


def randint(lower: int, upper: int) -> Integer:
    """Draw a whole number from `lower` up to, but not including, `upper`."""
    return Integer(_whole(lower, "lower"), _whole(upper, "upper"))


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Draw a multiple of `q` between the bounds; `upper` counts unless `q` is 1."""
    return Integer(_whole(lower, "lower"), _whole(upper, "upper"), q=_whole_step(q))


def lograndint(lower: int, upper: int, base: float = 10) -> Integer:
    """Draw a whole number below `upper` whose logarithm is uniform, rounded down."""
    return Integer(_whole(lower, "lower"), _whole(upper, "upper"), "loguniform", base=_real(base, "base"))


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Integer:
    """Draw a multiple of `q` whose grid index is log-uniform; `upper` counts unless `q` is 1."""
    return Integer(
        _whole(lower, "lower"),
        _whole(upper, "upper"),
        "loguniform",
        base=_real(base, "base"),
        q=_whole_step(q),
    )


def choice(categories: Sequence[Any]) -> Categorical:
    """Draw one of the values, each equally likely. A value may itself contain distributions.

    A text or a dict is refused as a likely mistake, and so is an empty list. Under Ray's name the characters or keys
    are the values, and an empty list is refused once a value is drawn, as in Ray.
    """
    _check_values("choice", categories, "categories")
    return Categorical(categories)


def sample_from(func: Callable[..., Any]) -> Function:
    """Call `func` for each trial: ``func(config)``, ``func()``, or the old ``lambda spec: spec.config.lr``."""
    if not callable(func):
        raise SearchSpaceTypeError(f"sample_from needs a function, got {func!r}", "func")
    return Function(func)


def grid_search(values: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Try each of the values; several grids are combined with each other."""
    if under_ray() and (isinstance(values, str) or not hasattr(values, "__iter__")):
        return {"grid_search": values}  # refused, or taken apart, when the trials are made
    _check_values("grid_search", values, "values")
    return {"grid_search": values if isinstance(values, (list, tuple, range)) else list(values)}


def _check_values(function: str, values: Any, argument: str) -> None:
    if not hasattr(values, "__iter__"):
        raise SearchSpaceTypeError(f"{function} needs a list of values, got {values!r}", argument)
    if isinstance(values, (str, bytes, dict)) and not under_ray():
        raise SearchSpaceError(f"{function} needs a list of values, got {values!r}", argument)


def _is_number(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, numbers.Real) and math.isfinite(value)


def _shown(bound: float) -> str:
    return str(int(bound)) if math.isfinite(bound) and bound == int(bound) and abs(bound) < _PLAIN else str(bound)


def _real(value: Any, argument: str) -> float:
    if not _is_number(value):
        made = SearchSpaceError if isinstance(value, numbers.Real) else SearchSpaceTypeError
        raise made(f"{argument} must be a finite number, got {value!r}", argument)
    return float(value)


def _whole(value: Any, argument: str) -> int:
    if not _is_number(value) or value != int(value):
        raise SearchSpaceError(f"{argument} must be a whole number, got {value!r}", argument)
    return operator.index(value) if hasattr(value, "__index__") else int(value)


def _step(q: Any) -> float:
    number = _real(q, "q")
    if number <= 0:
        raise SearchSpaceError(f"q must be greater than 0, got {q!r}", "q")
    return number


def _whole_step(q: Any) -> int:
    number = _whole(q, "q")
    if number < 1:
        raise SearchSpaceError(f"q must be 1 or more, got {q!r}", "q")
    return number


def _deviation(sd: Any) -> float:
    number = _real(sd, "sd")
    if number < 0:
        raise SearchSpaceError(f"sd must not be negative, got {sd!r}", "sd")
    return number


def _check_order(lower: float, upper: float) -> None:
    if lower >= upper:
        raise SearchSpaceError(
            f"upper must be greater than lower, got lower {lower!r} and upper {upper!r}; "
            "for a fixed value write the value itself",
            "upper",
        )


def _check_positive_bounds(lower: float) -> None:
    if lower <= 0:
        raise SearchSpaceError(
            f"lower must be greater than 0 because a logarithm is taken, got {lower!r}; "
            "use a small positive number, or the distribution without log",
            "lower",
        )


def _check_base(base: float) -> None:
    if base <= 0 or base == 1:
        raise SearchSpaceError(f"base must be positive and not 1, got {base!r}; leave it out", "base")


def _draw_log(rng: random.Random, lower: float, upper: float, base: float) -> float:
    scale = math.log(base)
    exponent = rng.uniform(math.log(lower) / scale, math.log(upper) / scale)
    return float(min(max(base**exponent, lower), upper))


def _sampler_of(domain: Float | Integer, sampler: Sampler | None = None) -> Sampler:
    if sampler is None:
        sampler = LogUniform(domain.base) if domain.kind == "loguniform" else Uniform()
    return sampler if domain.q is None else Quantized(sampler, domain.q)


def _takes(func: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a function can be called with so many arguments; True where that cannot be known."""
    import inspect

    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):
        return not arguments
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
