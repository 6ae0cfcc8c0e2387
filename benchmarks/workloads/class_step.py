"""What an empty `step` of a class Trainable costs, in microseconds, default loggers on."""

from __future__ import annotations

import time
from typing import Any

from system import STORAGE, begin, finish, size, timed_fit, tune


class Empty(tune.Trainable):
    """Ends after some seconds; tells what a step took on average."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start the clock."""
        self.steps = 0
        self.began = time.perf_counter()
        self.length_s = config["length_s"]

    def step(self) -> dict[str, Any]:
        """Count."""
        self.steps += 1
        passed = time.perf_counter() - self.began
        return {"score": self.steps, "step_us": 1e6 * passed / self.steps, "done": passed > self.length_s}


if __name__ == "__main__":
    begin()
    tuner = tune.Tuner(
        Empty,
        param_space={"length_s": size("length_s", 2.0)},
        run_config=tune.RunConfig(
            name="steps",
            storage_path=STORAGE,
            verbose=0,
            # Ray would ask for a checkpoint at the end, and this class has none to give.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    grid, seconds = timed_fit(tuner)
    finish(step_us=grid[0].metrics["step_us"], steps=grid[0].metrics["score"])
