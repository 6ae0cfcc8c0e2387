"""What happens to results: counted once, shown to stopper, scheduler and searcher in Ray's order.

The order for one result: stopper, then the trial's own end (``done``), then the scheduler, then the searcher. Once a
decision has fallen or the trial is done, later results of that attempt (it had reported them before it heard) are
recorded and no more. A suspended experiment has decided nothing about the trial: what it reports until it pauses is
judged, or scheduler and searcher would never learn of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trialpod.errors import nearest
from trialpod.protocol.messages import AUTO_RESULT_KEYS, CheckpointInfo, DecisionKind
from trialpod.protocol.values import ResultReader, open_leniently
from trialpod.protocol.values import number as number_of
from trialpod.tune.schedulers.trial_scheduler import Exploit, TrialScheduler
from trialpod_operator.engine import accounting, exploits, progress
from trialpod_operator.engine.actions import DecisionMade, ResultsApplied
from trialpod_operator.engine.decisions import cut_short, note
from trialpod_operator.engine.events import ResultsReceived
from trialpod_operator.engine.outputs import Verdict
from trialpod_operator.engine.trial import Trial

if TYPE_CHECKING:
    from trialpod_operator.engine.engine import Engine

_PLAIN = frozenset({float, int, str, bool, type(None)})
_MAX_DEPTH = 64


class NewResults(NamedTuple):
    """New results of a batch: as the engine reads them, and as algorithms see them.

    Both are one list if all of them are plain data.
    """

    shown: list[dict[str, Any]]
    opened: list[dict[str, Any]]


def decode_new(engine: Engine, event: ResultsReceived) -> NewResults:
    """Return the results of a batch that are not known yet; none when there is a gap before them.

    A gap needs no error: the answer's `received` makes the attempt send what is missing.

    Raises:
        msgspec.ValidationError: a result is not a MessagePack map from texts to plain data.
    """
    trial = engine.state.trials.get(event.trial_id)
    if trial is None or trial.attempt != event.attempt or not trial.running:
        return NewResults([], [])
    known = trial.received + 1 - event.first
    if known < 0:
        return NewResults([], [])
    reader = engine.result_reader
    reader.typed = False
    new = event.results[known:]
    shown = [_decoded(reader, raw) for raw in new]
    opens = reader.typed and engine.opens_values
    return NewResults(shown, [open_leniently(raw) for raw in new] if opens else shown)


def _decoded(reader: ResultReader, raw: msgspec.Raw) -> dict[str, Any]:
    try:
        result = reader.decode(raw)
    except UnicodeDecodeError as error:
        raise msgspec.ValidationError("a text in a result is not UTF-8") from error
    except RecursionError as error:
        raise msgspec.ValidationError("a result is nested too deep") from error
    if type(result) is not dict:
        raise msgspec.ValidationError(f"a result must be a map of metrics, not {type(result).__name__}")
    for key, value in result.items():
        if type(key) is not str:
            raise msgspec.ValidationError(f"the keys of a result must be text (str), not {key!r:.60}")
        if value.__class__ not in _PLAIN:
            _check(value, key, _MAX_DEPTH)
    return result


def _check(value: Any, key: str, depth: int) -> None:
    """Refuse what the trial's log files have no form for."""
    if depth == 0:
        raise msgspec.ValidationError(f"'{key[:60]}' of a result is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        value = (part for item in value.items() for part in item)
    elif not isinstance(value, (list, tuple, set, frozenset)):
        if isinstance(value, msgspec.msgpack.Ext):
            raise msgspec.ValidationError(
                f"'{key[:60]}' of a result is no plain data, but a MessagePack extension {value.code}"
            )
        return
    for item in value:
        if item.__class__ not in _PLAIN:
            _check(item, key, depth - 1)


def receive(engine: Engine, event: ResultsReceived, fresh: NewResults, now: float) -> None:
    """Apply the new results of a batch, which are its last ones."""
    trial = engine.state.trials[event.trial_id]
    metric = engine.settings.metric
    recorded = engine.recorded
    accounting.begin(engine, trial, {})  # of an attempt whose beginning was noted by an older version
    silent = engine.silent and (recorded is None or not (recorded.verdicts or recorded.commands or recorded.stop_all))
    if event.committed:
        keep_checkpoints(engine, trial, event.committed)
    shown, opened = fresh
    offset = len(event.results) - len(shown)
    for number, result in enumerate(opened, offset):
        trial.received += 1
        trial.results += 1
        if metric is not None:
            _measure(engine, trial, shown[number - offset], metric)
        if trial.completion_told or (trial.decision is not None and not suspending(trial)):
            continue
        done = bool(result.get("done"))
        if done and trial.failing is not None:
            continue  # the attempt has failed: it cannot complete any more
        if not silent:
            trial.result = bytes(event.results[number])
            _judge(engine, trial, result, done, now)
            if trial.decision == "stop" and "done" in result:
                result["done"] = shown[number - offset]["done"] = True  # in the trial's files, and for callbacks
        elif engine.search_listens and not done:
            engine.tell(engine.search.on_trial_result, trial.trial_id, result)
        if done:
            tell_completion(engine, trial, result)
    progress.note(engine, trial)
    last = shown[-1]
    trial.result = bytes(event.results[-1])
    iteration = last.get("training_iteration")
    if type(iteration) is int:
        trial.iteration = iteration
        advance(trial, iteration)
    flags = engine.state.flags
    flags.sound = True
    flags.results += len(shown)
    engine.do(ResultsApplied(trial, event.attempt, shown, opened))


def keep_checkpoints(engine: Engine, trial: Trial, committed: list[CheckpointInfo]) -> None:
    """Note checkpoints that the trial's attempt committed."""
    # One behind the newest is known, or was known and is deleted since: this is a report that comes late once more.
    fresh = [checkpoint for checkpoint in committed if checkpoint.index >= trial.next_checkpoint_index]
    if not fresh:
        return
    trial.checkpoints = sorted([*trial.checkpoints, *fresh], key=lambda checkpoint: checkpoint.index)
    for checkpoint in fresh:
        trial.next_checkpoint_index = max(trial.next_checkpoint_index, checkpoint.index + 1)
        advance(trial, checkpoint.iteration)
    accounting.saved(engine, trial)
    progress.note(engine, trial)
    engine.state.flags.sound = True
    if trial.planted is not None:
        engine.state.plant(trial, trial.change, None)


def advance(trial: Trial, iteration: int) -> None:
    """Note that the trial came this far."""
    if iteration > trial.furthest:
        trial.furthest = iteration
        trial.fruitless = 0


def decide(
    engine: Engine,
    trial: Trial,
    decision: DecisionKind,
    reason: dict[str, Any],
    now: float,
    iteration: int | None = None,
) -> None:
    """Hold a decision for the running attempt and have the shell carry it out."""
    trial.decision = decision
    trial.decision_reason = reason
    note(trial, now, decision, reason, iteration)
    engine.do(DecisionMade(trial, decision, reason))
    engine.stop_attempt(trial)


def suspending(trial: Trial) -> bool:
    """Return whether the running attempt ends only because the experiment is suspended."""
    return trial.decision == "pause" and trial.decision_reason.get("source") == "suspend"


def tell_completion(engine: Engine, trial: Trial, result: dict[str, Any]) -> None:
    """Tell scheduler and searcher, once, that the trial completed with `result`."""
    if not trial.completion_told:
        trial.completion_told = True
        engine.ask(engine.scheduler.on_trial_complete, engine.controller, trial, result)
        stopped = trial.decision == "stop" and cut_short(trial.decision_reason)
        tell = engine.search.on_trial_stopped if stopped else engine.search.on_trial_complete
        engine.tell(tell, trial.trial_id, result)


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
    if value.__class__ is not float:
        value = number_of(value)
    if value is not None:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if value > 0 else -math.inf
        # NaN after a number does not void it: what the trial found until then counts.
        if trial.value is None or math.isfinite(number) or not math.isfinite(trial.value):
            trial.value = number
            iteration = result.get("training_iteration")
            trial.value_iteration = iteration if type(iteration) is int else None
        trial.measured = True
        engine.state.flags.measured = True
    elif not engine.state.flags.measured:
        engine.warn_once(
            "metric",
            lambda: explain_missing_metric(metric, result, "is not in the first result"),
            trial,
        )


def _judge(engine: Engine, trial: Trial, result: dict[str, Any], done: bool, now: float) -> None:
    verdict = _consult(engine, trial, result, done)
    dropped = verdict is not None and verdict.decision == "stop" and verdict.reason["source"] == "scheduler"
    recorded = engine.recorded
    if recorded is not None:
        known = (item for item in recorded.verdicts if item.trial_id == trial.trial_id)
        verdict = next((item for item in known if item.number == trial.received), None)
    decision = None
    if verdict is not None:
        decision = verdict.decision
        engine.outputs.verdicts.append(verdict)
        if not done:
            _enact(engine, trial, verdict, result, now)
    if decision == "stop":
        trial.completion_told = True
        if not dropped:  # a scheduler that stops a trial is done with it
            engine.ask(engine.scheduler.on_trial_complete, engine.controller, trial, result)
        early = verdict is not None and cut_short(verdict.reason)
        tell = engine.search.on_trial_stopped if early else engine.search.on_trial_complete
        engine.tell(tell, trial.trial_id, result)
    elif not done and engine.search_listens:
        engine.tell(engine.search.on_trial_result, trial.trial_id, result)
    if decision == "pause" and not done:
        trial.parked = True
        engine.tell(engine.search.on_pause, trial.trial_id)
    engine.controller.carry_out(now)
    stop_everything(engine, trial.received, now)


def _enact(engine: Engine, trial: Trial, verdict: Verdict, result: dict[str, Any], now: float) -> None:
    iteration = result.get("training_iteration")
    at = iteration if type(iteration) is int else None
    if verdict.decision == "continue":
        note(trial, now, "continue", verdict.reason, at)
        return
    if verdict.change is not None:
        engine.state.plant(trial, verdict.change, trial.planted)
    decide(engine, trial, verdict.decision, verdict.reason, now, at)


def _consult(engine: Engine, trial: Trial, result: dict[str, Any], done: bool) -> Verdict | None:
    """Return what stopper and scheduler decide, None to go on."""
    stopper, scheduler = engine.stopper, engine.scheduler
    if stopper is not None and engine.ask(stopper.__call__, trial.trial_id, result):
        reason = {"source": "stopper", **(engine.ask(stopper.reason) or {})}
        return Verdict(trial.trial_id, trial.received, "stop", reason)
    if done:
        return None
    answer = engine.ask(scheduler.on_trial_result, engine.controller, trial, result)
    if answer is None or answer == TrialScheduler.CONTINUE or answer == TrialScheduler.NOOP:
        return None
    reason = {"source": "scheduler", **(engine.ask(scheduler.reason) or {})}
    if isinstance(answer, Exploit):
        change, problem = exploits.resolve(engine, trial, answer)
        if change is None:
            reason |= {"source_trial": answer.source, "problem": problem}
            return Verdict(trial.trial_id, trial.received, "continue", reason)
        return Verdict(trial.trial_id, trial.received, "exploit", exploits.evidence(change, reason), change)
    if answer == TrialScheduler.STOP:
        return Verdict(trial.trial_id, trial.received, "stop", reason)
    if answer == TrialScheduler.PAUSE:
        return Verdict(trial.trial_id, trial.received, "pause", reason)
    engine.break_down(f"{type(scheduler).__name__}.on_trial_result returned {answer!r:.60}, which is no decision")
    return None


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
