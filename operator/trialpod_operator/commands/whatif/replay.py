"""Repeats the decisions about the recorded curves of an experiment, under another scheduler.

The real engine runs on a virtual clock: trials start in the order in which they were created, with their configs,
report what they reported, and each step takes as long as it took. What is recorded is all that is known: a trial that
the other scheduler would have let continue beyond its last result ends there, and is counted as cut short by the
record. Time for starting and resuming is not counted.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import AttemptEnd, CheckpointInfo, EndCause
from trialpod.protocol.nested import flatten_row
from trialpod.protocol.readable import real_number
from trialpod.protocol.values import metrics_encoder
from trialpod.storage.base import KeyMissingError, Storage
from trialpod.storage.layout import RESULT_FILE
from trialpod.tune.result_keys import GPU_SECONDS, TIME_TOTAL_S, TRAINING_ITERATION
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod_operator.engine.actions import Action, ExperimentFinished, StartAttempt
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.events import (
    AttemptEnded,
    AttemptStarted,
    CapacityObserved,
    ResultsReceived,
    SettingsObserved,
)
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.trial import Trial

Json = dict[str, Any]


@dataclass
class RecordedTrial:
    """What is recorded of a trial.

    Attributes:
        trial_id: its id.
        config: its parameters.
        results: its results in order, each with a higher iteration than the one before.
        seconds: how long each took.
        cut_short: it was stopped, or has not ended: it could have continued.
    """

    trial_id: str
    config: Json
    results: list[Json]
    seconds: list[float]
    cut_short: bool


@dataclass
class Decided:
    """What the other scheduler makes of a trial.

    Attributes:
        results: how many of its results it would have reported.
        stopped: the scheduler ends it before its last result, or leaves it paused.
        beyond: the scheduler lets it continue after the record ends.
    """

    results: int = 0
    stopped: bool = False
    beyond: bool = False


@dataclass
class WhatIf:
    """The recorded experiment beside the one under the other scheduler.

    Attributes:
        trials: what was recorded.
        decided: of each trial by its id.
        recorded_s: training time that is recorded, in seconds.
        spent_s: training time under the other scheduler.
    """

    trials: list[RecordedTrial]
    decided: dict[str, Decided] = field(default_factory=dict)
    recorded_s: float = 0.0
    spent_s: float = 0.0

    def ranking(self, metric: str, mode: str, *, decided: bool) -> list[tuple[str, float]]:
        """Return trials with their last value, best first; as recorded, or as far as they would have come."""
        found = []
        for trial in self.trials:
            count = self.decided[trial.trial_id].results if decided else len(trial.results)
            value = trial.results[count - 1].get(metric) if count else None
            if isinstance(value, (int, float)) and math.isfinite(value):
                found.append((trial.trial_id, float(value)))
        sign = 1 if mode == "min" else -1
        return sorted(found, key=lambda pair: sign * pair[1])


def recorded_trial(trial: Trial, data: bytes) -> RecordedTrial:
    """Return what a trial's ``result.json`` tells; results that were repeated after a restart count once."""
    results: dict[int, Json] = {}
    last: int | None = None
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            result = json.loads(line)
        except ValueError:
            continue  # a damaged line: that one alone is left out
        iteration = result.get(TRAINING_ITERATION) if isinstance(result, dict) else None
        if isinstance(iteration, int):
            if last is not None and iteration <= last:
                results = {known: each for known, each in results.items() if known < iteration}
            results[iteration] = flatten_row(result)
            last = iteration
    rows = list(results.values())
    seconds, before = [], 0.0
    for row in rows:
        total = row.get(TIME_TOTAL_S)
        seconds.append(max(float(total) - before, 1e-6) if isinstance(total, (int, float)) else 1.0)
        before = float(total) if isinstance(total, (int, float)) else before + 1.0
    return RecordedTrial(trial.trial_id, trial.config, rows, seconds, trial.stopped or not trial.ended)


def read_trials(storage: Storage, trials: Sequence[tuple[Trial, str]]) -> list[RecordedTrial]:
    """Return the trials that reported something.

    Args:
        storage: of the experiment.
        trials: each with the name of its directory.

    Raises:
        StorageError: the storage cannot be read.
    """
    found = []
    for trial, dirname in trials:
        try:
            data = storage.read(f"{dirname}/{RESULT_FILE}")
        except KeyMissingError:
            continue
        recorded = recorded_trial(trial, data)
        if recorded.results:
            found.append(recorded)
    return found


def highest(trials: Sequence[RecordedTrial], time_attr: Any) -> float:
    """Return the highest recorded value of the result key that measures progress.

    Raises:
        InvalidInputError: no result has it as a number.
    """
    name = TIME_TOTAL_S if time_attr == GPU_SECONDS else time_attr
    values = (real_number(result.get(str(name))) for trial in trials for result in trial.results)
    found = max((value for value in values if value is not None and math.isfinite(value)), default=None)
    if found is None:
        raise InvalidInputError(
            f"--set time_attr={time_attr}: no recorded result has it as a number; use one that results have, such as "
            f"{TRAINING_ITERATION} or {TIME_TOTAL_S}"
        )
    return found


def concurrency(trials: Sequence[Trial]) -> int:
    """Return how many attempts worked at once at most, as far as the times of attempts are kept."""
    spans: list[tuple[float | None, float | None]]
    spans = [(past.started, past.ended) for trial in trials for past in trial.past_attempts]
    spans += [(trial.current.began_at, trial.current.ended_at) for trial in trials]
    moments = sorted(
        moment
        for began, ended in spans
        if began is not None
        for moment in ((began, 1), (math.inf if ended is None else ended, -1))
    )
    working = most = 0
    for _, change in moments:
        working += change
        most = max(most, working)
    return max(most, 1)


