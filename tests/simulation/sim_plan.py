"""What a seed stands for: the shapes of experiments, and what goes wrong while they run.

The faults are a plain list, so that those that matter can be found by leaving others out (`shrunk`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self, TypeVar

from trialpod_operator.experiment.durable import MAX_OBJECTS

STEPS = 6
MAX_FAILURES = 2
END_S = 30.0
"""Faults begin within this time."""

_PLAIN_KINDS = (
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
SHARED_KINDS = ("operator joins", "operator without API", "operator without store")
"""Of several active operators."""
HELD_UP_KINDS = ("pass held up", "operator paused in a pass")
"""Of the same: one is in the middle of a pass when another operator is given its experiment, and continues then."""
KINDS = (*_PLAIN_KINDS, "experiment deleted", *SHARED_KINDS, *HELD_UP_KINDS)
"""All faults; those of users are among them, because they come at any moment too."""

CLASS, PLAIN_CLASS, FUNCTION = "train:train", "train:plain", "train:function"
"""Entry points: a class that takes new configs, one that does not, and a function."""

AUTO_SHARE = 0.35
"""Of the experiments, so many have the scheduler or the search `auto`."""

SHARED_SHARE = 0.4
"""Of the plans, so many have several active operators."""

HELD_UP_SHARE = 0.5
"""Of these, in so many a pass is held up."""

OWN_CODE_SHARE = 0.15
"""Of the seeds of `make soak`, so many have code of a user's that decides."""

OBJECTS = (4, 15, MAX_OBJECTS)
"""Of a journal, before a snapshot: with as many as in use, few plans have a snapshot while trials run."""

NAMESPACE, OTHER_NAMESPACE = "team", "others"
BUCKET, OTHER_BUCKET = "s3://bucket/runs", "s3://bucket/others"
FEATURES = ("several experiments", "several namespaces", "one place for two", "reusePods", "function", "workers",
            "workers apart", "scheduler auto", "search auto", "algorithm auto", "stopWhenNotWorth",
            "several operators", "many snapshots")  # fmt: skip


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
class Experiment:
    """One of the experiments.

    Attributes:
        name: its name.
        spec: what its user asks for.
        same_end: the end state does not depend on what happens on the way.
        at: seconds after the start when it is created.
        restarts: its pods can put a fresh process in the place of one that has ended.
        keeps_every: a function reports a checkpoint with every so many results; 0 = with none.
        namespace: where it is created.
        storage: below which URI it is kept.
        deletes: its data is to go with it.
        apart: the pods of a trial do not wait for each other at each step.
        own_code: what of it decides by code of its user's; "" = nothing.
    """

    name: str
    spec: dict[str, Any]
    same_end: bool
    at: float = 0.0
    restarts: bool = False
    keeps_every: int = 1
    namespace: str = NAMESPACE
    storage: str = BUCKET
    deletes: bool = False
    apart: bool = False
    own_code: str = ""

    @property
    def features(self) -> set[str]:
        """What of `FEATURES` it has by itself."""
        found = {"reusePods": "reusePods" in self.spec, "workers": "workers" in self.spec}
        found["function"] = self.spec.get("trainable") == {"entrypoint": FUNCTION}
        # A function without checkpoints does not end on a SIGTERM.
        found["workers apart"] = found["function"] and found["workers"] and self.apart and not self.keeps_every
        for part, kind in (("scheduler", "scheduler"), ("searchAlgorithm", "search")):
            found[f"{kind} auto"] = self.spec.get(part, {}).get("name") == "auto"
        found["algorithm auto"], found["stopWhenNotWorth"] = "algorithm" in self.spec, "stopWhenNotWorth" in self.spec
        return {name for name, there in found.items() if there}


@dataclass(frozen=True)
class Plan:
    """All that a seed decides.

    Attributes:
        objects: a snapshot replaces the journal's objects when there are so many.
    """

    seed: int
    experiments: tuple[Experiment, ...]
    faults: tuple[Fault, ...]
    watch_delay_s: float
    step_s: float
    operators: int = 1
    objects: int = MAX_OBJECTS

    def with_faults(self, faults: tuple[Fault, ...]) -> Self:
        return replace(self, faults=faults)

    @property
    def features(self) -> set[str]:
        """What of `FEATURES` it has."""
        several = {"several experiments"} if len(self.experiments) > 1 else set()
        if len({each.namespace for each in self.experiments}) > 1:
            several.add("several namespaces")
        if self.operators > 1:
            several.add("several operators")
        if self.objects < MAX_OBJECTS:
            several.add("many snapshots")
        if len({(each.storage, each.name) for each in self.experiments}) < len(self.experiments):
            several.add("one place for two")
        return several.union(*(each.features for each in self.experiments))

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1)


def plan_from_text(text: str) -> Plan:
    """Read what `Plan.text` wrote."""
    values = json.loads(text)
    faults = tuple(Fault(**fault) for fault in values.pop("faults"))
    if "spec" in values:  # of the time when there was one experiment
        values["experiments"] = [{"name": "digits", "spec": values.pop("spec"), "same_end": values.pop("same_end")}]
    experiments = tuple(Experiment(**each) for each in values.pop("experiments"))
    return Plan(experiments=experiments, faults=faults, **values)


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


