"""Search algorithms that take their time, with real processes: nobody waits for them, and kills change nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from command_shell import Shell

from trialpod_operator.view.reading import ReadExperiment

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]

EXPERIMENT = Path("storage/exp")
SCRIPT = """
import os, pathlib
from trialpod import tune
from trialpod.tune import Tuner, TuneConfig, RunConfig
from trialpod.tune.schedulers import ASHAScheduler
from trialpod.tune.search import Searcher

def train(config):
    for step in range(2):
        tune.report({"score": config["lr"] + step})  # judged: it waits for the answer
    if config["lr"] == 0:
        with open(os.environ["GATE"], "w") as gate:
            gate.write("reported")
    tune.report({"score": config["lr"] + 2})

class Slow(Searcher):
    def __init__(self):
        super().__init__()
        self.count, self.told = 0, 0
    def set_search_properties(self, metric, mode, config, **spec):
        return True
    def suggest(self, trial_id):
        if self.count == 1:
            with open(os.environ["GATE"]) as gate:  # did reports wait for this, that would never come
                assert gate.read() == "reported"
        self.count += 1
        return {"lr": self.count - 1}
    def on_trial_complete(self, trial_id, result=None, error=False):
        self.told += 1
    def get_state(self):
        return {"count": self.count, "told": self.told}
    def set_state(self, state):
        self.count, self.told = state["count"], state["told"]

Tuner(
    train,
    tune_config=TuneConfig(metric="score", mode="max", scheduler=ASHAScheduler(max_t=3), search_alg=Slow(),
        num_samples=3, max_concurrent_trials=2),
    run_config=RunConfig(name="exp", storage_path=os.path.abspath("storage"), verbose=1),
).fit()
"""


def test_reports_are_answered_while_a_suggestion_is_computed(shell: Shell) -> None:
    gate = shell.folder / "gate"
    os.mkfifo(gate)
    shell.env["GATE"] = str(gate)
    shell.write("script.py", SCRIPT)
    done = shell.python("script.py")
    assert done.returncode == 0, done.stdout + done.stderr
    trials = ReadExperiment(shell.folder / EXPERIMENT).engine.state.get_trials()
    assert [(trial.config["lr"], trial.status) for trial in trials] == [(n, "TERMINATED") for n in range(3)]
    assert trials[0].iteration == 3


OPTUNA = """
import os
from trialpod import tune
from trialpod.tune import Tuner, TuneConfig, RunConfig
from trialpod.tune.search import create_searcher

def train(config):
    for step in range(3):
        tune.report({"score": (config["x"] - 0.3) ** 2 + 1 / (step + 1)})
    if os.environ.get("DIES") and config["number"] >= 4:
        os.kill(int(os.environ["SHELL_PID"]), 9)

os.environ["SHELL_PID"] = str(os.getpid())
Tuner(
    train,
    param_space={"x": tune.uniform(0, 1), "number": tune.randint(0, 6)},
    tune_config=TuneConfig(metric="score", mode="min", search_alg=create_searcher("optuna", seed=3), num_samples=8,
        max_concurrent_trials=1),
    run_config=RunConfig(name="exp", storage_path=os.path.abspath("storage"), verbose=1),
).fit()
"""


def test_optuna_suggests_the_same_after_kills(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    whole = Shell(tmp_path / "whole")
    whole.folder.mkdir()
    for one in (shell, whole):
        one.write("script.py", OPTUNA)
    shell.env["DIES"] = "1"
    assert shell.python("script.py").returncode == -signal.SIGKILL
    shell.env["TRIALPOD_RESUME"] = "1"
    shell.python("script.py")
    del shell.env["DIES"]
    for one in (shell, whole):
        done = one.python("script.py")
        assert done.returncode == 0, done.stdout + done.stderr
    found = [
        [json.dumps(trial.config) for trial in ReadExperiment(one.folder / EXPERIMENT).engine.state.get_trials()]
        for one in (shell, whole)
    ]
    assert len(found[0]) == 8
    assert found[0] == found[1]
