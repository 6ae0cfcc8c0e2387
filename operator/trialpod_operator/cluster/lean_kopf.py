"""kopf, imported without the API clients that it uses only to recognise their types.

kopf imports `kubernetes` where it is installed, as it is for the commands; the operator speaks to the API server by
itself (`kube`). Without it the operator's process starts with 829 modules instead of 1,170: 18 MB and 0.2 s of CPU
less (measured 2026-11-26, Python 3.11). Import `kopf` from here, everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["kopf"]

_CLIENTS = ("kubernetes", "kubernetes_asyncio", "pykube")


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Have modules that are not imported yet count as not installed."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # `import` takes that for "not installed"
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with _hidden(_CLIENTS):
    import kopf
