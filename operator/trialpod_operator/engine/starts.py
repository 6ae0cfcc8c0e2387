"""Which trials start: new ones from the search algorithm, pending and paused ones as the scheduler chooses.

A replay goes through the same steps, so that the algorithms are asked as often as they were, and takes the recorded
choices in place of theirs.

A search algorithm that takes its time (`Engine.defers`) is asked for one suggestion at a time, by `request`. Until
that comes, as `SuggestionReady`, no other trial starts than those that are pending, as if everything waited; but
results are judged and answered meanwhile. Such an algorithm has, beside the methods of `SearchAlgorithm`:

* ``request()``: a suggestion is wanted, made of what the algorithm was told before this call;
* ``answered(created, error)``: the engine has it. In a replay this comes without anything being computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.protocol.values import OpaqueValue, opaque_decoder, open_leniently
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod_operator.engine.actions import StartAttempt, TrialCreated
from trialpod_operator.engine.events import SuggestionReady
from trialpod_operator.engine.outputs import Created, Outputs
from trialpod_operator.engine.trial import RUNNING, OpenTrial, Trial

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
        if not engine.state.pending:
            _create(engine, now)
            if flags.asked and not engine.state.pending:
                break
        _create_wanted(engine, now)
        trial = _choose(engine, now)
        if trial is None:
            break
        _start(engine, trial, now)
    _create_wanted(engine, now)
    if engine.keeps_one_pending and not engine.state.waiting:
        _create(engine, now)
    if recorded is not None:
        # What a replay under changed algorithms has not come to by itself.
        if engine.limits is None:
            engine.controller.carry_out(now, rest=True)
        while len(engine.outputs.created) < _limits(engine, recorded)[0]:
            _create_recorded(engine, recorded, now)
        while (trial := _next_recorded(engine, recorded, now)) is not None:
            _start(engine, trial, now)
        if engine.limits is None and recorded.asked and not engine.outputs.asked:
            engine.outputs.asked = recorded.asked
            request(engine)


def _create_wanted(engine: Engine, now: float) -> None:
    """Create the trials that the scheduler is to know of before they start."""
    pending = engine.state.pending
    while 0 < len(pending) < engine.wanted_pending:
        before = len(pending)
        _create(engine, now)
        if len(pending) == before:
            break


def _choose(engine: Engine, now: float) -> Trial | None:
    state, recorded = engine.state, engine.recorded
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
        return _next_recorded(engine, recorded, now)
    return chosen if engine.breakdown is None else None


def _next_recorded(engine: Engine, recorded: Outputs, now: float) -> Trial | None:
    done = len(engine.outputs.started)
    if done >= _limits(engine, recorded)[1]:
        return None
    trial_id = recorded.started[done]
    while trial_id not in engine.state.trials and len(engine.outputs.created) < _limits(engine, recorded)[0]:
        _create_recorded(engine, recorded, now)
    return engine.state.trials[trial_id]


def _create_recorded(engine: Engine, recorded: Outputs, now: float) -> None:
    """Create the next recorded trial, even if changed algorithms have not been asked as often by now."""
    engine.looks = max(engine.looks, recorded.created[len(engine.outputs.created)].look - 1)
    _create(engine, now)


def _limits(engine: Engine, recorded: Outputs) -> tuple[int, int]:
    """Return how many trials may have been created and started, as it was recorded, for now."""
    return engine.limits or (len(recorded.created), len(recorded.started))


def suggested(engine: Engine, event: SuggestionReady) -> None:
    """Take in the answer of a search algorithm that takes its time."""
    flags, created = engine.state.flags, event.created
    flags.asked = False
    if created is not None:
        flags.spare.append(created)
    elif not event.error:
        # That it has no more may be from before more were asked for.
        flags.dry, flags.searched = not flags.heard, event.finished and not flags.resized
    answered: Any = getattr(engine.search, "answered", None)
    if answered is not None:
        engine.ask(answered, created, event.error)
    elif created is not None:
        engine.ask(adopt, engine.search, created, opens_values=engine.opens_values)
    if event.error:
        engine.break_down(event.error)


def request(engine: Engine) -> None:
    """Have a search algorithm that takes its time make a suggestion."""
    flags = engine.state.flags
    flags.asked, flags.heard, flags.resized = True, False, False
    ask_again(engine)


def ask_again(engine: Engine) -> None:
    """Have it make the suggestion that is still due."""
    ask: Any = getattr(engine.search, "request", None)
    if ask is not None:
        engine.ask(ask)


def search_name(engine: Engine) -> str:
    """Return the name of the search algorithm's class."""
    return type(getattr(engine.search, "search", engine.search)).__name__


