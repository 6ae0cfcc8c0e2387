"""What a seed stands for on one machine: an experiment, where it is kept, and what goes wrong while it runs."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from sim_plan import AUTO_SHARE, CLASS, FUNCTION, PLAIN_CLASS, Fault, experiment_spec, with_auto

from trialpod_operator.experiment.journaled_engine import SNAPSHOT_MIN_BYTES

END_S = 25.0
"""Faults begin within this time."""

ALWAYS = (
    "run dies",
    "run killed",
    "run told to end",
    "run paused",
    "run clock jumps",
    "trial dies",
    "trial killed",
    "trial told to end",
    "trial paused",
    "user code fails",
    "fork server dies",
    "second run",
)
IN_A_FOLDER = ("disk full",)
IN_A_BUCKET = (
    "store slow",
    "store failing",
    "store answers lost",
    "store writes repeated",
    "store away",
    "machine lost",
    "another machine takes over",
)
LONG = {"store away": (900.0,), "run paused": (120.0,), "trial paused": (120.0,), "disk full": (120.0,)}
"""What may last longer: a run waits five minutes for the bucket at its end."""
JOURNAL_BYTES = (1000, 5000, SNAPSHOT_MIN_BYTES)
"""Of a journal, before a snapshot: with as many as in use, no plan has a snapshot while trials run."""
LOCAL_KINDS = (*ALWAYS, *IN_A_FOLDER, *IN_A_BUCKET)


@dataclass(frozen=True)
class LocalPlan:
    """All that a seed decides.

    Attributes:
        spec: what the experiment's user asks for.
        same_end: the end state does not depend on what happens on the way.
        bucket: it is kept in a bucket, beside the machine's folder.
        cpus: of the machine; a trial takes one.
        keeps_every: a function reports a checkpoint with every so many results; 0 = with none.
        step_s: approximate time of a trial's step.
        journal_bytes: a snapshot replaces the journal's records when they have so many.
    """

    seed: int
    spec: dict[str, Any]
    same_end: bool
    bucket: bool
    cpus: int
    keeps_every: int
    step_s: float
    faults: tuple[Fault, ...]
    journal_bytes: int = SNAPSHOT_MIN_BYTES

    def with_faults(self, faults: tuple[Fault, ...]) -> Self:
        """Return it with these faults instead."""
        return replace(self, faults=faults)

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)


def local_plan_from_text(text: str) -> LocalPlan:
    """Read what `LocalPlan.text` wrote."""
    values = json.loads(text)
    return LocalPlan(faults=tuple(Fault(**fault) for fault in values.pop("faults")), **values)


def local_plan_of(seed: int) -> LocalPlan:
    """Return what a seed stands for."""
    return replace(long_local_plan_of(seed), journal_bytes=random.Random(f"bytes {seed}").choice(JOURNAL_BYTES))


def long_local_plan_of(seed: int) -> LocalPlan:
    """Return what a seed stood for while all journals grew as large as those in use."""
    plan = earlier_local_plan_of(seed)
    choose = random.Random(f"local auto {seed}")
    if choose.random() >= AUTO_SHARE:
        return plan
    return replace(plan, spec=with_auto(choose, plan.spec), same_end=False)


def earlier_local_plan_of(seed: int) -> LocalPlan:
    """Return what a seed stood for while there was no `auto`."""
    choose = random.Random(f"local {seed}")
    spec, same_end = experiment_spec(choose)
    entrypoint = choose.choice([CLASS, PLAIN_CLASS, FUNCTION])
    spec["trainable"] = {"entrypoint": entrypoint}
    if entrypoint == FUNCTION:
        spec["checkpoint"] = {
            name: value for name, value in spec["checkpoint"].items() if name not in ("frequency", "atEnd")
        }
    if choose.random() < 0.3:
        spec["reusePods"] = True
    spec["template"] = {"spec": {"terminationGracePeriodSeconds": choose.choice([1, 5, 15])}}
    bucket = choose.random() < 0.55
    kinds = [*ALWAYS, *(IN_A_BUCKET if bucket else IN_A_FOLDER)]
    many = choose.sample(kinds, choose.randint(1, 6))
    faults = [
        Fault(
            kind,
            at=round(choose.random() ** 1.5 * END_S, 3),
            for_s=round(choose.choice([0.3, 2.0, 8.0, 40.0, *LONG.get(kind, ())]) * choose.random(), 3),
            x=round(choose.random(), 4),
        )
        for kind in many
        for _ in range(choose.choice([1, 1, 1, 2, 3]))
    ]
    return LocalPlan(
        seed,
        spec,
        same_end,
        bucket,
        cpus=choose.choice([1, 2, 2, 4]),
        keeps_every=choose.choice([0, 1, 1, 2]),
        step_s=choose.choice([0.2, 1.0, 1.0, 3.0]),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )
