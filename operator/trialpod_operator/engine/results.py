"""What happens to results: counted once, shown to stopper, scheduler and searcher in Ray's order.

The order for one result: stopper, then the trial's own end (``done``), then the scheduler, then the searcher. After a
decision, or when the trial is done, later results of that attempt (reported before it learned of that) are recorded
and no more. A suspended experiment has decided nothing about the trial: what it reports until it pauses is judged, or
scheduler and searcher would never learn of it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec

from trialpod.errors import nearest
from trialpod.protocol.messages import AUTO_RESULT_KEYS, CheckpointInfo
from trialpod.protocol.values import ResultReader, open_leniently
from trialpod.protocol.values import number as number_of
from trialpod.tune.plugins.objectives import Objective, point_of
from trialpod.tune.result_keys import DEFAULT_METRIC, GPU_SECONDS
from trialpod.tune.schedulers.trial_scheduler import Exploit, TrialScheduler
from trialpod_operator.engine import accounting, exploits
from trialpod_operator.engine.actions import ActionList, ResultsApplied
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.budget_plan import BudgetPlan
from trialpod_operator.engine.choices import Verdict
from trialpod_operator.engine.chooser import Chooser
from trialpod_operator.engine.commands import Commands
from trialpod_operator.engine.endings import Endings
from trialpod_operator.engine.events import ResultsReceived
from trialpod_operator.engine.progress import ProgressDeadline
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import Trial

_PLAIN = frozenset({float, int, str, bool, type(None)})
_MAX_DEPTH = 64
_MAX_ITERATION = 2**63


class NewResults(NamedTuple):
    """New results of a batch: as the engine reads them, and as algorithms see them.

    Both are one list if all of them are plain data.
    """

    shown: list[dict[str, Any]]
    opened: list[dict[str, Any]]


class Results:
    """Handles results and checkpoints."""

    def __init__(
        self,
        state: State,
        algorithms: Algorithms,
        actions: ActionList,
        endings: Endings,
        commands: Commands,
        deadline: ProgressDeadline,
        plan: BudgetPlan,
    ) -> None:
        self._plan = plan
        self._state = state
        self._algorithms = algorithms
        self._actions = actions
        self._endings = endings
        self._commands = commands
        self._deadline = deadline
        self._reader = ResultReader()
        self._checks_time = True  # until the first result that the scheduler sees

    def decode_new(self, event: ResultsReceived) -> NewResults:
        """Return the results of a batch that are not known yet; none when there is a gap before them.

        A gap needs no error: the answer's `received` makes the attempt send what is missing.

        Raises:
            msgspec.ValidationError: a result is not a MessagePack map from texts to plain data.
        """
        trial = self._state.current_trial(event.trial_id, event.attempt)
        known = trial.current.received + 1 - event.first if trial is not None else -1
        if known < 0:
            return NewResults([], [])
        reader = self._reader
        reader.typed = False
        new = event.results[known:]
        shown = [_decode(reader, raw) for raw in new]
        opens = reader.typed and self._algorithms.opens_values
        return NewResults(shown, [open_leniently(raw) for raw in new] if opens else shown)

    def receive(self, event: ResultsReceived, fresh: NewResults, chooser: Chooser, now: float) -> None:
        """Apply the new results of a batch, which are its last ones."""
        trial = self._state.trials[event.trial_id]
        metric, objectives = self._state.required_settings.metric, self._state.required_settings.objectives
        algorithms = self._algorithms
        judges = chooser.judges or not algorithms.never_decide or bool(trial.ends_at)
        accounting.start_work(self._state, trial, {})  # a shell that knows of no beginning
        if event.nested:
            trial.record_nested(event.nested)
        if event.committed:
            self.add_checkpoints(trial, event.committed)
        shown, opened = fresh
        offset = len(event.results) - len(shown)
        ends = trial.judged
        for number, result in enumerate(opened, offset):
            trial.count_result()
            if metric is not None:
                self._measure(trial, shown[number - offset], metric)
                if objectives:
                    self._measure_all(trial, shown[number - offset], objectives)
            if ends:
                continue
            done = bool(result.get("done"))
            if done and trial.current.failing is not None:
                continue  # the attempt has failed: it cannot complete any more
            if judges:
                trial.set_last_result(bytes(event.results[number]))
                self._judge(trial, result, done, chooser, now)
                if trial.current.decision == "stop" and "done" in result:
                    result["done"] = shown[number - offset]["done"] = True  # in the trial's files, and for callbacks
                ends = trial.judged
            elif algorithms.search_listens and not done and not trial.repeat_of:
                algorithms.report_to_search(trial, result)
            if done:
                self._endings.complete(trial, result)
                ends = True
        self._deadline.record(trial)
        self._state.set_last_result(trial, bytes(event.results[-1]), _iteration(shown[-1]))
        self._state.count_results(len(shown))
        self._state.standings.begun(trial)
        self._actions.add(ResultsApplied(trial, event.attempt, shown, opened))

    def add_checkpoints(self, trial: Trial, committed: list[CheckpointInfo]) -> None:
        """Add checkpoints that the trial's attempt committed."""
        if self._state.add_checkpoints(trial, committed):
            self._deadline.record(trial)
            self._state.run_user_code()
            self._state.end_exploit(trial)

    def stop_experiment_if_due(self, number: int, chooser: Chooser, now: float) -> None:
        """End the experiment when the stopper says so.

        `number` is that of the result which was just judged, within its attempt; 0 when only time went by.
        """
        flags = self._state.flags
        if flags.stopping is not None:
            return
        consulted = self._algorithms.stop_all_by_stopper()
        reason = None if flags.finished else chooser.stop_all(number, consulted)
        if reason is not None:
            self._endings.stop_all(reason, now)

    def _measure(self, trial: Trial, result: dict[str, Any], metric: str) -> None:
        value = result.get(metric)
        if value.__class__ is not float:
            value = number_of(value)
        if value is not None:
            try:
                number = float(value)
            except OverflowError:
                number = math.inf if value > 0 else -math.inf
            self._state.record_value(trial, number, _iteration(result))
            if not trial.repeat_of:
                self._record_improvement(number)
            if not self._state.flags.measured:
                self._state.measure()
        elif not self._state.flags.measured:
            self._actions.warn_once(
                "metric", lambda: explain_missing_metric(metric, result, "is not in the first result"), trial
            )

    def _measure_all(self, trial: Trial, result: dict[str, Any], objectives: list[Objective]) -> None:
        point = point_of(objectives, result)
        if point is not None:
            self._state.record_point(trial, point)
        elif not trial.point and objectives[0].name in result:
            missing = next((each.name for each in objectives if number_of(result.get(each.name)) is None), None)
            if missing is not None:
                self._actions.warn_once(
                    "metric", lambda: explain_missing_metric(missing, result, "is not in the first result"), trial
                )

    def _record_improvement(self, value: float) -> None:
        state, settings = self._state, self._state.required_settings
        sign = 1.0 if settings.mode == "max" else -1.0
        if math.isfinite(value) and state.budget.improves(value, sign):
            spent = [accounting.hours_used(state, kind, state.clock.now) for kind in ("trial", "GPU")]
            state.budget.improve(spent[0] * accounting.HOUR_S, spent[1] * accounting.HOUR_S, value, sign)

    def _judge(self, trial: Trial, result: dict[str, Any], done: bool, chooser: Chooser, now: float) -> None:
        """Take one result through stopper, scheduler and searcher."""
        algorithms = self._algorithms
        # 1. Stopper and scheduler; a replay asks them too, so that they learn of the result.
        consulted = self._consult(trial, result, done)
        by_scheduler = (
            consulted is not None and consulted.decision == "stop" and consulted.reason["source"] == "scheduler"
        )
        verdict = chooser.verdict(trial, consulted)
        decision = verdict.decision if verdict is not None else None
        if verdict is not None and not done:
            self._enact(trial, verdict, result, now)
        # 2. The searcher, and the scheduler if the trial ends by another's decision.
        if verdict is not None and decision == "stop":
            trial.take_completion_report()
            algorithms.complete_trial(trial, result, verdict.reason, by_scheduler=by_scheduler)
        elif not done and algorithms.search_listens and not trial.repeat_of:
            algorithms.report_to_search(trial, result)
        if decision == "pause" and not done:
            trial.pause_in_search()
            algorithms.inform_search(algorithms.search.on_pause, trial.trial_id)
        # 3. What the scheduler decided about other trials, and the stopper about all.
        self._commands.carry_out(chooser, now)
        self.stop_experiment_if_due(trial.current.received, chooser, now)

    def _check_time(self, trial: Trial, result: dict[str, Any], name: object) -> None:
        """Warn when the scheduler goes by a time that is not reported: it would never decide anything."""
        self._checks_time = False
        if isinstance(name, str) and name != GPU_SECONDS and number_of(result.get(name)) is None:
            self._actions.warn_once("time_attr", lambda: _explain_missing_time(name, result), trial)

    def _consult(self, trial: Trial, result: dict[str, Any], done: bool) -> Verdict | None:
        """Return what stopper and scheduler decide, None to continue."""
        algorithms, number = self._algorithms, trial.current.received
        reason = algorithms.judge_by_stopper(trial, result)
        if reason is not None:
            return Verdict(trial.trial_id, number, "stop", reason)
        if done:
            return None
        if trial.repeat_of:
            iteration = _iteration(result)
            if not trial.ends_at or iteration is None or iteration < trial.ends_at:
                return None
            ends: dict[str, Any] = {"source": "repeats", "iteration": trial.ends_at, "original": trial.repeat_of}
            return Verdict(trial.trial_id, number, "stop", ends)
        scheduler = algorithms.scheduler
        if self._checks_time:
            self._check_time(trial, result, getattr(scheduler, "time_attr", None))
        answer = algorithms.ask(scheduler.on_trial_result, algorithms.controller, trial, result)
        algorithms.reach_rung(trial, result)
        if answer is None or answer == TrialScheduler.CONTINUE or answer == TrialScheduler.NOOP:
            rung = getattr(scheduler, "filled_rung", None)
            if rung is None or self._plan.passes(trial):
                return None
            reason = {**(self._state.budget.closing or {"source": "reserve"}), "rung": rung}
            return Verdict(trial.trial_id, number, "pause" if trial.checkpoint is not None else "stop", reason)
        if answer == TrialScheduler.PAUSE and self._plan.finishes(trial):
            return None
        reason = {"source": "scheduler", **algorithms.scheduler_reason()}
        if isinstance(answer, Exploit):
            change = exploits.resolve(self._state, trial, answer, algorithms.encode)
            if isinstance(change, str):
                reason |= {"source_trial": answer.source, "problem": change}
                return Verdict(trial.trial_id, number, "continue", reason)
            return Verdict(trial.trial_id, number, "exploit", exploits.evidence(change, reason), change)
        if answer == TrialScheduler.STOP:
            return Verdict(trial.trial_id, number, "stop", reason)
        if answer == TrialScheduler.PAUSE:
            return Verdict(trial.trial_id, number, "pause", reason)
        algorithms.fail(
            f"{type(scheduler).__name__}.on_trial_result returned {answer!r:.60}, which is not a decision"
        )
        return None

    def _enact(self, trial: Trial, verdict: Verdict, result: dict[str, Any], now: float) -> None:
        iteration = _iteration(result)
        if verdict.decision == "continue":
            trial.log_decision(now, "continue", verdict.reason, iteration)
            return
        if verdict.change is not None:
            self._state.plan_exploit(trial, verdict.change)
        self._endings.decide(trial, verdict.decision, verdict.reason, now, iteration)


