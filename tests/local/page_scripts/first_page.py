"""What the first generation's page shows, method by method; run as a script for Ray."""

import contextlib
import os
import tempfile

import ray
from ray import tune
from ray.tune import Trainable, TuneError, track
from ray.tune.function_runner import StatusReporter
from ray.tune.resources import Resources
from ray.tune.result import DONE, SHOULD_CHECKPOINT
from ray.tune.utils import validate_save_restore


class Counter(Trainable):
    """Every method of the first generation."""

    def _setup(self, config):
        self.count = 0
        self.step_size = config.get("step_size", 1)

    def _train(self):
        self.count += self.step_size
        result = {"count": self.count}
        if self.count == 2:
            result[SHOULD_CHECKPOINT] = True
        if self.count >= 4:
            result[DONE] = True
        return result

    def _save(self, tmp_checkpoint_dir):
        path = os.path.join(tmp_checkpoint_dir, "deep/er")
        os.makedirs(os.path.dirname(path))
        with open(path, "w") as file:
            file.write(str(self.count))
        return path

    def _restore(self, checkpoint):
        with open(checkpoint) as file:
            self.count = int(file.read())

    def _stop(self):
        print("stopped at", self.count)

    def _log_result(self, result):
        with open("logged", "a") as file:  # in the trial's directory
            file.write(f"{result['training_iteration']}\n")

    def _export_model(self, export_formats, export_dir):
        path = os.path.join(export_dir, "model.h5")
        with open(path, "w") as file:
            file.write(str(self.count))
        return {export_formats[0]: path}

    def reset_config(self, new_config):
        self.step_size = new_config["step_size"]
        return True

    @classmethod
    def default_resource_request(cls, config):
        return Resources(cpu=1, gpu=0, extra_cpu=config.get("workers", 0))

    @classmethod
    def resource_help(cls, config):
        return "workers: a CPU each"


class Remembering(Counter):
    def _save(self, tmp_checkpoint_dir):
        return {"count": self.count}

    def _restore(self, checkpoint):
        self.count = checkpoint["count"]


class Elsewhere(Counter):
    def _save(self, tmp_checkpoint_dir):
        return tempfile.mkdtemp() + "/not_there"


def by_hand():
    one = Counter({"step_size": 1})
    result = one.train()
    for key in (
        "done",
        "time_this_iter_s",
        "time_total_s",
        "training_iteration",
        "pid",
        "date",
        "timestamp",
        "hostname",
        "node_ip",
    ):
        assert key in result, key
    assert (one.iteration, one.get_config()["step_size"]) == (1, 1)
    assert os.path.isdir(one.logdir)
    stored = one.save_to_object()
    another = Counter({"step_size": 1})
    another.restore_from_object(stored)
    assert (another.count, another.iteration) == (1, 1)
    path = another.save()
    one.train()
    one.restore(path)
    assert one.count == 1
    with tempfile.TemporaryDirectory() as folder:
        exported = one.export_model("h5", folder)
        assert os.path.exists(exported["h5"])
    another.delete_checkpoint(path)
    assert not os.path.exists(path)
    one.stop()
    assert Counter.resource_help({}) == "workers: a CPU each"
    for kind in (Counter, Remembering):
        validate_save_restore(kind)
        validate_save_restore(kind, use_object_store=True)
    with contextlib.suppress(TuneError):
        validate_save_restore(Elsewhere)
        raise AssertionError("a checkpoint outside of its directory was taken")


def tracked(config):
    for step in range(3):
        track.log(hello="world", step=step)
    assert track.trial_id() in track.trial_name()
    assert os.path.isdir(track.trial_dir())


def reported(config, reporter):
    assert isinstance(reporter, StatusReporter)
    try:
        for step in range(1, 100):
            reporter(timesteps_this_iter=1, mean_accuracy=step / 10)
    except StopIteration:
        print("told to stop")
        raise


def done_by_itself(config, reporter):
    reporter(mean_accuracy=0.5, training_iteration=4)
    reporter(mean_accuracy=1, training_iteration=5, done=True)


if __name__ == "__main__":
    ray.init(num_cpus=2)
    by_hand()

    analysis = tune.run(
        Counter, config={"step_size": tune.grid_search([1, 2])}, checkpoint_at_end=True, reuse_actors=True
    )
    assert sorted(analysis.dataframe()["training_iteration"]) == [2, 4]
    for trial in analysis.trials:
        with open(os.path.join(trial.logdir, "logged")) as file:
            assert file.read().split()[0] == "1"

    analysis = tune.run(tracked)
    assert analysis.trials[0].last_result["hello"] == "world"

    analysis = tune.run(reported, stop={"mean_accuracy": 0.5})
    assert analysis.trials[0].last_result["training_iteration"] == 5
    assert analysis.trials[0].last_result["timesteps_total"] == 5

    analysis = tune.run(done_by_itself)
    assert analysis.trials[0].last_result["training_iteration"] == 5

    class Durable(tune.DurableTrainable):
        def _setup(self, config):
            self.count = 0

        def _train(self):
            self.count += 1
            return {"count": self.count, "done": self.count == 2}

        def _save(self, tmp_checkpoint_dir):
            return {"count": self.count}

        def _restore(self, checkpoint):
            self.count = checkpoint["count"]

    analysis = tune.run(Durable, checkpoint_freq=1, sync_to_driver=False)
    assert analysis.trials[0].last_result["count"] == 2
    print("first generation: fine")
