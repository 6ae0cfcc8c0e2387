"""Experiments in a Kubernetes cluster: ``from trialpod.kubernetes import KubernetesBackend``.

The backend itself is the entry point `kubernetes` of the group ``trialpod.backends``; importing this module is cheap.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    KubernetesBackend: Any

__all__ = ["KubernetesBackend"]


def __getattr__(name: str) -> Any:
    if name != "KubernetesBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trialpod.tune.backends import load_backend

    return load_backend("kubernetes")
