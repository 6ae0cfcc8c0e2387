"""Optuna's storage in memory, whose trials are what a view says of them at the moment of a suggestion."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from trialpod.tune.search.optuna.running_trial import running_trial
from trialpod.tune.search.optuna.storage import StudyStorage


class ViewStorage(StudyStorage):
    """The trials that a sampler is shown."""

    def __init__(self) -> None:
        super().__init__()
        self._points: dict[int, Any] = {}
        self._shown: list[Any] = []

    def add_point(self, number: int, parameters: dict[str, Any], distributions: dict[str, Any]) -> None:
        """Note the parameters of a trial."""
        trial = running_trial(parameters, distributions, {})
        trial.number = trial._trial_id = number + 1  # noqa: SLF001  # 0 is the one that is asked for
        self._points[number] = trial

    def show(self, scores: Mapping[int, float | None]) -> None:
        """Show these trials only: those with a score as complete, the others as running."""
        from optuna.trial import TrialState

        self._shown = []
        for number, score in scores.items():
            trial = self._points[number]
            trial.state = TrialState.RUNNING if score is None else TrialState.COMPLETE
            trial.values = None if score is None else [score]
            self._shown.append(trial)

    def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Container[Any] | None = None) -> list[Any]:
        """Return the trials that are shown."""
        return [trial for trial in self._shown if states is None or trial.state in states]

    def forget(self, trial_id: int) -> None:
        """Drop the trial that a suggestion was made for."""
        self._studies[self._study].trials.clear()
        self._trial_id_to_study_id_and_number.pop(trial_id, None)
