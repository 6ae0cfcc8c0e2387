"""The experiment as a whole: budgets, suspend and resume, retries, recovery, and when it is over."""

from __future__ import annotations

from typing import Any

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine import accounting
from trialpod_operator.engine.actions import ActionList, ExperimentFinished, TrialRequeued, Warned
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.attempts import BROKEN_LIMIT, Attempts
from trialpod_operator.engine.budget_plan import BudgetPlan
from trialpod_operator.engine.chooser import Chooser
from trialpod_operator.engine.endings import Endings
from trialpod_operator.engine.events import AttemptEnded, Recovered, RetryRequested
from trialpod_operator.engine.progress import ProgressDeadline
from trialpod_operator.engine.reasons import explain
from trialpod_operator.engine.repeats import Repeats
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import ERROR, PENDING, TERMINATED

RUNNING, SUSPENDED, SUCCEEDED, FAILED, STOPPED = "Running", "Suspended", "Succeeded", "Failed", "Stopped"

_BUDGETS = ("time_budget", "budget")
"""Sources of an end that an extended budget lifts."""


class Lifecycle:
    """Decides about the experiment as a whole."""

    def __init__(
        self,
        state: State,
        algorithms: Algorithms,
        actions: ActionList,
        endings: Endings,
        attempts: Attempts,
        deadline: ProgressDeadline,
        plan: BudgetPlan,
        repeats: Repeats,
    ) -> None:
        self._plan = plan
        self._repeats = repeats
        self._state = state
        self._algorithms = algorithms
        self._actions = actions
        self._endings = endings
        self._attempts = attempts
        self._deadline = deadline

    def budget_end(self) -> float | None:
        """Return when a budget or a stopper's time ends, in seconds since the epoch, while it is running down."""
        state, clock, settings = self._state, self._state.clock, self._state.settings
        if settings is None or clock.active_since is None or state.flags.stopping:
            return None
        ends: list[float] = []
        if settings.time_budget_s is not None:
            ends.append(clock.active_since + settings.time_budget_s - clock.active_s)
        left = getattr(self._algorithms.stopper, "remaining", None)
        if left is not None:
            ends.append(clock.now + left)
        hours_end = accounting.runs_out_at(state, clock.now)
        if hours_end is not None:
            ends.append(hours_end)
        return min(ends, default=None)

    def enforce_budgets(self, chooser: Chooser, now: float) -> None:
        """Stop everything once a budget is used up; start nothing more once another hour is not worth it."""
        if self._state.clock.active_since is None or self._state.flags.stopping:
            return
        closing = chooser.close(self._plan.not_worth(now))
        if closing is not None:
            self._state.close(closing)
        self._plan.warn_if_too_small(now)
        reason = self._budget_used_up(now)
        if reason is not None:
            self._endings.stop_all(reason, now)

    def _budget_used_up(self, now: float) -> dict[str, Any] | None:
        budget = self._state.required_settings.time_budget_s
        if budget is not None and self._state.clock.active_at(now) >= budget:
            return {"source": "time_budget", "seconds": budget}
        return accounting.used_up(self._state, now)

    # -- what the user asks for -----------------------------------------------------------------------------------

    def suspend(self, now: float) -> None:
        """Pause all trials; the time budget is not charged. What is being stopped, or has finished, stays so."""
        flags = self._state.flags
        if flags.suspended:
            return
        self._state.suspend(SUSPENDED)
        if flags.finished or flags.stopping:
            return
        for trial in self._state.running_trials():
            if trial.current.decision is None and not trial.completion_reported:
                self._endings.decide(trial, "pause", {"source": "suspend"}, now)

    def resume(self) -> None:
        """Continue after `suspend`. Trials that have not yet learned of the pause still pause, and then continue."""
        if self._state.flags.suspended:
            self._state.resume(RUNNING)

    def reopen_after_edit(self, chooser: Chooser, now: float, *, changed: bool) -> None:
        """Continue an experiment that has ended, or is being ended, when nothing that ended it still holds.

        `changed`: the budget was edited, so an end by a stopper, failFast or a missing metric is lifted too.
        """
        flags = self._state.flags
        if changed:
            self._state.close(None)  # it is decided again below
        source = (flags.stopping or {}).get("source")
        if not flags.finished:
            if source in _BUDGETS and self._budget_used_up(now) is None:
                self._reopen()  # more time came before the last trial knew of the end
            return
        lifted = changed or source in (None, "user", "broken", *_BUDGETS)
        wanted = lifted and self._budget_used_up(now) is None
        if wanted and chooser.reopen(possible=not self._algorithms.search_exhausted):
            self._reopen()

    def retry_errors(self, event: RetryRequested, now: float) -> None:
        """Queue the trials in ERROR again; the experiment continues for them even if it was being stopped."""
        state = self._state
        if not state.take_retry_token(event.token):
            return
        failed = [
            trial
            for trial in state.trials.values()
            if (trial.status == ERROR or (event.cut_short and trial.may_be_retried))
            and (not event.trial_ids or trial.trial_id in event.trial_ids)
        ]
        if not failed:
            return
        if self._budget_used_up(now) is not None:
            self._actions.add(Warned("failed trials cannot be retried: the budget is used up; raise it first"))
            return
        if state.flags.finished or state.flags.stopping:
            self._reopen()
        for trial in failed:
            state.reopen_trial(trial, from_scratch=event.from_scratch)
            if event.from_scratch:
                state.drop_exploits(trial)
            trial.log_decision(now, "retry", {"source": "user", "from_scratch": event.from_scratch})
            state.move(trial, PENDING)
            self._algorithms.add_trial(trial)
            self._actions.add(TrialRequeued(trial, "retry", "asked for by the user"))

    def _reopen(self) -> None:
        self._state.reopen(SUSPENDED if self._state.flags.suspended else RUNNING)

    # -- restart and end ------------------------------------------------------------------------------------------

    def recover(self, event: Recovered) -> None:
        """Continue after a restart of the shell: attempts without a process were disrupted."""
        state = self._state
        state.search_progress.wake()
        state.clock.skip_downtime()
        live = {(trial_id, attempt) for trial_id, attempt in event.live}
        # A failure may end the whole experiment, and what was disrupted was so before that.
        for trial in sorted(state.running_trials(), key=lambda trial: trial.current.fails_if_lost):
            if (trial.trial_id, trial.attempt) in live:
                self._deadline.record(trial)  # what it has sent meanwhile may still be on its way
                self._actions.stop_attempt(trial)  # the shell may not have come to it
            else:
                # Unless it is confirmed, a process that is gone may be why the other one failed.
                failing = trial.current.failing if trial.current.fails_if_lost else None
                end = failing or AttemptEnd(cause="lost", error="trialpod itself was interrupted")
                ended = AttemptEnded(trial_id=trial.trial_id, attempt=trial.attempt, end=end)
                self._attempts.ended(ended, state.clock.previous)

    def finish_or_unblock(self, chooser: Chooser, now: float) -> bool:
        """Close the experiment when nothing runs and nothing will.

        Returns:
            True when nothing could happen any more although there is something left, and a paused trial was stopped
            for that reason, or repeats of the best trials were created: then it is worth asking for the next trial
            again.
        """
        state, flags, progress = self._state, self._state.flags, self._state.search_progress
        if flags.finished or state.running:
            return False
        if not flags.stopping:
            expected = state.waiting
            if not chooser.held:
                expected = expected or progress.requested or bool(progress.queued_suggestions)
            if flags.suspended or expected or not state.has_room:
                return False
            if state.paused:
                # The scheduler had its chance to continue them while nothing else was running.
                left = next(iter(state.paused.values()))
                self._endings.stop_trial(left.trial_id, {"source": "scheduler", "rule": "left paused"}, now)
                return True
            if self._repeats.create(chooser, now):
                return True
            if not self._algorithms.search_exhausted and not chooser.held:
                name = self._algorithms.search_name
                self._actions.warn_once("search", lambda: f"{name} has no further suggestion")
        state.finish(*_verdict(state, now, held=chooser.held))
        self._actions.add(ExperimentFinished(flags.state, flags.message))
        return False