def experiment_spec(choose: random.Random) -> tuple[dict[str, Any], bool]:
    """Return what a user may ask for, and whether its end depends on nothing that happens on the way."""
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
    return spec, same_end


def _fault(choose: random.Random, kind: str) -> Fault:
    at = round(choose.random() ** 1.5 * END_S, 3)
    for_s = round(choose.choice([0.3, 2.0, 8.0, 40.0]) * choose.random(), 3)
    return Fault(kind, at, for_s, round(choose.random(), 4))


def plain_plan_of(seed: int) -> Plan:
    """Return what a seed stands for with one experiment of a class that has its pods for itself."""
    choose = random.Random(f"plan {seed}")
    spec, same_end = experiment_spec(choose)
    many = choose.random() < 0.8
    kinds = choose.sample(_PLAIN_KINDS, choose.randint(1, 8)) if many else [choose.choice(_PLAIN_KINDS)]
    faults = [_fault(choose, kind) for kind in kinds for _ in range(choose.choice([1, 1, 1, 2, 3]))]
    faults.sort(key=lambda fault: fault.at)
    return Plan(
        seed,
        (Experiment("digits", spec, same_end),),
        tuple(faults),
        watch_delay_s=choose.choice([0.01, 0.2, 0.2, 3.0]),
        step_s=choose.choice([0.2, 1.0, 1.0, 3.0]),
    )


def with_auto(choose: random.Random, spec: dict[str, Any]) -> dict[str, Any]:
    """Return what a user asks for with the scheduler `auto`, the search `auto`, or both."""
    scheduler, search = choose.choice([(True, True), (True, True), (True, False), (False, True)])
    spec = dict(spec, numSamples=choose.choice([1, 3, 4, 6]))
    if scheduler:
        arguments = [
            {"max_t": STEPS, "grace_period": 1, "reduction_factor": 2, "calibration": choose.choice([0, 4])},
            {"max_t": STEPS, "calibration": 0},
            {"grace_period": 2, "reduction_factor": 2, "calibration": 0},
            {"time_attr": "time_total_s", "max_t": 6.0, "grace_period": 1.0, "reduction_factor": 2},
            {"time_attr": "gpu_seconds", "grace_period": 2.0, "reduction_factor": 1.5, "calibration": 0},
        ]
        spec["scheduler"] = {"name": "auto", "parameters": choose.choice(arguments)}
    if search:
        parameters = {"startup": choose.choice([1, 3]), "model": choose.choice(["gp", "gp", "tpe", "random"])}
        spec["searchAlgorithm"] = {"name": "auto", "parameters": {**parameters, "random_share": 0.2}}
    return with_plan(spec) if scheduler and search else spec


