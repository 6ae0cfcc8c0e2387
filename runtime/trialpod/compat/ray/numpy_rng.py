"""The generator of random numbers that Ray's domains draw from, which FLAML and others take from Ray as it is."""

from __future__ import annotations

from typing import Any


class _BackwardsCompatibleNumpyRng:
    """NumPy's generators, old and new, by the names of the new ones.

    Args:
        generator_or_seed: a generator of NumPy, the seed of a new one, or None for NumPy's global one.
    """

    def __init__(self, generator_or_seed: Any = None) -> None:
        import numpy as np

        known = generator_or_seed is None or isinstance(
            generator_or_seed, (np.random.RandomState, np.random.Generator)
        )
        self._rng = generator_or_seed if known else np.random.default_rng(generator_or_seed)

    @property
    def legacy_rng(self) -> bool:
        """Whether it is one of the old ones."""
        import numpy as np

        return self._rng is None or isinstance(self._rng, np.random.RandomState)

    @property
    def rng(self) -> Any:
        """The generator; NumPy's module where it is the global one."""
        import numpy as np

        return np.random if self._rng is None else self._rng

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_rng":
            raise AttributeError(name)  # copy and pickle ask before there is a generator
        if self.legacy_rng:
            name = {"integers": "randint", "random": "rand"}.get(name, name)
        return getattr(self.rng, name)
