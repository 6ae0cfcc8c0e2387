"""Schedulers, searchers and stoppers of a script, as Ray's documentation shows them: they run and survive kill -9."""

from __future__ import annotations

import json
import signal

import pytest
from command_shell import Shell

pytestmark = pytest.mark.local

HEAD = """
import json, os, random, signal, sys, threading
from trialpod import tune
from trialpod.tune.schedulers import FIFOScheduler, TrialScheduler
from trialpod.tune.search import ConcurrencyLimiter, Searcher
STORAGE = os.path.abspath("storage")
HOLD = os.path.abspath("hold")

def show(**facts):
    print("told", json.dumps(facts))
"""

KILLED = """
class Random(Searcher):
    def __init__(self):
        self.asked, self.ended = {}, {}

    def suggest(self, trial_id):
        self.asked[trial_id] = random.random()
        return {"x": self.asked[trial_id]}

    def on_trial_complete(self, trial_id, result=None, **kwargs):
        assert result["config/x"] == self.asked.get(trial_id, result["config/x"])
        self.ended[trial_id] = result["loss"]


class Saved(Searcher):
    def __init__(self):
        super().__init__(metric="loss", mode="min")
        self.lock = threading.Lock()
        self.asked, self.ended = {}, {}

    def __getstate__(self):
        return {"asked": {}, "ended": {}}

    def __setstate__(self, state):
        self.__init__()

    suggest, on_trial_complete = Random.suggest, Random.on_trial_complete

    def save(self, path):
        with open(path, "w") as file:
            json.dump([self.asked, self.ended], file)

    def restore(self, path):
        with open(path) as file:
            self.asked, self.ended = json.load(file)


class Watching(TrialScheduler):
    def __init__(self):
        self.seen = {}

    def on_trial_add(self, tune_controller, trial):
        self.seen[trial] = 0

    def on_trial_result(self, tune_controller, trial, result):
        self.seen[trial] += 1
        assert all(trial is tune_controller.get_trial(trial.trial_id) for trial in self.seen)
        return TrialScheduler.STOP if self.seen[trial] == 3 else TrialScheduler.CONTINUE


class Counting(tune.Stopper):
    def __init__(self):
        self.results = 0

    def __call__(self, trial_id, result):
        self.results += 1
        return False

    def stop_all(self):
        return self.results == 15


class Killing(tune.Callback):
    ended = 0

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.ended += 1
        if self.ended == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def train(config):
    # The third trial begins, and waits without a result until it is killed with the driver.
    if tune.get_context().get_trial_id().endswith("_00002") and os.path.exists(HOLD):
        signal.pause()
    for step in range(10):
        tune.report({"loss": config["x"] + step})


if sys.argv[1] == "first":
    tuner = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=8, scheduler=Watching(),
            search_alg=ConcurrencyLimiter({"random": Random, "saved": Saved}[sys.argv[2]](), 1),
        ),
        run_config=tune.RunConfig(
            name="e", storage_path=STORAGE, verbose=0, stop=Counting(), callbacks=[Killing()]
        ),
    )
else:
    random.seed(3)
    tuner = tune.Tuner.restore(STORAGE + "/e", train)
    tuner.run_config.callbacks = []
grid = tuner.fit()
searcher = tuner.tune_config.search_alg.searcher
show(configs=[result.config["x"] for result in grid], asked=list(searcher.asked.values()),
     ended=len(searcher.ended), steps=[result.metrics["training_iteration"] for result in grid])
"""

