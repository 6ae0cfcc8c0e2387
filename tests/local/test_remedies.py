"""Each command and edit that `trialpod run` advises is carried out as printed, in its situation.

`test_run_again.py` does so for edited experiments and misspelt metrics, `test_run_cli.py` for the
commands to resume, extend and retry.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys

import pytest
from command_shell import TRIALPOD, Shell

pytestmark = [pytest.mark.local, pytest.mark.once]

TRAIN = """
from trialpod import tune

def train(config):
    for i in range(2):
        tune.report({"score": config["x"]})
"""
SLOW = """
import time
from trialpod import tune
from trialpod.tune import TuneConfig, Tuner

def train(config):
    time.sleep(0.3)
    tune.report({"score": config["x"]})

Tuner(tune.with_resources(train, {"cpu": 1}), param_space={"x": tune.uniform(0, 1)},
      tune_config=TuneConfig(num_samples=6, max_concurrent_trials=1, time_budget_s=0.5)).fit()
"""


def run_printed(shell: Shell, command: str) -> subprocess.CompletedProcess[str]:
    """Run a `trialpod` command that a message has."""
    words = shlex.split(command)
    assert words[0].endswith("trialpod"), command
    return shell.execute([*TRIALPOD, *words[1:]])


def after(text: str, mark: str) -> str:
    line = next(line for line in text.splitlines() if mark in line)
    return line.partition(mark)[2].strip()


class TestResources:
    def prepared(self, shell: Shell, **resources: float) -> str:
        shell.write("train.py", TRAIN)
        shell.manifest(resources=resources, searchSpace={"x": {"uniform": [0, 1]}})
        refused = shell.run("run", "experiment.yaml")
        assert refused.returncode == 2
        assert not (shell.folder / "trialpod-results/exp").exists()
        return refused.stderr

    def test_no_gpu_here(self, shell: Shell) -> None:
        shell.env["CUDA_VISIBLE_DEVICES"] = ""
        advice = self.prepared(shell, gpu=1)
        option = advice.partition("ask for none with ")[2].split(";")[0]
        assert run_printed(shell, f"trialpod run experiment.yaml {option}").returncode == 0

    def test_too_few_cpus(self, shell: Shell) -> None:
        advice = self.prepared(shell, cpu=4000)
        option = advice.partition("ask for less with ")[2].split(" or ")[0]
        assert run_printed(shell, f"trialpod run experiment.yaml {option} --name less").returncode == 0
        assert "or --cpus N to overcommit" in advice
        assert run_printed(shell, "trialpod run experiment.yaml --cpus 4000").returncode == 0

    def test_of_a_script(self, shell: Shell) -> None:
        shell.env["CUDA_VISIBLE_DEVICES"] = ""
        shell.write("script.py", SLOW.replace('{"cpu": 1}', '{"gpu": 1}').replace("num_samples=6", "num_samples=1"))
        refused = shell.run("run", "script.py")
        assert "ask for none with tune.with_resources(trainable, {'gpu': 0})" in refused.stderr
        shell.write("script.py", (shell.folder / "script.py").read_text().replace('{"gpu": 1}', "{'gpu': 0}"))
        assert shell.run("run", "script.py").returncode == 0


class TestBudget:
    def test_time_budget_of_a_script(self, shell: Shell) -> None:
        shell.write("script.py", SLOW)
        ended = shell.run("run", "script.py")
        command, _, edit = after(ended.stdout, "resume:").partition(", with ")
        assert edit == "time_budget_s=1 in its TuneConfig"
        shell.write("script.py", SLOW.replace("time_budget_s=0.5", "time_budget_s=60"))
        longer = run_printed(shell, command)
        assert longer.returncode == 0, longer.stdout
        assert "6 trials in" in longer.stdout

    def test_time_budget_of_a_manifest(self, shell: Shell) -> None:
        shell.write("train.py", SLOW[: SLOW.index("Tuner(tune")])
        space = {"x": {"uniform": [0, 1]}}
        shell.manifest(searchSpace=space, numSamples=8, maxConcurrentTrials=1, timeBudget="1s")
        ended = shell.run("run", "experiment.yaml")
        more = run_printed(shell, after(ended.stdout, "resume:"))
        assert more.returncode == 0
        assert len(shell.results()["trials"]) > ended.stdout.count(" started")


class TestElsewhere:
    def test_code_in_a_config_map(self, shell: Shell) -> None:
        shell.write("train.py", TRAIN)
        reference = {"configMapRef": {"name": "code", "key": "train.py", "entrypoint": "train:train"}}
        shell.manifest(trainable=reference, searchSpace={"x": {"uniform": [0, 1]}})
        refused = shell.run("run", "experiment.yaml")
        options = refused.stderr.partition("and name it: ")[2]
        assert run_printed(shell, f"trialpod run experiment.yaml {options}").returncode == 0

    def test_init_over_files(self, shell: Shell) -> None:
        assert shell.run("init").returncode == 0
        assert "--force" in shell.run("init").stderr
        assert shell.run("init", "--force").returncode == 0

    def test_experiment_without_metric(self, shell: Shell) -> None:
        shell.write("train.py", TRAIN)
        shell.manifest(searchSpace={"x": {"uniform": [0, 1]}})
        ended = shell.run("run", "experiment.yaml")
        best = run_printed(shell, after(ended.stdout, "name one here:"))
        assert (best.returncode, "with score=" in best.stdout) == (0, True)


class TestRunFromPython:
    """The lines of Python that close the output of `python script.py`."""

    CODE = """
import time
from pathlib import Path
from trialpod import tune

def trainable(config):
    if not Path(config["folder"], "corrected").exists():
        if config["fails"]:
            raise ValueError("no")
        time.sleep(60)
    tune.report({"score": 1})
"""
    SCRIPT = """
import os
from code_of_trials import trainable
from trialpod import tune

def main(fails):
    config = {"folder": os.getcwd(), "fails": fails}
    tune.Tuner(trainable, param_space=config, tune_config=tune.TuneConfig(num_samples=2)).fit()
"""

    def run(self, shell: Shell, *, fails: bool) -> str:
        shell.write("code_of_trials.py", self.CODE)
        shell.write("script.py", f"{self.SCRIPT}\nmain({fails})\n")
        running = shell.launch([sys.executable, "script.py"])
        if not fails:
            running.wait_line(lambda line: "00000 started" in line)
            running.signal(signal.SIGINT)
        running.wait()
        shell.write("corrected", "")
        return running.text

    def carry_out(self, shell: Shell, line: str) -> str:
        program = f"from code_of_trials import trainable\nfrom trialpod import tune\nprint([r.error for r in {line}])"
        done = shell.python("-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_interrupted_experiment_is_resumed(self, shell: Shell) -> None:
        text = self.run(shell, fails=False)
        assert "retry:" not in text
        assert "[None, None]" in self.carry_out(shell, after(text, "resume:"))

    def test_failed_trials_are_retried(self, shell: Shell) -> None:
        text = self.run(shell, fails=True)
        assert "no trial has reported a result" in text
        assert "resume:" not in text
        assert "[None, None]" in self.carry_out(shell, after(text, "retry:"))