def _iteration(result: dict[str, Any]) -> int | None:
    iteration = result.get("training_iteration")
    return iteration if type(iteration) is int and -_MAX_ITERATION < iteration < _MAX_ITERATION else None


def explain_missing_metric(metric: str, result: dict[str, Any], what: str = "was never reported") -> str:
    """Say that a metric was not reported, what was, and the nearest name."""
    reported = sorted(key for key in result if key not in AUTO_RESULT_KEYS)
    if metric in result:
        return f"the metric '{metric}' is not a number but {result[metric]!r:.60}; report a number under that name"
    if reported == [DEFAULT_METRIC]:
        return f"the metric '{metric}' {what}, but a number without a name; report {{'{metric}': number}}"
    shown = ", ".join(reported[:10]) + (f" and {len(reported) - 10} more" if len(reported) > 10 else "")
    close = nearest(metric, reported)
    hint = f"; did you mean '{close}'?" if close else ""
    return f"the metric '{metric}' {what}; reported metrics: {shown or 'none'}{hint}"


def _explain_missing_time(name: str, result: dict[str, Any]) -> str:
    close = nearest(name, result)
    hint = f"did you mean '{close}'?" if close else f"reported metrics: {', '.join(sorted(result)[:20])}"
    return (
        f"the scheduler's time_attr '{name}' is not in the first result, or is not a number there; it decides "
        f"nothing without it; {hint}"
    )


