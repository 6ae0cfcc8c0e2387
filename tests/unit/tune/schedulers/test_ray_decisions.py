"""Our schedulers decide as Ray Tune's own did over the same histories, except where they differ on purpose.

The data was made by tools/compare_with_ray/generate.py from Ray 2.60.0; an event is a row of [kind, trial, time,
value in 1/64, Ray's decision, trials that Ray stopped beside, trials that Ray started then, exploits].
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import CheckpointInfo
from trialpod.tune.plugins.described import arguments_of
from trialpod.tune.schedulers import (
    DistributeResources,
    DistributeResourcesToTopJob,
    Exploit,
    PopulationBasedTraining,
    TrialScheduler,
    create_scheduler,
)
from trialpod.tune.schedulers.pbt_mutations import compiled_mutations, explore

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "data" / "ray_scheduler_decisions.json").read_text(encoding="utf-8")
)

pytestmark = pytest.mark.once


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=f"{name}-{number}") for number, case in enumerate(DATA["cases"][name])]


@dataclass
class Trial:
    trial_id: str
    status: str = "PENDING"
    config: dict[str, Any] = field(default_factory=lambda: {"x": 1.0})
    last_result: dict[str, Any] = field(default_factory=dict)
    checkpoint: CheckpointInfo | None = None
    tag: str = "x"


class Controller:
    """All trials, and what a scheduler asked for."""

    def __init__(self, count: int) -> None:
        self.trials = [Trial(str(number)) for number in range(count)]
        self.stopped: list[int] = []
        self.exploits: list[tuple[Any, Exploit]] = []

    def get_trials(self) -> list[Trial]:
        return self.trials

    def get_trial(self, trial_id: str) -> Trial:
        return self.trials[int(trial_id)]

    def pending_trials(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.status == "PENDING"]

    def paused_trials(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.status == "PAUSED"]

    def running_trials(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.status == "RUNNING"]

    def stop_trial(self, trial: Any, reason: Any = None) -> None:
        if trial.status in ("RUNNING", "PENDING", "PAUSED"):
            self.stopped.append(int(trial.trial_id))
            trial.status = "TERMINATED"

    def exploit_paused(self, trial: Any, exploit: Exploit, reason: Any = None) -> bool:
        self.exploits.append((trial, exploit))
        return True

    def start(self, scheduler: TrialScheduler, slots: int) -> list[int]:
        started = []
        while len(self.running_trials()) < slots:
            chosen: Any = scheduler.choose_trial_to_run(self)  # type: ignore[arg-type]
            if chosen is None:
                break
            chosen.status = "RUNNING"
            started.append(int(chosen.trial_id))
        return started


class Comparison:
    """Plays one case; `tell` lets our scheduler see an event and returns what it decided."""

    def __init__(self, scheduler: TrialScheduler, case: dict[str, Any]) -> None:
        self.scheduler, self.case = scheduler, case
        self.controller = Controller(case["trials"])
        for trial in self.controller.trials:
            scheduler.on_trial_add(self.controller, trial)  # type: ignore[arg-type]

    def tell(self, event: list[Any]) -> Any:
        kind, number, time, value = event[:4]
        trial, controller, scheduler = self.controller.trials[number], self.controller, self.scheduler
        trial.last_result = {"training_iteration": time, "score": value / 64}
        result = dict(trial.last_result)
        self.controller.stopped = []
        if kind == "r":
            return scheduler.on_trial_result(controller, trial, result)  # type: ignore[arg-type]
        trial.status = "TERMINATED" if kind == "c" else "ERROR"
        if kind == "c":
            scheduler.on_trial_complete(controller, trial, result)  # type: ignore[arg-type]
        else:
            scheduler.on_trial_error(controller, trial)  # type: ignore[arg-type]
        return None

    def play(self, *, starts_alike: bool = True) -> None:
        """Compare every decision, every other trial that is stopped, and every trial that starts."""
        case = self.case
        assert self.controller.start(self.scheduler, case["slots"]) == case["first"]
        for index, event in enumerate(case["events"]):
            _, number, _, _, expected, stopped, started = event[:7]
            decision = self.tell(event)
            trial = self.controller.trials[number]
            if expected:
                assert decision[0] == expected, f"event {index}: {event}, {self.scheduler.reason()}"
                trial.status = {"C": "RUNNING", "P": "PAUSED", "S": "TERMINATED"}[expected]
            if starts_alike:
                assert self.controller.start(self.scheduler, case["slots"]) == started, f"event {index}: {event}"
            for other in started:
                self.controller.trials[other].status = "RUNNING"
            assert sorted(self.controller.stopped) == stopped, f"event {index}: {event}"


@pytest.mark.parametrize("case", cases("fifo"))
def test_fifo_starts_trials_in_the_same_order(case: dict[str, Any]) -> None:
    Comparison(create_scheduler("fifo"), case).play()


@pytest.mark.parametrize("case", cases("asha"))
def test_asha_stops_the_same_trials(case: dict[str, Any]) -> None:
    scheduler = create_scheduler("asha", metric="score", **case["arguments"])
    comparison = Comparison(scheduler, case)
    # Which bracket a trial is in was drawn with NumPy's global generator there.
    drawn = {str(number): [bracket, 0] for number, bracket in enumerate(case["brackets"])}
    scheduler.set_state({**scheduler.get_state(), "trials": drawn})
    comparison.play()


@pytest.mark.parametrize("case", cases("median"))
def test_the_median_rule_stops_and_pauses_the_same_trials(case: dict[str, Any]) -> None:
    """On purpose ours lets a trial that fell below the median continue last of all; Ray keeps its old order."""
    comparison = Comparison(create_scheduler("median_stopping_rule", metric="score", **case["arguments"]), case)
    comparison.play(starts_alike=case["arguments"]["hard_stop"])


@pytest.mark.parametrize("case", [*cases("hyperband"), *cases("hb_bohb")])
def test_hyperband_cuts_the_same_trials(case: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """On purpose ours stops a trial at max_t; Ray pauses it there until its bracket is done, and stops it then."""
    name = request.node.callspec.id.rsplit("-", 1)[0]
    comparison = Comparison(create_scheduler(name, metric="score", **case["arguments"]), case)
    controller, scheduler = comparison.controller, comparison.scheduler
    max_t = case["arguments"]["max_t"] if case["arguments"]["stop_last_trials"] else 1e9
    at_the_end: set[int] = set()
    assert controller.start(scheduler, case["slots"]) == case["first"]
    for index, event in enumerate(case["events"]):
        _, number, time, _, expected, stopped, started = event[:7]
        decision = comparison.tell(event)
        where = f"event {index}: {event}, ours: {decision}, {scheduler.reason()}"
        if expected and time >= max_t:
            assert expected in "PS", where
            assert decision == "STOP", where
            at_the_end.add(number)
            controller.trials[number].status = "TERMINATED"
        elif expected:
            assert decision[0] == expected, where
            controller.trials[number].status = {"C": "RUNNING", "P": "PAUSED", "S": "TERMINATED"}[expected]
        now = controller.start(scheduler, case["slots"])
        assert sorted(controller.stopped) == [other for other in stopped if other not in at_the_end], where
        assert now == started, where


class Scripted(random.Random):
    """Picks the source that Ray picked; everything else as it comes."""

    pick: int | None = None

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:  # type: ignore[override]
        if self.pick is not None:
            picked, self.pick = self.pick, None
            return picked
        return super().randrange(start, stop, step)


class ScriptedTraining(PopulationBasedTraining):
    """Takes its sources from the recorded exploits."""

    script: dict[int, int]

    def _exploit(self, tune_controller: Any, trial: Any, count: int, time: float) -> Exploit | None:
        self.target, self.count = trial.trial_id, count
        return super()._exploit(tune_controller, trial, count, time)

    def _rng(self) -> random.Random:
        ready = [trial_id for _, _, trial_id in self._population.sources(self.count)]
        rng = Scripted(0)
        rng.pick = ready.index(str(self.script[int(self.target)]))
        return rng


def checkpoint_at(time: float) -> CheckpointInfo:
    return CheckpointInfo(name="c", index=0, iteration=0, metrics={"training_iteration": time}, attempt=1)


@pytest.mark.parametrize("case", cases("pbt"))
def test_pbt_lets_the_same_trials_copy_the_same_ones(case: dict[str, Any]) -> None:
    """On purpose ours lets the last trial to arrive at a common time continue; Ray pauses it and starts it again."""
    arguments = case["arguments"]
    scheduler = ScriptedTraining(
        metric="score", time_attr="training_iteration", hyperparam_mutations={"x": [1.0]}, **arguments
    )
    comparison = Comparison(scheduler, case)
    controller = comparison.controller
    assert controller.start(scheduler, case["slots"]) == case["first"]
    for index, event in enumerate(case["events"]):
        _, number, _, _, expected, _, started, exploits = event
        where = f"event {index}: {event}"
        for _, source, time in exploits:
            controller.trials[source].checkpoint = checkpoint_at(time)
        scheduler.script = {target: source for target, source, _ in exploits}
        controller.exploits = []
        if not exploits:
            # Ray saves only what it means to copy; that there is nothing to copy from then shows here.
            for trial in controller.trials:
                trial.checkpoint = None
        decision = comparison.tell(event)
        trial = controller.trials[number]
        done = {(int(other.trial_id), int(exploit.source)) for other, exploit in controller.exploits}
        if isinstance(decision, Exploit):
            done.add((number, int(decision.source)))
        assert done == {(target, source) for target, source, _ in exploits}, where
        if arguments["synch"] and decision == "CONTINUE" and expected == "P":
            trial.status = "PAUSED"  # the difference; from here on as in Ray
        elif isinstance(decision, Exploit):
            assert expected == "N", where
            trial.status = "PAUSED"
        else:
            assert decision[0] == expected, where
            trial.status = {"C": "RUNNING", "P": "PAUSED"}[expected]
        now = controller.start(scheduler, case["slots"])
        assert now == started, f"{where}, ours: {now}"


@pytest.mark.parametrize("case", cases("median"))
def test_median_decides_alike_when_compatible(case: dict[str, Any]) -> None:
    arguments = {"metric": "score", "compatible": True, **case["arguments"]}
    comparison = Comparison(create_scheduler("median_stopping_rule", **arguments), case)
    comparison.play()
    other = create_scheduler("median_stopping_rule", **arguments)
    other.set_state(json.loads(json.dumps(comparison.scheduler.get_state())))
    assert other.get_state() == comparison.scheduler.get_state()


@pytest.mark.parametrize("row", DATA["explorations"], ids=str)
def test_pbt_explores_alike_when_compatible(row: list[Any]) -> None:
    domain, old, which, theirs = row

    class Directed(random.Random):
        def random(self) -> float:
            return 1.0

        def choice(self, options: Any) -> Any:
            return options[which]

        def randrange(self, *_: Any) -> int:
            return which

    mutations = compiled_mutations({"x": domain})
    (ours,) = explore({"x": old}, mutations, 0.0, (1.2, 0.8), Directed(), compatible=True)[0].values()
    assert ours == theirs
    assert type(ours) is type(theirs)


class TestFollowingRay:
    def test_alias_sets_the_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And the scheduler says so where it is made again, as in a cluster."""
        from trialpod.compat import ray as alias

        monkeypatch.setattr(alias, "installed", lambda: True)
        for name in ("hyperband", "hb_bohb", "median_stopping_rule"):
            assert arguments_of(create_scheduler(name, metric="m", mode="min")) == {
                "metric": "m",
                "mode": "min",
                "compatible": True,
            }
            made = create_scheduler(name, metric="m", mode="min", compatible=False)
            assert "ray" not in made.get_state()
        assert arguments_of(create_scheduler("pb2", hyperparam_bounds={"x": [0, 1]})) == {
            "hyperparam_bounds": {"x": [0, 1]}
        }

    def test_state_of_other_rules_is_refused(self) -> None:
        for name in ("hyperband", "median_stopping_rule"):
            ours, theirs = (create_scheduler(name, metric="m", mode="min", compatible=flag) for flag in (False, True))
            with pytest.raises(InvalidInputError, match="compatible=True"):
                ours.set_state(theirs.get_state())

    def test_choice_is_multiplied(self) -> None:
        """As in Ray; by our rules it moves to a neighbour."""
        mutations = compiled_mutations({"x": {"choice": [10, 20]}, "flag": {"choice": [True, False]}})
        for compatible, expected in ((True, {12, 8}), (False, {10, 20})):
            found = set()
            for seed in range(20):
                rng = random.Random(seed)
                new, _ = explore({"x": 10, "flag": True}, mutations, 0, (1.2, 0.8), rng, compatible=compatible)
                found.add(new["x"])
            assert found == expected


