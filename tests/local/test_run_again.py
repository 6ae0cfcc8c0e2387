"""What happens when an experiment is edited and run again, as the user of a script or a manifest meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_shell import Shell

pytestmark = [pytest.mark.local, pytest.mark.once]

SCRIPT = """
from trialpod import tune
from trialpod.tune import RunConfig, TuneConfig, Tuner

def train(config):
    for i in range(2):
        tune.report({"loss": config["x"] + i})

grid = Tuner(train, param_space={"x": tune.uniform(0, 1)},
             tune_config=TuneConfig(metric="loss", mode="min", num_samples=2),
             run_config=RunConfig()).fit()
print("trials", sorted(result.metrics["trial_id"] for result in grid))
"""
TRAIN = """
from trialpod import tune

def train(config):
    for i in range(3):
        tune.report({"heigth": config["x"] * (i + 1)})
"""


def edit(shell: Shell, *changes: tuple[str, str], name: str = "script.py") -> None:
    text = (shell.folder / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    shell.write(name, text)


def printed(text: str, name: str) -> Any:
    line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
    return json.loads(line.partition(" ")[2].replace("'", '"'))


def remedy(text: str, containing: str) -> list[str]:
    """Return the arguments of a `trialpod` command that a message has."""
    line = next(line for line in text.splitlines() if "trialpod run" in line and containing in line)
    return line.partition("trialpod ")[2].partition("   ")[0].split()


class TestScript:
    def test_changed_script_is_refused_with_ways_out(self, shell: Shell) -> None:
        shell.write("script.py", SCRIPT)
        first = printed(shell.run("run", "script.py").stdout, "trials")
        assert printed(shell.run("run", "script.py").stdout, "trials") == first

        edit(
            shell,
            ("tune.uniform(0, 1)", "tune.uniform(10, 11)"),
            ("num_samples=2", 'num_samples=2, scheduler="asha"'),
        )
        before = (shell.folder / "trialpod-results/script/tuner.pkl").read_bytes()
        refused = shell.run("run", "script.py")
        assert refused.returncode == 2
        assert "  param_space.x: uniform(0, 1) -> uniform(10, 11)\n" in refused.stderr
        assert "  scheduler: none -> AsyncHyperBandScheduler()\n" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert (shell.folder / "trialpod-results/script/tuner.pkl").read_bytes() == before

        assert shell.run(*remedy(refused.stderr, "--name")).returncode == 0
        fresh = shell.run(*remedy(refused.stderr, "--fresh"))
        assert fresh.returncode == 0
        assert f"are in {shell.folder / 'trialpod-results/script.1'} now" in fresh.stderr
        aside = [trial["trial_id"] for trial in shell.results("trialpod-results/script.1")["trials"]]
        assert sorted(aside) == first
        assert not set(printed(fresh.stdout, "trials")) & set(first)
        assert sorted(path.name for path in (shell.folder / "trialpod-results").iterdir()) == [
            "NEW",
            "script",
            "script.1",
        ]

    def test_budget_may_change(self, shell: Shell) -> None:
        shell.write("script.py", SCRIPT)
        first = printed(shell.run("run", "script.py").stdout, "trials")
        edit(shell, ("num_samples=2", "num_samples=3"), ("RunConfig()", 'RunConfig(stop={"training_iteration": 1})'))
        more = shell.run("run", "script.py")
        assert more.returncode == 0, more.stderr
        assert len(printed(more.stdout, "trials")) == 3
        assert set(first) < set(printed(more.stdout, "trials"))
        assert sum(trial["iteration"] for trial in shell.results("trialpod-results/script")["trials"]) == 5
        edit(shell, ("num_samples=3", "num_samples=1"))
        fewer = shell.run("run", "script.py")
        assert "num_samples is 1 and was 3: no trial is added, and the 3 trials that exist are kept" in fewer.stdout
        assert "trialpod run script.py --fresh" in fewer.stdout

    def test_python_script_with_a_name(self, shell: Shell) -> None:
        shell.write("script.py", SCRIPT)
        edit(shell, ("RunConfig()", 'RunConfig(name="exp", storage_path="runs")'))
        first = shell.python("script.py")
        again = shell.python("script.py")
        assert again.returncode == 0, again.stderr
        assert printed(again.stdout, "trials") == printed(first.stdout, "trials")
        assert "nothing to run: all 2 trials are done" in again.stdout
        edit(shell, ('metric="loss"', 'search_alg="optuna", metric="loss"'))
        refused = shell.python("script.py")
        assert "search_alg: none -> OptunaSearch()" in refused.stderr
        assert 'RunConfig(if_exists="fresh")' in refused.stderr
        edit(shell, ('name="exp"', 'name="exp", if_exists="fresh"'))
        assert shell.python("script.py").returncode == 0
        assert (shell.folder / "runs/exp.1").is_dir()

    def test_unedited_script_is_never_refused(self, shell: Shell) -> None:
        shell.write("script.py", "import time, uuid\n" + SCRIPT)
        edit(
            shell, ('"x": tune.uniform(0, 1)', '"x": tune.uniform(0, 1), "at": time.time(), "id": str(uuid.uuid4())')
        )
        first, again = (shell.run("run", "script.py") for _ in range(2))
        assert (first.returncode, again.returncode) == (0, 0), again.stderr
        edit(shell, ("num_samples=2", "num_samples=2, seed=3"))
        assert "param_space.at: " in shell.run("run", "script.py").stderr

    def test_failed_start_keeps_no_name(self, shell: Shell) -> None:
        shell.write("script.py", SCRIPT)
        broken = """
