"""`trialpod run`, `results`, `best` and `init` as a user meets them: real commands, real files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_shell import TRIALPOD, Shell, events_of, read_json_lines

pytestmark = pytest.mark.local

TRAIN = """
from trialpod import tune

def train(config):
    for i in range(3):
        tune.report({"score": config["x"] * (i + 1)})
"""
WAITING = """
import os
from trialpod import tune

def train(config):
    tune.report({"score": 1.0})
    with open(os.environ["GATE"]) as gate:  # a named pipe: waits until the test opens it
        gate.read()
"""


def prepared(shell: Shell, source: str = TRAIN, **spec: Any) -> Shell:
    shell.write("train.py", source)
    shell.manifest(**{"metric": "score", "mode": "max", "numSamples": 3, "seed": 1, **spec})
    return shell


def gated(shell: Shell, **spec: Any) -> Path:
    gate = shell.folder / "gate"
    os.mkfifo(gate)
    shell.env["GATE"] = str(gate)
    prepared(shell, WAITING, **spec)
    return gate


ENDLESS = """
import time
from trialpod import tune

def train(config):
    while True:
        time.sleep(0.02)
        tune.report({"score": config["x"]})
"""


@pytest.mark.slow
def test_trial_hours_budget_ends_run_and_larger_one_resumes(shell: Shell) -> None:
    prepared(shell, ENDLESS, numSamples=100, maxConcurrentTrials=2, maxTrialHours=0.0002)
    done = shell.run("run", "experiment.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Stopped: the budget of 0.0002 trial hours is used up: 0.0002" in done.stdout
    assert "to continue, raise spec.maxTrialHours" in done.stdout
    assert "resume:  trialpod run experiment.yaml --set spec.maxTrialHours=0.0004\n" in done.stdout
    again = shell.run("run", "experiment.yaml", "--set", "spec.maxTrialHours=0.0004")
    assert "Stopped: the budget of 0.0004 trial hours is used up" in again.stdout
    assert "4 terminated" in again.stdout


@pytest.mark.once
def test_init_and_run_and_best_work_as_printed(shell: Shell) -> None:
    made = shell.run("init", "my project")
    assert made.returncode == 0
    (step,) = [line for line in made.stdout.splitlines() if line.startswith("next: ")]
    assert step == "next: cd 'my project' && trialpod run experiment.yaml"
    folder = shell.folder / "my project"
    done = shell.run("run", "experiment.yaml", "--set", "spec.numSamples=4", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    path = next(line.partition(" results: ")[2] for line in lines if " results: " in line)
    assert f"results: {path}" in lines
    extend = next(line.partition("extend: ")[2].strip() for line in lines if line.startswith("extend:"))
    assert extend == "trialpod run experiment.yaml --set spec.numSamples=8"
    again = shell.run(*extend.split()[1:], cwd=folder)
    assert again.returncode == 0
    assert "8/8 trials" in again.stdout
    best = json.loads(shell.run("best", path, "--json").stdout)
    assert f"best trial: {best['name']} with accuracy=" in again.stdout
    assert best["checkpoint"] in again.stdout
    assert Path(best["checkpoint"], "state.json").is_file()


@pytest.mark.once
class TestOutput:
    """What trials print is in their log.txt, and on the screen when asked."""

    SOURCE = """
from trialpod import tune

def train(config):
    print(f"hello from {tune.get_context().get_trial_id()[-1]}")
    tune.report({"score": config["x"]})
"""

    def test_of_one_trial_or_of_all(self, shell: Shell) -> None:
        prepared(shell, self.SOURCE, numSamples=2)
        done = shell.run("run", "experiment.yaml", "--follow", "1", "--follow", "x")
        shown = re.findall(r"^\(train_\w+_0000\d pid=\d+\) (hello .*)$", done.stdout, re.MULTILINE)
        assert shown == ["hello from 1"]
        assert done.stderr == "--follow x: no such trial ran; give its number or its id\n"
        (pattern,) = re.findall(r"^output:  (.*)$", done.stdout, re.MULTILINE)
        logs = sorted(Path("/").glob(pattern.replace("<trial>", "*").lstrip("/")))
        assert [log.read_text() for log in logs] == ["hello from 0\n", "hello from 1\n"]
        done = shell.run("run", "experiment.yaml", "--name", "all", "-v")
        assert done.stdout.count(") hello from ") == 2
        done = shell.run("run", "experiment.yaml", "--name", "none")
        assert "hello" not in done.stdout


class TestModule:
    SOURCE = """
