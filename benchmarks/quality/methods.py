"""The tuners that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from environments import PEERS, python_of
from tuners.baselines import TopAfterFirstRung
from tuners.own import TrialpodTuner
from tuners.remote import RemoteTuner
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
        f"trialpod's scheduler {scheduler} with its search {searcher}",
        lambda: TrialpodTuner(scheduler, searcher),
    )


def _peer(name: str, about: str, environment: str, program: str, *arguments: str) -> Method:
    return Method(name, about, lambda: RemoteTuner([python_of(environment), PEERS / program, *arguments]))


_NAMED = (
    Method("top-k", "the best after the first rung, trained to the end", TopAfterFirstRung),
    _peer("ray-random", "Ray: random search, FIFO", "ray", "ray_tune.py", "fifo", "random"),
    _peer("ray-median", "Ray: random search, median stopping", "ray", "ray_tune.py", "median", "random"),
    _peer("ray-asha", "Ray: random search, ASHAScheduler", "ray", "ray_tune.py", "asha", "random"),
    _peer("ray-optuna-asha", "Ray: OptunaSearch, ASHAScheduler", "ray", "ray_tune.py", "asha", "optuna"),
    _peer("optuna", "Optuna: TPESampler, no pruner", "ray", "optuna_study.py", "none"),
    _peer("optuna-hyperband", "Optuna: TPESampler, HyperbandPruner", "ray", "optuna_study.py", "hyperband"),
    _peer("syne-asha", "Syne Tune: ASHA, random search", "syne-tune", "syne_tune_asha.py", "random"),
    _peer("syne-kde", "Syne Tune: ASHA with kernel densities (BOHB)", "syne-tune", "syne_tune_asha.py", "kde"),
    _peer("syne-bore", "Syne Tune: ASHA with BORE", "syne-tune", "syne_tune_asha.py", "bore"),
    _peer("syne-cqr", "Syne Tune: ASHA with CQR", "syne-tune", "syne_tune_asha.py", "cqr"),
    _peer("smac", "SMAC: multi-fidelity facade", "smac", "smac_multi_fidelity.py"),
)
NAMED = {method.name: method for method in _NAMED}


def find(name: str) -> Method:
    """Return a method by its name; "SCHEDULER+SEARCHER" names trialpod's own.

    Raises:
        ValueError: there is none of this name.
    """
    if name in NAMED:
        return NAMED[name]
    scheduler, plus, searcher = name.partition("+")
    if not plus:
        raise ValueError(
            f"there is no method {name!r}; use SCHEDULER+SEARCHER for trialpod's own, such as asha+optuna, "
            f"or one of {', '.join(NAMED)}"
        )
    return own(scheduler, searcher)
