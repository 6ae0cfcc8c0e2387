"""Several objectives: the order of trials, what the engine shows of it, and what it keeps over a restart."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from engine_support import ListSearch, Shell

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.objectives import Objective, losses, pareto_front, parse_objectives
from trialpod.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule
from trialpod_operator.engine.repeats import front, winner

BOTH = [Objective("score", "max"), Objective("size", "min")]
LIMITED = [Objective("score", "max", 0.5), Objective("size", "min")]


def dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


class TestOrder:
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_fronts_are_those_of_the_definition(self, count: int) -> None:
        objectives = [Objective(str(number), "min") for number in range(count)]
        rng = random.Random(count)
        for _ in range(20):
            points = [tuple(float(rng.randrange(5)) for _ in range(count)) for _ in range(25)]
            found = [math.floor(loss) for loss in losses(objectives, points)]
            left, number = dict(enumerate(points)), 0
            while left:
                best = [k for k, p in left.items() if not any(dominates(q, p) for q in left.values())]
                assert {k for k in left if found[k] == number} == set(best)
                left, number = {k: p for k, p in left.items() if k not in best}, number + 1
            assert set(pareto_front(objectives, points)) == {k for k, f in enumerate(found) if f == 0}

    def test_points_with_room_around_them_come_first(self) -> None:
        order = losses([Objective("a", "min"), Objective("b", "min")], [(0, 10), (1, 9), (2, 8), (6, 4), (10, 0)])
        assert order[0] == order[4] == 0.0
        assert order[3] < order[1]

    def test_a_missed_threshold_comes_last_the_nearest_first(self) -> None:
        order = losses(LIMITED, [(0.6, 9.0), (0.4, 1.0), (0.1, 0.0), (0.9, 10.0)])
        assert sorted(range(4), key=order.__getitem__)[2:] == [1, 2]
        assert pareto_front(LIMITED, [(0.4, 1.0), (0.1, 0.0)]) == []

    def test_the_best_in_the_first_objective_leads_the_front(self) -> None:
        assert pareto_front(BOTH, [(1.0, 1.0), (3.0, 3.0), (2.0, 3.0), (2.0, 2.0)]) == [1, 3, 0]


class TestInput:
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ([], "metrics: must be a list"),
            ([{"name": "a", "mode": "maxx"}], r"metrics\[0\].mode: .*'maxx'; did you mean 'max'"),
            ([{"name": "a"}], r"metrics\[0\].mode: .*is a large 'a' good"),
            ([{"name": "", "mode": "max"}], r"metrics\[0\].name"),
            ([{"name": "a", "mode": "max", "treshold": 1}], r"metrics\[0\].treshold: .*did you mean 'threshold'"),
            ([{"name": "a", "mode": "max", "threshold": math.nan}], r"metrics\[0\].threshold: must be a finite"),
            ([{"name": "a", "mode": "max"}, {"name": "a", "mode": "min"}], r"metrics\[1\].name: .*contradict"),
            ([{"name": "a", "mode": "max"}, {"name": "a", "mode": "max"}], r"metrics\[1\].name: .*twice"),
            (["a"], r"metrics\[0\]: must be a"),
        ],
    )
    def test_wrong_ones_are_named(self, given: Any, says: str) -> None:
        with pytest.raises(InvalidInputError, match=says):
            parse_objectives(given)


def shell(objectives: list[Objective], scheduler: Any = None, trials: int = 4) -> Shell:
    return Shell(
        trials,
        search=ListSearch(trials),
        max_concurrent=trials,
        metric=objectives[0].name,
        mode=objectives[0].mode,
        objectives=objectives,
        **({} if scheduler is None else {"scheduler": scheduler}),
    )


class TestEngine:
    VALUES = ((0.4, 1.0), (0.9, 5.0), (0.8, 6.0), (0.6, 2.0))

    def play(self, objectives: list[Objective]) -> Shell:
        played = shell(objectives)
        for number, (score, size) in enumerate(self.VALUES):
            played.results(f"t{number}", {"training_iteration": 1, "score": score, "size": size})
        return played

    def test_the_front_is_shown_and_its_first_wins(self) -> None:
        state = self.play(BOTH).engine.state
        assert [trial.trial_id for trial in front(state)] == ["t1", "t3", "t0"]
        best, _ = winner(state)
        assert best is not None
        assert best.trial_id == "t1"

    def test_a_trial_that_misses_a_threshold_is_left_out(self) -> None:
        assert [trial.trial_id for trial in front(self.play(LIMITED).engine.state)] == ["t1", "t3"]

    def test_without_an_acceptable_trial_none_wins(self) -> None:
        state = self.play([Objective("score", "max", 0.95), Objective("size", "min")]).engine.state
        assert front(state) == []
        assert winner(state) == (None, None)

    def test_a_result_that_lacks_a_metric_changes_nothing(self) -> None:
        played = self.play(BOTH)
        played.results("t1", {"training_iteration": 2, "score": 0.1}, first=2)
        assert front(played.engine.state)[0].point == [0.9, 5.0]

    def test_points_are_in_the_snapshot(self) -> None:
        played = self.play(BOTH)
        again = shell(BOTH)
        again.engine.restore(played.engine.snapshot())
        assert [trial.point for trial in front(again.engine.state)] == [[0.9, 5.0], [0.6, 2.0], [0.4, 1.0]]

    def test_a_scheduler_of_one_metric_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match=r"MedianStoppingRule compares trials by one metric.*max score"):
            shell(BOTH, MedianStoppingRule())


class TestAsha:
    def scheduler(self) -> AsyncHyperBandScheduler:
        made = AsyncHyperBandScheduler(max_t=9, grace_period=1, reduction_factor=3)
        made.set_objectives(BOTH)
        return made

    def test_dominated_trials_stop_at_a_rung(self) -> None:
        played = shell(BOTH, AsyncHyperBandScheduler(max_t=9, grace_period=1, reduction_factor=3), trials=6)
        decisions = []
        for number, (score, size) in enumerate([(5, 5), (1, 9), (6, 6), (9, 1), (2, 8), (8, 8)]):
            played.results(f"t{number}", {"training_iteration": 1, "score": score, "size": size})
            decisions.append(played.trial(f"t{number}").current.decision)
        assert decisions[1] == "stop"
        assert decisions[3] is None
        assert decisions[4] == "stop"
        reason = played.trial("t4").current.decision_reason
        assert reason["values"] == {"score": 2.0, "size": 8.0}
        assert (reason["rank"], reason["compared"]) == (4, 5)

    def test_state_continues_as_if_it_had_not_stopped(self) -> None:
        class View:
            def __init__(self, trial_id: str) -> None:
                self.trial_id = trial_id

        rng = random.Random(3)
        points = [(rng.random(), rng.random()) for _ in range(40)]
        whole, first = self.scheduler(), self.scheduler()
        second = self.scheduler()

        def decide(scheduler: Any, number: int) -> str:
            view: Any = View(str(number))
            scheduler.on_trial_add(None, view)
            score, size = points[number]
            return str(scheduler.on_trial_result(None, view, {"training_iteration": 1, "score": score, "size": size}))

        expected = [decide(whole, number) for number in range(40)]
        found = [decide(first, number) for number in range(20)]
        second.set_state(msgspec.json.decode(msgspec.json.encode(first.get_state())))
        found += [decide(second, number) for number in range(20, 40)]
        assert found == expected
        assert set(expected) == {"CONTINUE", "STOP"}