@pytest.mark.parametrize("row", DATA["explorations"], ids=str)
def test_pbt_explores_alike_inside_the_domain_and_stays_there(row: list[Any]) -> None:
    domain, old, which, theirs = row
    mutations = compiled_mutations({"x": domain})
    directions = (1.2, 0.8)

    class Directed(random.Random):
        def random(self) -> float:
            return 1.0

        def choice(self, options: Any) -> Any:
            return options[which]

        def randrange(self, *_: Any) -> int:
            return which

    (ours,) = explore({"x": old}, mutations, 0.0, directions, Directed())[0].values()
    if isinstance(domain, list) or ("q" not in next(iter(domain)) and mutations["x"].is_valid(theirs)):
        assert ours == theirs
    else:
        assert mutations["x"].is_valid(ours)
        step = mutations["x"].q or 0  # Ray leaves the grid, too
        assert min(old, theirs) - step <= ours <= max(old, theirs) + step
        assert not step or ours % step == 0


@pytest.mark.parametrize("case", DATA["allocations"], ids=lambda case: "top" if case["top"] else "even")
def test_resources_are_shared_out_alike(case: dict[str, Any]) -> None:
    """On purpose ours never takes from a trial while there is enough for all; Ray cuts it to the even share."""
    base = {name.lower(): float(amount) for name, amount in case["base"].items()}
    unit = case["increase_by"] or ({"GPU": 1} if "GPU" in case["base"] else {"CPU": 1})
    controller = Controller(len(case["held"]))
    given: dict[str, dict[str, float]] = {}
    for trial, held, score in zip(controller.trials, case["held"], case["scores"], strict=True):
        trial.status, trial.last_result = "RUNNING", {"score": score}
        added = {name.lower(): amount * held for name, amount in unit.items()}
        given[trial.trial_id] = {name: base.get(name, 0) + added.get(name, 0) for name in {*base, *added}}
    view = SimpleNamespace(
        get_trials=controller.get_trials,
        resources=lambda trial: given[trial.trial_id],
        total_resources=lambda: {name.lower(): float(amount) for name, amount in case["total"].items()},
    )
    options = {"increase_by": case["increase_by"], "increase_by_times": case["increase_by_times"]}
    function: Any = DistributeResources(**options)
    if case["top"]:
        function = DistributeResourcesToTopJob(metric="score", mode="max", **options)
    ours = function(view, controller.trials[0], {"training_iteration": 2}, SimpleNamespace(base_trial_resources=base))
    theirs = {name.lower(): float(amount) for name, amount in case["new"].items()}
    held_now = {name: amount for name, amount in given["0"].items() if amount}
    free = {
        n: controllers_total - sum(g.get(n, 0) for g in given.values())
        for n, controllers_total in view.total_resources().items()
    }
    enough = all(free[name.lower()] >= 0 for name in unit)
    if enough and any(theirs.get(name, 0) < amount for name, amount in held_now.items()):
        assert all(ours.get(name, 0) >= amount for name, amount in held_now.items())
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    "case", [*cases("hyperband"), *cases("hb_bohb"), *cases("hyperband_partial"), *cases("hb_bohb_partial")]
)
def test_hyperband_decides_alike_when_compatible(case: dict[str, Any], request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id.rsplit("-", 1)[0].removesuffix("_partial")
    arguments = {"metric": "score", "compatible": True, **case["arguments"]}
    comparison = Comparison(create_scheduler(name, **arguments), case)
    controller, scheduler = comparison.controller, comparison.scheduler
    assert controller.start(scheduler, case["slots"]) == case["first"]
    while_choosing: list[int] = []  # which the data counts to the next event
    for index, event in enumerate(case["events"]):
        _, number, _, _, expected, stopped, started = event
        where = f"event {index}: {event}"
        decision = comparison.tell(event)
        if expected:
            assert decision[0] == expected, where
            controller.trials[number].status = {"C": "RUNNING", "P": "PAUSED", "S": "TERMINATED"}[expected]
        assert sorted(controller.stopped + while_choosing) == stopped, where
        controller.stopped = []
        assert controller.start(scheduler, case["slots"]) == started, where
        while_choosing = controller.stopped
    state = json.loads(json.dumps(comparison.scheduler.get_state()))
    other = create_scheduler(name, **arguments)
    other.set_state(state)
    assert other.get_state() == comparison.scheduler.get_state()
