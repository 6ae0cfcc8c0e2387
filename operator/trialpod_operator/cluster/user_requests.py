"""What users ask of an experiment besides its spec: annotations to retry or to stop it, `stop` of a TuneTrial.

Each is given to the engine once, whatever the number of passes that see it: what it has led to is in the engine's
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trialpod_operator.cluster.annotations import retry_of, stop_is_asked
from trialpod_operator.engine.events import RetryRequested, StopRequested
from trialpod_operator.engine.trial import ERROR
from trialpod_operator.experiment.durable import DurableExperiment


@dataclass(frozen=True, slots=True)
class Retried:
    """What a request to retry has led to: how many trials were queued again, and whether failed ones are left."""

    count: int
    has_failed: bool


def apply_retry(item: Mapping[str, Any], durable: DurableExperiment) -> Retried | None:
    """Queue failed trials again, if the experiment's annotation has a value that was not acted on yet."""
    state = durable.engine.state
    retry = retry_of(item["metadata"])
    if retry is None or retry.value == state.flags.retry_token:
        return None
    before = {trial.trial_id for trial in state.get_trials() if trial.ended}
    durable.apply(
        RetryRequested(
            from_scratch=retry.from_scratch,
            cut_short=not retry.trial_ids,
            trial_ids=list(retry.trial_ids),
            token=retry.value,
        )
    )
    state = durable.engine.state
    after = {trial.trial_id for trial in state.get_trials() if trial.ended}
    return Retried(len(before - after), has_failed=state.counts.get(ERROR, 0) > 0)


def apply_stop(item: Mapping[str, Any], durable: DurableExperiment, trial_ids: Iterable[str]) -> None:
    """Stop all trials when the experiment's annotation says so, else those whose TuneTrial says `stop: true`.

    Args:
        item: the TuneExperiment.
        durable: the experiment.
        trial_ids: of the TuneTrials that say so.
    """
    engine = durable.engine
    if stop_is_asked(item["metadata"]) and not (engine.finished or engine.state.flags.stopping):
        durable.apply(StopRequested())
        return
    for trial_id in trial_ids:
        trial = durable.engine.state.trials.get(trial_id)
        if trial is not None and not trial.ended and trial.current.decision != "stop":
            durable.apply(StopRequested(trial_id=trial.trial_id))
