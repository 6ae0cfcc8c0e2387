"""A study in a storage of the user's, beside the one that OptunaSearch decides by.

Ours is in memory and rebuilt from the searcher's log; the user's gets a copy of every trial, for Optuna's
dashboard and for later studies, and gives the trials that it had before.

Invariants: a trial carries the id of its searcher and its number there, so that it is in the study once however often
the searcher's log is read again. The trials that the study had before are those that had ended before the searcher's
first one, so that they are the same after a restart.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.tune.search.optuna.running_trial import running_trial

_OWNER = "trialpod:searcher"
_NUMBER = "trialpod:number"


class StudyCopy:
    """The study in the user's storage.

    Args:
        storage: an Optuna storage.
        name: of the study, which is made if there is none.
        directions: of its objectives.
        owner: id of the searcher.

    Raises:
        InvalidInputError: a study of that name has other objectives.
    """

    def __init__(self, storage: Any, name: str, directions: list[Any], owner: str) -> None:
        import optuna  # type: ignore[import-not-found, unused-ignore]

        with _quiet():
            self.study = optuna.create_study(
                storage=storage, study_name=name, directions=directions, load_if_exists=True
            )
        if list(self.study.directions) != directions:
            found = ", ".join(direction.name.lower() for direction in self.study.directions)
            raise InvalidInputError(
                f"OptunaSearch: the study {name!r} in the storage is to {found}, which is not the experiment's mode; "
                "give another study_name",
                parameter="study_name",
            )
        self._storage = self.study._storage  # noqa: SLF001  # with its cache
        self._study_id = self.study._study_id  # noqa: SLF001
        self._owner = owner
        self._ids: dict[int, int] = {}
        trials = self.study.get_trials(deepcopy=False)
        ours = [trial for trial in trials if trial.user_attrs.get(_OWNER) == owner]
        for trial in ours:
            self._ids[trial.user_attrs[_NUMBER]] = trial._trial_id  # noqa: SLF001
        self._before = [trial for trial in trials if not ours or _is_before(trial, ours[0])]

    def earlier(self) -> Iterator[tuple[dict[str, Any], list[float], bool]]:
        """Yield the parameters and values of the trials that had ended before ours, and whether each was pruned."""
        for trial in self._before:
            if trial.state.name == "COMPLETE":
                yield trial.params, list(trial.values), False
            elif trial.state.name == "PRUNED" and trial.intermediate_values:
                yield trial.params, [trial.intermediate_values[max(trial.intermediate_values)]], True

    def begin(self, number: int, trial: Any) -> None:
        """Add a trial that runs, as ours has it; nothing happens when it is there."""
        if number in self._ids:
            return
        owner = {_OWNER: self._owner, _NUMBER: number}
        template = running_trial(dict(trial.params), dict(trial.distributions), owner)
        self._ids[number] = self._storage.create_new_trial(self._study_id, template)

    def report(self, number: int, step: int, value: float) -> None:
        """Add an intermediate value."""
        trial_id = self._ids.get(number)
        if trial_id is not None and not self._storage.get_trial(trial_id).state.is_finished():
            self._storage.set_trial_intermediate_value(trial_id, step, value)

    def end(self, number: int, trial: Any) -> None:
        """End a trial as ours has ended; one that has ended stays as it is."""
        trial_id = self._ids.get(number)
        if trial_id is None or self._storage.get_trial(trial_id).state.is_finished():
            return
        for step, value in trial.intermediate_values.items():
            self._storage.set_trial_intermediate_value(trial_id, step, value)
        values = None if trial.values is None else list(trial.values)
        self._storage.set_trial_state_values(trial_id, trial.state, values)


def _is_before(trial: Any, first: Any) -> bool:
    """Return whether a trial of the study had ended before another one began."""
    ended = trial.datetime_complete
    return bool(trial.number < first.number and ended is not None and ended <= first.datetime_start)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from saying that it made a study."""
    log = logging.getLogger("optuna")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