class Broken(tune.Callback):
    def setup(self, **info):
        raise RuntimeError("no tracker here")

"""
        edit(
            shell,
            ("RunConfig()", 'RunConfig(name="exp", storage_path="runs", callbacks=[Broken()])'),
            ("def train", f"{broken}def train"),
        )
        failed = shell.python("script.py")
        assert "no tracker here" in failed.stderr
        edit(shell, ("callbacks=[Broken()]", ""), ("tune.uniform(0, 1)", "tune.uniform(10, 11)"))
        corrected = shell.python("script.py")
        assert corrected.returncode == 0, corrected.stderr
        assert len(printed(corrected.stdout, "trials")) == 2
        shell.assert_whole("runs/exp")

    def test_refused_start_creates_nothing(self, shell: Shell) -> None:
        shell.write("script.py", SCRIPT)
        edit(
            shell,
            ("RunConfig()", 'RunConfig(name="exp", storage_path="runs")'),
            ('metric="loss", mode="min"', 'scheduler="asha"'),
        )
        refused = shell.python("script.py")
        assert "the asha scheduler compares trials by a metric" in refused.stderr
        assert not (shell.folder / "runs/exp").exists()

    def test_bug_in_all_trials_is_corrected(self, shell: Shell) -> None:
        shell.write("script.py", SCRIPT)
        edit(shell, ('config["x"] + i', 'config["y"] + i'))
        assert shell.run("run", "script.py").returncode == 1
        edit(shell, ('config["y"] + i', 'config["x"] + i'))
        corrected = shell.run("run", "script.py")
        assert corrected.returncode == 0, corrected.stdout
        assert len(printed(corrected.stdout, "trials")) == 2

    def test_retry_failed_reaches_a_script(self, shell: Shell) -> None:
        shell.write("script.py", SCRIPT)
        grid = ("tune.uniform(0, 1)", "tune.grid_search([0.1, 0.5])")
        edit(shell, grid, ('"loss": config["x"] + i', '"loss": config["x"] / (config["x"] > 0.2)'))
        ended = shell.run("run", "script.py")
        assert (ended.returncode, "2 failed" in ended.stdout) == (1, True)
        edit(shell, ('config["x"] / (config["x"] > 0.2)', 'config["x"]'))
        assert shell.run("run", "script.py").returncode == 1
        retried = shell.run(*remedy(ended.stdout, "--retry-failed"))
        assert retried.returncode == 0, retried.stdout


class TestRay:
    def test_second_run_adds_trials(self, shell: Shell) -> None:
        text = SCRIPT.replace("from trialpod", "from ray").replace(
            "RunConfig()", 'RunConfig(name="exp", storage_path=os.path.abspath("runs"))'
        )
        shell.write("script.py", "import os\n" + text)
        shell.env["TRIALPOD_COMPAT"] = "ray!"
        first = printed(shell.python("-m", "trialpod.compat.ray", "--replace", "script.py").stdout, "trials")
        edit(shell, ("tune.uniform(0, 1)", "tune.choice([7, 8])"))
        second = shell.python("-m", "trialpod.compat.ray", "--replace", "script.py")
        assert second.returncode == 0, second.stderr
        assert not set(first) & set(printed(second.stdout, "trials"))
        assert len([path for path in (shell.folder / "runs/exp").iterdir() if path.name.startswith("train_")]) == 4

    def test_tune_run_adds_trials(self, shell: Shell) -> None:
        shell.write(
            "script.py",
            "from trialpod import tune\n"
            "def train(config):\n    tune.report({'loss': config['x']})\n"
            "for high in (1, 2):\n"
            "    tune.run(train, config={'x': tune.uniform(0, high)}, name='exp', storage_path='runs', verbose=0)\n",
        )
        done = shell.python("script.py")
        assert done.returncode == 0, done.stderr
        assert len([path for path in (shell.folder / "runs/exp").iterdir() if path.name.startswith("train_")]) == 2


class TestManifest:
    def test_diff_and_ways_out(self, shell: Shell) -> None:
        shell.write("train.py", TRAIN.replace("heigth", "score"))
        space = {"x": {"uniform": [0, 1]}, "y": 2}
        shell.manifest(metric="score", mode="max", numSamples=2, searchSpace=space)
        shell.run("run", "experiment.yaml")
        shell.manifest(metric="score", mode="max", numSamples=2, searchSpace={"x": {"loguniform": [0.1, 1]}, "y": 3})
        refused = shell.run("run", "experiment.yaml")
        assert refused.returncode == 2
        assert "  spec.searchSpace.x: {uniform: [0, 1]} -> {loguniform: [0.1, 1]}\n" in refused.stderr
        assert "  spec.searchSpace.y: 2 -> 3\n" in refused.stderr
        assert shell.run(*remedy(refused.stderr, "--name"), "--name", "new").returncode == 0
        assert shell.run(*remedy(refused.stderr, "--fresh")).returncode == 0
        assert (shell.folder / "trialpod-results/exp.1").is_dir()
        shell.manifest(metric="score", mode="max", numSamples=2, searchSpace={"x": {"loguniform": [0.1, 1]}, "y": 3},
                       stop={"training_iteration": 2})  # fmt: skip
        assert shell.run("run", "experiment.yaml").returncode == 0


class TestMisspeltMetric:
    """Whatever is corrected, the experiment runs."""

    @pytest.fixture
    def failed(self, shell: Shell) -> str:
        shell.write("train.py", TRAIN)
        self.manifest(shell, "height")
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 1
        assert "did you mean 'heigth'?" in done.stdout
        return done.stdout

    @staticmethod
    def manifest(shell: Shell, metric: str) -> None:
        shell.manifest(
            metric=metric, mode="max", numSamples=4, scheduler={"name": "asha", "parameters": {"max_t": 3}}
        )

    @staticmethod
    def assert_ran(shell: Shell, text: str, metric: str) -> None:
        found = shell.results()
        assert [trial["status"] for trial in found["trials"]] == ["TERMINATED"] * 4, text
        assert all(metric in trial["last_result"] for trial in found["trials"])
        shell.assert_whole()

    def test_code_is_corrected(self, shell: Shell, failed: str) -> None:
        assert shell.run("run", "experiment.yaml").returncode == 1  # nothing was corrected
        edit(shell, ("heigth", "height"), name="train.py")
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 0
        self.assert_ran(shell, done.stdout, "height")

    def test_retry_is_not_offered_where_it_fails_again(self, failed: str) -> None:
        assert "--retry-failed" not in failed

    def test_manifest_is_corrected(self, shell: Shell, failed: str) -> None:
        self.manifest(shell, "heigth")
        done = shell.run("run", "experiment.yaml")
        assert done.returncode == 0, done.stderr
        self.assert_ran(shell, done.stdout, "heigth")
        assert Path(shell.folder, "trialpod-results/exp.1").is_dir()

    def test_results_can_be_compared_anyway(self, shell: Shell, failed: str) -> None:
        command = failed.partition("for these results: trialpod ")[2].splitlines()[0]
        best = shell.run(*command.split())
        assert (best.returncode, "with heigth=" in best.stdout) == (0, True)


class TestRetry:
    def test_retries_what_failed_from_any_folder(self, shell: Shell) -> None:
        shell.write(
            "train.py", TRAIN.replace("heigth", "score") + "    if config['x'] > 1:\n        raise OSError(3)\n"
        )
        shell.manifest(metric="score", mode="max", searchSpace={"x": {"grid_search": [0, 2, 3]}})
        assert shell.run("run", "experiment.yaml").returncode == 1
        failed = sorted(t["trial_id"] for t in shell.results()["trials"] if t["status"] == "ERROR")
        assert "has not failed: it completed; nothing was changed (failed: " in shell.run("retry", "exp", "0").stderr
        edit(shell, ("> 1", "> 2"), name="train.py")
        one = shell.run("retry", "exp", failed[0])
        assert (one.returncode, f"--retry-trial {failed[0]}" in one.stderr) == (1, True), one.stderr
        assert sum(t["status"] == "ERROR" for t in shell.results()["trials"]) == 1
        edit(shell, ("> 2", "> 3"), name="train.py")
        elsewhere = shell.run("-v", "retry", str(shell.folder / "trialpod-results/exp"), "--from-scratch")
        assert elsewhere.returncode == 0, elsewhere.stderr
        assert "no trial of" in shell.run("retry", "exp").stderr
        shell.assert_whole()


class TestNanAfterGoodValues:
    def test_best_is_the_same_everywhere(self, shell: Shell) -> None:
        shell.write(
            "script.py",
            """
from trialpod import tune
from trialpod.tune import TuneConfig, Tuner

def train(config):
    for value in config["values"]:
        tune.report({"score": value, "other": value})

nan = float("nan")
grid = Tuner(train, param_space={"values": tune.grid_search([[1.0], [3.0, 2.0, nan, nan], [nan]])},
             tune_config=TuneConfig(metric="score", mode="max")).fit()
print("winner", [grid.get_best_result().config["values"][1]], flush=True)
""",
        )
        done = shell.run("run", "script.py")
        assert printed(done.stdout, "winner") == [2.0]
        assert "with score=2 at iteration 2 of 4\n" in done.stdout
        for options in ([], ["--metric", "other", "--mode", "max"]):
            best = shell.run("best", "trialpod-results/script", *options)
            assert "=2 at iteration 2 of 4\n" in best.stdout, best.stderr
