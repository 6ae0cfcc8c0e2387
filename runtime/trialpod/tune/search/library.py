"""Imports optional libraries when they are needed, and says how to install them when they are missing."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any

from trialpod.errors import InvalidInputError


def require(module: str, package: str, user: str) -> Any:
    """Return the module called `module`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a library has to say to its own developers
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if missing.partition(".")[0] == module.partition(".")[0]:
            reason = "which is not installed"
        else:
            reason = f"which needs {missing}, and that is not installed"
        raise InvalidInputError(f"{user} needs {package}, {reason}: pip install '{package}'") from error
    except Exception as error:
        raise InvalidInputError(
            f"{user} needs {package}, which cannot be imported here ({type(error).__name__}: {error}); "
            f"try: pip install --upgrade '{package}'"
        ) from error


def require_all(libraries: Iterable[tuple[str, str]], user: str) -> None:
    """Import each library; one message names all that are not installed."""
    wanted = list(libraries)
    missing = [package for module, package in wanted if find_spec(module.partition(".")[0]) is None]
    if len(missing) > 1:
        install = " ".join(f"'{package}'" for package in missing)
        raise InvalidInputError(
            f"{user} needs {' and '.join(missing)}, which are not installed: pip install {install}"
        )
    for module, package in wanted:
        require(module, package, user)


_GLOBAL_GENERATORS = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and (where it is loaded) PyTorch, and put them back afterwards.

    One thread at a time: each experiment of an operator has a search thread of its own.
    """
    with _GLOBAL_GENERATORS, _seeded_alone(seed):
        yield


@contextlib.contextmanager
def _seeded_alone(seed: int) -> Iterator[None]:
    import numpy as np  # every library that needs this brings it

    torch: Any = sys.modules.get("torch")
    python, numeric = random.getstate(), np.random.get_state()
    tensors = torch.random.get_rng_state() if torch is not None else None
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numeric)
        if torch is not None:
            torch.random.set_rng_state(tensors)
