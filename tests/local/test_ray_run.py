"""`tune.run` with the arguments of Ray's older generations, under the alias and with real trial processes."""

from __future__ import annotations

import pytest
from command_shell import Shell

pytestmark = pytest.mark.local

SCRIPT = """
import os
from ray import tune
from ray.tune.logger import Logger

class Steps(tune.Trainable):
    def setup(self, config):
        self.n = 0
    def step(self):
        self.n += 1
        return {"n": self.n}
    def save_checkpoint(self, checkpoint_dir):
        return {"n": self.n}
    def load_checkpoint(self, state):
        self.n = state["n"]
    def _export_model(self, export_formats, export_dir):
        path = os.path.join(export_dir, "exported")
        open(path, "w").write(",".join(export_formats))
        return {"model": path}

class Mine(Logger):
    def on_result(self, result):
        with open(os.path.join(self.logdir, "mine.txt"), "a") as stream:
            stream.write(str(result["n"]))

def count(config):
    start = tune.get_checkpoint()
    n = start.to_dict()["n"] if start else 0
    tune.report({"n": n + 1}, checkpoint=tune.Checkpoint.from_dict({"n": n + 1}))

def anonymous(config):
    yield 0.1
    yield 0.3

shown = {"verbose": 0, "local_dir": "results"}
first = tune.run(Steps, stop={"training_iteration": 3}, checkpoint_at_end=True, export_formats=["model"],
                 loggers=[Mine], **shown)
trial = first.trials[0]
print("exported", open(os.path.join(trial.logdir, "exported")).read())
print("logged", open(os.path.join(trial.logdir, "mine.txt")).read())
on = tune.run(Steps, stop={"training_iteration": 5}, restore=trial.checkpoint.path, **shown).trials[0].last_result
print("restored class", on["n"], on["training_iteration"], on["iterations_since_restore"])
begun = tune.run(count, **shown).trials[0].checkpoint
on = tune.run(count, restore=begun, **shown).trials[0].last_result
print("restored function", on["n"], on["training_iteration"])
class Broken(Steps):
    def _export_model(self, export_formats, export_dir):
        raise ValueError("no model")

failed = tune.run(Broken, stop={"training_iteration": 1}, export_formats=["model"], max_failures=2,
                  raise_on_failed_trial=False, **shown).trials[0]
pickled = os.path.basename(failed.pickled_error_file)
print("not exported", failed.status, isinstance(failed.error, ValueError), pickled)
print("failures", open(failed.error_file).read().count("Failure # "), failed.last_result["n"])
both = tune.run([count, Steps], stop={"n": 1}, metric="n", mode="max", **shown)
print("both", [trial.trainable_name for trial in both.trials])
best = tune.run(anonymous, mode="max", **shown)
class NoSuper(tune.Trainable):
    def __init__(self, config, logger_creator=None):
        self.n = 0
    def step(self):
        return {"n": 1}

failed = tune.run(NoSuper, raise_on_failed_trial=False, **shown).trials[0]
print("failed", str(failed.error).partition("TrainableError: ")[2].partition(": call")[0])
print("anonymous", best.default_metric, best.best_result["_metric"], best.best_trial.last_result["_metric"])
"""


class TestOlderArguments:
    def test_keep_their_meaning(self, shell: Shell) -> None:
        shell.write("script.py", SCRIPT)
        done = shell.python("-m", "trialpod.compat.ray", "--replace", "script.py")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [line for line in done.stdout.splitlines() if line] == [
            "exported model",
            "logged 123",
            "restored class 5 5 2",
            "restored function 2 1",
            "not exported ERROR True error.pkl",
            "failures 1 1",
            "both ['count', 'Steps']",
            "failed NoSuper.__init__() does not call super().__init__(config)",
            "anonymous _metric 0.3 0.3",
        ]


LEARNING = """
from ray import tune
from ray.tune.search.optuna import OptunaSearch

def train(config):
    tune.report({"loss": config["x"]})
    assert config["x"] > 0.5

grid = {"x": tune.grid_search([0.25, 0.75])}
analysis = tune.run(train, config=grid, raise_on_failed_trial=False, local_dir="results", verbose=0)
search = OptunaSearch({"x": tune.uniform(0, 1)}, metric="loss", mode="min")
print("learned", search.add_evaluated_trials(analysis, "loss"))
search.suggest("a")
print(sorted((trial.state.name, trial.value) for trial in search.study.trials[:2]))
"""


