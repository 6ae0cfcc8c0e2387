"""What the engine asks of a search algorithm.

The engine pulls one suggestion at a time, whenever there is room for another trial. A search algorithm is
deterministic: what it suggests is a function of its seed, of how much it has suggested, and of the results it
received. Its state is data.

The calls of a search algorithm about a trial: `on_trial_result` for its results, `on_pause` and `on_unpause` in
between, and at the end one of `on_trial_complete` and `on_trial_stopped`. A trial that failed or was given up may be
retried; then there is another end.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod.tune.plugins.saved import newest_state, write_json
from trialpod.tune.plugins.state import PlugIn

if TYPE_CHECKING:
    from trialpod.legacy.experiment import Experiment
    from trialpod.legacy.internals.trial import Trial


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One new trial.

    `tag` is the readable part of the experiment tag ("0_lr=0.0132,layers=2"); `config` is fully resolved.
    """

    trial_id: str
    config: dict[str, Any]
    tag: str


class SearchAlgorithm(PlugIn):
    """Base class of what proposes trials.

    An experiment configures a search algorithm and asks for suggestions. `add_configurations` and `next_trial` are
    the same for scripts that drive one by hand, as in Ray.
    """

    learns: bool = True
    """False when results change nothing in what it proposes."""

    ABOUT: tuple[str, ...] = ()
    """For the table of the documentation: how to install it, and what it is good for."""

    CKPT_FILE_TMPL = "search-algorithm-state-{}.json"
    """The file that `save_to_dir` writes."""

    _experiment: Experiment | None = None

    @property
    def total(self) -> int | None:
        """The number of trials that there will be in all, or None when that is open."""
        raise NotImplementedError

    def set_num_samples(self, num_samples: int) -> None:
        """Change how many samples to draw; those already suggested stay."""
        raise NotImplementedError

    def next_suggestion(self) -> Suggestion | None:
        """Return the next trial, or None when there is none now."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """True when no further suggestion will come."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn from an intermediate result."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn how a trial ended that came to its own end, to one that the user set for it, or failed.

        Args:
            trial_id: which one.
            result: its last result; None when it reported none.
            error: it failed for good.
        """

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """Learn that a trial was given up before its end, so that its last result is not its final one.

        By a scheduler that found it too bad, or because the whole experiment ended. By default this is an end like
        any other: `on_trial_complete`.
        """
        self.on_trial_complete(trial_id, result)

    def on_pause(self, trial_id: str) -> None:
        """Learn that a scheduler paused a trial; it may continue later, or never."""

    def on_unpause(self, trial_id: str) -> None:
        """Learn that a paused trial continues."""

    def on_trial_rung(self, trial_id: str, rung: float, result: dict[str, Any]) -> None:
        """Learn the result with which a trial reached a rung of the scheduler (`TrialScheduler.filled_rung`)."""

    def adopt(self, suggestion: Suggestion) -> None:
        """Take over a suggestion that was made earlier, by this algorithm with the same arguments.

        Afterwards the algorithm is as if `next_suggestion` had just returned it. Those that would have to compute for
        that take it as it is instead; the default asks for the next suggestion and drops it.
        """
        self.next_suggestion()

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, on an object made with the same arguments."""
        raise NotImplementedError

    # -- by hand, as in Ray ---------------------------------------------------------------------------------------

    @property
    def total_samples(self) -> int:
        """The number of trials in all, as far as it is known."""
        return 0 if self._experiment is None else self.total or 0

    def add_configurations(self, experiments: Any) -> None:
        """Set what to search: an `Experiment`, or a dict of its name to what `Experiment.from_json` takes.

        Raises:
            InvalidInputError: there is one already, or there are several.
        """
        from trialpod.legacy.experiment import _convert_to_experiment_list

        found = _convert_to_experiment_list(experiments)
        if self._experiment is not None or len(found) != 1:
            raise InvalidInputError(
                f"{type(self).__name__} proposes the trials of one experiment; make another one for each further"
            )
        configure = getattr(self, "configure", None)
        if configure is None:
            raise InvalidInputError(f"{type(self).__name__} has no configure(space, num_samples)")
        self._experiment = experiment = found[0]
        arguments = experiment.arguments
        configure(dict(arguments.get("config") or {}), arguments.get("num_samples") or 1)

    def next_trial(self) -> Trial | None:
        """Return the next trial; None when there is none now, or none any more.

        Raises:
            InvalidInputError: `add_configurations` was not called.
        """
        from trialpod.legacy.internals.trial import Trial

        if self._experiment is None:
            raise InvalidInputError("call add_configurations(experiment) before asking for trials")
        suggestion = self.next_suggestion()
        if suggestion is None:
            return None
        return Trial(
            self._experiment.trainable,
            config=suggestion.config,
            trial_id=suggestion.trial_id,
            experiment_tag=suggestion.tag,
        )

    def is_finished(self) -> bool:
        """Return whether no further trial will come."""
        return self.finished

    def save_to_dir(self, dirpath: str | os.PathLike[str], session_str: str = "default") -> None:
        """Write the state to a file in a folder, where `restore_from_dir` finds it."""
        write_json(Path(dirpath, self.CKPT_FILE_TMPL.format(session_str)), self.get_state())

    def has_checkpoint(self, dirpath: str | os.PathLike[str]) -> bool:
        """Return whether `save_to_dir` wrote a state to a folder."""
        return any(Path(dirpath).glob(self.CKPT_FILE_TMPL.format("*")))

    def restore_from_dir(self, dirpath: str | os.PathLike[str]) -> None:
        """Read the newest state that `save_to_dir` wrote to a folder; what to search must be set already.

        Raises:
            InvalidInputError: there is none.
        """
        newest = newest_state(dirpath, self.CKPT_FILE_TMPL.format("*"), "search algorithm")
        self.set_state(json.loads(newest.read_text(encoding="utf-8")))
