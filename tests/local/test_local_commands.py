"""`trialpod list`, `status`, `why`, `logs` and `stop` of experiments on this machine, from another terminal."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from command_shell import Shell

pytestmark = [pytest.mark.local, pytest.mark.once]


@pytest.fixture(autouse=True)
def _without_a_cluster(shell: Shell) -> None:
    shell.env["KUBECONFIG"] = "/nowhere"


ENDLESS = """
import time
from trialpod import tune

def train(config):
    for i in range(1_000_000):
        print(f"step {i}", flush=True)
        tune.report({"score": config["x"]})
        time.sleep(0.02)
"""
FAILING = """
def train(config):
    print("before")
    raise ValueError("no data")
"""


def endless(shell: Shell) -> None:
    shell.write("train.py", ENDLESS)
    shell.manifest("climb", metric="score", mode="max", numSamples=3, maxConcurrentTrials=1, seed=1)


class TestRunning:
    """What another terminal sees of an experiment that runs, and does to it."""

    def test_is_shown_and_stopped_and_resumed(self, shell: Shell) -> None:
        endless(shell)
        running = shell.start("run", "experiment.yaml")
        running.wait_line("started")
        listed = json.loads(shell.run("list", "--json").stdout)
        assert [(each["name"], each["state"]) for each in listed] == [("climb", "Running")]
        shown = shell.run("status", "climb")
        assert shown.stdout.startswith("climb: Running, 0/3 trials, 1 running, ")
        assert "\nwatch: trialpod status trialpod-results/climb --watch\n" in shown.stdout
        why = shell.run("why", "climb").stdout
        assert f"  process {running.pid} has run it for " in why
        assert ": trialpod run experiment.yaml\n" in why

        follower = shell.start("logs", "climb", "0", "-f")
        follower.wait_line("step 3")
        watcher = shell.start("status", "climb", "--watch")
        watcher.wait_line("started")
        stopped = shell.run("stop", "climb", "--wait")
        assert stopped.stdout.startswith("climb is being stopped: its trials finish their step and checkpoint\n")
        assert stopped.stdout.endswith("climb has stopped\n  its results: trialpod results trialpod-results/climb\n"
                                       "  to resume:   trialpod run experiment.yaml\n")  # fmt: skip
        assert (running.wait(), follower.wait(), watcher.wait()) == (130, 0, 0)
        assert "Suspended" in watcher.text

        assert (
            "run it again where it was started, it resumes: trialpod run experiment.yaml"
            in shell.run("why", "climb").stdout
        )
        again = shell.run("stop", "climb")
        assert (again.returncode, again.stderr) == (
            2,
            "trialpod: no process runs trialpod-results/climb: its state is Suspended\n",
        )

        running = shell.start("run", "experiment.yaml", "--fresh")
        running.wait_line("started")
        follower = shell.start("logs", "climb", "0", "-f")
        follower.wait_line("step 3")  # only what has reported can be resumed
        fresh = shell.run("stop", "climb", "--wait").stdout
        assert fresh.endswith("  to resume:   trialpod run experiment.yaml\n")
        assert shell.run("why", "climb").stdout.endswith("it resumes: trialpod run experiment.yaml\n")
        assert (running.wait(), follower.wait()) == (130, 0)

        running = shell.start("run", "experiment.yaml")
        running.wait_line("resumed")
        shell.run("stop", "climb", "--now", "--wait")
        assert running.wait() in (130, -signal.SIGINT)  # the second one may meet a process that is about to exit

    def test_that_was_killed_is_interrupted(self, shell: Shell) -> None:
        endless(shell)
        running = shell.start("run", "experiment.yaml")
        running.wait_line("started")
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        why = json.loads(shell.run("why", "climb", "--json").stdout)
        assert (why["state"], why["message"], why["running"]) == ("Interrupted", "no process runs it", 0)
        assert shell.run("status", "climb", "--watch").returncode == 1
        assert " Interrupted " in shell.run("list").stdout
        results = shell.run("results", "climb").stdout
        assert results.startswith("climb: Interrupted, 0/")
        assert "RUNNING" not in results
        assert shell.run("results", "climb").stdout == results  # its time ended with it


class TestEnded:
    def test_failures_are_named_with_what_to_do(self, shell: Shell) -> None:
        shell.write("train.py", FAILING)
        shell.manifest("climb", numSamples=2, seed=1)
        assert shell.run("run", "experiment.yaml").returncode == 1
        why = shell.run("why", "climb").stdout
        assert "  2 trials: ValueError: no data (train.py:4, in train)\n    log: " in why
        steps = [line.removeprefix("next: ") for line in why.splitlines() if line.startswith("next: ")]
        logs = shell.execute(["sh", "-c", steps[0].partition(" shows ")[0]])
        assert logs.stdout.startswith("before\n")
        assert shell.run("logs", "climb", "0", "--tail", "1").stdout == "ValueError: no data\n"
        retry = steps[1].partition(" by: ")[2]
        assert retry == "trialpod run experiment.yaml --retry-failed"
        shell.write("train.py", "def train(config):\n    print('after')\n    return {'x': 1.0}\n")
        assert shell.execute(["sh", "-c", retry]).returncode == 0
        trial = json.loads(shell.run("results", "trialpod-results/climb", "--json").stdout)["trials"][1]["trial_id"]
        assert shell.run("logs", trial).stdout.endswith("after\n")

    def test_a_trial_that_printed_nothing(self, shell: Shell) -> None:
        shell.write("train.py", "def train(config):\n    return {'x': 1.0}\n")
        shell.manifest("climb", numSamples=1, seed=1)
        assert shell.run("run", "experiment.yaml").returncode == 0
        logs = shell.run("logs", "climb", "0")
        assert (logs.returncode, logs.stdout) == (1, "")
        assert logs.stderr.endswith("_00000: it printed nothing\n")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["status", "nothing"],
                "there is no experiment nothing here or in ./trialpod-results; if it is",
            ),
            (
                ["stop", "nothing"],
                "there is no experiment nothing here or in ./trialpod-results; if it is",
            ),
            (["list", "nowhere"], "nowhere is not a folder"),
            (["stop", "x", "--wait"], "--wait is for an experiment on this machine, and x is none"),
        ],
    )
    def test_a_name_that_is_nowhere(self, shell: Shell, arguments: list[str], message: str) -> None:
        done = shell.run(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith(f"trialpod: {message}")

    def test_an_experiment_in_place_of_a_trial(self, shell: Shell) -> None:
        shell.env["HOLD"] = str(shell.folder / "hold")
        shell.write("train.py", FINITE)
        shell.manifest("climb", metric="score", mode="max", numSamples=1)
        assert shell.run("run", "experiment.yaml").returncode == 0
        refused = shell.run("explain", "climb")
        assert refused.stderr == (
            "trialpod: climb is an experiment; name one of its trials first: trialpod explain 0 climb\n"
        )
        assert shell.run("explain", "0", "climb").returncode == 0

    def test_an_empty_list_says_how_to_begin(self, shell: Shell) -> None:
        assert shell.run("list").stderr.startswith(
            "trialpod: there is no ./trialpod-results here, and no cluster is known"
        )
        (shell.folder / "trialpod-results").mkdir()
        assert shell.run("list").stdout == (
            "there is no experiment in ./trialpod-results. To start one: trialpod run FILE.yaml\n"
        )


FINITE = """
import os, pathlib, time
from trialpod import tune

