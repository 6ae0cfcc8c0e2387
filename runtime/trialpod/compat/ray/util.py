"""The few names of ``ray.util`` that make sense in one process."""

from __future__ import annotations

import os
from typing import Any

from trialpod import variables


def get_node_ip_address() -> str:
    """Return the address of this machine where it is known, else the loopback's."""
    return os.environ.get(variables.NODE_IP) or "127.0.0.1"


def inspect_serializability(
    base_obj: Any,
    name: str | None = None,
    depth: int = 3,  # noqa: ARG001
    print_file: Any = None,
) -> tuple[bool, set[Any]]:
    """Return whether an object can be pickled, and what in it cannot."""
    from trialpod.tune.shipping.diagnosis import diagnose

    culprits = diagnose(base_obj, name)
    for culprit in culprits:
        print(f"  - {culprit} ({culprit.reason})", file=print_file)
    return not culprits, set(culprits)


def log_once(key: str) -> bool:
    """Return True for the first call with a key in this process."""
    if key in _logged:
        return False
    _logged.add(key)
    return True


_logged: set[str] = set()
