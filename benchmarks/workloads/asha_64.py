"""64 ASHA trials of 50 ms steps, 8 at a time in reused processes; ideal is what the steps that were run take."""

from __future__ import annotations

import time
from typing import Any

from system import STORAGE, begin, finish, schedulers, size, timed_fit, tune

STEP_S = 0.05
PLACES = 8


class Learner(tune.Trainable):
    """Approaches its own level."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start at nothing."""
        self.x = config["x"]

    def step(self) -> dict[str, Any]:
        """Learn for 50 ms."""
        time.sleep(STEP_S)
        return {"score": self.x * (1 - 0.8**self.training_iteration)}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take over another trial."""
        self.x = new_config["x"]
        return True


if __name__ == "__main__":
    begin()
    trials = int(size("trials", 64))
    tuner = tune.Tuner(
        tune.with_resources(Learner, {"cpu": 0.2}),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=trials,
            max_concurrent_trials=PLACES,
            scheduler=schedulers.AsyncHyperBandScheduler(max_t=27, grace_period=1, reduction_factor=3),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="asha",
            storage_path=STORAGE,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    grid, seconds = timed_fit(tuner)
    assert len(grid) == trials
    steps = [result.metrics["training_iteration"] for result in grid]
    ideal = max(sum(steps) / min(PLACES, trials), max(steps)) * STEP_S
    finish(fit_s=seconds, ideal_s=ideal, to_ideal=seconds / ideal, steps=sum(steps))
