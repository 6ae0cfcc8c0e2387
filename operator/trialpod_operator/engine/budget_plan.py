"""Budgets of hours that plan ahead: which trials may still run, so that the winner can be trained to its end.

With `Settings.plans_budget`, a new trial, a paused one and one that passes a rung run on to their next rung only when
the hours that are left suffice for

* that stretch, and those of the trials that run,
* and after it the rest of one full training of whichever of them has most to go, the best trial so far among them:
  the *reserve*. It is never more than half of the budget, which is also what is kept while the length of a full
  training is unknown (no stop rule on ``training_iteration``, and no trial has completed).

When nothing may run any more, the best trial is trained to its end if it is not there yet.

With `Settings.stop_when_not_worth` no trial starts once the *expected gain* of the next hour is below the threshold:
what the best value improved during the latest doubling of the hours used, times ``log2(1 + 1 / hours used)``. That
takes each doubling for as good as the one before it, and knows nothing of the search space. Running trials run to
their next rung, or to their end where the scheduler has none.

Invariants: a trial's cost per iteration is what the account says it took, the mean of all for one that has shown
nothing; nothing is held back before there is a mean. What is decided here is recorded in `Choices`. What running
trials have ahead of them is worked out again when one in `OUTDATED_PART` of them may have changed, so that an event
costs the same however many run; it is in the snapshot, so that a restart changes no decision.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

from trialpod_operator.engine import accounting
from trialpod_operator.engine.actions import ActionList
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.state import Ahead, State
from trialpod_operator.engine.trial import ERROR, PAUSED, TERMINATED, Trial

ITERATION = "training_iteration"
MIN_TRIALS = 20
"""Trials with a value before the expected gain ends anything: twice the evenly spread ones of the search."""

MAX_TRIALS_FOR_BUDGET_WARNING = 50
"""With more trials, a budget no longer counts as too small for one."""


OUTDATED_PART = 16
"""With no more running trials than this, each change counts at once."""


class BudgetReport(NamedTuple):
    """How a budget stands, in hours.

    Attributes:
        unit: what is counted, "GPU" or "trial".
        limit: of the budget; None where there is none.
        used: by all attempts, those that run included.
        reserved: kept for the winner's training; None where nothing is kept.
        gain: the expected gain of the next hour, in units of the metric; None while it is not known.
    """

    unit: str
    limit: float | None
    used: float
    reserved: float | None
    gain: float | None

    @property
    def left(self) -> float | None:
        """The hours that are left."""
        return None if self.limit is None else max(0.0, self.limit - self.used)

    def __str__(self) -> str:
        if self.limit is None or self.left is None:
            parts = [f"{self.used:.3g} {self.unit} hours used"]
        else:
            parts = [f"{self.left:.3g} of {self.limit:g} {self.unit} hours left"]
        if self.reserved:
            parts[0] += f" ({self.reserved:.2g} kept to train the best trial to its end)"
        if self.gain is not None:
            parts.append(f"expected gain of the next hour {self.gain:.3g}")
        return ", ".join(parts)


class _Survey(NamedTuple):
    best: Trial | None  # of the latest finite values
    measured: int
    longest: int  # iterations of the longest trial that came to its own end
    iterations: int  # of all trials


class BudgetPlan:
    """Decides what the hours that are left suffice for."""

    def __init__(self, state: State, algorithms: Algorithms, actions: ActionList) -> None:
        self._state = state
        self._algorithms = algorithms
        self._actions = actions

    # -- decisions ------------------------------------------------------------------------------------------------

    @property
    def plans(self) -> bool:
        """Whether trials are held back for the winner's sake."""
        settings = self._state.required_settings
        return settings.plans_budget and any(True for _ in accounting.limits(settings))

    def holds_back_new(self, now: float) -> bool:
        """Return whether no new trial may be created now."""
        budget = self._state.budget
        if budget.closing is not None or budget.evaluating or self._repeating():
            return True
        return self.plans and not self._suffices(None, now)

    def _repeating(self) -> bool:
        """Return whether the winner is being named: no other trial starts in between."""
        if self._state.required_settings.repeats is None:
            return False
        return any(not trial.ended for trial in self._state.standings.repeats)

    def admits(self, trial: Trial) -> bool:
        """Return whether a paused trial may run on to its next rung."""
        if self._state.budget.closing is not None:
            return False
        return not self.plans or self._suffices(trial, self._state.clock.now)

    def passes(self, trial: Trial) -> bool:
        """Return whether a running trial that passes a rung may run on to its next."""
        if self._state.settings is None or not (self.plans or self._state.budget.closing is not None):
            return True
        return self.finishes(trial) or self.admits(trial)

    def finishes(self, trial: Trial) -> bool:
        """Return whether a trial is to be trained to its end: the best one, when nothing else may start."""
        closing = self._state.budget.closing is not None
        if not closing and not (self.plans and self.holds_back_new(self._state.clock.now)):
            return False
        return self._survey().best is trial

    def winner(self) -> Trial | None:
        """Return the best trial if it is paused, and is to be trained to its end now that nothing else runs."""
        if not (self.plans or self._state.budget.closing is not None):
            return None
        best = self._survey().best
        return best if best is not None and best.status == PAUSED else None

    def not_worth(self, now: float) -> dict[str, Any] | None:
        """Return why no further hour is worth it; None when it is, or that is not known."""
        threshold = self._state.required_settings.stop_when_not_worth
        if threshold is None or self._state.budget.closing is not None:
            return None
        gain = self.expected_gain(now)
        if gain is None or gain >= threshold or self._survey().measured < MIN_TRIALS:
            return None
        kind = self.kind
        used = accounting.hours_used(self._state, kind, now)
        return {"source": "not_worth", "gain": gain, "threshold": threshold, "of": kind, "used": used}

    def warn_if_too_small(self, now: float) -> None:
        """Say once that a budget is too small for one full training."""
        if not self.plans or len(self._state.trials) > MAX_TRIALS_FOR_BUDGET_WARNING:
            return
        survey = self._survey()
        full = self._full_training(survey)
        if full is None or not survey.iterations:
            return
        for field, kind, hours in accounting.limits(self._state.required_settings):
            cost = full * self._mean_rate(kind, now, survey) / accounting.HOUR_S
            if cost > hours:
                self._actions.warn_once("budget", partial(self._too_small, field, kind, hours, cost))

    def _too_small(self, field: str, kind: str, hours: float, cost: float) -> str:
        return (
            f"{self._state.required_settings.vocabulary.field(field)}: {hours:g} {kind} hours are too little for one "
            f"full training, which takes about {cost:.3g}; half of them go to the search, and the best trial is "
            "trained as far as the rest goes"
        )

    # -- messages ------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """What hours are counted in: those of the budget; without one "GPU" where trials have any, else "trial"."""
        settings = self._state.required_settings
        if settings.max_gpu_hours is not None:
            return "GPU"
        if settings.max_trial_hours is not None:
            return "trial"
        return "GPU" if accounting.hours_used(self._state, "GPU", self._state.clock.now) > 0 else "trial"

    def expected_gain(self, now: float) -> float | None:
        """Return by how much the next hour is expected to improve the metric; None while that is not known."""
        history = self._state.budget.improvements
        used = accounting.hours_used(self._state, self.kind, now)
        if not history or used <= 0:
            return None
        column = 1 if self.kind == "GPU" else 0
        before = [value for *spent, value in history if spent[column] <= used / 2 * accounting.HOUR_S]
        if not before:
            return None
        return float(abs(history[-1][2] - before[-1]) * math.log2(1 + 1 / used))

    def reserved_hours(self, now: float) -> float | None:
        """Return the hours kept for the winner's training; None where nothing is kept."""
        settings = self._state.required_settings
        if not self.plans:
            return None
        field_kind_hours = next(iter(_by_kind(self._state.required_settings, self.kind)), None)
        if field_kind_hours is None:
            return None
        survey = self._survey()
        best = survey.best
        if best is not None and best.status in (TERMINATED, ERROR) and settings.repeats is None:
            return 0.0
        _, kind, hours = field_kind_hours
        full = self._full_training(survey)
        if full is None:
            return hours / 2
        done = 0 if best is None else best.iteration
        rate = self._mean_rate(kind, now, survey) if best is None else self._rate(best, kind, now, survey)
        repeats, mean = settings.repeats, self._mean_rate(kind, now, survey)
        more = 0.0
        if repeats is not None:
            done_repeats = sum(trial.ended for trial in self._state.standings.repeats)
            more = max(0, repeats.top * repeats.times - done_repeats) * full * mean
        return min((max(0.0, full - done) * rate + more) / accounting.HOUR_S, hours / 2)

    def report(self, now: float) -> BudgetReport | None:
        """Return how the budget stands; None where nothing is planned."""
        settings = self._state.settings
        if settings is None or not (self.plans or settings.stop_when_not_worth is not None):
            return None
        kind = self.kind
        limit = next((hours for _, _, hours in _by_kind(settings, kind)), None)
        used = accounting.hours_used(self._state, kind, now)
        return BudgetReport(kind, limit, used, self.reserved_hours(now), self.expected_gain(now))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _suffices(self, candidate: Trial | None, now: float) -> bool:
        """Return whether the hours left suffice for a candidate's next stretch, and then for the winner.

        None is a new trial.
        """
        survey = self._survey()
        if not survey.iterations:
            return True
        full = self._full_training(survey)
        for _, kind, hours in accounting.limits(self._state.required_settings):
            mean = self._mean_rate(kind, now, survey)
            left = hours * accounting.HOUR_S - accounting.hours_used(self._state, kind, now) * accounting.HOUR_S
            ahead = self._ahead(kind, full, now, survey)
            known = 0.0 if candidate is None else ahead.stretches.get(candidate.trial_id, 0.0)
            stretch, rest = self._stretch(candidate, kind, full, now, survey)
            stretches, rests = ahead.total - known + stretch, [ahead.longest, rest]
            best = survey.best
            if full is not None and best is not None and best.status == PAUSED:
                rests.append(max(0.0, full - best.iteration) * self._rate(best, kind, now, survey))
            half = hours * accounting.HOUR_S / 2
            repeats = self._state.required_settings.repeats
            more = 0.0 if repeats is None or full is None else repeats.top * repeats.times * full * mean
            reserve = half if full is None else min(max(rests) + more, half)
            if left < stretches + reserve:
                return False
        return True

    def _ahead(self, kind: str, full: float | None, now: float, survey: _Survey) -> Ahead:
        """Return what the running trials have ahead of them."""
        budget, running = self._state.budget, self._state.running
        if kind not in budget.ahead or budget.changes * OUTDATED_PART >= max(1, len(running)):
            trials, found = self._state.running_trials(), {}
            for _, each, _ in accounting.limits(self._state.required_settings):
                parts = {trial.trial_id: self._stretch(trial, each, full, now, survey) for trial in trials}
                stretches = {trial_id: stretch for trial_id, (stretch, _) in parts.items()}
                longest = max((rest for _, rest in parts.values()), default=0.0)
                found[each] = Ahead(stretches, math.fsum(stretches.values()), longest)
            budget.foresee(found)
        return budget.ahead[kind]

    def _stretch(
        self, trial: Trial | None, kind: str, full: float | None, now: float, survey: _Survey
    ) -> tuple[float, float]:
        """Return the device-seconds until a trial is judged next, and from there to its end; None is a new trial."""
        at = 0.0 if trial is None else float(trial.iteration)
        rate = self._mean_rate(kind, now, survey) if trial is None else self._rate(trial, kind, now, survey)
        until = self._next_stop(trial, full)
        return max(0.0, until - at) * rate, 0.0 if full is None else max(0.0, full - until) * rate

    def _next_stop(self, trial: Trial | None, full: float | None) -> float:
        """Return the iteration to which a trial runs before it is judged again."""
        if trial is None:
            first = getattr(self._algorithms.scheduler, "first_rung", None)
            stops = [] if first is None else [float(first)]
        else:
            stops = [each.at for each in self._algorithms.horizons(trial) if each.attr == ITERATION]
        ahead = [stop for stop in stops if trial is None or stop > trial.iteration]
        if full is not None:
            ahead.append(full)
        at = 0.0 if trial is None else float(trial.iteration)
        return max(at, min(ahead, default=at + 1))

    def _full_training(self, survey: _Survey) -> float | None:
        rules = self._state.required_settings.stop_rules
        stated = min((rule.value for rule in rules if rule.key == ITERATION), default=None)
        return stated if stated is not None else float(survey.longest) if survey.longest else None

    def _rate(self, trial: Trial, kind: str, now: float, survey: _Survey) -> float:
        """Return what one iteration of a trial takes, in device-seconds."""
        taken = accounting.taken_by(trial, kind, now)
        return taken / trial.iteration if trial.iteration and taken else self._mean_rate(kind, now, survey)

    def _mean_rate(self, kind: str, now: float, survey: _Survey) -> float:
        return accounting.hours_used(self._state, kind, now) * accounting.HOUR_S / max(1, survey.iterations)

    def _survey(self) -> _Survey:
        standings = self._state.standings
        best = standings.best(self._state.get_trials(), self._state.required_settings.mode)
        return _Survey(best, standings.measured, standings.longest, standings.iterations)


def _by_kind(settings: Any, kind: str) -> list[tuple[str, str, float]]:
    return [each for each in accounting.limits(settings) if each[1] == kind]
