"""Where OptunaSearch keeps its study: Optuna's own storage in memory, with trials that can be resumed.

Optuna never changes a trial that has ended. Here one can: a paused trial is PRUNED and then RUNNING again, and a
failed one may be retried and complete.

While a sampler is asked, the storage may show it a part of the ended trials (`Part`): the time of TPE grows with
their number, three quarters of it in loops over all trials and the rest in the density of those that are not good.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trialpod.tune.search.optuna.running_trial import running_trial

if TYPE_CHECKING:
    _Base = Any
else:
    from optuna.storages import InMemoryStorage as _Base

_CONSTRAINT = "constraints"
_RELATIVE = "tpe:relative_params"
BEST = 25
"""So many TPE takes as the good ones, from 250 trials on. One more in the part would count for too much among the
others, and keep suggestions away from where it is good."""

Rank = tuple[int, float, float]


class Part:
    """The best of all ended trials, and a random sample of the others that does not change with their order.

    A trial is in the sample by a hash of its number, so the same trials are in it after a restart; the older ones
    thin out as more come.

    Args:
        most: how many ended trials there may be in it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._best: list[tuple[Rank, int]] = []
        self._drawn: list[tuple[bytes, int]] = []
        self._ranks: dict[int, Rank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def add(self, number: int, rank: Rank) -> None:
        """Note that a trial has ended; `rank` orders them, the best first."""
        self.remove(number)
        self._ranks[number] = rank
        bisect.insort(self._best, (rank, number))
        bisect.insort(self._drawn, (_hash(number), number))

    def remove(self, number: int) -> None:
        """Forget a trial, which runs again; nothing happens when it is not there."""
        rank = self._ranks.pop(number, None)
        if rank is not None:
            del self._best[bisect.bisect_left(self._best, (rank, number))]
            del self._drawn[bisect.bisect_left(self._drawn, (_hash(number), number))]

    def numbers(self) -> list[int] | None:
        """Return the trials in it, in order; None when it is all of them."""
        if len(self._ranks) <= self._most:
            return None
        found = {number for _, number in self._best[:BEST]}
        for _, number in self._drawn:
            if len(found) >= self._most:
                break
            found.add(number)
        return sorted(found)


class StudyStorage(_Base):  # type: ignore[misc]
    """The trials of one study.

    Args:
        part: which ended trials a sampler is shown; None shows all.
    """

    def __init__(self, part: Part | None = None) -> None:
        super().__init__()
        self._part = part
        self._partial = False
        self._running: dict[int, None] = {}

    @contextlib.contextmanager
    def for_sampler(self) -> Iterator[None]:
        """Show only a part of the trials meanwhile."""
        self._partial = True
        try:
            yield
        finally:
            self._partial = False

    def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Container[Any] | None = None) -> list[Any]:
        """Return the trials, or the part of them that a sampler is shown."""
        from optuna.trial import TrialState

        numbers = None
        # The model is made of these states; the search space, for one, is inferred from all trials.
        for_model = states is not None and TrialState.COMPLETE in states and TrialState.RUNNING in states
        if self._part is not None and self._partial and for_model and not deepcopy:
            numbers = self._part.numbers()
        if numbers is None:
            found: list[Any] = super().get_all_trials(study_id, deepcopy, states)
            return found
        assert states is not None
        trials = self._studies[study_id].trials
        shown = (trials[number] for number in sorted({*numbers, *self._running}))
        return [trial for trial in shown if trial.state in states]

    def create_new_trial(self, study_id: int, template_trial: Any = None) -> int:
        """Add a trial."""
        trial_id: int = super().create_new_trial(study_id, template_trial)
        self._file(trial_id)
        return trial_id

    def set_trial_state_values(self, trial_id: int, state: Any, values: Sequence[float] | None = None) -> bool:
        """Change the state of a trial."""
        changed: bool = super().set_trial_state_values(trial_id, state, values)
        self._file(trial_id)
        return changed

    def open_study(self, directions: Sequence[Any], name: str) -> None:
        """Make the study, without a word in the log."""
        import logging

        log = logging.getLogger("optuna")
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            self._study = self.create_new_study(directions, name)
        finally:
            log.setLevel(level)

    def check_trial_is_updatable(self, trial_id: int, trial_state: Any) -> None:
        """Allow every change."""

    def add_running(self, parameters: dict[str, Any], distributions: dict[str, Any]) -> int:
        """Add a trial that runs with these parameters; return Optuna's id of it."""
        trial = running_trial(parameters, distributions, {})
        trial_id: int = self.create_new_trial(self._study, trial)
        return trial_id

    def set_latest(self, trial_id: int, step: int, value: float) -> None:
        """Keep a value as the only intermediate one of a trial."""
        trial = self.get_trial(trial_id)
        trial.intermediate_values = {}
        self.set_trial_intermediate_value(trial_id, step, value)

    def set_constraint(self, trial_id: int, name: str, value: float) -> None:
        """Set the value of a constraint, in the form in which Optuna's trials keep it."""
        self.set_trial_system_attr(trial_id, f"{_CONSTRAINT}:{name}", value)

    def forget_relative(self, trial_id: int) -> None:
        """Remove what TPE noted of a trial: the parameters of all options, some of which no replay knows."""
        trial = self.get_trial(trial_id)
        attrs = trial.system_attrs
        trial.system_attrs = {name: value for name, value in attrs.items() if not name.startswith(_RELATIVE)}

    def park(self, trial_id: int, value: float) -> None:
        """Make a running trial a pruned one."""
        from optuna.trial import TrialState

        self.set_trial_state_values(trial_id, TrialState.PRUNED, [value])

    def reopen(self, trial_id: int) -> None:
        """Make a trial a running one, whatever it is."""
        from optuna.trial import TrialState

        trial = self.get_trial(trial_id)
        if trial.state == TrialState.RUNNING:
            return
        self.set_trial_state_values(trial_id, TrialState.WAITING)
        self.set_trial_state_values(trial_id, TrialState.RUNNING)
        reopened = self.get_trial(trial_id)
        reopened.values = None
        reopened.datetime_complete = None

    def _file(self, trial_id: int) -> None:
        """Note what has become of a trial, for the part of them that a sampler is shown."""
        from optuna.study import StudyDirection
        from optuna.trial import TrialState

        if self._part is None:
            return
        trial = self.get_trial(trial_id)
        if trial.state == TrialState.RUNNING:
            self._running[trial.number] = None
        else:
            self._running.pop(trial.number, None)
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            directions = self.get_study_directions(self._study)
            self._part.add(trial.number, _rank(trial, -1.0 if directions[0] == StudyDirection.MAXIMIZE else 1.0))
        else:
            self._part.remove(trial.number)


def _rank(trial: Any, sign: float) -> Rank:
    """Return where TPE puts an ended trial: acceptable and complete, else acceptable, else by what it violates."""
    violated = sum(value for value in trial.constraints.values() if value > 0)
    if violated > 0:
        return (2, violated, 0.0)
    if trial.state.name == "COMPLETE":
        return (0, sign * trial.value, 0.0)
    if not trial.intermediate_values:
        return (1, 1.0, 0.0)
    step, value = max(trial.intermediate_values.items())
    return (1, float(-step), sign * value)


def _hash(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=8).digest()
