"""HyperBand: brackets of trials that are paused at rungs, compared, and cut down together.

Source: Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization" (2017); the arithmetic of
one bracket is in `hyperband_bracket`.

Invariants:

* A trial below its bracket's milestone continues, whatever the others do. At the milestone it is paused until all
  trials of the bracket are there; the last one to arrive has the bracket cut down and gets its own decision at once.
* A bracket is cut down when it is full, or when no more trials are to be had and there is room for one.
* A trial that reaches `max_t` is stopped at once.
* A trial that jumped over rungs takes part in each of them with its latest value. None is left paused for it.
* A trial that is retried keeps its bracket, and has to reach the milestone again.
"""

from __future__ import annotations

import math
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import EVERY_RESULT, Horizon
from trialpod.tune.plugins.as_ray import decides_as_ray
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.schedulers.hyperband_bracket import LEFT, READY, RUNNING, WAITING, Bracket, Member
from trialpod.tune.schedulers.hyperband_compatible import RUNNING as HYPERBAND_RUNNING
from trialpod.tune.schedulers.hyperband_compatible import RayHyperBand
from trialpod.tune.schedulers.metric_scheduler import (
    RAY_PENDING_TRIALS,
    MetricScheduler,
    check_above,
    check_flag,
    check_rungs,
    check_same_rules,
    encoded,
)
from trialpod.tune.schedulers.trial_scheduler import ControllerView, TrialView
from trialpod.tune.schedulers.waiting_trials import Waiting, WaitingTrials


