"""Experiments as a storage of Optuna that can only be read: what optuna-dashboard shows.

Optuna calls this interface its own affair, so its version is pinned by the extra ``ui-optuna``, and
tests/unit/ui/test_optuna_storage.py holds what the dashboard needs of it. Ids: an experiment has the number in which
it was first seen, a trial that times `MAX_TRIALS` plus its own number; both stay while the process lives.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Container, Sequence
from typing import Any, NoReturn

from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from trialpod.errors import TrialpodError
from trialpod_operator.ui.access import Experiments, Json, NoSuchExperimentError, User
from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.optuna_trials import frozen_trials

MAX_TRIALS = 10_000_000
"""Maximum number of trials of an experiment."""

REFRESH_S = 1.0
"""Minimum interval at which an experiment is read again for its summary."""

_READER = User("local")


class ReadOnlyError(TrialpodError):
    """A caller tried to change an experiment through this storage."""


class ExperimentStorage(BaseStorage):
    """Shows experiments to Optuna.

    Args:
        experiments: which.
    """

    def __init__(self, experiments: Experiments) -> None:
        self._experiments = experiments
        self._lock = threading.Lock()
        self._names: list[str] = []  # by study id
        self._known: dict[int, tuple[str, list[FrozenTrial]]] = {}  # cursor and trials, by study id

    # -- what is read -------------------------------------------------------------------------------------------

    def get_all_studies(self) -> list[FrozenStudy]:
        """Return all experiments that are there now; those without a metric have the direction of a loss."""
        found = []
        with self._lock:
            summaries = {each["id"]: each for each in self._experiments.summaries(_READER)}
            self._names += [each for each in summaries if each not in self._names]
        for study_id, name in enumerate(self._names):
            summary = summaries.get(name)
            if summary is None:  # it was removed; its number stays its own
                continue
            found.append(
                FrozenStudy(
                    study_name=name,
                    direction=None,
                    directions=_directions(summary),
                    user_attrs=_user_attrs(summary),
                    system_attrs={},
                    study_id=study_id,
                )
            )
        return found

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return an experiment's number."""
        if study_name not in [study.study_name for study in self.get_all_studies()]:
            raise KeyError(study_name)
        return self._names.index(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return an experiment's name."""
        if not 0 <= study_id < len(self._names):
            raise KeyError(study_id)
        return self._names[study_id]

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return whether more of the metric is better."""
        return _directions(self._summary(study_id))

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the metric's name and the experiment's state."""
        return _user_attrs(self._summary(study_id))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return nothing."""
        self.get_study_name_from_id(study_id)
        return {}

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial by its id."""
        study_id, number = divmod(trial_id, MAX_TRIALS)
        trials = self._trials(study_id)
        if number >= len(trials):
            raise KeyError(trial_id)
        return trials[number]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of an experiment."""
        found = [trial for trial in self._trials(study_id) if states is None or trial.state in states]
        return copy.deepcopy(found) if deepcopy else found

    def _model(self, study_id: int) -> ExperimentModel:
        try:
            return self._experiments.model(_READER, self.get_study_name_from_id(study_id))
        except NoSuchExperimentError as error:
            raise KeyError(study_id) from error

    def _summary(self, study_id: int) -> Json:
        model = self._model(study_id)
        model.refresh(0.0, max_age_s=REFRESH_S)
        return model.summary()

    def _trials(self, study_id: int) -> list[FrozenTrial]:
        model = self._model(study_id)
        while model.refresh():
            pass
        cursor = model.cursor
        with self._lock:
            known = self._known.get(study_id)
            if known is None or known[0] != cursor:
                known = self._known[study_id] = (cursor, frozen_trials(model, study_id * MAX_TRIALS))
            return known[1]

    # -- what would change something ----------------------------------------------------------------------------

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """Refuse, as for a name that is taken: `create_study(load_if_exists=True)` then loads it."""
        if study_name is not None and study_name in [study.study_name for study in self.get_all_studies()]:
            raise DuplicatedStudyError
        self._refuse()

    def delete_study(self, study_id: int) -> None:
        """Refuse."""
        self._refuse()

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Refuse."""
        self._refuse()

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Refuse."""
        self._refuse()

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Refuse."""
        self._refuse()

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Refuse."""
        self._refuse()

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Refuse."""
        self._refuse()

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Refuse."""
        self._refuse()

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Refuse."""
        self._refuse()

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ReadOnlyError("experiments cannot be changed through Optuna; use trialpod's own commands")


def _directions(summary: Json) -> list[StudyDirection]:
    larger = summary["metric"] is not None and summary["mode"] == "max"
    return [StudyDirection.MAXIMIZE if larger else StudyDirection.MINIMIZE]


def _user_attrs(summary: Json) -> dict[str, Any]:
    return {key: summary[key] for key in ("metric", "state") if summary[key] is not None}
