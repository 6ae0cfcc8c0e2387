"""What the pages about Trainables, callbacks and notebooks show does run, word by word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_shell import Shell

pytestmark = pytest.mark.local

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "".join((DOCS / f"{name}.md").read_text() for name in ("trainables", "callbacks", "notebooks"))
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', TEXT, re.DOTALL | re.MULTILINE))
MLFLOW = """
import json, os

class Experiment:
    experiment_id = "1"

def _write(*facts):
    with open(os.environ["RUNS"], "a") as file:
        file.write(json.dumps(facts) + "\\n")

def get_experiment_by_name(name): return Experiment
def start_run(experiment_id, run_name, tags): _write("run", experiment_id, run_name)
def log_params(params): _write("params", params)
def log_metric(key, value, step): _write("metric", key, step)
def end_run(): _write("end")
"""


@pytest.fixture(autouse=True)
def _files(shell: Shell) -> None:
    for name, text in FILES.items():
        (shell.folder / name).write_text(text)


class TestTrainables:
    @pytest.mark.parametrize("name", ["function", "model"])
    def test_runs_and_checkpoints(self, shell: Shell, name: str) -> None:
        done = shell.run("run", f"{name}.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(shell.run("results", f"trialpod-results/{name}", "--json").stdout)
        assert [(trial["iteration"], bool(trial["checkpoint"])) for trial in found["trials"]] == [(10, True)] * 4

    def test_notebook_cell_runs_and_continues(self, shell: Shell) -> None:
        first, again = (shell.python("notebook.py") for _ in range(2))
        assert (first.returncode, again.returncode) == (0, 0), again.stderr
        assert "nothing to run: all 6 trials are done" in again.stdout

    def test_callbacks_hear_of_everything(self, shell: Shell) -> None:
        done = shell.python("callbacks.py")
        assert done.returncode == 0, done.stderr
        assert "the lowest loss of 3 trials is 0." in done.stdout
        assert done.stdout.count(" starts with {'x': ") == 3
        assert len((shell.folder / "losses.txt").read_text().splitlines()) == 9

    def test_a_trial_of_a_manifest_logs_to_a_tracker(self, shell: Shell) -> None:
        shell.write("mlflow.py", MLFLOW)
        shell.env["RUNS"] = str(shell.folder / "runs.jsonl")
        done = shell.run("run", "tracked.yaml", "--max-concurrent", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        facts = [json.loads(line) for line in (shell.folder / "runs.jsonl").read_text().splitlines()]
        assert [fact[0] for fact in facts] == ["run", "params", *["metric"] * 10, "end"] * 2
        assert re.fullmatch(r"train_\w+_00000", facts[0][2])
