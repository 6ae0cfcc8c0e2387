"""Baselines that are a few lines."""

from __future__ import annotations

import math
import random
from typing import Any

from space import Config, Parameter, draw

from tuners.tuner import Decision, Problem, Start, Tuner

SCREENING = 0.25
"""Share of the budget for first reports; the rest trains the best of them to the end."""


class TopAfterFirstRung(Tuner):
    """Random configs up to the first rung for a quarter of the budget, then full trainings of the best, in order.

    With a first rung at one epoch this is the baseline of Bohdal et al. and Egele et al., "Is One Epoch All You Need
    For Multi-Fidelity Hyperparameter Optimization?" (2023).
    """

    def begin(self, problem: Problem) -> None:
        """Begin."""
        self._problem = problem
        self._space = [Parameter(**_as_arguments(parameter)) for parameter in problem.space]
        self._rng = random.Random(problem.seed)
        self._points: list[Config] = list(problem.start_points)
        self._values: dict[str, float] = {}
        self._paused: dict[str, float] = {}
        self._busy: dict[str, float] = {}  # since when
        self._spent = 0.0
        self._count = 0

    def next_start(self, now: float) -> Start | None:
        """Screen, or continue the best."""
        spent = self._spent + sum(now - since for since in self._busy.values())
        if spent < SCREENING * self._problem.budget_s:
            trial = str(self._count)
            self._count += 1
            self._busy[trial] = now
            return Start(trial, self._points.pop(0) if self._points else draw(self._space, self._rng))
        if not self._paused:
            return None
        trial = min(self._paused, key=self._paused.__getitem__)
        del self._paused[trial]
        self._busy[trial] = now
        return Start(trial)

    def report(self, trial: str, step: int, value: float, seconds: float, now: float) -> Decision:
        """Pause at the first rung."""
        if step != self._problem.first_rung or step == self._problem.steps:
            return "continue"
        if math.isnan(value):
            return "stop"
        self._values[trial] = value
        return "pause"

    def ended(self, trial: str, decision: Decision, now: float) -> None:
        """Count what the trial took."""
        self._spent += now - self._busy.pop(trial)
        if decision == "pause":
            self._paused[trial] = self._values[trial]


def _as_arguments(parameter: dict[str, Any]) -> dict[str, Any]:
    return {**parameter, "choices": tuple(parameter.get("choices", ()))}
