"""The plan of a round of chaos in the cluster: experiments, and faults at moments after all of them train.

A plan follows from its seed alone. Seeds that follow each other share a deal: the rounds of `DEAL` seeds, from a
multiple of it on, have every kind of fault between them, so that a run of two deals has met each of them.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import Any

STEP_S = 0.4
FREQUENCY = 3
"""Iterations between two checkpoints."""

END_S = 70.0
"""Faults begin within this time."""

DEAL = 5
"""So many rounds share out all kinds of faults; in one of them nothing ends an attempt."""

_SPACE = {"lr": {"loguniform": [1e-2, 3.0]}}
_TIME = {"time_attr": "training_iteration"}
_ASHA = {**_TIME, "max_t": 60, "grace_period": 6, "reduction_factor": 3}
_PBT = {
    **_TIME,
    "perturbation_interval": 10,
    "quantile_fraction": 0.5,
    "hyperparam_mutations": {"lr": [0.03, 0.1, 0.3, 1.0]},
}

EXPERIMENTS: dict[str, dict[str, Any]] = {
    "asha": {"numSamples": 7, "maxConcurrentTrials": 3, "scheduler": {"name": "asha", "parameters": _ASHA}},
    "pbt": {
        "numSamples": 3,
        "maxConcurrentTrials": 3,
        "stop": {"training_iteration": 120},
        "scheduler": {"name": "pbt", "parameters": _PBT},
    },
    "optuna": {
        "numSamples": 4,
        "maxConcurrentTrials": 1,
        "stop": {"training_iteration": 24},
        "searchAlgorithm": {"name": "optuna"},
    },
    "random": {"numSamples": 2, "maxConcurrentTrials": 1, "stop": {"training_iteration": 55}},
}
"""What each adds to its manifest."""

SAME_END = ("optuna", "random")
"""One trial at a time: what comes out does not depend on what happens on the way."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        least_s: how long it lasts at the least; 0 with `most_s` 0 = a moment.
        most_s: and at the most.
        disrupts: attempts may end by it.
        behind: checkpoints may not become known while it lasts: the bucket or the operator cannot be reached.
        weight: how often it is drawn.
    """

    least_s: float = 0.0
    most_s: float = 0.0
    disrupts: bool = False
    behind: bool = False
    weight: int = 2


KINDS: dict[str, Kind] = {
    "operator killed": Kind(behind=True, weight=3),
    "operator deleted": Kind(behind=True),
    "operator stopped": Kind(5.0, 28.0, behind=True, weight=3),
    "operator cut off from trials": Kind(5.0, 40.0, behind=True, weight=3),
    "operator cut off from the store": Kind(5.0, 40.0, behind=True, weight=3),
    "operator cut off from the API server": Kind(5.0, 40.0, behind=True, weight=3),
    "trial deleted": Kind(disrupts=True),
    "trial force-deleted": Kind(disrupts=True),
    "trial stopped": Kind(4.0, 20.0),
    "trial cut off": Kind(5.0, 30.0, behind=True),
    "shim killed": Kind(disrupts=True),
    "containerd killed": Kind(1.0, 8.0, disrupts=True),
    "kubelet killed": Kind(1.0, 14.0, disrupts=True),
    "node drained": Kind(8.0, 20.0, disrupts=True, behind=True),
    "node lost": Kind(4.0, 12.0, disrupts=True, behind=True, weight=1),
    "API server killed": Kind(1.0, 14.0, disrupts=True, behind=True),
    "etcd killed": Kind(1.0, 12.0, disrupts=True, behind=True),
    "controllers killed": Kind(2.0, 15.0, disrupts=True, weight=1),
    "store killed": Kind(behind=True),
    "store deleted": Kind(behind=True, weight=1),
    "store stopped": Kind(3.0, 30.0, behind=True),
}


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        kind: of `KINDS`.
        at: seconds after all experiments have begun to train.
        for_s: how long it lasts, where it lasts.
        x: in [0, 1): which pod or node.
    """

    kind: str
    at: float
    for_s: float
    x: float


