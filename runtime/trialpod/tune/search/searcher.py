"""The interface of searchers, with Ray Tune's method names and signatures.

A searcher proposes one config at a time and learns from what it is told. `SearchGenerator` makes a `SearchAlgorithm`
of it, which is what the engine talks to. Invariants that a searcher must keep, so that an experiment survives a
restart of whatever runs it:

* Its suggestions are a function of its arguments, of how many it made, and of what it was told.
* Its state (`get_state`) is JSON data; a new searcher with the same arguments and that state goes on as the old one
  would have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.described import RemembersArguments

Metric = str | list[str] | None
Mode = str | list[str] | None

MODES = ("min", "max")


class Searcher(RemembersArguments):
    """Base class of searchers.

    Args:
        metric: what to optimise; a list for several at once. None takes the experiment's.
        mode: "min" or "max"; a list when `metric` is one.

    Raises:
        InvalidInputError: they do not go together.
    """

    FINISHED = "FINISHED"

    def __init__(self, metric: Metric = None, mode: Mode = None) -> None:
        check_goal(type(self).__name__, metric, mode)
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> Metric:
        """What is optimised; None while that is not known."""
        return self._metric

    @property
    def mode(self) -> Mode:
        """Which way is better: "min" or "max"."""
        return self._mode

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take what the experiment says; called once, before the first suggestion.

        Args:
            metric: what to optimise.
            mode: "min" or "max".
            config: the search space.
            **spec: ``seed`` of the experiment.

        Returns:
            False when the searcher has a metric or a space of its own already, which must not be given twice.
        """
        return False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the config of a new trial, None when there is none for now, FINISHED when there will be none."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn from a result that is not the last."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn how a trial ended; `result` is its last one, None when there is none."""
        raise NotImplementedError

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """Learn that a trial was given up before its end; by default an end like any other."""
        self.on_trial_complete(trial_id, result)

    def on_pause(self, trial_id: str) -> None:
        """Learn that a trial was paused."""

    def on_unpause(self, trial_id: str) -> None:
        """Learn that a paused trial goes on."""

    def adopt(self, trial_id: str, config: dict[str, Any]) -> None:
        """Take over a config that this searcher suggested earlier; by default it is computed once more."""
        self.suggest(trial_id)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Return True when the searcher itself keeps at most so many trials unfinished."""
        return False

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: Any,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Learn from a config that was evaluated elsewhere.

        Args:
            parameters: the config, nested or with flattened names.
            value: of the metric; a list when there are several.
            error: it failed, and `value` is not looked at.
            pruned: it was given up early.
            intermediate_values: of the metric, one for each step before.

        Raises:
            InvalidInputError: this searcher cannot, or the config is not in the search space.
        """
        raise InvalidInputError(f"{type(self).__name__} cannot take over evaluated points")

    def add_evaluated_trials(self, trials: Any, metric: str | None = None) -> int:
        """Learn from the results of a `ResultGrid`, or of a list of `Result`; return how many could be used.

        Args:
            trials: what `Tuner.fit` or `Tuner.get_results` returned.
            metric: its name there; None takes this searcher's.
        """
        from trialpod.tune.search.warm_start import add_results

        return add_results(self, trials, metric)

    def add_evaluated_experiment(self, place: str | os.PathLike[str], metric: str | None = None) -> int:
        """Learn from an earlier experiment; return how many of its trials could be used.

        Args:
            place: its directory or its URI ("s3://bucket/prefix/name").
            metric: its name there; None takes this searcher's.

        Raises:
            InvalidInputError: there is no experiment.
            StorageError: it cannot be read.
        """
        from trialpod.tune.search.warm_start import add_experiment

        return add_experiment(self, place, metric)

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, on a searcher made with the same arguments."""
        raise NotImplementedError

    def save(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Write the state to a file."""
        text = json.dumps(self.get_state())
        temporary = f"{os.fspath(checkpoint_path)}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, checkpoint_path)

    def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Read the state that `save` wrote.

        Raises:
            InvalidInputError: the file holds no such state.
        """
        try:
            with open(checkpoint_path, encoding="utf-8") as file:
                state = json.load(file)
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"{os.fspath(checkpoint_path)} holds no state of a searcher: {error}") from error
        self.set_state(state)


def check_goal(user: str, metric: Any, mode: Any) -> None:
    """Raise InvalidInputError unless a metric and a mode are each valid and go together."""
    if isinstance(metric, (list, tuple)) or isinstance(mode, (list, tuple)):
        if not isinstance(metric, (list, tuple)) or not all(isinstance(name, str) for name in metric) or not metric:
            raise InvalidInputError(f"{user}: mode is a list, so metric must be a list of names, got {metric!r}")
        if not isinstance(mode, (list, tuple)) or len(mode) != len(metric):
            raise InvalidInputError(
                f"{user}: metric names {len(metric)}, so mode must be a list of as many of {MODES}, got {mode!r}"
            )
    elif metric is not None and (not isinstance(metric, str) or not metric):
        raise InvalidInputError(f"{user}: metric must be a name, or a list of names, got {metric!r}")
    for each in mode if isinstance(mode, (list, tuple)) else [mode]:
        if each is not None and each not in MODES:
            raise InvalidInputError(f"{user}: mode must be 'min' or 'max', got {each!r}")
