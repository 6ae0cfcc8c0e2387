"""What the second generation's page shows, section by section; run as a script for Ray."""

import os
import tempfile
import threading

import ray
from ray import air, tune
from ray.air import session
from ray.air.checkpoint import Checkpoint
from ray.tune.utils import diagnose_serialization, validate_save_restore, wait_for_gpu


def objective(x, a, b):
    return a * (x**0.5) + b


def last_only(config):
    final = 0
    for x in range(20):
        final = objective(x, config["a"], config["b"])
    session.report({"score": final})


def returned(config):
    return {"score": objective(19, config["a"], config["b"])}


def with_checkpoints(config):
    start = 0
    loaded = session.get_checkpoint()
    if loaded:
        start = loaded.to_dict()["step"] + 1
        assert start > 0
    for step in range(start, config.get("epochs", 4)):
        if step == 2 and not loaded:
            raise RuntimeError("the first attempt ends here")
        session.report({"metric": step, "started": start}, checkpoint=Checkpoint.from_dict({"step": step}))
    assert session.get_trial_name().startswith("with_checkpoints")
    assert session.get_trial_id() in session.get_trial_name()
    assert os.path.isdir(session.get_trial_dir())
    assert session.get_trial_resources().required_resources["CPU"] == 1


class Model(tune.Trainable):
    def setup(self, config, data=None):
        self.weight = 0.0
        self.steps = 0
        self.data = data
        self.setups = getattr(self, "setups", 0) + 1

    def step(self):
        self.steps += 1
        self.weight += 0.5
        return {
            "weight": self.weight,
            "rows": len(self.data) if self.data is not None else 0,
            "should_checkpoint": self.steps == 3,
            "resets": getattr(self, "resets", 0),
        }

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "weights"), "w") as file:
            file.write(str(self.weight))
        return checkpoint_dir

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "weights")) as file:
            self.weight = float(file.read())

    def reset_config(self, new_config):
        self.weight, self.steps = 0.0, 0
        self.resets = getattr(self, "resets", 0) + 1
        self.config = new_config
        return True

    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": 1}])


def fit(trainable, **arguments):
    grid = tune.Tuner(trainable, **arguments).fit()
    assert not grid.errors, grid.errors
    return grid


if __name__ == "__main__":
    ray.init(num_cpus=2)
    assert fit(last_only, param_space={"a": 2, "b": 4})[0].metrics["score"] == objective(19, 2, 4)
    only = fit(returned, param_space={"a": 2, "b": 4})[0]
    assert only.metrics["score"] == objective(19, 2, 4)
    assert only.metrics["iterations_since_restore"] == 1

    resumed = fit(with_checkpoints, run_config=air.RunConfig(failure_config=air.FailureConfig(max_failures=1)))[0]
    assert resumed.metrics["started"] == 2
    assert resumed.checkpoint.to_dict()["step"] == 3

    periodic = fit(
        Model,
        run_config=air.RunConfig(
            stop={"training_iteration": 5},
            failure_config=air.FailureConfig(max_failures=2),
            checkpoint_config=air.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
        ),
    )[0]
    iterations = sorted(metrics["training_iteration"] for _, metrics in periodic.best_checkpoints)
    assert iterations == [2, 3, 4, 5], iterations
    with periodic.checkpoint.as_directory() as folder, open(os.path.join(folder, "weights")) as file:
        assert file.read() == "2.5"
    validate_save_restore(Model)
    validate_save_restore(Model, use_object_store=True)

    data = list(range(200_000))
    given = fit(
        tune.with_parameters(Model, data=data),
        tune_config=tune.TuneConfig(num_samples=3, max_concurrent_trials=1, reuse_actors=True),
        run_config=air.RunConfig(
            name="given",
            stop={"training_iteration": 1},
            checkpoint_config=air.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    assert [result.metrics["rows"] for result in given] == [200_000] * 3
    assert sorted(result.metrics["resets"] for result in given) == [0, 1, 2]
    path = os.path.dirname(str(given[0].path))
    again = tune.Tuner.restore(path, trainable=tune.with_parameters(Model, data=data)).fit()
    assert len(again) == 3

    group = tune.with_resources(Model, tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}]))
    assert fit(group, run_config=air.RunConfig(stop={"training_iteration": 1}))[0].metrics["weight"] == 0.5

    event = threading.Event()

    def captures():
        print(event)

    def makes_its_own():
        print(threading.Event())

    assert diagnose_serialization(captures) is not True
    assert diagnose_serialization(makes_its_own) is True
    try:
        wait_for_gpu(retry=1, delay_s=0)
    except RuntimeError as error:
        print("no GPU:", error)

    model = Model({})
    model.train_buffered(0.01, max_buffer_length=3)
    stored = model.save_to_object()
    other = Model({})
    other.restore_from_object(stored)
    assert other.training_iteration == model.training_iteration
    with tempfile.TemporaryDirectory() as folder:
        saved = model.save(folder)
        other.restore(saved)
    assert model.get_auto_filled_metrics(debug_metrics_only=True)["pid"] == os.getpid()
    model.stop()
    print("second generation: fine")
