"""The plan of a round of chaos on one machine: an experiment, and faults at moments of its progress.

A plan follows from its seed alone. A fault's moment is a number of results that the trials have reported, and a delay
after that: on a slow machine and on a fast one it comes at the same point of the work.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import Any

VARIABLES = ("lr", "decay")
STEPS = 9
FREQUENCY = 2
"""Iterations between two checkpoints."""

_SPACE = {"lr": {"loguniform": [1e-3, 3.0]}, "decay": {"loguniform": [1e-6, 1e-2]}}
_PBT = {
    "time_attr": "training_iteration",
    "perturbation_interval": 3,
    "hyperparam_mutations": {"lr": {"loguniform": [1e-3, 3.0]}},
}
_HALVING = {"max_t": STEPS, "grace_period": 1, "reduction_factor": 3}
_MEDIAN = {"time_attr": "training_iteration", "grace_period": 2, "min_samples_required": 2, "min_time_slice": 2}

ALGORITHMS: dict[str, dict[str, Any]] = {
    "random": {"numSamples": 6, "stop": {"training_iteration": STEPS}},
    "asha": {"numSamples": 9, "scheduler": {"name": "asha", "parameters": _HALVING}},
    "asha_promotion": {"numSamples": 9, "scheduler": {"name": "asha_promotion", "parameters": _HALVING}},
    "hyperband": {
        "numSamples": 9,
        "scheduler": {"name": "hyperband", "parameters": {"max_t": STEPS, "reduction_factor": 3}},
    },
    "median": {
        "numSamples": 6,
        "stop": {"training_iteration": STEPS},
        "scheduler": {"name": "median_stopping_rule", "parameters": _MEDIAN},
    },
    "pbt": {
        "numSamples": 4,
        "stop": {"training_iteration": 12},
        "scheduler": {"name": "pbt", "parameters": _PBT},
    },
    "optuna": {
        "numSamples": 6,
        "stop": {"training_iteration": STEPS},
        "searchAlgorithm": {"name": "optuna", "parameters": {"sampler": {"name": "tpe", "n_startup_trials": 3}}},
    },
}
"""What each adds to the manifest of an experiment."""

EXPECTED = 40
"""About so many results one of them takes at the least."""

KINDS = (
    "kill shell",
    "kill trial",
    "kill fork server",
    "stop shell",
    "stop trial",
    "stop fork server",
    "term shell",
    "term trial",
    "term fork server",
)
IN_A_BUCKET = ("kill minio", "stop minio", "term minio")
THE_DISK = ("fill disk",)
THE_MACHINE = ("lose machine",)
"""Every process is killed, and what the run has on the local disk is gone."""
ALL_KINDS = (*KINDS, *IN_A_BUCKET, *THE_DISK, *THE_MACHINE)

HOLDS_S = (0.05, 0.3, 1.0, 2.5, 5.0)
"""How long something stays stopped, full or down. Trials say every two seconds that they live."""


@dataclass(frozen=True)
class Fault:
    """One of them.

    Attributes:
        after: how many results must have been reported.
        delay_s: seconds from then on.
        kind: what is done to what.
        hold_s: how long it lasts, where it lasts.
        choice: chooses among several trials, 0 to 1.
    """

    after: int
    delay_s: float
    kind: str
    hold_s: float = 0.0
    choice: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A round.

    Attributes:
        algorithm: of `ALGORITHMS`.
        trainable: "class" or "function".
        place: "folder", "disk" (a small file system) or "bucket".
        driver: "manifest" (`trialpod run`), or "script" (a Tuner, run by Python).
        concurrency: how many trials run at once.
        space_seed: of the search algorithm.
        step_s: seconds that a step sleeps, beside its training.
        eager: the run is started again at once, while processes of the one before may still be there.
        faults: in the order in which they come.
    """

    seed: int
    algorithm: str
    trainable: str
    place: str
    driver: str
    concurrency: int
    space_seed: int
    step_s: float
    eager: bool
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return f"{self.algorithm}/{self.trainable}/{self.place}/{self.driver}/x{self.concurrency}"

    @property
    def reference(self) -> tuple[Any, ...]:
        """What an undisturbed run depends on."""
        return (self.algorithm, self.trainable, self.space_seed)

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)

    def spec(self) -> dict[str, Any]:
        """Return what the experiment's manifest says."""
        return {
            "trainable": {"entrypoint": "train:Train" if self.trainable == "class" else "train:train"},
            "searchSpace": _SPACE,
            "metric": "error",
            "mode": "min",
            "seed": self.space_seed,
            "maxConcurrentTrials": self.concurrency,
            "failurePolicy": {"maxFailures": -1},
            "checkpoint": {"frequency": FREQUENCY} if self.trainable == "class" else {},
            **ALGORITHMS[self.algorithm],
        }


def plan_of(seed: int, *, disks: bool = True) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: any number.
        disks: small file systems can be made (root).
    """
    draw = random.Random(seed)
    place = draw.choices(("folder", "disk", "bucket"), (3, 1, 3))[0]
    if place == "disk" and not disks:
        place = "folder"
    machine = place == "bucket" and draw.random() < 0.25
    kinds = list(KINDS)
    if place == "disk":
        kinds += THE_DISK * 4
    elif machine:
        kinds += THE_MACHINE * 3
    elif place == "bucket":
        kinds += IN_A_BUCKET * 2
    moments = sorted(draw.randrange(EXPECTED) for _ in range(draw.randint(3, 7)))
    faults = tuple(
        Fault(
            after=after,
            delay_s=round(draw.choice((0.0, 0.0, 0.02, 0.1, 0.4)) * draw.random(), 4),
            kind=(kind := draw.choice(kinds)),
            hold_s=0.0 if kind in THE_MACHINE else draw.choices(HOLDS_S, (3, 3, 2, 1, 1))[0],
            choice=round(draw.random(), 3),
        )
        for after in moments
    )
    return Plan(
        seed=seed,
        algorithm=draw.choice(sorted(ALGORITHMS)),
        trainable=draw.choice(("class", "class", "function")),
        place=place,
        driver=draw.choice(("manifest", "manifest", "script")),
        concurrency=draw.choice((1, 1, 2, 3)),
        space_seed=3,
        step_s=draw.choice((0.005, 0.02, 0.05)),
        eager=draw.random() < 0.5,
        faults=faults,
    )