def exhausted(engine: Engine) -> bool:
    """Return whether no further suggestion will come, as far as that is known."""
    flags = engine.state.flags
    return flags.searched and not flags.spare if engine.defers else engine.search.finished


def adopt(search: SearchAlgorithm, created: Created, *, opens_values: bool = False) -> None:
    """Have a search algorithm take over a suggestion that it made earlier.

    One with objects of the user's that cannot be opened here, or that the algorithm does not recognise, is made once
    more.
    """
    closed = opaque_decoder.decode(created.params)
    config = open_leniently(created.params) if opens_values else closed
    if not _has_opaque(config):
        try:
            search.adopt(Suggestion(trial_id=created.trial_id, config=config, tag=created.tag))
            return
        except InvalidInputError:
            if not _has_opaque(closed):
                raise
    search.next_suggestion()


def _has_opaque(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_opaque(item) for item in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_has_opaque(item) for item in value)
    return isinstance(value, OpaqueValue)


def _create(engine: Engine, now: float) -> None:
    """Create the next trial, or ask for one where that takes time; neither when there is none to be had."""
    engine.looks += 1
    created = _next_new(engine) if engine.recorded is None else _next_new_recorded(engine, engine.recorded)
    if created is None:
        return
    if engine.recorded is None:
        created = msgspec.structs.replace(created, look=engine.looks)
    engine.outputs.created.append(created)
    kind = OpenTrial if engine.opens_values else Trial
    trial = kind(
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


def _next_new(engine: Engine) -> Created | None:
    flags = engine.state.flags
    if flags.spare:
        created = flags.spare.pop(0)
    elif engine.defers:
        if not (flags.asked or flags.dry or flags.searched):
            engine.outputs.asked = engine.looks
            request(engine)
        return None
    else:
        flags.asked = False  # of an earlier run, in which it took its time
        suggestion = engine.ask(engine.search.next_suggestion)
        params = engine.ask(engine.encode_params, suggestion.config) if suggestion is not None else None
        if suggestion is None or params is None:
            return None
        created = Created(suggestion.trial_id, suggestion.tag, params)
    if created.trial_id in engine.state.trials:
        engine.break_down(f"{search_name(engine)} suggested trial {created.trial_id} twice")
        return None
    return created


def _next_new_recorded(engine: Engine, recorded: Outputs) -> Created | None:
    flags, done = engine.state.flags, len(engine.outputs.created)
    if done < _limits(engine, recorded)[0] and recorded.created[done].look <= engine.looks:
        created = recorded.created[done]
        if flags.spare and flags.spare[0].trial_id == created.trial_id:
            flags.spare.pop(0)
        else:
            engine.ask(adopt, engine.search, created, opens_values=engine.opens_values)
        return created
    if recorded.asked == engine.looks:
        engine.outputs.asked = engine.looks
        request(engine)
    elif not engine.defers and not flags.asked:
        engine.ask(engine.search.next_suggestion)
    return None


def _start(engine: Engine, trial: Trial, now: float) -> None:
    engine.outputs.started.append(trial.trial_id)
    engine.state.move(trial, RUNNING)
    if trial.parked:
        trial.parked = False
        engine.tell(engine.search.on_unpause, trial.trial_id)
    trial.attempt += 1
    trial.running = True
    trial.lost = False
    trial.retry_at = 0.0
    trial.received = 0
    trial.released = ()
    trial.started_at = now
    trial.pid = 0
    trial.place = ""
    trial.failing = None
    trial.progress_at = 0.0
    trial.quiet = trial.overdue = False
    trial.decision = None
    trial.decision_reason = {}
    if engine.on_attempt_start is not None:
        engine.ask(engine.on_attempt_start, trial.trial_id)
    engine.do(StartAttempt(trial, trial.attempt))