class _Recorded(SearchAlgorithm):
    """Suggests the recorded trials, in their order."""

    learns = False

    def __init__(self, trials: Sequence[RecordedTrial]) -> None:
        self._trials = trials
        self._next = 0

    @property
    def total(self) -> int:
        return len(self._trials)

    def set_num_samples(self, num_samples: int) -> None:
        """Nothing: there are as many as there are."""

    def next_suggestion(self) -> Suggestion | None:
        if self.finished:
            return None
        trial = self._trials[self._next]
        self._next += 1
        return Suggestion(trial.trial_id, trial.config, str(self._next - 1))

    @property
    def finished(self) -> bool:
        return self._next >= len(self._trials)


class _Replay:
    def __init__(self, trials: Sequence[RecordedTrial], settings: Settings, scheduler: TrialScheduler) -> None:
        self.engine = Engine(_Recorded(trials), scheduler)
        self.outcome = WhatIf(list(trials), {trial.trial_id: Decided() for trial in trials})
        self._trials = {trial.trial_id: trial for trial in trials}
        self._events: list[tuple[float, int, str]] = []
        self._count = 0
        self._now = 0.0
        self._settings = settings

    def run(self, max_concurrent: int) -> WhatIf:
        self._apply(CapacityObserved(slots=max_concurrent))
        self._apply(SettingsObserved(settings=self._settings))
        while self._events:
            self._now, _, trial_id = heapq.heappop(self._events)
            self._report(trial_id)
        outcome = self.outcome
        for trial in outcome.trials:
            outcome.recorded_s += sum(trial.seconds)
            decided = outcome.decided[trial.trial_id]
            outcome.spent_s += sum(trial.seconds[: decided.results])
            decided.stopped = decided.results < len(trial.results)
        return outcome

    def _report(self, trial_id: str) -> None:
        recorded, decided = self._trials[trial_id], self.outcome.decided[trial_id]
        trial = self.engine.state.trials[trial_id]
        result = recorded.results[decided.results]
        decided.results += 1
        last = decided.results == len(recorded.results)
        ends = last and not recorded.cut_short
        index, attempt = trial.next_checkpoint_index, trial.attempt
        checkpoint = CheckpointInfo(
            name=f"checkpoint_{index:06}",
            index=index,
            iteration=result[TRAINING_ITERATION],
            metrics={},
            attempt=attempt,
        )
        horizons = self.engine.horizons(trial)
        met = any(result.get(each.attr, -math.inf) >= each.at for each in horizons)
        raw = msgspec.Raw(metrics_encoder.encode({**result, "done": ends}))
        first = trial.current.received + 1
        committed = [checkpoint] if met else []
        self._apply(
            ResultsReceived(trial_id=trial_id, attempt=attempt, first=first, results=[raw], committed=committed)
        )
        decision = self.engine.answer(trial_id, attempt).decision
        if decision == "exploit":
            raise InvalidInputError(
                "a scheduler that gives trials other configs cannot be judged by recorded curves; choose one that "
                "stops or pauses"
            )
        if decision is None and not last:
            self._schedule(trial_id)
            return
        decided.beyond = last and recorded.cut_short and decision is None
        cause: EndCause = "completed" if decision is None else "stopped" if decision == "stop" else "paused"
        self._apply(AttemptEnded(trial_id=trial_id, attempt=attempt, end=AttemptEnd(cause=cause)))

    def _schedule(self, trial_id: str) -> None:
        seconds = self._trials[trial_id].seconds[self.outcome.decided[trial_id].results]
        self._count += 1
        heapq.heappush(self._events, (self._now + seconds, self._count, trial_id))

    def _apply(self, event: Any) -> None:
        beyond: list[StartAttempt] = []
        actions: list[Action] = self.engine.apply(event, 1.0 + self._now)
        for action in actions:
            if isinstance(action, StartAttempt):
                trial_id = action.trial.trial_id
                self._apply(AttemptStarted(trial_id=trial_id, attempt=action.attempt))
                if self.outcome.decided[trial_id].results < len(self._trials[trial_id].results):
                    self._schedule(trial_id)
                else:
                    beyond.append(action)  # it was paused after its last result, and resumes
            elif isinstance(action, ExperimentFinished) and action.state == "Failed":
                raise InvalidInputError(f"under this scheduler the experiment would have failed: {action.message}")
        for action in beyond:
            trial_id = action.trial.trial_id
            self.outcome.decided[trial_id].beyond = True
            self._apply(AttemptEnded(trial_id=trial_id, attempt=action.attempt, end=AttemptEnd(cause="completed")))


def decide_again(
    trials: Sequence[RecordedTrial], settings: Settings, scheduler: TrialScheduler, max_concurrent: int
) -> WhatIf:
    """Return what another scheduler makes of recorded trials.

    Args:
        trials: in the order in which they were created.
        settings: of the experiment; only its name, metric and mode count.
        scheduler: a new one.
        max_concurrent: how many trials run at once.

    Raises:
        InvalidInputError: the scheduler cannot be used with these results, or gives trials other configs.
    """
    plain = Settings(
        name=settings.name,
        trainable_name=settings.trainable_name,
        metric=settings.metric,
        mode=settings.mode,
        num_samples=len(trials),
        max_concurrent=max_concurrent,
        strict_metric=False,
    )
    return _Replay(trials, plain, scheduler).run(max_concurrent)
