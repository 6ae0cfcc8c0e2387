"""The life of attempts: where they run, and how each kind of end changes its trial."""

from __future__ import annotations

from typing import Any

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine import accounting, exploits
from trialpod_operator.engine.actions import ActionList, TrialRequeued, Warned
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.endings import Endings, shorten
from trialpod_operator.engine.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointDamaged,
    CheckpointsChanged,
    FailureObserved,
)
from trialpod_operator.engine.progress import ProgressDeadline
from trialpod_operator.engine.results import Results, explain_missing_metric
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import PAUSED, PENDING, TERMINATED, Trial

UNMEASURED_LIMIT = 3
"""When this many trials have ended without the metric and no trial ever reported it, the experiment fails."""

BROKEN_LIMIT = 3
"""When the code of this many trials could not be started and none ever ran, the experiment fails."""


class Attempts:
    """Handles events about attempts. An event about any attempt but the current one changes nothing."""

    def __init__(
        self,
        state: State,
        algorithms: Algorithms,
        actions: ActionList,
        endings: Endings,
        results: Results,
        deadline: ProgressDeadline,
    ) -> None:
        self._state = state
        self._algorithms = algorithms
        self._actions = actions
        self._endings = endings
        self._results = results
        self._deadline = deadline

    def started(self, event: AttemptStarted) -> None:
        """Store where the attempt runs."""
        trial = self._state.current_trial(event.trial_id, event.attempt)
        if trial is not None:
            trial.locate_attempt(event.pid, event.hostname, event.node_ip, event.reused_pod, event.pod_uid)
            self._state.standings.begun(trial)
            accounting.start_work(self._state, trial, event.resources)
            self._deadline.record(trial)

    def checkpoints_changed(self, event: CheckpointsChanged) -> None:
        """Add checkpoints that were committed, and forget those that were deleted or may be."""
        trial = self._state.current_trial(event.trial_id, event.attempt)
        if trial is not None:
            self._results.add_checkpoints(trial, event.committed)
            released = [name for name in event.unneeded if (trial.trial_id, name) not in self._state.pins]
            self._state.release_checkpoints(trial, released, event.deleted)

    def checkpoint_damaged(self, event: CheckpointDamaged) -> None:
        """Forget a checkpoint that cannot be restored any more."""
        trial = self._state.trials.get(event.trial_id)
        if trial is not None:
            self._state.remove_checkpoints(trial, {event.name})
            self._actions.add(
                Warned(f"checkpoint {event.name} of trial {trial.trial_id} is missing or damaged", trial)
            )

    def failure_observed(self, event: FailureObserved) -> None:
        """An attempt of several processes cannot complete any more; the first failure counts.

        One that was asked to end before is ending for that reason, and processes that lose each other then do not
        count as a failure. A process fails, too, because another one was lost: until it is confirmed that none was, a
        disruption explains the failure.
        """
        trial = self._state.current_trial(event.trial_id, event.attempt)
        if trial is not None and not trial.completion_reported:
            current = trial.current
            if current.failing is None and current.decision is None:
                trial.fail_later(event.end)
            if event.confirmed:
                trial.confirm_failure()

    def ended(self, event: AttemptEnded, now: float) -> None:
        """End an attempt. The first event about it counts, later ones change nothing."""
        state, trial = self._state, self._state.current_trial(event.trial_id, event.attempt)
        if trial is None:
            return
        had_failed = trial.current.failing is not None
        end = trial.end_attempt(now, event.end)
        decision = trial.current.decision
        stops = decision == "stop" or trial.completion_reported or end.cause in ("completed", "stopped")
        if end.cause == "failed" and end.after_completion:
            accounting.end_attempt(state, trial, now, None)
            state.fail(trial, end)
            self._endings.fail(trial, now)
        elif end.cause == "failed" and (had_failed or not stops):
            accounting.end_attempt(state, trial, now, accounting.FAILED)
            self._fail(trial, end, now)
        elif stops:
            accounting.end_attempt(state, trial, now, None)
            self._complete(trial, end, now)
        elif decision in ("pause", "exploit") or end.cause == "paused":
            saved = trial.pending_exploit is not None or accounting.saved_all(trial)
            accounting.end_attempt(state, trial, now, None if saved else accounting.LOST)
            self._pause(trial)
        else:
            accounting.end_attempt(state, trial, now, accounting.LOST)
            if end.cause == "damaged":
                exploits.undo(state, self._actions, trial, end.error, now)
            else:
                self._disrupt(trial, end, now)

    def _complete(self, trial: Trial, end: AttemptEnd, now: float) -> None:
        stopped = trial.current.decision == "stop"
        if stopped:
            trial.stop()
        if end.cause == "failed":
            when = "while it was being stopped" if stopped else "after its last result"
            self._actions.add(Warned(f"the trial failed {when}: {end.error}", trial))
        elif end.cause == "completed":
            self._state.run_user_code()
        settings = self._state.required_settings
        if settings.metric is not None and settings.strict_metric and not trial.measured and not trial.stopped:
            self._fail_unmeasured(trial, settings.metric, now)
            return
        self._endings.complete(trial, trial.last_result)
        trial.set_error("")
        self._endings.end(trial, TERMINATED, now)

    def _fail_unmeasured(self, trial: Trial, metric: str, now: float) -> None:
        unmeasured = self._state.count_unmeasured()
        trial.set_error(
            explain_missing_metric(metric, trial.last_result)
            if trial.results
            else f"the trial ended without reporting anything; call tune.report({{'{metric}': ...}}) or return it"
        )
        self._endings.fail(trial, now)
        if unmeasured >= UNMEASURED_LIMIT:
            self._endings.stop_all_unless_stopping({"source": "metric", "message": trial.error}, now)

    def _fail(self, trial: Trial, end: AttemptEnd, now: float) -> None:
        self._state.fail(trial, end)
        limit = self._state.required_settings.max_failures
        may_retry = end.retry and (limit < 0 or trial.failures <= limit)
        if may_retry and trial.current.decision == "stop":
            self._endings.log_failure(trial, "failure", now)
            self._complete(trial, end, now)  # it was to be retried, and has been stopped since
        elif may_retry and self._state.flags.stopping is None:
            self._state.run_user_code()
            self._retry(trial, "no limit" if limit < 0 else f"of {limit}", now)
        else:
            self._endings.fail(trial, now)
            if end.retry:
                self._state.run_user_code()
            elif self._state.count_failed_start() >= BROKEN_LIMIT:
                self._endings.stop_all_unless_stopping({"source": "broken", "message": trial.error}, now)

    def _retry(self, trial: Trial, allowed: str, now: float) -> None:
        requeued = TrialRequeued(trial, "failed", f"retry {trial.failures} ({allowed}): {trial.error}")
        if trial.current.decision == "pause":
            # What was decided is not decided again: it is queued, and then it is the retry.
            trial.back_off(now)
            self._endings.log_failure(trial, "retry", now)
            self._actions.add(requeued)
            self._pause(trial)
            return
        self._algorithms.fail_attempt(trial)
        exploits.apply(self._state, self._actions, trial)
        trial.back_off(now)
        self._endings.log_failure(trial, "retry", now)
        self._state.move(trial, PENDING)
        self._algorithms.add_trial(trial)
        self._actions.add(requeued)

    def _pause(self, trial: Trial) -> None:
        source = str(trial.current.decision_reason.get("source", "paused"))
        exploits.apply(self._state, self._actions, trial)
        if trial.current.decision == "exploit":
            self._state.move(trial, PENDING)
            return
        self._state.move(trial, PENDING if source in ("suspend", "resources") else PAUSED)
        self._actions.add(TrialRequeued(trial, "paused", source))

    def _disrupt(self, trial: Trial, end: AttemptEnd, now: float) -> None:
        self._state.disrupt(trial, now)
        self._state.move(trial, PENDING)
        reason: dict[str, Any] = {"source": end.cause, "error": shorten(end.error)}
        trial.log_decision(now, "disruption", reason)
        self._actions.add(TrialRequeued(trial, "disrupted", end.error or end.cause))
