"""Tasks made of trainings that were run once: a config stands for the nearest one in the pool."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from space import Config, Space

from tasks.task import Curve, Task


class PoolTask(Task):
    """A pool of configs with their curves; which one is nearest is decided in the unit cube.

    Args:
        name: of the task.
        family: of tasks alike.
        space: the search space.
        configs: those that were trained.
        curves: theirs, of equal length.
        first_rung: where early stopping may begin.
    """

    def __init__(
        self,
        name: str,
        family: str,
        space: Space,
        configs: Sequence[Config],
        curves: Sequence[Curve],
        first_rung: int = 1,
    ) -> None:
        self.name, self.family, self.space, self.first_rung = name, family, space, first_rung
        self.steps = len(curves[0].values)
        self._curves = curves
        self._points = np.array([self._unit(config) for config in configs])
        self.contents = hashlib.sha256(repr([self._points.tolist(), list(curves)]).encode()).hexdigest()

    def curve(self, config: Config) -> Curve:
        """Return the curve of the nearest training."""
        distances = ((self._points - np.array(self._unit(config))) ** 2).sum(axis=1)
        return self._curves[int(distances.argmin())]

    def _unit(self, config: Config) -> list[float]:
        return [parameter.position(config[parameter.name]) for parameter in self.space]
