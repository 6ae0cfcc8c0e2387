"""Budgets of hours that plan: what starts, what is kept for the winner, and when another hour is not worth it."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support import ListSearch, Shell

from python_steps import count
from trialpod.protocol.messages import AttemptEnd, StopRule
from trialpod.tune.schedulers.auto import AutoScheduler
from trialpod_operator.engine import accounting, events
from trialpod_operator.engine.actions import Warned
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.trial import PAUSED, TERMINATED, Trial

pytestmark = pytest.mark.once

FULL = 9
STEP_S = 10.0


def engine(samples: int = -1) -> Engine:
    return Engine(ListSearch(samples), AutoScheduler(grace_period=1, calibration=0))


class Trials(Shell):
    """Trials that report, save and take a fixed time for each iteration, all in step.

    Args:
        hours: of the budget, in full trainings.
        saves: they save checkpoints.
        rises: each trial is better than the one before it.
        samples: -1 = without limit.
        changes: of the settings.
    """

    def __init__(
        self, hours: float | None, *, saves: bool = True, rises: bool = False, samples: int = -1, **changes: Any
    ) -> None:
        budget = None if hours is None else hours * FULL * STEP_S / 3600
        super().__init__(
            samples,
            search=ListSearch(samples),
            scheduler=AutoScheduler(grace_period=1, calibration=0),
            **{
                "max_concurrent": 2,
                "max_trial_hours": budget,
                "plans_budget": budget is not None,
                "stop_rules": [StopRule("training_iteration", float(FULL))],
                **changes,
            },
        )
        self.saves, self.rises = saves, rises

    def value(self, trial: Trial, iteration: int) -> float:
        return (trial.index if self.rises else trial.index * 7 % 10) + iteration / 10

    def play(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if self.engine.finished:
                return
            self.step()
        pytest.fail(f"not finished: {self.engine.state.counts}, {len(self.engine.state.trials)} trials")

    def step(self) -> None:
        """Every running attempt begins, or comes an iteration further and obeys."""
        for trial in self.engine.state.running_trials():
            name, attempt = trial.trial_id, trial.attempt
            if trial.current.working_since is None:
                self.apply(events.AttemptStarted(trial_id=name, attempt=attempt, pid=1))
                continue
            if trial.current.decision is None:
                start = trial.checkpoints[-1].iteration if trial.checkpoints and not trial.current.received else None
                at = (trial.iteration if start is None else start) + 1
                done = at >= FULL
                if self.saves:
                    self.checkpoint(name, trial.next_checkpoint_index, at)
                report = {
                    "training_iteration": at,
                    "score": self.value(trial, at),
                    **({"done": True} if done else {}),
                }
                self.results(name, report)
                if done:
                    self.apply(events.AttemptEnded(trial_id=name, attempt=attempt, end=AttemptEnd(cause="completed")))
                    continue
            decision = self.trial(name).current.decision
            if decision is not None:
                cause: Any = {"stop": "stopped", "pause": "paused"}[decision]
                self.apply(events.AttemptEnded(trial_id=name, attempt=attempt, end=AttemptEnd(cause=cause)))
        self.now += STEP_S
        self.apply(events.TimerFired())

    @property
    def used(self) -> float:
        """Hours used, in full trainings."""
        return accounting.hours_used(self.engine.state, "trial", self.now) * 3600 / (FULL * STEP_S)

    @property
    def best(self) -> Trial:
        return max(self.engine.state.get_trials(), key=lambda trial: trial.value or 0.0)


class TestReserve:
    @pytest.mark.parametrize("hours", [3, 5, 12])
    def test_the_winner_is_trained_to_its_end_within_the_budget(self, hours: float) -> None:
        trials = Trials(hours)
        trials.play()
        assert trials.engine.state.flags.state == "Succeeded"
        assert "suffices for no further trial" in trials.engine.state.flags.message
        assert (trials.best.status, trials.best.iteration) == (TERMINATED, FULL)
        assert trials.used <= hours

    def test_many_trials_at_a_time_leave_enough_for_the_winner(self) -> None:
        trials = Trials(60, max_concurrent=40)
        trials.play()
        assert (trials.best.status, trials.best.iteration) == (TERMINATED, FULL)
        assert trials.used <= 60

    def test_the_number_of_trials_follows_from_the_budget(self) -> None:
        found = []
        for hours in (3, 6, 12):
            trials = Trials(hours)
            trials.play()
            found.append(len(trials.engine.state.trials))
        assert found == sorted(set(found))
        assert found[0] > 3

    def test_a_budget_too_small_for_one_training_warns_once(self) -> None:
        trials = Trials(0.6)
        trials.play()
        warnings = [each.message for each in trials.actions if isinstance(each, Warned)]
        assert sum("too little for one full training" in each for each in warnings) == 1
        assert trials.engine.state.flags.state in ("Stopped", "Succeeded")

    def test_without_checkpoints_trials_are_stopped_not_paused(self) -> None:
        trials = Trials(6, saves=False)
        trials.play()
        assert trials.engine.state.counts.get(PAUSED, 0) == 0
        assert trials.used <= 6.5

    def test_a_raised_budget_continues(self) -> None:
        trials = Trials(3)
        trials.play()
        before = len(trials.engine.state.trials)
        trials.edit(max_trial_hours=6 * FULL * STEP_S / 3600)
        trials.play()
        assert len(trials.engine.state.trials) > before

    def test_a_budget_that_does_not_plan_is_used_to_the_end(self) -> None:
        trials = Trials(3, plans_budget=False)
        trials.play()
        assert trials.engine.state.flags.state == "Stopped"


def steps_per_event(running: int) -> float:
    """Return how many lines a batch of results takes, on average, while so many trials run."""
    trials = Trials(10_000, max_concurrent=running)
    for _ in range(3):
        trials.step()
    return count(trials.step) / running


class TestCost:
    def test_of_an_event_does_not_grow_with_the_running_trials(self) -> None:
        # Each of some events looks at all of them, so that on average an event looks at as many trials.
        assert steps_per_event(400) < 1.5 * steps_per_event(40)


class TestNotWorth:
    def made(self, threshold: float, *, rises: bool = False) -> Trials:
        trials = Trials(None, samples=60, rises=rises, stop_when_not_worth=threshold)
        trials.play()
        return trials

    def test_no_trial_starts_once_the_gain_is_below_the_threshold(self) -> None:
        trials = self.made(1e6)
        state = trials.engine.state
        assert len(state.trials) < 60
        assert (state.flags.state, state.counts.get(PAUSED, 0)) == ("Succeeded", 0)
        assert "is below stopWhenNotWorth (1e+06)" in state.flags.message or "1000000" in state.flags.message
        assert (trials.best.status, trials.best.iteration) == (TERMINATED, FULL)

    def test_a_low_threshold_ends_nothing(self) -> None:
        assert len(self.made(1e-9, rises=True).engine.state.trials) == 60

    def test_an_edit_lifts_it(self) -> None:
        trials = self.made(1e6)
        trials.edit(stop_when_not_worth=None)
        trials.play()
        assert len(trials.engine.state.trials) == 60


class TestReport:
    def test_says_what_is_left_and_kept(self) -> None:
        trials = Trials(6)
        for _ in range(12):
            trials.step()
        report = trials.engine.plan.report(trials.now)
        assert report is not None
        assert (report.unit, report.limit) == ("trial", 6 * FULL * STEP_S / 3600)
        assert report.left == pytest.approx(report.limit - report.used)
        assert report.reserved is not None
        assert 0 < report.reserved <= FULL * STEP_S / 3600 * 1.5
        assert "trial hours left" in str(report)
        assert "kept to train the best trial to its end" in str(report)

    @pytest.mark.parametrize(
        ("budgets", "unit", "limit"),
        [
            ({"max_trial_hours": 10.0}, "trial", 10.0),
            ({"max_gpu_hours": 10.0}, "GPU", 10.0),
            ({"max_trial_hours": 10.0, "max_gpu_hours": 5.0}, "GPU", 5.0),
            ({"plans_budget": False, "stop_when_not_worth": 0.1}, "GPU", None),
        ],
    )
    def test_counts_in_the_hours_of_the_budget(self, budgets: dict[str, Any], unit: str, limit: float | None) -> None:
        trials = Trials(None, **{"plans_budget": True, **budgets})
        (first, *_) = trials.engine.state.running_trials()
        resources = {"nvidia.com/gpu": 2.0}
        trials.apply(events.AttemptStarted(trial_id=first.trial_id, attempt=1, pid=1, resources=resources))
        trials.wait(1800.0)
        report = trials.engine.plan.report(trials.now)
        assert report is not None
        assert (report.unit, report.limit) == (unit, limit)
        assert report.used == pytest.approx(1.0 if unit == "GPU" else 0.5)
        assert (report.reserved is None) == (limit is None)

    def test_there_is_none_where_nothing_is_planned(self) -> None:
        assert Trials(6, plans_budget=False).engine.plan.report(0.0) is None


class TestExpectedGain:
    def test_is_the_gain_of_the_latest_doubling(self) -> None:
        trials = Trials(1000)
        state = trials.engine.state
        state.account.spent["trial"] = 8 * 3600.0
        for spent, value in ((1.0, 1.0), (3.0, 2.0), (5.0, 2.5)):
            state.budget.improve(spent * 3600, 0.0, value, 1.0)
        assert trials.engine.plan.expected_gain(trials.now) == pytest.approx(0.5 * 0.169925, rel=1e-4)

    def test_is_unknown_before_anything_was_measured(self) -> None:
        assert Trials(3).engine.plan.expected_gain(1000.0) is None

    def test_many_improvements_are_thinned_out(self) -> None:
        budget = Trials(3).engine.state.budget
        for number in range(500):
            budget.improve(float(number), 0.0, float(number), 1.0)
        assert len(budget.improvements) <= 64
        assert budget.improvements[-1][2] == 499.0


@pytest.mark.parametrize("changes", [{}, {"stop_when_not_worth": 1e6}, {"max_concurrent": 40}])
def test_replayed_to_any_event_it_is_the_same_experiment(changes: dict[str, Any]) -> None:
    trials = Trials(5, **changes)
    trials.play()
    replayed, restored = engine(), engine()
    for number, (now, event, choices) in enumerate(trials.journal):
        replayed.apply(event, now, choices)
        if number == len(trials.journal) // 2:
            restored.restore(replayed.snapshot())
        elif number > len(trials.journal) // 2:
            restored.apply(event, now)
    assert replayed.snapshot() == trials.engine.snapshot() == restored.snapshot()
