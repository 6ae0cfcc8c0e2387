"""Draws from NumPy's generators, call by call as Ray Tune makes them: the same seed gives the same values.

NumPy is imported only where there is a generator of it, or a seed for one.
"""

from __future__ import annotations

import base64
import json
import math
import random
import sys
from importlib.util import find_spec
from typing import Any

from trialpod.errors import InvalidInputError

Draws = "random.Random | NumpyDraws"

_GLOBAL = "global"
_TEXT = "MT19937:"


class NumpyDraws:
    """A generator of NumPy.

    Args:
        generator: a ``RandomState`` or a ``Generator``; None is the global one, ``numpy.random``.
    """

    def __init__(self, generator: Any = None) -> None:
        self._generator = generator

    @property
    def is_global(self) -> bool:
        """True for ``numpy.random``, from which the script draws, too."""
        return self._generator is None

    def uniform(self, lower: float, upper: float, size: int = 1) -> Any:
        """Return an array of numbers between the bounds."""
        return self._source.uniform(lower, upper, size=size)

    def loguniform(self, lower: float, upper: float, size: int = 1) -> Any:
        """Return an array of numbers whose logarithms are uniform."""
        import numpy as np

        return np.exp(self._source.uniform(np.log(lower), np.log(upper), size=size))

    def normal(self, mean: float, sd: float, size: int = 1) -> Any:
        """Return an array of normally distributed numbers."""
        return self._source.normal(mean, sd, size=size)

    def integers(self, lower: int, upper: int, size: int = 1) -> Any:
        """Return an array of whole numbers below `upper`."""
        source = self._source
        return (source.integers if hasattr(source, "integers") else source.randint)(lower, upper, size=size)

    def indices(self, count: int, size: int = 1) -> Any:
        """Return an array of positions in a list of `count` values."""
        import numpy as np

        return self._source.choice(np.arange(0, count), size=size)

    def get_state(self) -> str:
        """Return the state as text."""
        kind = _GLOBAL if self._generator is None else type(self._generator).__name__
        if kind == "Generator":
            state = self._generator.bit_generator.state
        else:
            source = self._source if self._generator is None else self._generator
            state = source.get_state(legacy=False)
        return json.dumps({"kind": kind, "state": state}, default=_array)

    @classmethod
    def of_state(cls, text: str) -> NumpyDraws:
        """Return a generator that continues where `get_state` was called; the global one is set back to there."""
        import numpy as np

        saved = json.loads(text, object_hook=_unarray)
        state = saved["state"]
        if saved["kind"] == _GLOBAL:
            np.random.set_state(state)
            return cls()
        bits = getattr(np.random, state["bit_generator"])()
        if saved["kind"] == "Generator":
            bits.state = state
            return cls(np.random.Generator(bits))
        generator = np.random.RandomState(bits)
        generator.set_state(state)
        return cls(generator)

    @property
    def _source(self) -> Any:
        if self._generator is not None:
            return self._generator
        import numpy as np

        return np.random


class ReseededDraws(NumpyDraws):
    """A generator that begins again with each draw, as Ray Tune's do that are given as a seed.

    Args:
        seed: what each draw begins with.
    """

    def __init__(self, seed: int) -> None:
        import numpy as np

        super().__init__(np.random.default_rng(seed))
        self._seed = seed

    @property
    def _source(self) -> Any:
        import numpy as np

        return np.random.default_rng(self._seed)


def generator_of(random_state: Any) -> random.Random | NumpyDraws:
    """Return where to draw from for what Ray calls ``random_state``."""
    if isinstance(random_state, (random.Random, NumpyDraws)):
        return random_state
    if is_numpy_generator(getattr(random_state, "rng", None)):  # Ray's own wrapper of one
        return NumpyDraws(random_state.rng)
    if type(random_state).__name__ == "_BackwardsCompatibleNumpyRng":  # which wraps the global one
        return NumpyDraws()
    if random_state is None:
        return NumpyDraws() if "numpy" in sys.modules else random.Random()
    if is_numpy_generator(random_state):
        return NumpyDraws(random_state)
    if is_state_text(random_state):
        import numpy as np

        generator = np.random.RandomState()
        generator.set_state(_state_in(random_state))
        return NumpyDraws(generator)
    if isinstance(random_state, bool) or not hasattr(random_state, "__index__"):
        raise InvalidInputError(
            f"random_state must be a whole number, or a generator of NumPy or of Python, got {random_state!r}",
            parameter="random_state",
        )
    seed = random_state.__index__()
    if seed < 0 or find_spec("numpy") is None:
        return random.Random(seed)
    import numpy as np

    return NumpyDraws(np.random.default_rng(seed))


def text_of_global() -> str:
    """Return the state of ``numpy.random``, for `generator_of`: one that draws the same, in any process."""
    import numpy as np

    state: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, gauss = state
    if name != "MT19937":
        raise InvalidInputError(f"numpy.random draws from {name}, and only the state of MT19937 can be sent")
    packed = base64.b85encode(keys.astype("<u4").tobytes()).decode()
    return f"{_TEXT}{position}:{has_gauss}:{float(gauss)!r}:{packed}"


def is_state_text(value: Any) -> bool:
    """Return whether `value` is what `text_of_global` returns."""
    return isinstance(value, str) and value.startswith(_TEXT)


def set_global(text: str) -> None:
    """Have ``numpy.random`` continue where `text_of_global` was called."""
    import numpy as np

    np.random.set_state(_state_in(text))


def _state_in(text: str) -> tuple[Any, ...]:
    import numpy as np

    try:
        position, has_gauss, gauss, packed = text.removeprefix(_TEXT).split(":", 3)
        keys = np.frombuffer(base64.b85decode(packed), "<u4")
        if keys.shape != (624,) or not 0 <= int(position) <= 624:
            raise ValueError("624 numbers and a position in them")
        return ("MT19937", keys, int(position), int(has_gauss), float(gauss))
    except ValueError as error:
        raise InvalidInputError(
            f"random_state: this is not the state of a generator: {error}", parameter="random_state"
        ) from error


def is_numpy_generator(value: Any) -> bool:
    """Return whether `value` is a ``RandomState`` or a ``Generator`` of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.RandomState, numpy.random.Generator))


def script_seeded_numpy() -> bool:
    """Return whether ``numpy.random.seed`` was called in this process."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    bits = numpy.random.mtrand._rand._bit_generator  # noqa: SLF001  # there is no public way to ask
    return getattr(bits, "_seed_seq", bits) is None


def grid_bounds(lower: float, upper: float, q: float) -> tuple[float, float]:
    """Return the outermost multiples of `q` between the bounds, as numbers."""
    return _multiple(lower, q, math.ceil) * q, _multiple(upper, q, math.floor) * q


def _multiple(bound: float, q: float, rounded: Any) -> float:
    if not math.isfinite(bound):
        return bound
    near = round(bound / q)
    return near if math.isclose(bound / q, near) else rounded(bound / q)


def _array(value: Any) -> Any:
    return {"array": value.tolist(), "dtype": str(value.dtype)} if hasattr(value, "dtype") else int(value)


def _unarray(value: dict[str, Any]) -> Any:
    if value.keys() != {"array", "dtype"}:
        return value
    import numpy as np

    return np.array(value["array"], dtype=value["dtype"])
