"""The simulator of the quality benchmark: its clock, its budget, what it charges and what it returns."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "quality"))

from simulator import Conditions, Outcome, Simulation, SimulationError
from space import draw, real
from tasks.synthetic import synthetic_tasks
from tasks.task import Curve, Reference, Task
from tuners.baselines import TopAfterFirstRung
from tuners.own import TrialpodTuner
from tuners.tuner import Start, Tuner

pytestmark = pytest.mark.once


class Line(Task):
    """Values fall from 1 + x to x in four steps of 10 s."""

    name, family, steps = "line", "tests", 4
    space = (real("x", 0.0, 1.0),)
    reference = Reference(best=0.0, median=0.5, worst=1.0, full_training_s=40.0)

    def curve(self, config):
        return Curve([config["x"] + rest for rest in (0.75, 0.5, 0.25, 0.0)], [10.0] * 4)


class Script(Tuner):
    """Starts given configs, then resumes what is paused; decides by a table of (trial, step)."""

    def __init__(self, configs, decisions=(), resumes=()):
        self.configs, self.decisions, self.resumes = configs, dict(decisions), resumes

    def begin(self, problem):
        self.left = [(str(number), {"x": x}) for number, x in enumerate(self.configs)]
        self.to_resume, self.free = list(self.resumes), set()
        self.log = []

    def next_start(self, now):
        if self.left:
            return Start(*self.left.pop(0))
        if self.to_resume and self.to_resume[0] in self.free:
            return Start(self.to_resume.pop(0))
        return None

    def report(self, trial, step, value, seconds, now):
        self.log.append((trial, step, round(now, 6), round(seconds, 6)))
        return self.decisions.get((trial, step), "continue")

    def ended(self, trial, decision, now):
        self.log.append((trial, decision, round(now, 6)))
        self.free.add(trial)


def simulate(tuner, **conditions) -> Outcome:
    return Simulation(
        Line(), tuner, 0, Conditions(**{"workers": 1, "overhead": 0.0, "latency": 0, **conditions})
    ).run()


class TestClock:
    def test_steps_take_their_time_one_after_the_other(self):
        tuner = Script([0.5])
        simulate(tuner)
        assert tuner.log == [("0", n, 10.0 * n, 10.0 * n) for n in (1, 2, 3, 4)] + [("0", "continue", 40.0)]

    def test_workers_run_at_the_same_time(self):
        outcome = simulate(Script([0.1, 0.2, 0.3]), workers=3)
        assert (outcome.wall, outcome.completed) == (1.0, 3)

    def test_start_and_resume_cost_the_overhead(self):
        tuner = Script([0.5], {("0", 2): "pause"}, resumes=["0"])
        outcome = simulate(tuner, overhead=0.1, budget=2)
        assert [entry[:3] for entry in tuner.log] == [
            ("0", 1, 14.0), ("0", 2, 24.0), ("0", "pause", 24.0),
            ("0", 3, 38.0), ("0", 4, 48.0), ("0", "continue", 48.0),
        ]  # fmt: skip
        assert outcome.waste == pytest.approx(8 / 80)

    def test_decisions_reach_a_trial_one_report_late(self):
        tuner = Script([0.5], {("0", 2): "stop"})
        outcome = simulate(tuner, latency=1, budget=1)
        assert tuner.log[-1] == ("0", "stop", 30.0)
        assert outcome.used == pytest.approx(30 / 40)
        assert outcome.waste == pytest.approx(10 / 40)

    def test_lost_steps_are_repeated_after_a_pause(self):
        tuner = Script([0.5], {("0", 2): "pause"}, resumes=["0"])
        simulate(tuner, latency=1)
        assert [entry[1] for entry in tuner.log] == [1, 2, "pause", 3, 4, "continue"]
        assert tuner.log[3][2] == 40.0


class TestBudget:
    @pytest.mark.parametrize("budget", [0.3, 1.0, 2.6])
    def test_is_used_up_and_never_exceeded(self, budget):
        simulation = Simulation(Line(), Script([0.5] * 50), 0, Conditions(workers=3, budget=budget))
        outcome = simulation.run()
        assert outcome.used == 1.0
        assert simulation.used_s == pytest.approx(budget * 40.0)
        assert simulation.now == pytest.approx(budget * 40.0 / 3)
        assert all(moment.used <= 1.0 for moment in outcome.moments)

    def test_idle_workers_cost_nothing(self):
        outcome = simulate(Script([0.5]), workers=8, budget=10)
        assert outcome.used == pytest.approx(0.1)

    def test_what_would_be_reported_later_is_not(self):
        tuner = Script([0.5])
        simulate(tuner, budget=0.6)
        assert [entry[1] for entry in tuner.log] == [1, 2]


class TestReturned:
    def test_is_the_trial_with_the_lowest_latest_report(self):
        outcome = simulate(Script([0.6, 0.1, 0.3]))
        assert [(moment.final, round(moment.used * 40, 6)) for moment in outcome.moments if moment.final == 0.1] == [
            (0.1, pytest.approx(5 / 4 + 2 / 4)), (0.1, 2.0),
        ]  # fmt: skip
        assert outcome.at(1.0).final == 0.1

    def test_is_scored_by_a_full_training(self):
        outcome = simulate(Script([0.2]), budget=0.3)
        assert (outcome.at(1.0).final, outcome.at(1.0).reported) == (0.2, 0.95)

    def test_there_is_none_before_the_first_report(self):
        assert simulate(Script([0.2])).at(0.001) is None

    def test_diverged_reports_are_passed_over(self):
        class Diverging(Line):
            def curve(self, config):
                values = [math.nan] * 4 if config["x"] < 0.5 else super().curve(config).values
                return Curve(values, [10.0] * 4)

            def final(self, config):
                return config["x"]

        outcome = Simulation(Diverging(), Script([0.1, 0.9]), 0, Conditions(workers=1)).run()
        assert outcome.at(1.0).final == 0.9


class TestRefusals:
    def test_unknown_trials_cannot_be_resumed(self):
        class Wrong(Script):
            def next_start(self, now):
                return Start("nobody")

        with pytest.raises(SimulationError, match="never started"):
            simulate(Wrong([]))

    def test_ended_trials_cannot_be_resumed(self):
        with pytest.raises(SimulationError, match="after its end"):
            simulate(Script([0.5], {("0", 1): "stop"}, resumes=["0"]))


class TestDeterminism:
    @pytest.mark.parametrize(
        "make",
        [TopAfterFirstRung, lambda: TrialpodTuner("asha"), lambda: TrialpodTuner("asha_promotion")],
        ids=["top-k", "asha", "asha_promotion"],
    )
    def test_the_same_seed_gives_the_same_run(self, make):
        task = next(task for task in synthetic_tasks() if task.name == "noise-branin")
        task.reference = Reference(0.0, 0.3, 1.0, 27.0)

        def run(seed):
            random.seed(seed + 1)  # the global source must not matter
            outcome = Simulation(task, make(), seed, Conditions(budget=4)).run()
            outcome.decide_s = 0.0
            return outcome

        assert run(3) == run(3)
        assert run(3) != run(4)

    def test_start_points_are_tried_first(self):
        task = next(task for task in synthetic_tasks() if task.name == "noise-branin")
        task.reference = Reference(0.0, 0.3, 1.0, 27.0)
        tuner, started = TrialpodTuner("asha"), []
        original = tuner.next_start

        def next_start(now):
            start = original(now)
            if start is not None and start.config is not None:
                started.append(start.config)
            return start

        tuner.next_start = next_start
        Simulation(task, tuner, 5, Conditions(budget=10)).run()
        assert started[:10] == task.start_points(5)
        assert len(started) > 10


class TestTasks:
    def test_curves_repeat_and_end_at_their_final_value(self):
        for task in synthetic_tasks():
            rng = random.Random(task.name)
            for config in (draw(task.space, rng) for _ in range(5)):
                curve = task.curve(config)
                assert len(curve.values) == len(curve.seconds) == task.steps
                assert str(curve) == str(task.curve(config))
                final = task.final(config)
                assert math.isnan(final) == math.isnan(curve.values[-1])
                assert math.isnan(final) or abs(final - curve.values[-1]) < 0.5

    def test_both_sides_of_the_split_have_tasks(self):
        assert {task.held_out for task in synthetic_tasks()} == {True, False}

    def test_tasks_of_the_same_data_are_on_the_same_side(self):
        one, other = Line(), Line()
        one.name, other.name = "a", "b"
        one.data = other.data = "shared"
        assert one.held_out == other.held_out