def with_plan(spec: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment with both as one word and a budget of hours, or as it is; its text decides."""
    choose = random.Random(json.dumps(spec, sort_keys=True))
    if choose.random() < 0.5:
        return spec
    spec = {key: value for key, value in spec.items() if key not in ("scheduler", "searchAlgorithm")}
    spec |= {"algorithm": "auto", "maxTrialHours": choose.choice([0.005, 0.02, 1.0])}
    if choose.random() < 0.3:
        spec |= {"numSamples": 22, "stopWhenNotWorth": choose.choice([1e-6, 1e3])}
    if choose.random() < 0.4:
        spec |= {"repeats": {"top": choose.choice([1, 2]), "times": choose.choice([1, 2])}}
    return spec


def repeats_of(spec: dict[str, Any]) -> int:
    """Return the largest number of repeats that an experiment may have."""
    rules = spec.get("repeats")
    return rules["top"] * rules["times"] if rules else 0


def may_end_early(spec: dict[str, Any]) -> bool:
    """Return whether an experiment may end with fewer trials than it was asked for."""
    return "maxTrialHours" in spec or "stopWhenNotWorth" in spec


def soak_plan_of(seed: int) -> Plan:
    """Return what a seed stands for in `make soak`."""
    return replace(long_plan_of(seed), objects=random.Random(f"objects {seed}").choice(OBJECTS))


def long_plan_of(seed: int) -> Plan:
    """Return what a seed stood for while all journals grew as long as those in use."""
    own = random.Random(f"own code {seed}").random() < OWN_CODE_SHARE
    return decided_plan_of(seed) if own else plan_of(seed)


def decided_plan_of(seed: int) -> Plan:
    """Return what a seed stands for where code of users decides."""
    plan = placed_plan_of(seed)
    choose = random.Random(f"own {seed}")
    first = replace(plan.experiments[0], own_code=choose.choice(["scheduler", "searcher", "function", "all"]))
    spec = {key: each for key, each in first.spec.items() if key not in ("scheduler", "searchAlgorithm")}
    faults = [*plan.faults, *(_fault(choose, "attempt dies") for _ in range(2))]
    kept = tuple(sorted(faults, key=lambda fault: fault.at))
    return replace(plan, experiments=(replace(first, spec=spec, same_end=False), *plan.experiments[1:]), faults=kept)


def plan_of(seed: int) -> Plan:
    """Return what a seed stands for."""
    plan = swift_plan_of(seed)
    choose = random.Random(f"held up {seed}")
    if plan.operators == 1 or choose.random() >= HELD_UP_SHARE:
        return plan
    more = (_fault(choose, choose.choice(HELD_UP_KINDS)) for _ in range(choose.choice([1, 1, 2])))
    return plan.with_faults(tuple(sorted([*plan.faults, *more], key=lambda fault: fault.at)))


def swift_plan_of(seed: int) -> Plan:
    """Return what a seed stood for while no pass was held up."""
    plan = sole_plan_of(seed)
    choose = random.Random(f"operators {seed}")
    return shared_plan(plan, choose) if choose.random() < SHARED_SHARE else plan


def shared_plan(plan: Plan, choose: random.Random) -> Plan:
    """Return a plan with several active operators, to which more happens."""
    kinds = (*SHARED_KINDS, "operator dies", "operator replaced", "operator paused")
    faults = [*plan.faults, *(_fault(choose, choose.choice(kinds)) for _ in range(choose.randint(1, 5)))]
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, operators=choose.choice([2, 2, 3]), faults=tuple(faults))


def sole_plan_of(seed: int) -> Plan:
    """Return what a seed stood for while one operator at a time was active."""
    plan = placed_plan_of(seed)
    choose = random.Random(f"auto {seed}")
    found = (
        replace(each, spec=with_auto(choose, each.spec), same_end=False) if choose.random() < AUTO_SHARE else each
        for each in plan.experiments
    )
    return replace(plan, experiments=tuple(found))


def placed_plan_of(seed: int) -> Plan:
    """Return what a seed stood for while there was no `auto`."""
    plan = wide_plan_of(seed)
    apart = random.Random(f"apart {seed}").random() < 0.3
    plan = replace(plan, experiments=tuple(replace(each, apart=apart) for each in plan.experiments))
    choose = random.Random(f"places {seed}")
    if len(plan.experiments) == 1 or choose.random() < 0.4:
        return plan
    # The last one has the name, and often the trials, of the first, in another namespace; perhaps its storage, too.
    *before, last = plan.experiments
    first = before[0]
    moved = replace(last, name=first.name, namespace=OTHER_NAMESPACE, storage=OTHER_BUCKET)
    if choose.random() < 0.3:
        moved = replace(moved, storage=first.storage, at=round(choose.random() ** 2 * last.at, 3))
    faults = list(plan.faults)
    if choose.random() < 0.4:
        moved = replace(moved, deletes=True)
        faults.append(_fault(choose, "experiment deleted"))
        faults.sort(key=lambda fault: fault.at)
    return replace(plan, experiments=(*before, moved), faults=tuple(faults))


def wide_plan_of(seed: int) -> Plan:
    """Return what a seed stood for while all experiments were in one namespace."""
    plain = plain_plan_of(seed)
    choose = random.Random(f"wide {seed}")
    if choose.random() < 0.25:
        return plain
    experiments = [_widened(choose, plain.experiments[0])]
    for number in range(2, choose.choice([1, 1, 2, 2, 2, 3]) + 1):
        spec, same_end = experiment_spec(choose)
        spec["numSamples"] = choose.choice([1, 1, 2])
        if choose.random() < 0.5:
            spec["seed"] = experiments[0].spec["seed"]  # then its trials have the same ids
        other = Experiment(f"digits-{number}", spec, same_end, at=round(choose.random() * 8.0, 3))
        experiments.append(_widened(choose, other))
    faults = list(plain.faults)
    if len(experiments) > 1 and choose.random() < 0.2:
        faults.append(_fault(choose, "experiment deleted"))
        faults.sort(key=lambda fault: fault.at)
    return replace(plain, experiments=tuple(experiments), faults=tuple(faults))


def _widened(choose: random.Random, experiment: Experiment) -> Experiment:
    spec = dict(experiment.spec)
    entrypoint = choose.choice([CLASS, PLAIN_CLASS, FUNCTION, FUNCTION])
    if entrypoint != CLASS:
        spec["trainable"] = {"entrypoint": entrypoint}
    if entrypoint == FUNCTION:
        spec["checkpoint"] = {
            name: value for name, value in spec["checkpoint"].items() if name not in ("frequency", "atEnd")
        }
    feature = choose.choice(["reusePods", "reusePods", "workers", "", ""])
    if feature == "reusePods":
        spec["reusePods"] = True
    elif feature == "workers":
        spec["workers"] = {"replicas": choose.choice([1, 1, 2])}
    return replace(experiment, spec=spec, restarts=True, keeps_every=choose.choice([0, 1, 1, 2]))


class _WithFaults(Protocol):
    @property
    def faults(self) -> tuple[Fault, ...]: ...

    def with_faults(self, faults: tuple[Fault, ...]) -> Self: ...


P = TypeVar("P", bound=_WithFaults)


def shrunk(plan: P, fails: Callable[[P], bool], tries: int = 60) -> P:
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
