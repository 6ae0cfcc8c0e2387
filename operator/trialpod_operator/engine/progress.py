"""Attempts that run and report nothing: a warning after half of the progress deadline, then the attempt fails.

Results and checkpoints are progress, and so is the beginning of an attempt. A trial that has to end or to pause
has nothing to report any more.
"""

from __future__ import annotations

from trialpod.protocol.messages import AttemptEnd
from trialpod_operator.engine.actions import ActionList, Warned
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import Trial


class ProgressDeadline:
    """Enforces the progress deadline of all attempts.

    Attributes:
        due: when to check next; never later than the first moment at which `enforce` has something to do. None: at
            the next event.
    """

    def __init__(self, state: State, actions: ActionList) -> None:
        self._state = state
        self._actions = actions
        self.due: float | None = None

    def record(self, trial: Trial) -> None:
        """The trial's attempt has begun, or has come further."""
        now = self._state.clock.now
        trial.record_progress(now)
        settings = self._state.settings
        if settings is not None and settings.progress_deadline_s is not None and self.due is not None:
            self.due = min(self.due, now + settings.progress_deadline_s / 2)

    def reset(self) -> None:
        """The deadline may have changed: check at the next event."""
        self.due = None

    def enforce(self, now: float) -> None:
        """Warn of attempts that were silent for half of the deadline, and end those that were for all of it."""
        limit = self._state.required_settings.progress_deadline_s
        if limit is None or self._state.flags.suspended or not self._state.running:
            self.due = None
        elif self.due is None or now >= self.due:
            dues = [self._check(trial, now, limit) for trial in self._state.running_trials()]
            self.due = min((due for due in dues if due is not None), default=None)

    def _check(self, trial: Trial, now: float, limit: float) -> float | None:
        """Check one attempt, and return when to do so again; None: never."""
        current = trial.current
        ends = current.decision is not None or trial.completion_reported or current.failing is not None
        if ends or not current.last_progress_at:
            return None
        silent = now - current.last_progress_at
        if silent >= limit:
            trial.miss_deadline(
                AttemptEnd(
                    cause="failed",
                    error=f"it reported nothing for {limit:g} s (spec.progressDeadline): it hangs, or takes longer "
                    "for a result; report more often, or raise spec.progressDeadline",
                )
            )
            self._actions.stop_attempt(trial)
            return None
        if silent >= limit / 2 and not current.silence_warned:
            trial.warn_silence()
            text = f"trial {trial.trial_id} has reported nothing for {round(silent, 1):g} s"
            self._actions.add(Warned(f"{text}; its attempt fails after {limit:g} s (spec.progressDeadline)", trial))
        return current.last_progress_at + (limit if current.silence_warned else limit / 2)