import sys
from project.model import height
from trialpod import tune

def train(config):
    tune.report({"height": height(config["x"])})

tune.Tuner(
    train,
    param_space={"x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(metric="height", mode="max", num_samples=int(sys.argv[1])),
).fit()
"""

    def test_is_run_as_by_python_m(self, shell: Shell) -> None:
        shell.write("project/__init__.py", "")
        shell.write("project/model.py", "def height(x):\n    return 2 * x\n")
        shell.write("project/search.py", self.SOURCE)
        done = shell.run("run", "-m", "project.search", "--max-concurrent", "2", "--", "3")
        assert done.returncode == 0, done.stderr
        assert re.search(r"^3 trials in .*: 3 terminated$", done.stdout, re.MULTILINE)
        assert f"results: {shell.folder}/trialpod-results/search\n" in done.stdout
        unknown = shell.run("run", "-m", "project.serach")
        assert (unknown.returncode, unknown.stderr.partition(" here ")[0]) == (
            2,
            "trialpod: -m project.serach: there is no such module",
        )


@pytest.mark.once
class TestNames:
    def test_are_those_of_folders_here(self, shell: Shell) -> None:
        prepared(shell, numSamples=1)
        name = "My_Experiment, the second " + "x" * 40
        assert shell.run("run", "experiment.yaml", "-q", "--name", name).returncode == 0
        assert shell.run("status", name).stdout.startswith(f"{name}: Succeeded, 1/1 trial")
        refused = shell.run("run", "experiment.yaml", "--name", "a/b")
        assert refused.returncode == 2
        assert refused.stderr.startswith("trialpod: --name 'a/b': a name is that of a folder")


@pytest.mark.once
class TestRelativePaths:
    def test_name_the_folder_and_the_remedy(self, shell: Shell) -> None:
        shell.write("data.txt", "")
        prepared(shell, "def train(config):\n    open('data.txt')\n", numSamples=2)
        done = shell.run("run", "experiment.yaml")
        assert f"give an absolute path, {shell.folder}/data.txt" in done.stdout
        assert "failed with the same error as" in done.stdout
        assert "  2 trials: FileNotFoundError" in done.stdout


@pytest.mark.once
class TestPrintedCommands:
    """The last lines of a run are commands; each is executed as it is printed, also where trialpod is not on PATH."""

    SOURCE = """
from trialpod import tune

def train(config):
    tune.report({"score": config["x"]})
    if config["x"] < BOUND:
        raise ValueError(f"no {config['x']}")
"""

    def commands(self, shell: Shell, output: str) -> dict[str, str]:
        found = [line.split(":", 1) for line in output.splitlines() if re.match(r"\s*[a-z ]+: +venv/trialpod", line)]
        made = {name.strip(): command.strip() for name, command in found}
        for name, command in made.items():
            if name == "look":  # it serves until it is interrupted
                assert command.startswith("venv/trialpod ui ")
                command += " --help"
            done = shell.execute(["sh", "-c", command])
            assert not done.stderr, f"{name}: {command}: {done.stderr}"
            assert done.returncode == (name == "retry"), f"{name}: {command}: {done.stdout}"
        return made

    def test_work_as_printed(self, shell: Shell) -> None:
        (shell.folder / "venv").mkdir()
        (shell.folder / "venv/trialpod").symlink_to(TRIALPOD[0])
        shell.env["PATH"] = "/usr/bin:/bin"
        prepared(shell, self.SOURCE.replace("BOUND", "2.0"))
        command = ["venv/trialpod", "run", "experiment.yaml", "--storage", "my results", "--max-concurrent", "1"]
        failed = shell.execute([*command, "--set", "spec.numSamples=7", "--set", "spec.seed=1"])
        assert failed.returncode == 1
        assert set(self.commands(shell, failed.stdout)) == {"all of them", "retry", "look", "compare"}
        prepared(shell, self.SOURCE.replace("BOUND", "-1"))
        done = shell.execute([*command, "--name", "other"])
        assert done.returncode == 0
        assert set(self.commands(shell, done.stdout)) == {"extend", "look", "compare"}


@pytest.mark.once
def test_a_finished_experiment_is_only_told_again(shell: Shell) -> None:
    prepared(shell)
    first, second = shell.run("run", "experiment.yaml"), shell.run("run", "experiment.yaml")
    assert (first.returncode, second.returncode) == (0, 0)
    assert "started" not in second.stdout
    summary = first.stdout.partition("best trial:")[2]
    assert summary
    assert second.stdout.partition("best trial:")[2] == summary
    assert all(trial["attempts"] == 1 for trial in shell.results()["trials"])


@pytest.mark.once
def test_more_samples_extend_without_rerunning_trials(shell: Shell) -> None:
    prepared(shell)
    shell.run("run", "experiment.yaml")
    before = {trial["trial_id"]: trial for trial in shell.results()["trials"]}
    done = shell.run("run", "experiment.yaml", "--set", "spec.numSamples=5")
    assert done.returncode == 0, done.stdout
    assert re.search(r"\] spec\.numSamples was raised from \d to 5$", done.stdout, re.MULTILINE), done.stdout
    after = {trial["trial_id"]: trial for trial in shell.results()["trials"]}
    assert len(after) == 5
    assert {key: after[key] for key in before} == before


@pytest.mark.once
def test_a_changed_manifest_is_refused_with_the_fields_named(shell: Shell) -> None:
    prepared(shell)
    shell.run("run", "experiment.yaml")
    done = shell.run("run", "experiment.yaml", "--set", "spec.mode=min", "--set", 'spec.searchSpace={"y":1}')
    assert done.returncode == 2
    assert "spec.searchSpace" in done.stderr
    assert "spec.mode" in done.stderr
    assert "--name" in done.stderr
    assert shell.run("run", "experiment.yaml", "--set", "spec.mode=min", "--name", "other").returncode == 0


def test_json_output_streams_events_and_ends_with_outcome(shell: Shell) -> None:
    prepared(shell)
    done = shell.run("run", "experiment.yaml", "--json")
    events = events_of(done.stdout)
    assert done.returncode == 0
    assert [event["event"] for event in (events[0], events[-1])] == ["started", "finished"]
    kinds = [event["event"] for event in events]
    assert kinds.count("trial_started") == kinds.count("trial_ended") == 3
    final = events[-1]
    assert final["state"] == "Succeeded"
    assert final["params"] == final["best"]["params"]
    assert final["best"]["value"] == pytest.approx(3 * final["params"]["x"])
    assert final["failures"] == []


@pytest.mark.once
def test_quiet_prints_the_summary_alone(shell: Shell) -> None:
    prepared(shell)
    done = shell.run("run", "experiment.yaml", "-q")
    assert done.returncode == 0
    assert done.stdout.startswith("3 trials in ")
    assert done.stderr == ""


@pytest.mark.once
def test_failed_trials_make_the_status_1_and_can_be_retried(shell: Shell) -> None:
    source = """
    import os
    from trialpod import tune
    def train(config):
        if not os.path.exists(os.environ["REPAIRED"]) and config["x"] > 1:
            raise RuntimeError("broken")
        tune.report({"score": config["x"]})
    """
    shell.env["REPAIRED"] = str(shell.folder / "repaired")
    prepared(shell, source, searchSpace={"x": {"grid_search": [1, 2, 3]}}, numSamples=1)
    assert shell.run("run", "experiment.yaml").returncode == 1
    assert shell.run("run", "experiment.yaml").returncode == 1
    shell.write("repaired", "")
    done = shell.run("run", "experiment.yaml", "--retry-failed")
    assert done.returncode == 0, done.stdout
    assert shell.results()["counts"]["TERMINATED"] == 3
    assert json.loads(shell.run("best", "trialpod-results/exp", "--json").stdout)["value"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["run", "nowhere.py"], "nowhere.py does not exist"),
        (["run", "experiment"], "did you mean experiment.yaml?"),
        (["validate", "train"], "did you mean train.py?"),
        (["validate", "train.py"], "train.py is a script, not a manifest"),
        (
            ["run", "experiment.yaml", "--set", "spec.resources.limits={cpu: 1}"],
            "each amount is the request and the limit",
        ),
        (["run", "experiment.yaml", "--set", "spec.numSample=3"], "numSamples"),
        (["run", "experiment.yaml", "--set", "spec.numSamples=0"], "spec.numSamples"),
        (["run", "experiment.yaml", "--set", "spec.storage.uri=ftp://tune/x"], "spec.storage.uri"),
        (["run", "experiment.yaml", "--set", "spec.resources.cpu=1000"], "this machine has"),
        (["run", "experiment.yaml", "--max-concurrent", "0"], "at least 1"),
        (["run", "experiment.yaml", "extra"], "unexpected arguments: extra"),
        (["run", "experiment.yaml", "--storage", "train.py"], "train.py"),
        (["run"], "there is nothing to run; name a manifest or a script"),
        (["results", "nowhere"], "nowhere does not exist"),
        (["results", "."], "is not an experiment"),
        (["best", "train.py"], "is not an experiment"),
        (["runn", "experiment.yaml"], "did you mean `trialpod run`?"),
    ],
)
def test_bad_input_is_one_clear_message_and_status_2(shell: Shell, arguments: list[str], said: str) -> None:
    prepared(shell)
    done = shell.run(*arguments)
    assert said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if "--storage" in arguments else 2)
    assert not (shell.folder / "trialpod-results").exists()


def test_ctrl_c_keeps_everything_and_the_status_is_130(shell: Shell) -> None:
    gate = gated(shell, template={"spec": {"terminationGracePeriodSeconds": 1}})
    running = shell.start("run", "experiment.yaml", "--max-concurrent", "1", "--json")
    running.wait_event("trial_started")
    running.signal(signal.SIGINT)
    assert running.wait() == 130
    assert events_of("\n".join(running.lines))[-1]["state"] == "Suspended"
    shell.wait_until_all_gone()
    assert "resume:  trialpod run experiment.yaml" not in running.text  # --json is for programs
    gate.unlink()
    gate.write_text("")
    assert shell.run("run", "experiment.yaml").returncode == 0
    assert shell.results()["counts"]["ERROR"] == 0


def test_a_script_with_a_tuner_runs_and_continues_when_run_again(shell: Shell) -> None:
    shell.write(
        "my script.py",
        """
        import sys
        from trialpod import tune

        def train(config):
            for i in range(2):
                tune.report({"score": config["x"] + i})

        if __name__ == "__main__":
            grid = tune.Tuner(
                train,
                param_space={"x": tune.grid_search([1, 2])},
                tune_config=tune.TuneConfig(metric="score", mode="max"),
            ).fit()
            print("found", grid.get_best_result().config, sys.argv[1:])
        """,
    )
    for _ in range(2):
        done = shell.run("run", "my script.py", "--", "--lr", "3")
        assert done.returncode == 0, done.stderr
        assert "found {'x': 2} ['--lr', '3']" in done.stdout
    assert "started" not in done.stdout  # the second time
    results = shell.results("trialpod-results/my script")
    assert [trial["attempts"] for trial in results["trials"]] == [1, 1]


@pytest.mark.parametrize("launcher", [[], ["-m", "trialpod.compat.ray", "--replace"]])
def test_a_script_has_the_paths_of_python(shell: Shell, launcher: list[str]) -> None:
    shell.write("data.txt", "beside the link")
    shell.write("real/helper.py", "NAME = 'beside its target'")
    shell.write(
        "real/script.py",
        """
        import os, sys
        from helper import NAME
        from trialpod import tune

        def train(config):
            with open(os.path.join(os.path.dirname(__file__), "data.txt")) as data:
                tune.report({"read": data.read()})

        if __name__ == "__main__":
            read = tune.Tuner(train, run_config=tune.RunConfig(verbose=0)).fit()[0].metrics["read"]
            print(os.path.isabs(__file__), sys.argv, NAME, read, sep=", ")
        """,
    )
    (shell.folder / "script.py").symlink_to("real/script.py")
    done = shell.python(*launcher, "script.py") if launcher else shell.run("run", "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True, ['script.py'], beside its target, beside the link"


def test_an_error_of_a_script_is_shown_from_the_script_on(shell: Shell) -> None:
    shell.write("script.py", "def go():\n    raise KeyError('lr')\ngo()\n")
    done = shell.run("run", "script.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'lr'"
    assert "runpy" not in done.stderr
    assert "trialpod_operator" not in done.stderr


def test_a_script_without_a_tuner_is_reported(shell: Shell) -> None:
    shell.write("script.py", "print('hello')\n")
    done = shell.run("run", "script.py")
    assert done.stdout == "hello\n"
    assert "does it call Tuner(...).fit()?" in done.stderr


@pytest.mark.once
def test_second_run_on_a_directory_names_the_first(shell: Shell) -> None:
    gate = gated(shell, numSamples=1)
    first = shell.start("run", "experiment.yaml", "--json")
    first.wait_event("trial_started")
    second = shell.start("run", "experiment.yaml")
    assert second.wait() == 1
    said = "\n".join(second.errors)
    assert f"process {first.pid} has held it since" in said
    assert "trialpod run" in said
    results = shell.results()  # reading works meanwhile
    assert results["counts"]["RUNNING"] == 1
    with gate.open("w"):
        pass
    assert first.wait() == 0
    assert shell.results()["counts"]["TERMINATED"] == 1


def test_results_and_best_work_on_a_running_experiment(shell: Shell) -> None:
    gate = gated(shell, numSamples=1)
    running = shell.start("run", "experiment.yaml", "--json")
    running.wait_event("trial_started")
    directory = shell.folder / "trialpod-results" / "exp"
    (trial_dir,) = directory.glob("train_*")
    # The trial reports, then opens the gate: that this returns means it has reported.
    writer = os.open(gate, os.O_WRONLY)
    # The report is sent by another thread; the file is written once it has arrived.
    while not read_json_lines(trial_dir / "result.json"):
        assert running.process.poll() is None
        os.sched_yield()
    assert "1 running" in shell.run("results", str(directory)).stdout
    best = shell.run("best", str(directory), "--json")
    assert best.returncode == 0
    assert json.loads(best.stdout)["value"] == 1.0
    os.close(writer)
    assert running.wait() == 0


def test_a_manifest_can_come_from_standard_input(shell: Shell) -> None:
    prepared(shell)
    text = (shell.folder / "experiment.yaml").read_text()
    (shell.folder / "experiment.yaml").unlink()
    done = shell.run("run", "-", "-q", stdin=text)
    assert done.returncode == 0, done.stderr
    assert len(shell.results()["trials"]) == 3


@pytest.mark.slow
def test_spaces_and_unicode_in_paths_and_parameters_are_fine(shell: Shell) -> None:
    folder = shell.folder / "très bon 模型"
    folder.mkdir()
    shell.folder = folder
    prepared(shell, TRAIN.replace('config["x"]', 'len(config["größe x"])'), searchSpace={"größe x": "日本 語/é"})
    done = shell.run("run", "experiment.yaml", "--storage", "les résultats", env={**shell.env, "LC_ALL": "C"})
    assert done.returncode == 0, done.stdout + done.stderr
    (trial, *_) = shell.results("les résultats/exp")["trials"]
    assert trial["params"] == {"größe x": "日本 語/é"}
    assert len(read_json_lines(Path(trial["path"], "result.json"))) == 3


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_end_the_run(shell: Shell) -> None:
    prepared(shell, numSamples=8)
    line = f"{' '.join(TRIALPOD)} run experiment.yaml | head -n 1; echo status ${{PIPESTATUS[0]}}"
    done = shell.execute(["bash", "-c", line])
    assert done.stdout.splitlines()[0].endswith("exp: 8 trials for the maximum of score")
    assert done.stdout.splitlines()[-1] == "status 0"
    assert done.stderr == ""
    assert shell.results()["counts"]["TERMINATED"] == 8
    results = shell.execute(["bash", "-c", f"{' '.join(TRIALPOD)} results trialpod-results/exp | true"])
    assert results.stderr == ""


def test_storage_that_cannot_be_written_is_one_clear_message(shell: Shell) -> None:
    prepared(shell)
    disk = shell.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        done = shell.run("run", "experiment.yaml", "--storage", "disk")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr
    assert str(disk) in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_reused_processes_run_all_trials_with_logs_of_their_own(shell: Shell) -> None:
    source = """
    import os
    from trialpod import tune
    class Train(tune.Trainable):
        def setup(self, config):
            self.x = config["x"]
        def reset_config(self, config):
            self.x = config["x"]
            return True
        def step(self):
            print("x is", self.x)
            return {"score": self.x, "done": self.iteration == 1, "process": os.getpid()}
    """
    space = {"x": {"grid_search": [1, 2, 3, 4, 5, 6]}}
    prepared(shell, source, trainable={"entrypoint": "train:Train"}, searchSpace=space, numSamples=1, reusePods=True)
    done = shell.run("run", "experiment.yaml", "--max-concurrent", "2")
    assert done.returncode == 0, done.stdout
    processes = set()
    for trial in shell.results()["trials"]:
        assert Path(trial["path"], "log.txt").read_text() == 2 * f"x is {trial['params']['x']}\n"
        rows = read_json_lines(Path(trial["path"], "result.json"))
        assert [row["score"] for row in rows] == 2 * [trial["params"]["x"]]
        processes |= {row["process"] for row in rows}
    assert len(processes) == 2


@pytest.mark.slow
def test_suspended_experiment_starts_nothing_until_resumed(shell: Shell) -> None:
    prepared(shell, suspend=True)
    done = shell.run("run", "experiment.yaml")
    assert "suspend" in done.stdout
    assert "0/3 trials" in done.stdout
    assert shell.results()["trials"] == []
    again = shell.run("run", "experiment.yaml", "--set", "spec.suspend=false")
    assert again.returncode == 0, again.stdout
    assert shell.results()["counts"]["TERMINATED"] == 3


@pytest.mark.slow
def test_logs_of_all_attempts_are_kept(shell: Shell) -> None:
    source = """
    from trialpod import tune
    def train(config):
        print("hello from an attempt")
        tune.report({"score": 1})
        raise RuntimeError("again")
    """
    prepared(shell, source, numSamples=1, failurePolicy={"maxFailures": 1})
    assert shell.run("run", "experiment.yaml").returncode == 1
    (trial,) = shell.results()["trials"]
    assert Path(trial["path"], "log.txt").read_text().count("hello from an attempt") == 2
    assert trial["attempts"] == 2


@pytest.mark.slow
def test_an_experiment_directory_can_be_moved_and_read_elsewhere(shell: Shell) -> None:
    prepared(shell)
    shell.run("run", "experiment.yaml", "-q")
    shutil.move(shell.folder / "trialpod-results" / "exp", shell.folder / "archived")
    results = shell.results("archived")
    assert len(results["trials"]) == 3
    assert all(Path(trial["path"]).is_dir() for trial in results["trials"])


@pytest.mark.once
def test_workers_are_named_as_what_only_a_cluster_has(shell: Shell) -> None:
    prepared(shell, workers={"replicas": 2}, numSamples=1)
    done = shell.run("run", "experiment.yaml")
    assert done.returncode == 0, done.stderr
    assert "each trial is one process, rank 0 of 1, not of 3" in done.stdout + done.stderr
