"""Makes a search algorithm of a searcher: counts the trials, names them, and completes their configs.

Invariants: the searcher receives calls about a trial only between its suggestion and its end (a trial that failed or
was given up may be retried, and end again); what it raises is passed on.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.goal import not_known_yet
from trialpod.tune.search.basic_variant import INFINITE, checked_samples, format_tag
from trialpod.tune.search.sample import Domain
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod.tune.search.searcher import Searcher, introduce, searcher_in
from trialpod.tune.search.spaces.variants import Path, VariantSpace, is_grid, path_text

MAX_TRIES = 100
"""How often a user's searcher is asked for a config when it has none although no trial runs."""

_SEED_BITS = 32


class SearchGenerator(SearchAlgorithm):
    """A search algorithm that asks a `Searcher`.

    Args:
        searcher: what proposes configs.

    Raises:
        InvalidInputError: it is not a searcher.
    """

    _next: int
    _exhausted: bool
    _live: dict[str, None]
    _retryable: dict[str, None]

    def __init__(self, searcher: Searcher) -> None:
        if isinstance(searcher, type) or not callable(getattr(searcher, "suggest", None)):
            raise InvalidInputError(
                f"SearchGenerator(searcher={searcher!r}): must be a Searcher object", parameter="searcher"
            )
        self.searcher = searcher
        self.shows_config = not _is_own(searcher)
        """Whether results have the trial's config, as "config/lr"."""
        self._listens = getattr(type(searcher), "on_trial_result", None) is not Searcher.on_trial_result
        self._space: dict[str, Any] = {}
        self._variables: list[Path] = []
        self._configured = False
        self._num_samples = 1
        self._id_prefix = ""
        self._forget_trials()

    def configure(
        self,
        space: dict[str, Any],
        num_samples: int = 1,
        id_prefix: str | None = None,
        *,
        metric: str | None = None,
        mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        """Set what to search; called once, before the first suggestion."""
        if seed is None:
            seed = random.SystemRandom().getrandbits(_SEED_BITS)
        self._num_samples = checked_samples(num_samples)
        if id_prefix is None:
            id_prefix = hashlib.sha256(f"trial ids {seed}".encode()).hexdigest()[:5]
        self._id_prefix = id_prefix
        self._forget_trials()  # of an earlier experiment
        self._space = space
        VariantSpace(space)
        self._variables = _variables(space)
        metric, mode = not_known_yet(self.searcher, metric, mode)
        if not introduce(self.searcher, metric, mode, space, seed=seed) and self._variables:
            names = ", ".join(path_text(path) for path in self._variables)
            raise InvalidInputError(
                f"{searcher_in(self.searcher)} takes no search space from the experiment: its set_search_properties "
                f"returned False, which is what a searcher says that has a space of its own. The experiment's space "
                f"has distributions for {names}; leave them out of it, or have the searcher take them"
            )
        self._configured = True

    @property
    def metric(self) -> Any:
        """The searcher's."""
        return self.searcher.metric

    @property
    def total(self) -> int | None:
        """The number of trials in all; None when that is open."""
        if self._exhausted:
            return self._next
        return None if self._num_samples == INFINITE else max(self._num_samples, self._next)

    def set_num_samples(self, num_samples: int) -> None:
        """Change how many trials there will be."""
        self._num_samples = checked_samples(num_samples)

    @property
    def finished(self) -> bool:
        """True when all trials were suggested, or the searcher has no more."""
        return self._exhausted or (self._num_samples != INFINITE and self._next >= self._num_samples)

    def next_suggestion(self) -> Suggestion | None:
        """Return the next trial; None when the searcher has none, be it for now or for good."""
        if not self._configured:
            raise InvalidInputError("call configure(space, num_samples) before asking for suggestions")
        if self.finished:
            return None
        trial_id = f"{self._id_prefix}_{self._next:05d}"
        config = self.searcher.suggest(trial_id)
        if config is None and self.shows_config:
            config = self._asked_again(trial_id)
        if config is None:
            return None
        if isinstance(config, str):
            if config != Searcher.FINISHED:
                raise InvalidInputError(f"{type(self.searcher).__name__}.suggest() returned {config!r}, not a dict")
            self._exhausted = True
            return None
        config = self._completed(config)
        suggestion = Suggestion(trial_id=trial_id, config=config, tag=self._tag(config))
        self._count(trial_id)
        return suggestion

    def _asked_again(self, trial_id: str) -> Any:
        """Ask a user's searcher again while no trial runs: nothing else could have it change its mind.

        Ray asks until it gets a config; FLAML's searchers count on that.
        """
        for _ in range(0 if self._live else MAX_TRIES):
            config = self.searcher.suggest(trial_id)
            if config is not None:
                return config
        return None

    def adopt(self, suggestion: Suggestion) -> None:
        """Take over an earlier suggestion."""
        self.searcher.adopt(suggestion.trial_id, suggestion.config)
        self._count(suggestion.trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass on a result, when the searcher wants any."""
        if self._listens and trial_id in self._live:
            self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Pass on the end of a trial, once; another time when it had failed or been given up, and was retried."""
        if self._is_open(trial_id):
            self.searcher.on_trial_complete(trial_id, result=result, error=error)
            self._close(trial_id, retryable=error)

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """Pass on that a trial was given up."""
        if self._is_open(trial_id):
            self.searcher.on_trial_stopped(trial_id, result=result)
            self._close(trial_id, retryable=True)

    def on_trial_rung(self, trial_id: str, rung: float, result: dict[str, Any]) -> None:
        """Pass on that a trial reached a rung, where the searcher knows of rungs."""
        if trial_id in self._live and isinstance(self.searcher, Searcher):
            self.searcher.on_trial_rung(trial_id, rung, result)

    def on_pause(self, trial_id: str) -> None:
        """Pass on that a trial was paused."""
        if trial_id in self._live:
            self.searcher.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """Pass on that a paused trial continues."""
        if trial_id in self._live:
            self.searcher.on_unpause(trial_id)

    def get_state(self) -> dict[str, Any]:
        """Return the position and the searcher's state."""
        return {
            "version": 1,
            "next": self._next,
            "num_samples": self._num_samples,
            "id_prefix": self._id_prefix,
            "exhausted": self._exhausted,
            "live": list(self._live),
            "failed": list(self._retryable),  # or given up
            "searcher": self.searcher.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called; `configure` must have been called with the same arguments."""
        self._next = state["next"]
        self._num_samples = state["num_samples"]
        self._id_prefix = state["id_prefix"]
        self._exhausted = state["exhausted"]
        self._live = dict.fromkeys(state["live"])
        self._retryable = dict.fromkeys(state["failed"])
        self.searcher.set_state(state["searcher"])

    def _forget_trials(self) -> None:
        self._next, self._exhausted, self._live, self._retryable = 0, False, {}, {}

    def _count(self, trial_id: str) -> None:
        self._next += 1
        self._live[trial_id] = None

    def _is_open(self, trial_id: str) -> bool:
        return trial_id in self._live or trial_id in self._retryable

    def _close(self, trial_id: str, *, retryable: bool) -> None:
        self._live.pop(trial_id, None)
        self._retryable.pop(trial_id, None)
        if retryable:
            self._retryable[trial_id] = None

    def _completed(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a config with the constants of the space that the searcher left out."""
        missing = {
            key: value
            for key, value in self._space.items()
            if key not in config and not any(path[0] == key for path in self._variables)
        }
        return {**VariantSpace(missing).variant(0, random.Random(0)).config, **config} if missing else config

    def _tag(self, config: dict[str, Any]) -> str:
        resolved: dict[Path, Any] = {}
        for path in self._variables:
            value: Any = config
            try:
                for part in path:
                    value = value[part]
            except (KeyError, IndexError, TypeError):
                continue
            resolved[path] = value
        if not self._variables:
            resolved = {(key,): value for key, value in config.items() if key not in self._space}
        tag = format_tag(resolved)
        return f"{self._next}_{tag}" if tag else str(self._next)


def _is_own(searcher: Any) -> bool:
    """Return whether a searcher, inside of its wrappers, is one of trialpod's."""
    while hasattr(searcher, "searcher"):
        searcher = searcher.searcher
    return type(searcher).__module__.startswith("trialpod.")


def _variables(node: Any, path: Path = ()) -> list[Path]:
    if isinstance(node, Domain) or is_grid(node):
        return [path]
    if isinstance(node, dict):
        return [found for key, value in node.items() for found in _variables(value, (*path, key))]
    if isinstance(node, (list, tuple)):
        return [found for index, value in enumerate(node) for found in _variables(value, (*path, index))]
    return []