@dataclass(frozen=True)
class Plan:
    """A round.

    Attributes:
        experiments: of `EXPERIMENTS`.
        operators: how many share the experiments.
        space_seed: of all experiments.
    """

    seed: int
    experiments: tuple[str, ...]
    operators: int
    space_seed: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        what = ", ".join(f"{fault.kind} {fault.for_s:.0f}s@{fault.at:.0f}" for fault in self.faults)
        return f"{'+'.join(self.experiments)}, {self.operators} operator{'s' * (self.operators > 1)}: {what}"

    @property
    def disrupts(self) -> bool:
        """Whether any attempt may end by a fault."""
        return any(KINDS[fault.kind].disrupts for fault in self.faults)

    @property
    def behind_s(self) -> float:
        """Maximum time that checkpoints stay unknown, recovery included."""
        return sum(fault.for_s + 15.0 for fault in self.faults if KINDS[fault.kind].behind)

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    draw = random.Random(f"cluster {seed}")
    kinds, quiet = _hand(seed)
    deck = [
        kind
        for kind, about in KINDS.items()
        for _ in range(about.weight)
        if not quiet or not about.disrupts  # nothing that ends an attempt: then not one may be disturbed
    ]
    kinds += draw.sample(deck, draw.randint(1, 3))
    draw.shuffle(kinds)
    moments = sorted(round(draw.uniform(1.0, END_S), 1) for _ in kinds)
    faults = tuple(
        Fault(kind, at, round(draw.uniform(KINDS[kind].least_s, KINDS[kind].most_s), 1), round(draw.random(), 3))
        for kind, at in zip(kinds, moments, strict=True)
    )
    return Plan(
        seed=seed,
        experiments=("asha", "pbt", "optuna") if draw.random() < 0.7 else ("asha", "pbt", "random"),
        operators=_operators(seed),
        space_seed=draw.randrange(3),
        faults=faults,
    )


def _operators(seed: int) -> int:
    """Return how many there are: two in four of ten rounds that follow each other, for it takes a while to change."""
    return 2 if DEAL - 2 <= seed % (2 * DEAL) < DEAL + 2 else 1


def _hand(seed: int) -> tuple[list[str], bool]:
    """Return the kinds that fall to a seed of its deal, and whether none of them ends an attempt."""
    deal, place = divmod(seed, DEAL)
    draw = random.Random(f"deal {deal}")
    quiet = draw.randrange(DEAL)
    calm = [kind for kind, about in KINDS.items() if not about.disrupts]
    hand = draw.sample(calm, len(KINDS) // DEAL + 1)
    if place == quiet:
        return hand, True
    rest = [kind for kind in KINDS if kind not in hand]
    draw.shuffle(rest)
    return rest[place - (place > quiet) :: DEAL - 1], False


SHORT = Plan(
    seed=0,
    experiments=("asha", "optuna"),
    operators=1,
    space_seed=1,
    faults=(
        Fault("operator cut off from trials", 1.0, 8.0, 0.0),
        Fault("trial force-deleted", 3.0, 0.0, 0.3),
        Fault("operator killed", 12.0, 0.0, 0.0),
        Fault("store stopped", 14.0, 6.0, 0.0),
        Fault("API server killed", 22.0, 3.0, 0.0),
    ),
)
"""The one that `make test-cluster` runs."""


def spec_of(plan: Plan, name: str) -> dict[str, Any]:
    """Return what the manifest of one of its experiments says, but for where it runs and what it is trained with."""
    return {
        "searchSpace": _SPACE,
        "metric": "loss",
        "mode": "min",
        "seed": plan.space_seed,
        "checkpoint": {"frequency": FREQUENCY, "numToKeep": 3},
        # So that a failure that ought not to be is counted, and not the end of everything.
        "failurePolicy": {"maxFailures": 3},
        **EXPERIMENTS[name],
    }
