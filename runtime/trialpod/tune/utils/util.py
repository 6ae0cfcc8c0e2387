"""The names of `trialpod.tune.utils`, where Ray Tune's users look for some of them."""

from __future__ import annotations

from typing import Any

from trialpod.tune import utils

__all__ = list(utils.__all__)


def __getattr__(name: str) -> Any:
    return getattr(utils, name)
