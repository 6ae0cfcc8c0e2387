"""Several requests at once, of which none outlives the reconcile that made it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def together(*requests: Awaitable[T]) -> list[T]:
    """Make them at once, wait until all have ended, and return their results in this order.

    Unlike a bare `asyncio.gather` it does not leave the others running when one fails: they would change what the
    next reconcile of the experiment looks at.

    Raises:
        Exception: the first failure in this order, once all have ended.
    """
    results = await asyncio.gather(*requests, return_exceptions=True)
    done = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
