"""How trials and the experiment are ended: decisions that stop attempts, failFast, and the end of a trial itself."""

from __future__ import annotations

from typing import Any

from trialpod.protocol.messages import DecisionKind
from trialpod_operator.engine import accounting
from trialpod_operator.engine.actions import ActionList, DecisionMade, TrialEnded
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import ERROR, TERMINATED, Trial

MAX_ERROR = 200
"""Maximum length of an error that is stored with a decision in characters; the beginning is kept."""


class Endings:
    """Ends attempts, trials and the experiment."""

    def __init__(self, state: State, algorithms: Algorithms, actions: ActionList) -> None:
        self._state = state
        self._algorithms = algorithms
        self._actions = actions

    def decide(
        self, trial: Trial, decision: DecisionKind, reason: dict[str, Any], now: float, iteration: int | None = None
    ) -> None:
        """Hold a decision for the running attempt and have the shell carry it out."""
        trial.decide(now, decision, reason, iteration)
        self._actions.add(DecisionMade(trial, decision, reason))
        self._actions.stop_attempt(trial)

    def complete(self, trial: Trial, result: dict[str, Any]) -> None:
        """Report, once, to scheduler and searcher that the trial completed with `result`."""
        if trial.take_completion_report():
            current = trial.current
            reason = current.decision_reason if current.decision == "stop" else None
            self._algorithms.complete_trial(trial, result, reason)

    def stop_trial(self, trial_id: str, reason: dict[str, Any], now: float) -> None:
        """Stop one trial, whatever it is doing."""
        trial = self._state.trials.get(trial_id)
        if trial is None or trial.ended:
            return
        if trial.running:
            if trial.current.decision != "stop":
                self.decide(trial, "stop", reason, now)
            return
        if trial.take_completion_report():
            self._algorithms.remove_trial(trial)
        self.end_stopped(trial, reason, now)

    def stop_all(self, reason: dict[str, Any], now: float) -> None:
        """Stop every trial that has not ended, and create no more."""
        state = self._state
        if state.flags.finished:
            return
        state.begin_stopping(reason)
        waiting = [*state.pending.values(), *state.delayed.values(), *state.paused.values()]
        for trial in [*state.running_trials(), *waiting]:
            self.stop_trial(trial.trial_id, reason, now)

    def stop_all_unless_stopping(self, reason: dict[str, Any], now: float) -> None:
        """Stop everything, if that does not happen already for another reason."""
        if self._state.flags.stopping is None:
            self.stop_all(reason, now)

    def fail(self, trial: Trial, now: float) -> None:
        """End a trial that has failed for good."""
        self.log_failure(trial, "failure", now)
        if trial.take_completion_report():
            self._algorithms.fail_trial(trial)
        self.end(trial, ERROR, now)
        if self._state.required_settings.fail_fast:
            self.stop_all_unless_stopping({"source": "fail_fast", "trial_id": trial.trial_id}, now)

    def log_failure(self, trial: Trial, kind: Any, now: float) -> None:
        """Log what follows from a failure ("failure" or "retry"), with the counts that decided it."""
        counts = {"failures": trial.failures, "max_failures": self._state.required_settings.max_failures}
        trial.log_decision(now, kind, {"source": "failure", "error": shorten(trial.error), **counts})

    def end_stopped(self, trial: Trial, reason: dict[str, Any], now: float) -> None:
        """End a trial that does not run before its own end."""
        trial.stop()
        trial.log_decision(now, "stop", reason)
        self.end(trial, TERMINATED, now)

    def end(self, trial: Trial, status: str, now: float) -> None:
        """End a trial that does not run; one in ERROR keeps the checkpoint that a retry would start from."""
        accounting.end_trial(self._state, trial, status)
        trial.end(now)
        self._state.drop_exploits(trial, keep_active=status == ERROR)
        self._state.move(trial, status)
        self._algorithms.end_trial(trial)
        self._actions.add(TrialEnded(trial))


def shorten(text: str) -> str:
    """Return the beginning of an error."""
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}..."
