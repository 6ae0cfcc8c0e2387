"""`diagnose_serialization`: what keeps a Trainable from being sent to its trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trialpod.tune.shipping.diagnosis import Culprit


def diagnose_serialization(trainable: Any) -> Literal[True] | set[Culprit]:
    """Return True if a Trainable can be pickled, or else what in it cannot be; the latter is printed, too.

    Args:
        trainable: a function, a class, any object.
    """
    from trialpod.tune.shipping.diagnosis import diagnose

    culprits = diagnose(trainable)
    name = getattr(trainable, "__name__", type(trainable).__name__)
    if not culprits:
        print(f"{name} can be sent to the trials.")  # noqa: T201 - it is what people call this for
        return True
    print(f"{name} cannot be sent to the trials, because it holds what cannot be pickled:")  # noqa: T201
    for culprit in culprits:
        print(f"  - {culprit} ({culprit.reason})")  # noqa: T201
    return set(culprits)