def _verdict(state: State, now: float, *, held: bool) -> tuple[str, str]:
    """Return how the experiment has ended, and a message."""
    stopping, words = state.flags.stopping or {}, state.required_settings.vocabulary
    counts = state.counts
    failed, trials = counts.get(ERROR, 0), len(state.trials)
    match stopping.get("source"):
        case "time_budget":
            return STOPPED, f"the time budget of {stopping.get('seconds'):g} s is used up"
        case "budget":
            kind, field = str(stopping.get("of")), words.field(str(stopping.get("budget")))
            used = f"{accounting.hours_used(state, kind, now):.4g} were used"
            limit = f"the budget of {stopping.get('hours'):g} {kind} hours is used up"
            return STOPPED, f"{limit}: {used}; to continue, raise {field}"
        case "user":
            return STOPPED, "stopped by the user"
        case "fail_fast":
            return (
                FAILED,
                f"trial {stopping.get('trial_id')} failed, and {words.fail_fast} is set",
            )
        case "metric" | "algorithm":
            return FAILED, str(stopping.get("message"))
        case "broken":
            failed_early = f"the first {BROKEN_LIMIT} trials failed before their first result"
            return FAILED, f"{failed_early}: {stopping.get('message')}"
        case "stopper":
            return SUCCEEDED, f"the stopper {stopping.get('stopper', '')} ended the experiment"
    if trials and not counts.get(TERMINATED):
        return FAILED, f"all {failed} trials failed" if failed > 1 else "the trial failed"
    parts = [f"{failed} of {trials} trials failed"] if failed else []
    if state.budget.closing is not None:
        parts.append(explain(state.budget.closing))
    elif held and state.required_settings.plans_budget:
        left = "; ".join(
            f"{accounting.hours_used(state, kind, now):.4g} of {hours:g} {kind} hours were used"
            for _, kind, hours in accounting.limits(state.required_settings)
        )
        parts.append(f"what is left of the budget suffices for no further trial: {left}")
    else:
        suggested = sum(not trial.repeat_of for trial in state.trials.values())
        if suggested < state.required_settings.num_samples:
            wanted = state.required_settings.num_samples
            parts.append(f"the search had no further suggestion after {suggested} of {wanted} trials")
    return SUCCEEDED, "; ".join(parts)
