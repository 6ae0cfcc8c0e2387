"""What happens to results: counted once, shown to stopper, scheduler and searcher in Ray's order.

The order for one result: stopper, then the trial's own end (``done``), then the scheduler, then the searcher. Once a
decision has fallen or the trial is done, later results of that attempt (it had reported them before it heard) are
recorded and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trialpod.errors import nearest
from trialpod.protocol.messages import AUTO_RESULT_KEYS, DecisionKind
from trialpod.protocol.values import opaque_decoder
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod_operator.engine.actions import DecisionMade, ResultsApplied
from trialpod_operator.engine.events import ResultsReceived
from trialpod_operator.engine.outputs import Verdict
from trialpod_operator.engine.trial import Trial

if TYPE_CHECKING:
    from trialpod_operator.engine.engine import Engine


def decode_new(engine: Engine, event: ResultsReceived) -> list[dict[str, Any]]:
    """Return the results of a batch that are not known yet; none when there is a gap before them.

    A gap needs no error: the answer's `received` makes the attempt send what is missing.

    Raises:
        msgspec.ValidationError: a result is not a MessagePack map.
    """
    trial = engine.state.trials.get(event.trial_id)
    if trial is None or trial.attempt != event.attempt or not trial.running:
        return []
    known = trial.received + 1 - event.first
    if known < 0:
        return []
    fresh = [opaque_decoder.decode(raw) for raw in event.results[known:]]
    for result in fresh:
        if type(result) is not dict:
            raise msgspec.ValidationError(f"a result must be a map of metrics, not {type(result).__name__}")
    return fresh


def receive(engine: Engine, event: ResultsReceived, fresh: list[dict[str, Any]], now: float) -> None:
    """Apply the new results of a batch, which are its last ones."""
    trial = engine.state.trials[event.trial_id]
    metric = engine.settings.metric
    recorded = engine.recorded
    silent = engine.silent and (recorded is None or not (recorded.verdicts or recorded.stop_all))
    offset = len(event.results) - len(fresh)
    for number, result in enumerate(fresh, offset):
        trial.received += 1
        trial.results += 1
        if metric is not None:
            _measure(engine, trial, result, metric)
        if trial.decision is not None or trial.completion_told:
            continue
        done = bool(result.get("done"))
        if not silent:
            trial.result = bytes(event.results[number])
            _judge(engine, trial, result, done, now)
        elif engine.search_listens and not done:
            engine.ask(engine.search.on_trial_result, trial.trial_id, result)
        if done:
            tell_completion(engine, trial, result)
    last = fresh[-1]
    trial.result = bytes(event.results[-1])
    iteration = last.get("training_iteration")
    if type(iteration) is int:
        trial.iteration = iteration
        advance(trial, iteration)
    flags = engine.state.flags
    flags.sound = True
    flags.results += len(fresh)
    engine.do(ResultsApplied(trial, event.attempt, fresh))


def advance(trial: Trial, iteration: int) -> None:
    """Note that the trial came this far."""
    if iteration > trial.furthest:
        trial.furthest = iteration
        trial.fruitless = 0


def decide(engine: Engine, trial: Trial, decision: DecisionKind, reason: dict[str, Any]) -> None:
    """Hold a decision for the running attempt and have the shell carry it out."""
    trial.decision = decision
    trial.decision_reason = reason
    engine.do(DecisionMade(trial, decision, reason))
    engine.stop_attempt(trial)


def tell_completion(engine: Engine, trial: Trial, result: dict[str, Any]) -> None:
    """Tell scheduler and searcher, once, that the trial completed with `result`."""
    if not trial.completion_told:
        trial.completion_told = True
        engine.ask(engine.scheduler.on_trial_complete, engine.state, trial, result)
        engine.ask(engine.search.on_trial_complete, trial.trial_id, result)


def explain_missing_metric(metric: str, result: dict[str, Any], what: str = "was never reported") -> str:
    """Say that a metric was not reported, what was, and what may have been meant."""
    reported = sorted(key for key in result if key not in AUTO_RESULT_KEYS)
    if metric in result:
        return f"the metric '{metric}' is not a number but {result[metric]!r:.60}; report a number under that name"
    shown = ", ".join(reported[:10]) + (f" and {len(reported) - 10} more" if len(reported) > 10 else "")
    close = nearest(metric, reported)
    hint = f"; did you mean '{close}'?" if close else ""
    return f"the metric '{metric}' {what}; reported were: {shown or 'none'}{hint}"


def _measure(engine: Engine, trial: Trial, result: dict[str, Any], metric: str) -> None:
    value = result.get(metric)
    if isinstance(value, (int, float)):
        trial.value = float(value)
        trial.measured = True
        engine.state.flags.measured = True
    elif not engine.state.flags.measured:
        engine.warn_once(
            "metric",
            lambda: (
                f"{explain_missing_metric(metric, result, 'is not in the first result')} (trial {trial.trial_id})"
            ),
            trial,
        )


def _judge(engine: Engine, trial: Trial, result: dict[str, Any], done: bool, now: float) -> None:
    decision, reason = _consult(engine, trial, result, done)
    dropped = decision == "stop" and reason["source"] == "scheduler"
    recorded = engine.recorded
    if recorded is not None:
        decision, reason = None, {}
        for verdict in recorded.verdicts:
            if verdict.trial_id == trial.trial_id and verdict.number == trial.received:
                decision, reason = verdict.decision, verdict.reason
    if decision is not None:
        engine.outputs.verdicts.append(Verdict(trial.trial_id, trial.received, decision, reason))
        if not done:
            decide(engine, trial, decision, reason)
    if decision == "stop":
        trial.completion_told = True
        if not dropped:  # a scheduler that stops a trial is done with it
            engine.ask(engine.scheduler.on_trial_complete, engine.state, trial, result)
        engine.ask(engine.search.on_trial_complete, trial.trial_id, result)
    elif not done and engine.search_listens:
        engine.ask(engine.search.on_trial_result, trial.trial_id, result)
    stop_everything(engine, trial.received, now)


def _consult(
    engine: Engine, trial: Trial, result: dict[str, Any], done: bool
) -> tuple[DecisionKind | None, dict[str, Any]]:
    stopper, scheduler = engine.stopper, engine.scheduler
    if stopper is not None and engine.ask(stopper.__call__, trial.trial_id, result):
        return "stop", {"source": "stopper", **(engine.ask(stopper.reason) or {})}
    if done:
        return None, {}
    verdict = engine.ask(scheduler.on_trial_result, engine.state, trial, result)
    if verdict == TrialScheduler.STOP:
        return "stop", {"source": "scheduler", **(engine.ask(scheduler.reason) or {})}
    if verdict == TrialScheduler.PAUSE:
        return "pause", {"source": "scheduler", **(engine.ask(scheduler.reason) or {})}
    return None, {}


def stop_everything(engine: Engine, number: int, now: float) -> None:
    """End the experiment when the stopper says so.

    Args:
        engine: the experiment.
        number: of the result that was just judged, within its attempt; 0 when it is only time that went by.
        now: seconds since the epoch.
    """
    stopper, recorded = engine.stopper, engine.recorded
    reason: dict[str, Any] | None = None
    if stopper is not None and engine.state.flags.stopping is None and engine.ask(stopper.stop_all):
        reason = {"source": "stopper", **(engine.ask(stopper.reason) or {})}
    if recorded is not None:
        reason = recorded.stop_all if recorded.stop_all_at == number else None
    if reason is not None and engine.state.flags.stopping is None and not engine.finished:
        engine.outputs.stop_all = reason
        engine.outputs.stop_all_at = number
        engine.stop_all(reason, now)
