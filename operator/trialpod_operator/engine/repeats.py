"""Which trial wins, and the final re-evaluation: the best configs again, before the winner is named.

With several objectives the winner is the trial of the Pareto front that is best in the first of them.

When nothing is left to run and the experiment is to end well, each of the `top` best trials that did not fail gets
`times` *repeats*: trials with its config, which no search algorithm and no scheduler knows of. They end as other
trials do, and at the latest at the iteration at which their original was stopped. What differs between repeats is
chance: their number is the variable TRIALPOD_REPEAT, and the parameter `seed_parameter` differs where it is named.

The winner is the original whose repeats have the best mean. The original's own value does not count: it is the reason
why the config was chosen, and so better than what is to be expected.

Invariants: once there are repeats, no other config is tried until the user edits the budget, so that a plan that
changes its mind about what is left does not name a winner twice; ids are functions of the original's id and the
repeat's number, so what is missing follows from the trials that there are; what is created is recorded in `Choices`.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

import msgspec

from trialpod.protocol.values import params_encoder, results_decoder
from trialpod.tune.plugins.repeats import repeat_id
from trialpod_operator.engine.actions import ActionList, TrialCreated
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.choices import Repeat, is_early_stop
from trialpod_operator.engine.chooser import Chooser
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import TERMINATED, OpenTrial, Trial


class Evaluation(NamedTuple):
    """What the repeats of a config showed.

    Attributes:
        mean: of their last values.
        spread: their sample standard deviation; None of a single one.
        number: how many they are.
    """

    mean: float
    spread: float | None
    number: int


class Repeats:
    """Creates the repeats that are missing."""

    def __init__(self, state: State, algorithms: Algorithms, actions: ActionList) -> None:
        self._state = state
        self._algorithms = algorithms
        self._actions = actions

    def create(self, chooser: Chooser, now: float) -> bool:
        """Create what is missing; return whether anything was."""
        settings = self._state.required_settings
        consulted = [] if settings.repeats is None or self._state.flags.stopping else self._missing(settings)
        repeats = chooser.repeat(consulted)
        if repeats:
            self._state.begin_evaluation()
        for repeat in repeats:
            source = self._state.trials[repeat.source]
            kind = OpenTrial if self._algorithms.opens_values else Trial
            trial = kind(
                trial_id=repeat.trial_id,
                index=len(self._state.trials),
                tag=f"{source.tag},repeat={repeat.number}",
                params=repeat.params,
                created_at=now,
                repeat_of=source.trial_id,
                repeat=repeat.number,
                ends_at=source.iteration if source.stopped else 0,
            )
            self._state.add(trial)
            self._actions.add(TrialCreated(trial))
        return bool(repeats)

    def _missing(self, settings: Settings) -> list[Repeat]:
        assert settings.repeats is not None
        found = []
        sources = [trial for trial in ranked(self._state) if trial.status == TERMINATED]
        for source in sources[: settings.repeats.top]:
            for number in range(1, settings.repeats.times + 1):
                trial_id = repeat_id(source.trial_id, number)
                if trial_id not in self._state.trials:
                    params = _seeded(source.params, settings.repeats.seed_parameter, number)
                    found.append(Repeat(trial_id, params, source.trial_id, number))
        return found


_Config = dict[str | int, msgspec.Raw]
"""Of a whole config, the keys are strings; inside it, they need not be."""


def _seeded(params: bytes, name: str | None, number: int) -> bytes:
    """Return a config whose parameter (in a dict, "dict/name") has the number of a repeat, plus what it was."""
    if name is None:
        return params
    config: _Config = msgspec.msgpack.decode(params, type=_Config)
    head, slash, rest = name.partition("/")
    if slash and name not in config and _is_dict(config.get(head)):
        config[head] = msgspec.Raw(_seeded(bytes(config[head]), rest, number))
    else:
        before: Any = results_decoder.decode(config[name]) if name in config else None
        seed = number + (before if type(before) is int else 0)
        config[name] = msgspec.Raw(params_encoder.encode_value(seed, name))
    return msgspec.msgpack.encode(config)


def _is_dict(value: msgspec.Raw | None) -> bool:
    if value is None:
        return False
    try:
        msgspec.msgpack.decode(value, type=_Config)
    except msgspec.ValidationError:
        return False
    return True


def ranked(state: State) -> list[Trial]:
    """Return the trials with a finite value, the best first; of equals the earlier one."""
    sign = 1.0 if state.required_settings.mode == "max" else -1.0
    found = [
        (-sign * trial.value, trial.index, trial)
        for trial in state.get_trials()
        if not trial.repeat_of and trial.value is not None and math.isfinite(trial.value)
    ]
    return [trial for _, _, trial in sorted(found, key=lambda each: each[:2])]


def front(state: State) -> list[Trial]:
    """Return the Pareto front, the best in the first objective first; trials that miss a threshold are not on it."""
    settings = state.settings
    if settings is None or not settings.objectives:
        return []
    return state.standings.front(state.get_trials(), settings.objectives)


def evaluations(state: State) -> dict[str, Evaluation]:
    """Return what repeats showed, by the id of their original; nothing while any of them has not ended."""
    values: dict[str, list[float]] = {}
    for trial in state.standings.repeats:
        if not trial.ended:
            return {}
        whole = trial.status == TERMINATED and not (trial.stopped and is_early_stop(trial.stop_reason))
        if whole and trial.value is not None and math.isfinite(trial.value):
            values.setdefault(trial.repeat_of, []).append(trial.value)
    return {
        source: Evaluation(statistics.fmean(each), statistics.stdev(each) if len(each) > 1 else None, len(each))
        for source, each in values.items()
    }


def winner(state: State) -> tuple[Trial | None, Evaluation | None]:
    """Return the best trial: by the mean of its repeats where there are any, else by its own value."""
    settings = state.settings
    if settings is None or settings.metric is None:
        return None, None
    if settings.objectives:
        best = next(iter(front(state)), None)
        return best, None
    found = evaluations(state) if settings.repeats is not None else {}
    repeated = [trial for trial in ranked(state) if trial.trial_id in found] if found else []
    if not repeated:
        return state.standings.best(state.get_trials(), settings.mode), None
    sign = 1.0 if settings.mode == "max" else -1.0
    best = max(repeated, key=lambda trial: sign * found[trial.trial_id].mean)
    return best, found[best.trial_id]
