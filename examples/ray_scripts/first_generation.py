"""The first generation of Ray Tune's API: ``_setup``, ``_train``, ``_save``, ``reporter``, ``tune.track``.

Run it with ``python -m trialpod.compat.ray examples/ray_scripts/first_generation.py``.
"""

import os
import sys

import ray
from ray import tune
from ray.tune import Trainable, track
from ray.tune.utils import validate_save_restore


class Descent(Trainable):
    def _setup(self, config):
        self.x, self.lr = 10.0, config["lr"]

    def _train(self):
        self.x -= self.lr * 2 * self.x
        return {"loss": self.x**2, "mean_accuracy": 1 / (1 + abs(self.x)), tune.result.DONE: self.iteration >= 9}

    def _save(self, checkpoint_dir):
        path = os.path.join(checkpoint_dir, "deep/in/there")
        os.makedirs(os.path.dirname(path))
        with open(path, "w") as stream:
            stream.write(repr(self.x))
        return path

    def _restore(self, checkpoint):
        with open(checkpoint) as stream:
            self.x = float(stream.read())

    def _stop(self):
        print("stopped", self.trial_id)


def with_reporter(config, reporter):
    for step in range(100):
        reporter(timesteps_this_iter=1, mean_accuracy=config["a"] * step, done=step == 4)


def with_track(config):
    for step in range(3):
        track.log(score=config["a"] + step, name=track.trial_name())


def main(storage):
    ray.init()
    validate_save_restore(Descent, config={"lr": 0.1})
    validate_save_restore(Descent, config={"lr": 0.1}, use_object_store=True)
    tune.register_trainable("descent", Descent)

    analysis = tune.run(
        "descent",
        name="descent",
        local_dir=storage,
        config={"lr": tune.grid_search([0.05, 0.2])},
        checkpoint_freq=4,
        checkpoint_at_end=True,
        max_failures=1,
        verbose=0,
    )
    trial = analysis.get_best_trial("loss", "min")
    print(f"descent: {len(analysis.trials)} trials, best lr {trial.config['lr']}")

    analysis = tune.run(with_reporter, name="reporter", local_dir=storage, config={"a": 0.1}, verbose=0)
    row = analysis.trials[0].last_result
    print(f"reporter: {row['mean_accuracy']:.1f} after {row['timesteps_total']} steps")

    analysis = tune.run(with_track, name="track", local_dir=storage, config={"a": 1}, verbose=0)
    row = analysis.trials[0].last_result
    print(f"track: {row['score']} of {row['name'].split('_')[1]}, iteration {row['training_iteration']}")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "ray_results"))