@algorithm("hyperband")
class HyperBandScheduler(MetricScheduler):
    """Runs brackets of successive halving, the one with the fewest and longest trials first."""

    ABOUT = ("paused, cut down together", "short runs may mislead, and checkpoints")

    NAME = "hyperband"
    LARGEST_FIRST = False

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
        *,
        compatible: bool | None = None,
    ) -> None:
        """Make a scheduler.

        Args:
            time_attr: the result key that measures progress; it must grow.
            metric: the result key to compare; None takes the experiment's.
            mode: "min" or "max"; None takes the experiment's.
            max_t: a trial is stopped when `time_attr` reaches this, in units of `time_attr`; at least 1.
            reduction_factor: about one in so many trials passes a rung; greater than 1.
            stop_last_trials: whether `max_t` ends a trial.
            compatible: decide as Ray Tune does (`hyperband_compatible`), instead of by the rules above; None is True
                in scripts whose ``ray`` is trialpod.

        Raises:
            InvalidInputError: a value cannot be used.
        """
        super().__init__(time_attr, metric, mode)
        check_above("max_t", max_t, 0)
        if max_t < 1:
            raise InvalidInputError(
                f"max_t must be a number of at least 1, got {max_t!r}; use a finer time_attr", parameter="max_t"
            )
        check_above("reduction_factor", reduction_factor, 1)
        check_rungs(1, max_t, reduction_factor)
        check_flag("stop_last_trials", stop_last_trials)
        self._ray: RayHyperBand | None = None
        if decides_as_ray(self, compatible):
            self._ray = RayHyperBand(
                max_t, reduction_factor, stop_last=stop_last_trials, largest_first=self.LARGEST_FIRST
            )
            self.pending_trials = RAY_PENDING_TRIALS
        self._max_t = max_t
        self._eta = reduction_factor
        self._stop_last_trials = stop_last_trials
        levels = round(math.log(max_t) / math.log(reduction_factor)) + 1
        self._levels = [s for s in range(levels) if int(max_t / reduction_factor**s + 1e-9) >= 1]
        self._level_count = levels
        self._brackets: list[Bracket] = []
        self._changed: set[int] = set()  # brackets whose trials changed since the latest choice
        self._complete: set[int] = set()  # those of the others all of whose trials wait for a comparison
        self._waiting = WaitingTrials(self._turn)
        self._place: dict[str, int] = {}  # trial_id -> number of its bracket
        self._num_stopped = 0

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Put the trial into the bracket that is being filled; one that is added again goes back into its own."""
        super().on_trial_add(tune_controller, trial)
        if self._ray is not None:
            self._ray.add(trial.trial_id)
            return
        if trial.trial_id in self._place:
            member = self._member(trial)
            member.seen = False
            self._set(trial.trial_id, RUNNING)
            return
        if not self._brackets or self._brackets[-1].full:
            self._brackets.append(self._new_bracket(len(self._brackets)))
        member = self._brackets[-1].members[trial.trial_id] = Member()
        member.number = len(self._brackets[-1].members)
        self._place[trial.trial_id] = len(self._brackets) - 1
        self._set(trial.trial_id, RUNNING)

    def on_trial_result(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        """Return CONTINUE below the milestone; there PAUSE, or what the comparison says when all have arrived."""
        if self._ray is not None:
            return self._as_ray(self._ray, tune_controller, trial, result)
        bracket, member = self._bracket(trial), self._member(trial)
        time, value = self._read(result)
        if time is None or value is None:
            return self.CONTINUE
        bracket.record(member, time, value)
        self._set(trial.trial_id, RUNNING)
        if time < bracket.milestone or (bracket.last_rung and not self._stop_last_trials):
            return self.CONTINUE
        self._set(trial.trial_id, WAITING)
        if bracket.last_rung:
            self._set(trial.trial_id, LEFT)
            self._num_stopped += 1
            self._explain("max_t", time, value, bracket=self._place[trial.trial_id], max_t=self._max_t)
            return self.STOP
        if bracket.full and bracket.all_wait():
            self._cut_down(tune_controller, bracket, current=trial.trial_id)
        if member.state == READY:
            self._set(trial.trial_id, RUNNING)
            return self.CONTINUE
        if member.state == WAITING:
            self._explain("rung", time, value, bracket=self._place[trial.trial_id], rung=bracket.milestone)
            return self.PAUSE
        return self.STOP

    def on_trial_complete(self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> None:
        """Continue without the trial."""
        if self._ray is not None:
            self._left(self._ray, tune_controller, trial)
            return
        self._leave(trial)
        if trial.trial_id in self._place:
            bracket = self._bracket(trial)
            if bracket.full and bracket.all_wait():
                self._cut_down(tune_controller, bracket)

    def on_trial_remove(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Continue without the trial."""
        self.on_trial_complete(tune_controller, trial, {})

    def on_trial_error(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Continue without the trial, unless it is added again before the next choice."""
        if self._ray is not None:
            self._left(self._ray, tune_controller, trial)
            return
        self._leave(trial)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return a pending trial or one that passed a rung, from the bracket that is least complete."""
        if self._ray is not None:
            return self._chosen(self._ray, tune_controller)
        self._cut_down_complete(tune_controller, only_full=True)
        chosen = self._next_ready(tune_controller)
        if chosen is None and self._no_trial_joins(tune_controller):
            self._cut_down_complete(tune_controller, only_full=False)
            chosen = self._next_ready(tune_controller)
        return chosen

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return the milestone of the trial's bracket."""
        if self._ray is not None:
            at = self._ray.milestone(trial.trial_id) if trial.trial_id in self._ray.places else EVERY_RESULT
            return [] if at is None else [Horizon(self.time_attr, float(at))]
        if trial.trial_id not in self._place:
            return [Horizon("training_iteration", EVERY_RESULT)]
        bracket = self._bracket(trial)
        if bracket.last_rung and not self._stop_last_trials:
            return []
        return [Horizon(self.time_attr, float(bracket.milestone))]

    def debug_string(self) -> str:
        """Return a line per bracket."""
        if self._ray is not None:
            return "\n".join([f"{self.NAME}: {self._ray.stopped} trials stopped", *self._ray.lines()])
        lines = [f"{self.NAME}: {self._num_stopped} trials stopped"]
        for number, bracket in enumerate(self._brackets):
            states = [member.state for member in bracket.members.values()]
            counts = ", ".join(f"{states.count(state)} {state}" for state in (RUNNING, WAITING, READY, LEFT))
            lines.append(
                f"bracket {number}: {bracket.size} trials, rung {bracket.rung + 1} of {len(bracket.milestones)} at "
                f"{bracket.milestone:g}: {counts}"
            )
        return "\n".join(lines)

    def get_state(self) -> dict[str, Any]:
        """Return all brackets."""
        return {
            "version": 1,
            "metric": self.metric,
            "mode": self.mode,
            "max_t": self._max_t,
            "reduction_factor": self._eta,
            "stopped": self._num_stopped,
            "brackets": [bracket.get_state() for bracket in self._brackets],
            **({} if self._ray is None else {"ray": self._ray.get_state()}),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore all brackets.

        Raises:
            InvalidInputError: the state was made with other parameters.
        """
        self._check_saved(state, max_t=self._max_t, reduction_factor=self._eta)
        self.metric, self.mode = state["metric"], state["mode"]
        check_same_rules(self.NAME, self._ray, state)
        if self._ray is not None:
            self._ray.set_state(state["ray"])
        self._num_stopped = state["stopped"]
        self._brackets = [Bracket.from_state(saved, self._eta) for saved in state["brackets"]]
        self._place = {
            trial_id: number for number, bracket in enumerate(self._brackets) for trial_id in bracket.members
        }
        self._changed, self._complete = set(range(len(self._brackets))), set()
        self._waiting = WaitingTrials(self._turn)

    # -- as Ray decides -------------------------------------------------------------------------------------------

    @property
    def supports_buffered_results(self) -> bool:
        """False by Ray's rules, as there: they look at each result."""
        return self._ray is None

    def _as_ray(self, ray: RayHyperBand, controller: ControllerView, trial: TrialView, result: dict[str, Any]) -> str:
        time, value = self._read(result)
        if time is None or value is None:
            return self.CONTINUE

        def waiting(trial_id: str) -> bool:
            return bool(ray.places[trial_id].members[trial_id][0] != HYPERBAND_RUNNING)

        decision, others, evidence = ray.report(trial.trial_id, time, self._sign * value, waiting)
        self._stop_others(controller, others, evidence)
        if decision != self.CONTINUE:
            rule = evidence.pop("rule")
            self._explain(rule, time, value, **evidence)
        return decision

    def _left(self, ray: RayHyperBand, controller: ControllerView, trial: TrialView) -> None:
        if trial.trial_id in ray.places:
            self._stop_others(controller, *ray.leave(trial.trial_id))

    def _chosen(self, ray: RayHyperBand, controller: ControllerView) -> TrialView | None:
        runs = next(iter(controller.running_trials()), None) is not None
        chosen, others, evidence = ray.choose(controller, runs)
        self._stop_others(controller, others, evidence)
        return chosen

    def _stop_others(self, controller: ControllerView, trial_ids: list[str], evidence: dict[str, Any]) -> None:
        for trial_id in trial_ids:
            other = controller.get_trial(trial_id)
            if other is not None:
                controller.stop_trial(other, {"scheduler": self.NAME, "metric": self.metric, **evidence})

    # -- by our rules ---------------------------------------------------------------------------------------------

    def _level(self, number: int) -> int:
        """Return s of the bracket `number`: how many times it is cut down."""
        return self._levels[number % len(self._levels)]

    def _rank_of_brackets(self, numbers: list[int]) -> list[int]:
        """Order brackets by priority for the next place; within a band the least complete one."""
        band = len(self._levels)
        return sorted(numbers, key=lambda number: (number // band, self._brackets[number].completion(), number))

    def _no_trial_joins(self, tune_controller: ControllerView) -> bool:
        """Return whether there is room and no further trial to be had now."""
        return next(iter(tune_controller.pending_trials()), None) is None

    def _new_bracket(self, number: int) -> Bracket:
        s = self._level(number)
        size = math.ceil(self._level_count / (s + 1) * self._eta**s - 1e-9)
        milestones = [float(int(self._max_t / self._eta**k + 1e-9)) for k in range(s, 0, -1)]
        # Each rung lies beyond the one before it, and the last one is where trials end.
        milestones = [*sorted(set(milestones)), float(self._max_t)]
        return Bracket(size, milestones, self._eta)

    def _bracket(self, trial: TrialView) -> Bracket:
        number = self._place.get(trial.trial_id)
        if number is None:
            raise InvalidInputError(
                f"result of trial {trial.trial_id}, which was never added; call on_trial_add first"
            )
        return self._brackets[number]

    def _member(self, trial: TrialView) -> Member:
        return self._bracket(trial).members[trial.trial_id]

    def _leave(self, trial: TrialView) -> None:
        if trial.trial_id in self._place:
            self._set(trial.trial_id, LEFT)

    def _set(self, trial_id: str, state: str) -> None:
        number = self._place[trial_id]
        self._brackets[number].members[trial_id].state = state
        self._changed.add(number)
        self._waiting.touch(trial_id)

    def _cut_down_complete(self, tune_controller: ControllerView, *, only_full: bool) -> None:
        """Cut down the brackets all of whose trials wait."""
        for number in self._changed:
            (self._complete.add if self._brackets[number].all_wait() else self._complete.discard)(number)
        self._changed.clear()
        for number in sorted(self._complete):
            if self._brackets[number].full or not only_full:
                self._cut_down(tune_controller, self._brackets[number])

    def _cut_down(self, tune_controller: ControllerView, bracket: Bracket, current: str | None = None) -> None:
        """Compare all trials of a bracket, once or, when they jumped over rungs, several times."""
        own: dict[str, Any] | None = None
        while bracket.all_wait() and bracket.rungs_left:
            milestone = bracket.milestone
            good, bad, compared, cutoff = bracket.halve(self._sign)
            number = self._place[next(iter(bracket.members))]
            for trial_id, rank in bad:
                member = bracket.members[trial_id]
                self._set(trial_id, LEFT)
                self._num_stopped += 1
                self._explain(
                    "rung",
                    member.time,
                    member.value,
                    bracket=number,
                    rung=milestone,
                    cutoff=encoded(cutoff),
                    rank=rank,
                    compared=compared,
                    kept=bracket.kept,
                )
                if trial_id == current:
                    own = self._reason
                else:
                    self._stop_other(tune_controller, trial_id)
            for trial_id, _ in good:
                member = bracket.members[trial_id]
                if member.time < bracket.milestone or (bracket.last_rung and not self._stop_last_trials):
                    self._set(trial_id, READY)
                elif bracket.last_rung:
                    self._set(trial_id, LEFT)
                    self._num_stopped += 1
                    self._explain("max_t", member.time, member.value, bracket=number, max_t=self._max_t)
                    if trial_id == current:
                        own = self._reason
                    else:
                        self._stop_other(tune_controller, trial_id)
        if own is not None:
            self._reason = own

    def _stop_other(self, tune_controller: ControllerView, trial_id: str) -> None:
        other = tune_controller.get_trial(trial_id)
        if other is not None:
            tune_controller.stop_trial(other, self.reason())

    def _next_ready(self, tune_controller: ControllerView) -> TrialView | None:
        """Return the trial that gets the next place, if one can start now."""
        waiting, band = self._waiting, 0
        waiting.begin_choice(tune_controller)
        while groups := waiting.next_groups(band):
            band = groups[0][0]
            for number in self._rank_of_brackets([number for _, number in groups]):
                trial = waiting.first(tune_controller, (band, number), (band, number + 1))
                if trial is not None:
                    if self._member(trial).state in (READY, LEFT):
                        self._set(trial.trial_id, RUNNING)
                    return trial
            band += 1
        return None

    def _turn(self, waiting: Waiting) -> tuple[int, int, int] | None:
        """Return the band, the bracket and the place in it of a trial that has something to run for."""
        number = self._place.get(waiting.trial.trial_id)
        if number is None:
            return None
        member = self._brackets[number].members[waiting.trial.trial_id]
        if waiting.queue == "paused" and member.state != READY:
            return None
        return number // len(self._levels), number, member.number
