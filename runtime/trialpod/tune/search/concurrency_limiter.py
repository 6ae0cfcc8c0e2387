"""Keeps the number of unfinished trials of a searcher down."""

from __future__ import annotations

import base64
import os
from typing import Any

from trialpod.errors import InvalidInputError, WrongTypeError
from trialpod.protocol.values import params_encoder, results_decoder
from trialpod.tune.search.search_algorithm import SearchAlgorithm
from trialpod.tune.search.searcher import Searcher, introduce


class NotASearcherError(InvalidInputError, RuntimeError):
    """A search algorithm is given where a searcher is needed."""


class SearcherWrapper(Searcher):
    """Base of searchers that change what another one does; passes everything on.

    Args:
        searcher: the other one.
    """

    def __init__(self, searcher: Searcher) -> None:
        if isinstance(searcher, type) or not callable(getattr(searcher, "suggest", None)):
            raise WrongTypeError(
                f"{type(self).__name__}: searcher must be a Searcher object, got {searcher!r}", parameter="searcher"
            )
        super().__init__(searcher.metric, searcher.mode)
        self.searcher = searcher

    @property
    def metric(self) -> Any:
        """The wrapped searcher's."""
        return self.searcher.metric

    @property
    def mode(self) -> Any:
        """The wrapped searcher's."""
        return self.searcher.mode

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Forget the trials of an earlier experiment, and pass on what this one says."""
        self._forget_trials()
        return introduce(self.searcher, metric, mode, config, **spec)

    def add_evaluated_point(self, *args: Any, **kwargs: Any) -> None:
        """Pass on a point that was evaluated elsewhere."""
        self.searcher.add_evaluated_point(*args, **kwargs)

    def add_evaluated_trials(self, trials: Any, metric: str | None = None) -> int:
        """Pass on the results of an experiment."""
        return self.searcher.add_evaluated_trials(trials, metric)

    def add_evaluated_experiment(self, place: str | os.PathLike[str], metric: str | None = None) -> int:
        """Pass on an earlier experiment."""
        return self.searcher.add_evaluated_experiment(place, metric)

    def _forget_trials(self) -> None:
        """Forget all trials; what the searcher has learned from them stays."""


class ConcurrencyLimiter(SearcherWrapper):
    """Lets at most `max_concurrent` trials of a searcher be unfinished at a time.

    Args:
        searcher: what proposes configs.
        max_concurrent: maximum number of unfinished trials, 1 or more.
        batch: trials go in groups of at most `max_concurrent`: the next group is proposed when all of one have ended,
            and the searcher receives their ends together.

    Raises:
        InvalidInputError: an argument cannot be used.
    """

    _live: dict[str, None]
    _held: dict[str, list[Any]]  # ends that the searcher has not received yet
    _retryable: dict[str, None]

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        given: object = searcher
        if isinstance(given, SearchAlgorithm):
            raise NotASearcherError(
                f"ConcurrencyLimiter: searcher must be a Searcher object, which {type(given).__name__} is not; "
                "leave the limiter out and use TuneConfig(max_concurrent_trials=...)",
                parameter="searcher",
            )
        super().__init__(searcher)
        if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent < 1:
            raise InvalidInputError(
                f"ConcurrencyLimiter: max_concurrent must be 1 or more, got {max_concurrent!r}",
                parameter="max_concurrent",
            )
        self.max_concurrent = max_concurrent
        self.batch = batch
        self._forget_trials()
        self._inside = not batch and searcher.set_max_concurrency(max_concurrent)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return a config, or None while there are enough trials."""
        if not self._inside and len(self._live) + len(self._held) >= self.max_concurrent:
            return None
        config = self.searcher.suggest(trial_id)
        if isinstance(config, dict):
            self._live[trial_id] = None
        return config

    def adopt(self, trial_id: str, config: dict[str, Any]) -> None:
        """Take over an earlier suggestion."""
        self.searcher.adopt(trial_id, config)
        self._live[trial_id] = None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass on a result."""
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Pass on the end of a trial, or keep it until its batch is complete."""
        self._ended(trial_id, "error" if error else "complete", result)

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """As `on_trial_complete`."""
        self._ended(trial_id, "stopped", result)

    def on_pause(self, trial_id: str) -> None:
        """Pass on a pause."""
        self.searcher.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """Pass on that a trial continues."""
        self.searcher.on_unpause(trial_id)

    def on_trial_rung(self, trial_id: str, rung: float, result: dict[str, Any]) -> None:
        """Pass on that a trial reached a rung."""
        self.searcher.on_trial_rung(trial_id, rung, result)

    def get_state(self) -> dict[str, Any]:
        """Return the unfinished trials, the ends kept back, and the searcher's state."""
        return {
            "version": 1,
            "live": list(self._live),
            "failed": list(self._retryable),  # or given up
            "held": packed_ends(self._held),
            "searcher": self.searcher.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._live = dict.fromkeys(state["live"])
        self._retryable = dict.fromkeys(state["failed"])
        self._held = unpacked_ends(state["held"])
        self.searcher.set_state(state["searcher"])

    def _forget_trials(self) -> None:
        self._live, self._held, self._retryable = {}, {}, {}

    def _ended(self, trial_id: str, how: str, result: dict[str, Any] | None) -> None:
        known = trial_id in self._live
        if not known and trial_id not in self._retryable:
            return  # not a trial of this searcher
        self._live.pop(trial_id, None)
        self._retryable.pop(trial_id, None)
        if how != "complete":
            self._retryable[trial_id] = None  # it may be retried, and end again
        if not self.batch or not (known or trial_id in self._held):
            self._pass_on(trial_id, how, result)
            return
        self._held[trial_id] = [how, result]  # the end of a retry replaces the earlier one
        if not self._live:
            held, self._held = self._held, {}
            for each, (kept, last) in held.items():
                self._pass_on(each, kept, last)

    def _pass_on(self, trial_id: str, how: str, result: dict[str, Any] | None) -> None:
        if how == "stopped":
            self.searcher.on_trial_stopped(trial_id, result=result)
        else:
            self.searcher.on_trial_complete(trial_id, result=result, error=how == "error")


def packed_ends(ends: dict[str, list[Any]]) -> str:
    """Return how trials ended, by their ids, as text; values keep their types, and the user's objects stay closed."""
    return base64.b64encode(params_encoder.encode(ends)).decode()


def unpacked_ends(saved: str) -> dict[str, list[Any]]:
    """Return what `packed_ends` got."""
    ends: dict[str, list[Any]] = results_decoder.decode(base64.b64decode(saved))
    return ends
