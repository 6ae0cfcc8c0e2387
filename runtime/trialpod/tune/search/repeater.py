"""Runs every config several times, and tells the searcher the mean."""

from __future__ import annotations

import base64
import math
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.values import opaque_decoder, params_encoder, real_number
from trialpod.tune.search.concurrency_limiter import SearcherWrapper, packed_ends, unpacked_ends
from trialpod.tune.search.searcher import Searcher

TRIAL_INDEX = "__trial_index__"
"""Key in the config: which of the repetitions a trial is, from 0."""


class Repeater(SearcherWrapper):
    """Suggests every config of a searcher `repeat` times in a row.

    The searcher knows the first trial of each group only. When all have ended it gets the mean of their metrics,
    without those that failed or are not numbers; that the group failed when there is none; that it was stopped when
    the first was. At a rung of the scheduler it gets the mean of the group once all have reached it; of a group in
    which one ended before, it learns of the rungs that all reached.

    Args:
        searcher: what proposes configs.
        repeat: trials for each config.
        set_index: put ``__trial_index__`` into the configs.

    Raises:
        InvalidInputError: an argument cannot be used.
    """

    _groups: dict[str, dict[str, Any]]  # by the first trial's id
    _group_of: dict[str, str]
    _current: str | None

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True) -> None:
        super().__init__(searcher)
        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise InvalidInputError(f"Repeater: repeat must be 1 or more, got {repeat!r}", parameter="repeat")
        self.repeat = repeat
        self._set_index = set_index
        self._forget_trials()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the current config again, or a new one."""
        group = self._open_group()
        if group is None:
            config = self.searcher.suggest(trial_id)
            if not isinstance(config, dict):
                return config
            group = self._begin(trial_id, config)
        self._join(trial_id, group)
        return self._numbered(group["config"], len(group["trials"]) - 1)

    def adopt(self, trial_id: str, config: dict[str, Any]) -> None:
        """Take over an earlier suggestion."""
        group = self._open_group()
        if group is None:
            config = {key: value for key, value in config.items() if key != TRIAL_INDEX}
            self.searcher.adopt(trial_id, config)
            group = self._begin(trial_id, config)
        self._join(trial_id, group)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell the searcher once the last of a group has ended."""
        self._ended(trial_id, "error" if error else "complete", result)

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """As `on_trial_complete`."""
        self._ended(trial_id, "stopped", result)

    def on_trial_rung(self, trial_id: str, rung: float, result: dict[str, Any]) -> None:
        """Tell the searcher the mean of a group at a rung, once its last trial has reached it."""
        first = self._group_of.get(trial_id)
        if first is None:
            return
        group = self._groups[first]
        reached = group["rungs"].setdefault(repr(float(rung)), {})
        reached[trial_id] = result
        if len(reached) == self.repeat:
            del group["rungs"][repr(float(rung))]
            merged = self._merged(reached[first], list(reached.values()))
            if merged is not None:
                self.searcher.on_trial_rung(first, rung, merged)

    def get_state(self) -> dict[str, Any]:
        """Return the unfinished groups and the searcher's state."""
        groups = [
            [
                first,
                _packed(group["config"]),
                group["trials"],
                packed_ends(group["ends"]),
                {rung: packed_ends(reached) for rung, reached in group["rungs"].items()},
            ]
            for first, group in self._groups.items()
        ]
        return {"version": 1, "groups": groups, "current": self._current, "searcher": self.searcher.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._current = state["current"]
        self._groups = {}
        self._group_of = {}
        for first, config, trials, ends, rungs in state["groups"]:
            self._groups[first] = {
                "config": _unpacked(config),
                "trials": list(trials),
                "ends": unpacked_ends(ends),
                "rungs": {rung: unpacked_ends(reached) for rung, reached in rungs.items()},
            }
            self._group_of.update(dict.fromkeys(trials, first))
        self.searcher.set_state(state["searcher"])

    def _forget_trials(self) -> None:
        self._groups, self._group_of, self._current = {}, {}, None

    def _open_group(self) -> dict[str, Any] | None:
        return None if self._current is None else self._groups[self._current]

    def _begin(self, trial_id: str, config: dict[str, Any]) -> dict[str, Any]:
        self._current = trial_id
        group: dict[str, Any] = {"config": config, "trials": [], "ends": {}, "rungs": {}}
        self._groups[trial_id] = group
        return group

    def _join(self, trial_id: str, group: dict[str, Any]) -> None:
        assert self._current is not None
        group["trials"].append(trial_id)
        self._group_of[trial_id] = self._current
        if len(group["trials"]) >= self.repeat:
            self._current = None

    def _numbered(self, config: dict[str, Any], index: int) -> dict[str, Any]:
        return {**config, TRIAL_INDEX: index} if self._set_index else dict(config)

    def _merged(self, first: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first result with the mean of the metrics of all; None when none of them is a number."""
        merged = dict(first)
        for name in self.metric if isinstance(self.metric, (list, tuple)) else [self.metric]:
            usable = [value for each in results if (value := _number(each.get(name))) is not None]
            if not usable:
                return None
            merged[name] = sum(usable) / len(usable)
        return merged

    def _ended(self, trial_id: str, how: str, result: dict[str, Any] | None) -> None:
        first = self._group_of.get(trial_id)
        if first is None:
            return
        group = self._groups[first]
        group["ends"][trial_id] = [how, result]
        if len(group["ends"]) < self.repeat:
            return
        del self._groups[first]
        for each in group["trials"]:
            del self._group_of[each]
        ended = [last or {} for ending, last in group["ends"].values() if ending != "error"]
        merged = self._merged(group["ends"][first][1] or {}, ended)
        if merged is None:
            self.searcher.on_trial_complete(first, result=None, error=True)
            return
        if group["ends"][first][0] == "stopped":
            self.searcher.on_trial_stopped(first, result=merged)
        else:
            self.searcher.on_trial_complete(first, result=merged)


def _number(value: Any) -> float | None:
    found = real_number(value)
    return None if found is None or math.isnan(found) else float(found)


def _packed(config: dict[str, Any]) -> str:
    """Return a config as text; the user's objects in it stay closed from now on."""
    return base64.b64encode(params_encoder.encode(config)).decode()


def _unpacked(text: str) -> dict[str, Any]:
    config: dict[str, Any] = opaque_decoder.decode(base64.b64decode(text))
    return config