def train(config):
    tune.report({"score": config["x"]})
    while pathlib.Path(os.environ["HOLD"]).exists():
        time.sleep(0.01)
"""


def advice(text: str, label: str) -> list[str]:
    """Return the commands that are printed behind a label, without the words after them."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith(label)]
    commands = [line[line.index("trialpod ") :] for line in lines if "trialpod " in line]
    return [re.split(r" (?:shows|prints|lists) ", command)[0] for command in commands]


class TestAdvice:
    """Each command that is printed is run as it was printed, where it was printed."""

    def run_all(self, shell: Shell, commands: list[str]) -> str:
        output = ""
        for command in commands:
            done = shell.execute(["sh", "-c", command])
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            output += done.stdout
        return output

    def test_after_a_kill_and_at_the_end(self, shell: Shell) -> None:
        hold = shell.folder / "hold"
        hold.touch()
        shell.env["HOLD"] = str(hold)
        shell.write("train.py", FINITE)
        shell.manifest("climb", metric="score", mode="max", numSamples=2, seed=1)
        running = shell.start("run", "experiment.yaml")
        running.wait_line("started")
        os.kill(running.pid, signal.SIGKILL)
        running.wait()

        interrupted = shell.run("status", "climb").stdout
        why = self.run_all(shell, advice(interrupted, "why: "))
        hold.unlink()
        (resume,) = advice(why, "next: run it again")
        assert resume == "trialpod run experiment.yaml"
        ended = self.run_all(shell, [resume])
        assert "succeeded: 2/2 trials" in ended

        compare, extend = advice(ended, "compare: "), advice(ended, "extend: ")
        assert [len(compare), len(extend)] == [1, 1]
        assert "climb: Succeeded, 2/2 trials" in self.run_all(shell, compare)
        assert "succeeded: 4/4 trials" in self.run_all(shell, extend)
        status = shell.run("status", "climb").stdout
        assert "best parameters" in self.run_all(shell, advice(status, "best: "))
        assert "best parameters" in self.run_all(shell, advice(shell.run("why", "climb").stdout, "next: "))
