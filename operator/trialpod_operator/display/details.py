"""What a person sees who asks for more than progress: every result; then decisions and checkpoints too.

The lines about results are bounded like what trials print: the others are counted, and are in the trials' files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from trialpod.protocol.messages import CheckpointInfo
from trialpod.storage.layout import RESULT_FILE
from trialpod_operator.display import events
from trialpod_operator.display.base import Display
from trialpod_operator.display.line_budget import LineBudget
from trialpod_operator.display.words import plural
from trialpod_operator.engine.actions import Action, DecisionMade, ResultsApplied
from trialpod_operator.engine.reasons import told
from trialpod_operator.engine.trial import Trial

NOTICE_INTERVAL_S = 5.0


class TrialDetails:
    """Tells a display of single results, decisions and checkpoints, as far as its `detail` asks for them.

    Args:
        display: shows them.
        directory: the experiment's.
        name: the readable name of a trial.
        now: seconds, monotonic.
    """

    def __init__(
        self,
        display: Display,
        directory: str,
        name: Callable[[Trial], str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._display = display
        self._directory = directory
        self._name = name
        self._now = now
        self._budget = LineBudget(now)
        self._hidden = 0
        self._noticed_at = now()

    def action(self, action: Action) -> None:
        """Tell of what the engine did."""
        match action:
            case ResultsApplied(trial=trial, results=results):
                shown = self._budget.spend(len(results))
                self._hidden += len(results) - shown
                for result in results[:shown]:
                    everything = self._display.detail > 1
                    self._display.event(events.trial_result(trial, self._name(trial), result, everything=everything))
            case DecisionMade(trial=trial, decision=decision, reason=reason) if self._display.detail > 1:
                if self._budget.spend(1):
                    words = told(decision, reason, trial.iteration)
                    self._display.event(events.trial_decision(trial, self._name(trial), decision, words))

    def committed(self, trial: Trial, infos: Iterable[CheckpointInfo]) -> None:
        """Tell of checkpoints that are complete."""
        if self._display.detail > 1:
            for info in infos:
                if self._budget.spend(1):
                    self._display.event(events.checkpoint_saved(trial, self._name(trial), info))

    def poll(self, *, last: bool = False) -> None:
        """Tell now and then how many results were not shown."""
        if self._hidden and (last or self._now() - self._noticed_at >= NOTICE_INTERVAL_S):
            where = f"{self._directory}/*/{RESULT_FILE}"
            self._display.event(
                events.Event("results_hidden", message=f"{plural(self._hidden, 'result')} not shown: {where}")
            )
            self._hidden = 0
            self._noticed_at = self._now()