PLAIN = """
class AtFive(tune.Stopper):
    def __call__(self, trial_id, result):
        return result["training_iteration"] >= 5

    def stop_all(self):
        return False


class Fixed(Searcher):
    def __init__(self):
        super().__init__(metric="loss", mode="min")

    def suggest(self, trial_id):
        return {"x": 1}

    def on_trial_complete(self, trial_id, result=None, **kwargs):
        pass


class Told(Fixed):
    def set_search_properties(self, metric, mode, config, **spec):
        assert config == {"c": 2}
        return True


class AtTwo(FIFOScheduler):
    def on_trial_result(self, controller, trial, result):
        return TrialScheduler.STOP if result["training_iteration"] >= 2 else TrialScheduler.CONTINUE


class Unstorable(FIFOScheduler):
    def __init__(self):
        self.lock = None

    def on_trial_result(self, controller, trial, result):
        self.lock = threading.Lock()
        return TrialScheduler.CONTINUE


class Silent(tune.Callback):
    pass


def train(config):
    for step in range(8):
        tune.report({"loss": step})


def run(stop=None, **arguments):
    grid = tune.Tuner(
        train,
        param_space=arguments.pop("space", {}),
        tune_config=tune.TuneConfig(**arguments),
        run_config=tune.RunConfig(storage_path=STORAGE, verbose=0, stop=stop, callbacks=[Silent()]),
    ).fit()
    return [grid[0].metrics["training_iteration"], grid[0].config]


goal = {"metric": "loss", "mode": "min"}
show(
    stopper=run(stop=AtFive()),
    searcher=run(search_alg=Fixed()),
    both=run(search_alg=Fixed(), space={"c": 2}, **goal),
    told=run(search_alg=Told(), space={"c": 2}, **goal),
    fifo=run(scheduler=AtTwo(), **goal),
    unstorable=run(scheduler=Unstorable()),
)
"""

RAY = """
import json, os, pathlib
import numpy as np
from ray import tune
from ray.tune.schedulers import HyperBandScheduler, TrialScheduler


class Falling(tune.Trainable):
    def setup(self, config):
        self.n = 0

    def step(self):
        self.n += 1
        return {"loss": self.config["x"] / self.n}

    def save_checkpoint(self, folder):
        pathlib.Path(folder, "n").write_text(str(self.n))

    def load_checkpoint(self, folder):
        self.n = int(pathlib.Path(folder, "n").read_text())


class Mine(TrialScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        return TrialScheduler.STOP if result["training_iteration"] >= 3 else TrialScheduler.CONTINUE

    def choose_trial_to_run(self, tune_controller):
        for trial in tune_controller.get_live_trials():
            if trial.status == "PENDING" and tune_controller.has_resources_for_trial(trial):
                return trial
        return None


for scheduler in (HyperBandScheduler(max_t=9), Mine()):
    np.random.seed(1)
    grid = tune.Tuner(
        Falling,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, num_samples=6),
        run_config=tune.RunConfig(storage_path=os.path.abspath("storage"), verbose=0, stop={"training_iteration": 9}),
    ).fit()
    rows = [(round(result.config["x"], 6), result.metrics["training_iteration"]) for result in grid]
    print("told", json.dumps([[row[0] for row in rows], [row[1] for row in rows]]))
"""


class TestOwnClasses:
    def test_only_documented_methods_are_needed(self, shell: Shell) -> None:
        shell.write("script.py", HEAD + PLAIN)
        done = shell.python("script.py")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        facts = json.loads(done.stdout.split("told ")[1])
        assert facts == {
            "stopper": [5, {}],
            "searcher": [8, {"x": 1}],
            "both": [8, {"x": 1, "c": 2}],
            "told": [8, {"x": 1, "c": 2}],
            "fifo": [2, {}],
            "unstorable": [8, {}],
        }

    @pytest.mark.parametrize("searcher", ["random", "saved"])
    def test_resume_after_kill(self, shell: Shell, searcher: str) -> None:
        """A random searcher, too, remembers the configs that the trials really have."""
        shell.write("script.py", HEAD + KILLED)
        hold = shell.write("hold", "")
        first = shell.python("script.py", "first", searcher)
        assert first.returncode == -signal.SIGKILL, first.stdout + first.stderr
        hold.unlink()
        done = shell.python("script.py", "again", searcher)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "suggests another config" not in done.stderr
        facts = json.loads(done.stdout.split("told ")[1])
        assert facts["steps"] == [3, 3, 3, 3, 3]  # and the fifteenth result ended the experiment
        assert facts["asked"][:5] == facts["configs"]
        assert facts["ended"] == 5

    def test_scripts_for_ray_decide_as_ray(self, shell: Shell) -> None:
        """HyperBand knows the waiting trials, the draws are NumPy's, and a scheduler asks for resources."""
        shell.write("script.py", RAY)
        done = shell.python("-m", "trialpod.compat.ray", "script.py")
        assert done.returncode == 0, done.stdout + done.stderr
        rows = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("told ")]
        draws = [0.417022, 0.720324, 0.000114, 0.302333, 0.146756, 0.092339]
        assert rows == [[draws, [9, 9, 9, 3, 9, 9]], [draws, [3] * 6]]
