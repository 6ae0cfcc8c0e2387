"""What an empty `step` of a class Trainable costs, in microseconds, default loggers on."""

import time

from system import STORAGE, begin, finish, size, timed_fit, tune


class Empty(tune.Trainable):
    def setup(self, config):
        self.steps = 0
        self.began = time.perf_counter()
        self.length_s = config["length_s"]

    def step(self):
        self.steps += 1
        passed = time.perf_counter() - self.began
        return {"score": self.steps, "step_us": 1e6 * passed / self.steps, "done": passed > self.length_s}


if __name__ == "__main__":
    begin()
    tuner = tune.Tuner(
        Empty,
        param_space={"length_s": size("length_s", 2.0)},
        run_config=tune.RunConfig(name="steps", storage_path=STORAGE, verbose=0),
    )
    grid, seconds = timed_fit(tuner)
    finish(step_us=grid[0].metrics["step_us"], steps=grid[0].metrics["score"])
