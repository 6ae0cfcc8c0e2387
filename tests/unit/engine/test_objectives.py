"""Several objectives: the order of trials, what the engine shows of it, and what it keeps over a restart."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import msgspec
import pytest
from engine_support import ListSearch, Shell

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.front_ranking import FrontRanking
from trialpod.tune.plugins.objectives import Objective, pareto_front, parse_objectives
from trialpod.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule
from trialpod_operator.engine.repeats import front, winner

BOTH = [Objective("score", "max"), Objective("size", "min")]
LIMITED = [Objective("score", "max", 0.5), Objective("size", "min")]


def dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def fronts(points: list[tuple[float, ...]]) -> list[list[int]]:
    """Return the places of the points by front, as these are defined; lower values are better."""
    left, found = dict(enumerate(points)), []
    while left:
        found.append([k for k, p in left.items() if not any(dominates(q, p) for q in left.values())])
        left = {k: p for k, p in left.items() if k not in found[-1]}
    return found


def room(front: list[tuple[float, ...]], point: tuple[float, ...]) -> float:
    """Return the crowding distance of a point of a front, as it is defined."""
    total = 0.0
    for axis in range(len(point)):
        order = sorted(set(front), key=lambda each: (each[axis], each))
        place = order.index(point)
        if place in (0, len(order) - 1):
            return math.inf
        span = order[-1][axis] - order[0][axis]
        total += (order[place + 1][axis] - order[place - 1][axis]) / span if span else 0.0
    return total


def better(points: list[tuple[float, ...]]) -> int:
    """Return how many of the points are better than the last one."""
    last, found = len(points) - 1, 0
    for places in fronts(points):
        if last not in places:
            found += len(places)
            continue
        among = [points[k] for k in places]
        own = room(among, points[last])
        return found + sum(room(among, point) > own for point in among)
    raise AssertionError


class TestOrder:
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_fronts_are_those_of_the_definition(self, count: int) -> None:
        objectives = [Objective(str(number), "min") for number in range(count)]
        rng = random.Random(count)
        for _ in range(20):
            points = [tuple(float(rng.randrange(5)) for _ in range(count)) for _ in range(25)]
            assert set(pareto_front(objectives, points)) == set(fronts(points)[0])

    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_a_rank_counts_all_earlier_points_that_are_better(self, count: int) -> None:
        objectives = [Objective(str(number), "min") for number in range(count)]
        rng = random.Random(count)
        for turn in range(20):
            values = [5.0, 50.0, 1e9][turn % 3]
            points = [tuple(float(rng.randrange(int(values))) for _ in range(count)) for _ in range(30)]
            ranking, first = FrontRanking(objectives), rng.randrange(30)
            found = [ranking.add(point) for point in points]
            assert found == [better(points[: number + 1]) for number in range(30)]
            ranking = FrontRanking(objectives)
            for point in points[:first]:
                ranking.add(point)
            again = FrontRanking(objectives, json.loads(json.dumps(ranking.get_state())))
            assert len(again) == first
            assert [again.add(point) for point in points[first:]] == found[first:]

    def test_a_rank_does_not_sort_all_points_again(self) -> None:
        """Comparisons are counted, not seconds: sorting all points for each would take hundreds of millions."""
        compared = 0

        class Counted(float):
            def __le__(self, other: object) -> bool:
                nonlocal compared
                compared += 1
                return float(self) <= float(other)  # type: ignore[arg-type]

        rng = random.Random(1)
        ranking = FrontRanking([Objective(name, "min") for name in "abc"])
        for _ in range(2000):
            ranking.add([Counted(rng.random()) for _ in "abc"])
        assert compared < 2_000_000

    def test_points_with_room_around_them_come_first(self) -> None:
        ranking = FrontRanking([Objective("a", "min"), Objective("b", "min")])
        for point in [(0, 10), (1, 9), (10, 0)]:
            ranking.add(point)
        assert ranking.add((2, 8)) == 2
        assert ranking.add((6, 4)) == 2
        assert ranking.add((-1, 11)) == 0

    def test_a_missed_threshold_comes_last_the_nearest_first(self) -> None:
        ranking = FrontRanking(LIMITED)
        points = [(0.1, 0.0), (0.6, 9.0), (0.4, 1.0), (0.9, 10.0), (0.2, 1.0)]
        assert [ranking.add(point) for point in points] == [0, 0, 1, 0, 3]
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
