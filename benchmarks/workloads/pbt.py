"""Population based training: four trials at a time, steps of 20 ms, checkpoints of 1 MB, a ranking every ten steps.

Ideal is what the steps take, and writing a checkpoint at each ranking costs nothing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from system import STORAGE, begin, finish, schedulers, size, timed_fit, tune

STEP_S = 0.02
BYTES = 1_000_000


class Member(tune.Trainable):
    """Learns at its own rate; takes over a new config in place."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start with nothing learned."""
        self.lr, self.total = config["lr"], 0.0
        self.weights = bytes(BYTES)

    def step(self) -> dict[str, Any]:
        """Learn for 20 ms."""
        time.sleep(STEP_S)
        self.total += self.lr
        return {"score": self.total}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save a megabyte."""
        Path(checkpoint_dir, "weights").write_bytes(self.weights)
        Path(checkpoint_dir, "total").write_text(repr(self.total))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Take over what another one learned."""
        self.weights = Path(checkpoint_dir, "weights").read_bytes()
        self.total = float(Path(checkpoint_dir, "total").read_text())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Continue with another rate."""
        self.lr = new_config["lr"]
        return True


if __name__ == "__main__":
    begin()
    steps = int(size("steps", 200))
    scheduler = schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=10,
        hyperparam_mutations={"lr": tune.uniform(0.1, 1.0)},
    )
    tuner = tune.Tuner(
        tune.with_resources(Member, {"cpu": 0.25}),
        param_space={"lr": tune.uniform(0.1, 1.0)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=4,
            max_concurrent_trials=4,
            scheduler=scheduler,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="pbt",
            storage_path=STORAGE,
            verbose=0,
            stop={"training_iteration": steps},
            checkpoint_config=tune.CheckpointConfig(num_to_keep=4, checkpoint_at_end=False),
        ),
    )
    grid, seconds = timed_fit(tuner)
    assert len(grid) == 4
    ideal = steps * STEP_S
    finish(fit_s=seconds, ideal_s=ideal, to_ideal=seconds / ideal)
