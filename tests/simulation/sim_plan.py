"""What a seed stands for: the shape of an experiment, and what goes wrong while it runs.

The faults are a plain list, so that those that matter can be found by leaving others out (`shrunk`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

STEPS = 6
MAX_FAILURES = 2
END_S = 30.0
"""Faults begin within this time."""

KINDS = (
    "requests lost",
    "answers lost",
    "messages duplicated",
    "messages delayed",
    "partition",
    "attempt dies",
    "pod vanishes",
    "pod vanishes unseen",
    "pod preempted",
    "node comes back",
    "pod paused",
    "pod clock jumps",
    "user code fails",
    "operator dies",
    "operator replaced",
    "operator paused",
    "two operators",
    "operator clock jumps",
    "store slow",
    "store failing",
    "store answers lost",
    "store writes repeated",
    "store away",
    "API flaky",
    "API answers lost",
    "API away",
    "no room",
    "suspended",
    "more samples",
    "trial stopped by its user",
)
"""All faults; those of users are among them, because they come at any moment too."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        kind: of `KINDS`.
        at: seconds after the start.
        for_s: how long it lasts, where it lasts.
        x: in [0, 1): which pod, how often, ...; its meaning depends on the kind.
    """

    kind: str
    at: float
    for_s: float
    x: float


@dataclass(frozen=True)
class Plan:
    """All that a seed decides."""

    seed: int
    spec: dict[str, Any]
    faults: tuple[Fault, ...]
    watch_delay_s: float
    step_s: float
    same_end: bool
    """The end state does not depend on what happens on the way."""

    def with_faults(self, faults: tuple[Fault, ...]) -> Plan:
        return Plan(self.seed, self.spec, faults, self.watch_delay_s, self.step_s, self.same_end)

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1)


def plan_from_text(text: str) -> Plan:
    """Read what `Plan.text` wrote."""
    values = json.loads(text)
    faults = tuple(Fault(**fault) for fault in values.pop("faults"))
    return Plan(faults=faults, **values)


_SPACE: dict[str, Any] = {"x": {"uniform": [0.5, 1.5]}}


def _schedulers(choose: random.Random) -> list[tuple[dict[str, Any] | None, bool]]:
    time_attr = {"time_attr": "training_iteration"}
    pbt = {**time_attr, "perturbation_interval": 2, "hyperparam_mutations": _SPACE}
    return [
        (None, True),
        (None, True),
        (None, True),
        ({"name": "asha", "parameters": {"max_t": STEPS, "grace_period": 2, "reduction_factor": 2}}, False),
        ({"name": "pbt", "parameters": pbt}, False),
        ({"name": "hyperband", "parameters": {**time_attr, "max_t": STEPS}}, False),
        (
            {"name": "medianstopping", "parameters": {**time_attr, "grace_period": 2, "min_samples_required": 2}},
            False,
        ),
    ]


@dataclass
class _Choice:
    random: random.Random
    spec: dict[str, Any] = field(default_factory=dict)


def plan_of(seed: int) -> Plan:
    """Return what a seed stands for."""
    choose = random.Random(f"plan {seed}")
    scheduler, same_end = choose.choice(_schedulers(choose))
    spec: dict[str, Any] = {
        "numSamples": choose.choice([1, 2, 3, 3, 4]),
        "seed": choose.randrange(1000),
        "searchSpace": _SPACE,
        "failurePolicy": {"maxFailures": MAX_FAILURES},
        "stop": {"training_iteration": STEPS},
    }
    if scheduler is not None:
        spec["scheduler"] = scheduler
    if choose.random() < 0.15:
        spec["searchAlgorithm"] = {"name": "optuna", "parameters": {"sampler": "random"}}
        same_end = False
    if choose.random() < 0.4:
        spec["maxConcurrentTrials"] = choose.choice([1, 2])
    spec["checkpoint"] = choose.choice(
        [
            {"frequency": 1},
            {"frequency": 2, "atEnd": True},
            {"frequency": 1, "numToKeep": 1},
            {"frequency": 1, "numToKeep": 2, "scoreAttribute": "score", "scoreOrder": "max"},
            {},
        ]
    )
    kinds = choose.sample(KINDS, choose.randint(1, 8)) if choose.random() < 0.8 else [choose.choice(KINDS)]
    faults = []
    for kind in kinds:
        for _ in range(choose.choice([1, 1, 1, 2, 3])):
            at = round(choose.random() ** 1.5 * END_S, 3)
            for_s = round(choose.choice([0.3, 2.0, 8.0, 40.0]) * choose.random(), 3)
            faults.append(Fault(kind, at, for_s, round(choose.random(), 4)))
    faults.sort(key=lambda fault: fault.at)
    return Plan(
        seed,
        spec,
        tuple(faults),
        watch_delay_s=choose.choice([0.01, 0.2, 0.2, 3.0]),
        step_s=choose.choice([0.2, 1.0, 1.0, 3.0]),
        same_end=same_end,
    )


def shrunk(plan: Plan, fails: Callable[[Plan], bool], tries: int = 60) -> Plan:
    """Leave out faults for as long as it still fails."""
    best = plan
    changed = True
    while changed and tries > 0:
        changed = False
        for fault in reversed(best.faults):
            candidate = best.with_faults(tuple(each for each in best.faults if each is not fault))
            tries -= 1
            if fails(candidate):
                best, changed = candidate, True
                break
            if tries <= 0:
                break
    return best