def _decode(reader: ResultReader, raw: msgspec.Raw) -> dict[str, Any]:
    try:
        result = reader.decode(raw)
    except UnicodeDecodeError as error:
        raise msgspec.ValidationError("a text in a result is not UTF-8") from error
    except RecursionError as error:
        raise msgspec.ValidationError("a result is nested too deep") from error
    except msgspec.DecodeError as error:  # such as a map whose key is a map
        raise msgspec.ValidationError(f"a result cannot be read: {error}") from error
    if type(result) is not dict:
        raise msgspec.ValidationError(f"a result must be a map of metrics, not {type(result).__name__}")
    for key, value in result.items():
        if type(key) is not str:
            raise msgspec.ValidationError(f"the keys of a result must be text (str), not {key!r:.60}")
        if value.__class__ not in _PLAIN:
            _check(value, key, _MAX_DEPTH)
    return result


def _check(value: Any, key: str, depth: int) -> None:
    """Raise ValidationError for values that result.json cannot hold."""
    if depth == 0:
        raise msgspec.ValidationError(f"'{key[:60]}' of a result is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        value = (part for item in value.items() for part in item)
    elif not isinstance(value, (list, tuple, set, frozenset)):
        if isinstance(value, msgspec.msgpack.Ext):
            raise msgspec.ValidationError(
                f"'{key[:60]}' of a result is not plain data, but a MessagePack extension {value.code}"
            )
        return
    for item in value:
        if item.__class__ not in _PLAIN:
            _check(item, key, depth - 1)
