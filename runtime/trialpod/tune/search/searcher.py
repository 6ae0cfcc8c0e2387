"""The interface of searchers, with Ray Tune's method names and signatures.

A searcher proposes one config at a time and learns from the results. `SearchGenerator` makes a `SearchAlgorithm`
of it, which is what the engine talks to. Invariants that a searcher must keep, so that an experiment survives a
restart of whatever runs it:

* Its suggestions are a function of its arguments, of how many it made, and of the results it received.
* Its state (`get_state`) is JSON data; a new searcher with the same arguments and that state continues as the old one
  would have.
"""

from __future__ import annotations

import inspect
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.saved import SavedPlugIn, newest_state

if TYPE_CHECKING:
    from trialpod.storage.base import Storage

Metric = str | list[str] | None
Mode = str | list[str] | None

MODES = ("min", "max")

logger = logging.getLogger(__name__)


class NotLearnedError(InvalidInputError, NotImplementedError):
    """A searcher has no way to learn from points that were evaluated elsewhere."""


class Searcher(SavedPlugIn):
    """Base class of searchers.

    A subclass defines `suggest`, and `on_trial_complete` to learn. One that defines no `get_state` has its attributes
    pickled, or written by a ``save`` of its own, in a script on the user's machine only.

    Args:
        metric: what to optimise; a list for several at once. None takes the experiment's.
        mode: "min" or "max"; a list when `metric` is one.

    Raises:
        InvalidInputError: they do not go together.
    """

    KIND = "searcher"

    learns: bool = True
    """False when results change nothing in what it proposes."""

    ABOUT: tuple[str, ...] = ()
    """For the table of the documentation: how to install it, and what it is good for."""

    FINISHED = "FINISHED"
    CKPT_FILE_TMPL = "searcher-state-{}.pkl"
    """The file that `save_to_dir` writes."""

    open_earlier: Callable[[str], Storage] | None = None
    """Returns the storage of an earlier experiment; None opens what this process can. An operator sets it."""

    _metric: Metric = None
    _mode: Mode = None
    _differed = False  # what was adopted is not what is suggested now

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
            False when the searcher takes none of it, because it has a metric or a space of its own. It is an error
            only when the experiment's space has distributions.
        """
        return False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the config of a new trial, None when there is none for now, FINISHED when there will be none."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn from a result that is not the last."""

    def on_trial_rung(self, trial_id: str, rung: float, result: dict[str, Any]) -> None:
        """Learn the result with which a trial reached a rung of the scheduler, before what that decides.

        Args:
            trial_id: the trial.
            rung: where the rung lies; values of one rung can be compared.
            result: the result.
        """

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn how a trial ended; `result` is its last one, None when there is none."""

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """Learn that a trial was given up before its end; by default an end like any other."""
        self.on_trial_complete(trial_id, result=result)

    def on_pause(self, trial_id: str) -> None:
        """Learn that a trial was paused."""

    def on_unpause(self, trial_id: str) -> None:
        """Learn that a paused trial continues."""

    def adopt(self, trial_id: str, config: dict[str, Any]) -> None:
        """Take over a config that this searcher suggested earlier; by default it is computed again."""
        again = self.suggest(trial_id)
        if not self._differed and not _agrees(again, config):
            self._differed = True
            logger.warning(
                "%s suggests another config for trial %s than before the experiment was interrupted (%.200r, not "
                "%.200r). The trial keeps the one from before, but what the searcher remembers of it may be wrong; "
                "define get_state() and set_state(), or draw from generators that it makes with a seed",
                type(self).__name__, trial_id, again, config,
            )  # fmt: skip

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
            NotLearnedError: this searcher cannot.
            InvalidInputError: the config is not in the search space.
        """
        raise NotLearnedError(f"{type(self).__name__} cannot take over evaluated points")

    def add_evaluated_trials(self, trials: Any, metric: str | None = None) -> int:
        """Learn from the results of an experiment; return how many trials could be used.

        A trial that failed counts as failed, whatever it had reported.

        Args:
            trials: what `Tuner.fit`, `Tuner.get_results` or `tune.run` returned, or a list of `Result` or of trials.
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

    def save_to_dir(self, checkpoint_dir: str | os.PathLike[str], session_str: str = "default") -> None:
        """Write the state to a file in a folder, where `restore_from_dir` finds it.

        Args:
            checkpoint_dir: the folder.
            session_str: names the file, so that several states can be in one folder.
        """
        name = self.CKPT_FILE_TMPL.format(session_str)
        temporary = Path(checkpoint_dir, f".{uuid.uuid4().hex}-tmp-{name}")
        try:
            self.save(os.fspath(temporary))
        except NotImplementedError:
            logger.warning("%s does not implement save(); nothing is written", type(self).__name__)
            return
        if temporary.exists():
            temporary.replace(Path(checkpoint_dir, name))

    def restore_from_dir(self, checkpoint_dir: str | os.PathLike[str]) -> None:
        """Read the newest state that `save_to_dir` wrote to a folder.

        In the folder of an experiment, which has no such state, it learns from the results of its trials.

        Raises:
            InvalidInputError: there is none, or the file holds no such state.
        """
        from trialpod.storage.layout import TRIALPOD_DIR

        learns = type(self).add_evaluated_point is not Searcher.add_evaluated_point
        if learns and not self.has_checkpoint(checkpoint_dir) and Path(checkpoint_dir, TRIALPOD_DIR).is_dir():
            self.add_evaluated_experiment(checkpoint_dir)
            return
        self.restore(newest_state(checkpoint_dir, self.CKPT_FILE_TMPL.format("*"), "searcher"))

    def has_checkpoint(self, checkpoint_dir: str | os.PathLike[str]) -> bool:
        """Return whether `save_to_dir` wrote a state to a folder."""
        return any(Path(checkpoint_dir).glob(self.CKPT_FILE_TMPL.format("*")))


def introduce(searcher: Any, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
    """Tell a searcher what the experiment says; one with the older signature is not given `spec`."""
    method = searcher.set_search_properties
    takes_spec = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(method).parameters.values())
    return bool(method(metric, mode, config, **(spec if takes_spec else {})))


def searcher_in(searcher: Any) -> str:
    """Return the class name of the searcher inside of its wrappers."""
    while hasattr(searcher, "searcher"):
        searcher = searcher.searcher
    return type(searcher).__name__


def _agrees(suggested: Any, config: dict[str, Any]) -> bool:
    """Return whether a suggestion is the config that was stored; the stored one may have constants beside it."""
    if not isinstance(suggested, dict):
        return False
    missing = object()
    try:
        return all(_same(value, config.get(key, missing)) for key, value in suggested.items())
    except Exception:  # noqa: BLE001 - values of a user's classes compare as they like
        return True


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return one is other or bool(one == other) or (one != one and other != other)


def check_goal(user: str, metric: Any, mode: Any) -> None:
    """Raise InvalidInputError unless a metric and a mode are each valid and go together."""
    if isinstance(metric, (list, tuple)) or isinstance(mode, (list, tuple)):
        if not isinstance(metric, (list, tuple)) or not all(isinstance(name, str) for name in metric) or not metric:
            raise InvalidInputError(
                f"{user}: mode is a list, so metric must be a list of names, got {metric!r}", parameter="mode"
            )
        if not isinstance(mode, (list, tuple)) or len(mode) != len(metric):
            raise InvalidInputError(
                f"{user}: metric names {len(metric)}, so mode must be a list of as many of {MODES}, got {mode!r}",
                parameter="metric",
            )
    elif metric is not None and (not isinstance(metric, str) or not metric):
        raise InvalidInputError(
            f"{user}: metric must be a name, or a list of names, got {metric!r}", parameter="metric"
        )
    for each in mode if isinstance(mode, (list, tuple)) else [mode]:
        if each is not None and each not in MODES:
            raise InvalidInputError(f"{user}: mode must be 'min' or 'max', got {each!r}", parameter="mode")
