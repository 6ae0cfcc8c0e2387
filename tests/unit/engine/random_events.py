"""Random events for an engine whose trials pause, save, fail, and are restored with it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from engine_support import raw, result

from trialpod.protocol.messages import AttemptEnd, CheckpointInfo
from trialpod_operator.engine import events
from trialpod_operator.engine.actions import StartAttempt
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import Trial

ENDS: dict[str | None, Any] = {"stop": "stopped", "pause": "paused", "exploit": "paused", None: "completed"}
SCORES = [0.0, 1.0, 1.0, 2.0, 3.0, 5.0, math.nan, -math.inf]


class RandomEvents:
    """Plays them.

    Args:
        make: makes the engine; also after a restart.
        plan: of the experiment.
        seed: of what happens.
    """

    def __init__(self, make: Callable[[], Engine], plan: Settings, seed: int) -> None:
        self._choose = random.Random(seed)
        self._make = make
        self._saves = self._choose.choice([0.2, 0.9, 1.0])
        self._now = 1e9
        self.engine = make()
        self.log: list[tuple[Any, ...]] = []
        """What was decided: the trials that started with what parameters, and the decisions about each."""
        self._apply(events.SettingsObserved(settings=plan))

    def play(self, steps: int) -> list[tuple[Any, ...]]:
        """Apply so many events, and return the log."""
        for _ in range(steps):
            choose, state = self._choose, self.engine.state
            live = sorted(state.running.values(), key=lambda trial: trial.index)
            drawn = choose.random()
            self._now += choose.choice([0.0, 1.0, 40.0])
            if drawn < 0.03:
                self._restart()
            elif drawn < 0.06:
                trial = choose.choice([*state.trials.values()])
                self._apply(events.StopRequested(trial_id=trial.trial_id))
            elif drawn < 0.09:
                self._apply(events.SuspendRequested())
            elif drawn < 0.2 or not live:
                self._apply(choose.choice([events.ResumeRequested(), events.TimerFired()]))
                if choose.random() < 0.2:
                    self._apply(events.RetryRequested(from_scratch=choose.random() < 0.5))
                    self._apply(events.CapacityObserved(slots=choose.choice([None, None, 2, 5])))
            else:
                self._attempt(choose.choice(live))
        return self.log

    def _attempt(self, trial: Trial) -> None:
        drawn, attempt = self._choose.random(), trial.attempt
        decided = trial.current.decision
        if drawn < 0.04:
            for checkpoint in trial.checkpoints[-1:]:
                self._apply(self._loss(trial, checkpoint.name))
        elif decided is not None or drawn < 0.15:
            other = self._choose.choice(["failed", "lost", "preempted", "damaged", "completed"])
            cause = ENDS[decided] if decided is not None and drawn < 0.9 else other
            end = AttemptEnd(cause=cause, error="why")
            self._apply(events.AttemptEnded(trial_id=trial.trial_id, attempt=attempt, end=end))
        else:
            self._report(trial)

    def _loss(self, trial: Trial, name: str) -> events.AnyEvent:
        if self._choose.random() < 0.5:
            return events.CheckpointDamaged(trial_id=trial.trial_id, name=name)
        return events.CheckpointsChanged(trial_id=trial.trial_id, attempt=trial.attempt, unneeded=[name])

    def _report(self, trial: Trial) -> None:
        at = trial.iteration if trial.current.received else (trial.checkpoint.iteration if trial.checkpoint else 0)
        at += self._choose.choice([1, 1, 1, 2])
        committed = []
        if self._choose.random() < self._saves:
            index = trial.next_checkpoint_index
            metrics = {"training_iteration": at}
            committed = [CheckpointInfo(f"c{index}", index, at, metrics, trial.attempt)]
        event = events.ResultsReceived(
            trial_id=trial.trial_id,
            attempt=trial.attempt,
            first=trial.current.received + 1,
            results=[raw(result(at, self._choose.choice(SCORES)))],
            committed=committed,
        )
        self._apply(event)

    def _restart(self) -> None:
        before, self.engine = self.engine, self._make()
        self.engine.restore(before.snapshot())
        live = [(trial.trial_id, trial.attempt) for trial in self.engine.state.running_trials()]
        self._apply(events.Recovered(live=[each for each in live if self._choose.random() < 0.8]))

    def _apply(self, event: events.AnyEvent) -> None:
        actions = self.engine.apply(event, self._now)
        starts = [(each.trial.trial_id, each.trial.params) for each in actions if isinstance(each, StartAttempt)]
        decisions = [
            (trial.trial_id, trial.status, trial.tag, trial.decision_count, trial.decision_log)
            for trial in self.engine.state.trials.values()
            if not trial.ended or trial.trial_id == getattr(event, "trial_id", None)
        ]
        self.log.append((type(event).__name__, starts, decisions))
