"""``ray.tune.utils.mock_trainable``: a class Trainable for tests, whose metric is a curve that its config shapes."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

from trialpod.tune.registry import register_trainable
from trialpod.tune.trainable.trainable import Trainable

__all__ = ["MOCK_ERROR_KEY", "MOCK_TRAINABLE_NAME", "MyTrainableClass", "register_mock_trainable"]

MOCK_TRAINABLE_NAME = "mock_trainable"
MOCK_ERROR_KEY = "mock_error"


class MyTrainableClass(Trainable):
    """Reports ``episode_reward_mean``, which rises to ``height`` the sooner, the smaller ``width`` is.

    ``sleep`` makes each step take seconds; with ``mock_error`` the second step fails, once, or with
    ``persistent_error`` again after each restore.
    """

    def setup(self, config: dict[str, Any]) -> None:  # noqa: D102
        self._sleep_s = config.get("sleep", 0)
        self._fails = bool(config.get(MOCK_ERROR_KEY, False))
        self._fails_again = bool(config.get("persistent_error", False))
        self.timestep = 0
        self.restored = False

    def step(self) -> dict[str, Any]:  # noqa: D102
        if self._fails and self.timestep and (self._fails_again or not self.restored):
            raise RuntimeError(f"Failing on purpose after step {self.timestep}, as the config asks for")
        if self._sleep_s:
            time.sleep(self._sleep_s)
        self.timestep += 1
        height = math.tanh(self.timestep / self.config.get("width", 1)) * self.config.get("height", 1)
        return {"episode_reward_mean": height}

    def save_checkpoint(self, checkpoint_dir: str) -> None:  # noqa: D102
        with open(os.path.join(checkpoint_dir, "checkpoint"), "w", encoding="utf-8") as stream:
            json.dump({"timestep": self.timestep}, stream)

    def load_checkpoint(self, checkpoint_dir: Any) -> None:  # noqa: D102
        with open(os.path.join(checkpoint_dir, "checkpoint"), encoding="utf-8") as stream:
            self.timestep = json.load(stream)["timestep"]
        self.restored = True


def register_mock_trainable() -> None:
    """Register it under `MOCK_TRAINABLE_NAME`."""
    register_trainable(MOCK_TRAINABLE_NAME, MyTrainableClass)