class TestAnalysis:
    def test_is_what_a_search_learns_from(self, shell: Shell) -> None:
        """As Ray documents it; a trial that failed counts as failed, although its last value is the best."""
        pytest.importorskip("optuna")
        shell.write("script.py", LEARNING)
        done = shell.python("-m", "trialpod.compat.ray", "--replace", "script.py")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [line for line in done.stdout.splitlines() if line] == [
            "learned 2",
            "[('COMPLETE', 0.75), ('FAIL', None)]",
        ]


RUNNER = """
import os
from ray import air, tune
from ray.tune.execution.trial_runner import TrialRunner
from ray.tune.experiment.trial import Trial

class Steps(tune.Trainable):
    def setup(self, config):
        self.n = 0
    def step(self):
        self.n += 1
        if self.n > 2 and not os.path.exists(config_file):
            raise RuntimeError("broken")
        return {"n": self.n, "cpus": self.trial_resources.cpu}
    def save_checkpoint(self, checkpoint_dir):
        return {"n": self.n}
    def load_checkpoint(self, state):
        self.n = state["n"]

    def _export_model(self, export_formats, export_dir):
        path = os.path.join(export_dir, "exported")
        open(path, "w").write(",".join(export_formats))
        return {"model": path}

config_file = os.path.abspath("mended")
tune.register_trainable("steps", Steps)
runner = TrialRunner(local_checkpoint_dir="results/exp")
runner.add_trial(
    Trial("steps", stopping_criterion={"training_iteration": 4}, trial_name_creator=lambda trial: "mine",
          export_formats=["model"], placement_group_factory=tune.PlacementGroupFactory([{"CPU": 2}]),
          checkpoint_config=air.CheckpointConfig(checkpoint_frequency=1))
)
while not runner.is_finished():
    runner.step()
(trial,) = runner.get_trials()
kept = sorted(name for name in os.listdir(trial.logdir) if name.startswith("checkpoint_"))
print("first", trial, trial.status, trial.relative_logdir, len(kept), "broken" in str(trial.error))
open(config_file, "w").close()
again = TrialRunner(local_checkpoint_dir="results/exp")
again.resume(resume_errored=True)
print("known", [(each.trial_id == trial.trial_id, each.status, each.resources.cpu) for each in again.get_trials()])
while not again.is_finished():
    again.step()
(trial,) = again.get_trials()
kept = sorted(name for name in os.listdir(trial.logdir) if name.startswith("checkpoint_"))
exported, last = open(os.path.join(trial.logdir, "exported")).read(), trial.last_result
print("second", trial, trial.status, last["training_iteration"], len(kept), exported, last["cpus"])
restored = Trial("steps", stopping_criterion={"training_iteration": 6}, restore_path=trial.checkpoint.path)
other = TrialRunner(local_checkpoint_dir="results/other")
other.add_trial(restored)
while not other.is_finished():
    other.step()
print("third", restored.last_result["n"], restored.last_result["iterations_since_restore"])
"""


class TestTrialRunner:
    def test_keeps_what_its_trials_say_and_resumes_them(self, shell: Shell) -> None:
        shell.write("script.py", RUNNER)
        done = shell.python("-m", "trialpod.compat.ray", "--replace", "script.py")
        assert done.returncode == 0, done.stdout + done.stderr
        words = ("first", "known", "second", "third")
        assert [line for line in done.stdout.splitlines() if line.startswith(words)] == [
            "first mine ERROR mine 2 True",
            "known [(True, 'ERROR', 2.0)]",
            "second mine TERMINATED 4 4 model 2.0",
            "third 6 2",
        ]


class TestNumPyMetrics:
    def test_are_what_schedulers_decide_by(self, shell: Shell) -> None:
        shell.write(
            "script.py",
            """
            import json
            import os

            import numpy as np
            from ray import tune
            from ray.tune.schedulers import ASHAScheduler

            def train(config):
                for i in range(4):
                    tune.report({"loss": np.float64(config["x"]) / (i + 1)})

            grid = tune.Tuner(
                train,
                param_space={"x": tune.grid_search([1, 2, 3, 4])},
                tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=ASHAScheduler(max_t=4)),
                run_config=tune.RunConfig(verbose=0, storage_path="results"),
            ).fit()
            best = grid.get_best_result().metrics["loss"]
            rows = [open(os.path.join(result.path, "result.json")).read().splitlines()[-1] for result in grid]
            print("done", {json.loads(row)["done"] for row in rows})
            print("best", best, type(best).__name__)
            """,
        )
        done = shell.python("-m", "trialpod.compat.ray", "--replace", "script.py")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-2:] == ["done {True}", "best 0.25 float64"]
