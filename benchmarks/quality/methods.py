"""The tuners that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tuners.own import TrialpodTuner
from tuners.tuner import Tuner


@dataclass(frozen=True)
class Method:
    """One tuner.

    Attributes:
        name: as options and tables have it.
        about: what it is, in a few words.
        make: makes the tuner.
    """

    name: str
    about: str
    make: Callable[[], Tuner]


def own(scheduler: str, searcher: str) -> Method:
    """Return a method of trialpod's own."""
    return Method(
        f"{scheduler}+{searcher}",
        f"trialpod: scheduler {scheduler}, search {searcher}",
        lambda: TrialpodTuner(scheduler, searcher),
    )


def find(name: str) -> Method:
    """Return a method by its name; "SCHEDULER+SEARCHER" names trialpod's own.

    Raises:
        ValueError: there is none of this name.
    """
    scheduler, plus, searcher = name.partition("+")
    if not plus:
        raise ValueError(
            f"there is no method {name!r}; use SCHEDULER+SEARCHER for trialpod's own, such as asha+optuna"
        )
    return own(scheduler, searcher)
