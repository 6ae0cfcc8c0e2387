"""Which trials start: new ones from the search algorithm, pending and paused ones as the scheduler chooses.

A replay goes through the same steps, so that the algorithms are asked as often as they were, and takes the recorded
choices in place of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trialpod.protocol.values import params_encoder
from trialpod_operator.engine.actions import StartAttempt, TrialCreated
from trialpod_operator.engine.outputs import Created, Outputs
from trialpod_operator.engine.trial import RUNNING, Trial

if TYPE_CHECKING:
    from trialpod_operator.engine.engine import Engine


def has_room(engine: Engine) -> bool:
    """Return whether another attempt may start."""
    running, slots, most = len(engine.state.running), engine.state.flags.slots, engine.settings.max_concurrent
    return (not most or running < most) and (slots is None or running < slots)


def fill(engine: Engine, now: float) -> None:
    """Start trials as long as there is room and there are some to start."""
    flags, recorded = engine.state.flags, engine.recorded
    if flags.suspended or flags.stopping or flags.finished:
        return
    while has_room(engine):
        trial = _choose(engine, now)
        if trial is None:
            break
        _start(engine, trial, now)
    if engine.keeps_one_pending and not engine.state.waiting:
        _create(engine, now)
    if recorded is not None:
        # What a replay under changed algorithms has not come to by itself.
        engine.controller.carry_out(now, rest=True)
        while len(engine.outputs.created) < len(recorded.created):
            _create(engine, now)
        while (trial := _next_recorded(engine, recorded)) is not None:
            _start(engine, trial, now)


def _choose(engine: Engine, now: float) -> Trial | None:
    state, recorded = engine.state, engine.recorded
    if not state.pending:
        _create(engine, now)
    view = engine.ask(engine.scheduler.choose_trial_to_run, engine.controller)
    engine.controller.carry_out(now)
    chosen = None if view is None else state.pending.get(view.trial_id) or state.paused.get(view.trial_id)
    idle = not state.running and not state.delayed
    if chosen is None and idle and state.pending and engine.breakdown is None:
        # Nothing else will ever happen, so the scheduler will have no second chance to choose.
        name = type(engine.scheduler).__name__
        engine.warn_once(
            "choice", lambda: f"{name} started no trial although some wait and none runs; one was started"
        )
        chosen = next(iter(state.pending.values()))
    if recorded is not None:
        return _next_recorded(engine, recorded)
    return chosen if engine.breakdown is None else None


def _next_recorded(engine: Engine, recorded: Outputs) -> Trial | None:
    done = len(engine.outputs.started)
    return engine.state.trials[recorded.started[done]] if done < len(recorded.started) else None


def _create(engine: Engine, now: float) -> None:
    suggestion = engine.ask(engine.search.next_suggestion)
    recorded, done = engine.recorded, len(engine.outputs.created)
    if recorded is not None:
        if done >= len(recorded.created):
            return
        created = recorded.created[done]
    elif suggestion is None:
        return
    elif suggestion.trial_id in engine.state.trials:
        engine.break_down(f"{type(engine.search).__name__} suggested trial {suggestion.trial_id} twice")
        return
    else:
        params = engine.ask(params_encoder.encode, suggestion.config)
        if params is None:
            return
        created = Created(suggestion.trial_id, suggestion.tag, params)
    engine.outputs.created.append(created)
    trial = Trial(
        trial_id=created.trial_id,
        index=len(engine.state.trials),
        tag=created.tag,
        params=created.params,
        created_at=now,
    )
    engine.state.add(trial)
    engine.ask(engine.scheduler.on_trial_add, engine.controller, trial)
    engine.controller.carry_out(now)
    engine.do(TrialCreated(trial))


def _start(engine: Engine, trial: Trial, now: float) -> None:
    engine.outputs.started.append(trial.trial_id)
    engine.state.move(trial, RUNNING)
    if trial.parked:
        trial.parked = False
        engine.ask(engine.search.on_unpause, trial.trial_id)
    trial.attempt += 1
    trial.running = True
    trial.lost = False
    trial.retry_at = 0.0
    trial.received = 0
    trial.released = ()
    trial.started_at = now
    trial.pid = 0
    trial.decision = None
    trial.decision_reason = {}
    if engine.on_attempt_start is not None:
        engine.ask(engine.on_attempt_start, trial.trial_id)
    engine.do(StartAttempt(trial, trial.attempt))
