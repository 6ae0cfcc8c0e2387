"""What users ask of an experiment besides its spec: annotations to retry or to stop it, `stop` of a TuneTrial.

Each is given to the engine once, whatever the number of passes that see it: what it has led to is in the engine's
state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from trialpod_operator.cluster.annotations import retry_of, stop_is_asked
from trialpod_operator.engine.events import RetryRequested, StopRequested
from trialpod_operator.engine.trial import ERROR
from trialpod_operator.experiment.durable import DurableExperiment


class RecordRetry(Protocol):
    """Records what a request to retry has led to."""

    def __call__(self, count: int, *, has_failed: bool) -> None:
        """See `EventRecorder.record_retry`."""


def apply_retry(item: Mapping[str, Any], durable: DurableExperiment) -> None:
    """Queue failed trials again, if the experiment's annotation has a value that was not acted on yet."""
    retry = retry_of(item["metadata"])
    if retry is None or retry.value == durable.engine.state.flags.retry_token:
        return
    durable.apply(
        RetryRequested(
            from_scratch=retry.from_scratch,
            cut_short=not retry.trial_ids,
            trial_ids=list(retry.trial_ids),
            token=retry.value,
        )
    )


@contextlib.contextmanager
def retry_recorded(event: RetryRequested, durable: DurableExperiment, record: RecordRetry) -> Iterator[None]:
    """Have recorded what `apply_retry` leads to. To be entered around the application of the event.

    Where a decider decides, that comes later than the request, and its trials may have ended again by the next pass.

    Args:
        event: the request.
        durable: the experiment.
        record: given how many trials were queued again, and whether failed ones are left.
    """
    if event.token in ("", durable.engine.state.flags.retry_token):
        yield
        return
    before = {trial.trial_id for trial in durable.engine.state.get_trials() if trial.ended}
    yield
    state = durable.engine.state
    after = {trial.trial_id for trial in state.get_trials() if trial.ended}
    record(len(before - after), has_failed=state.counts.get(ERROR, 0) > 0)


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
