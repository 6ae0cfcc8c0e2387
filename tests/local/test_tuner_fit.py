"""`Tuner.fit` in real scripts: what a user of Ray Tune would write, run by Python, with real trial processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from command_shell import Shell, read_json_lines

pytestmark = pytest.mark.local

HEAD = """
import json, os, pathlib, sys, tempfile, threading
from trialpod import tune
from trialpod.tune import Tuner, TuneConfig, RunConfig, FailureConfig, CheckpointConfig
STORAGE = os.path.abspath("storage")

def told(**facts):
    print("told", json.dumps(facts, default=str))
"""


def script(shell: Shell, body: str, *, status: int = 0) -> list[dict[str, object]]:
    """Run a script and return what it told."""
    shell.write("script.py", HEAD + body)
    done = shell.python("script.py")
    assert done.returncode == status, done.stdout + done.stderr
    return [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("told ")]


def test_a_closure_of_a_script_runs_and_the_grid_tells_all(shell: Shell) -> None:
    (facts,) = script(
        shell,
        """
def make(offset):
    def objective(config):
        for step in range(3):
            tune.report({"score": config["x"] + offset + step, "nested": {"step": step}})
    return objective

grid = Tuner(
    make(10),
    param_space={"x": tune.grid_search([1, 2, 3]), "constant": "c"},
    tune_config=TuneConfig(metric="score", mode="max"),
    run_config=RunConfig(name="exp", storage_path=STORAGE, verbose=0),
).fit()
best = grid.get_best_result()
told(n=len(grid), errors=grid.num_errors, ended=grid.num_terminated, config=best.config, path=grid.experiment_path,
     score=best.metrics["score"], step=best.metrics["nested"]["step"], rows=len(best.metrics_dataframe),
     iteration=best.metrics["training_iteration"], best_path=best.path, checkpoint=best.checkpoint,
     frame=sorted(grid.get_dataframe()["score"]))
""",
    )
    assert (facts["n"], facts["errors"], facts["ended"]) == (3, 0, 3)
    assert facts["config"] == {"x": 3, "constant": "c"}
    assert (facts["score"], facts["step"], facts["rows"], facts["iteration"]) == (15, 2, 3, 3)
    assert facts["frame"] == [13, 14, 15]
    assert facts["checkpoint"] is None
    last = json.loads(Path(str(facts["best_path"]), "result.json").read_text().splitlines()[-1])
    assert last["nested"] == {"step": 2}
    assert facts["path"] == str(shell.folder / "storage" / "exp")


def test_a_class_with_checkpoints_a_stop_dict_and_resources(shell: Shell) -> None:
    (facts,) = script(
        shell,
        """
class Counter(tune.Trainable):
    def setup(self, config, data=None):
        self.n, self.data = 0, data
    def step(self):
        self.n += 1
        return {"score": self.n * self.config["x"], "data": sum(self.data),
                "cpu": tune.get_context().get_trial_resources()["cpu"]}
    def save_checkpoint(self, folder):
        pathlib.Path(folder, "n").write_text(str(self.n))
    def load_checkpoint(self, folder):
        self.n = int(pathlib.Path(folder, "n").read_text())

trainable = tune.with_resources(tune.with_parameters(Counter, data=[1, 2, 3]), {"cpu": 2})
grid = Tuner(
    trainable,
    param_space={"x": tune.choice([5])},
    tune_config=TuneConfig(metric="score", mode="max", num_samples=2),
    run_config=RunConfig(name="exp", storage_path=STORAGE, verbose=0, stop={"training_iteration": 4},
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2, num_to_keep=1, checkpoint_at_end=True,
            checkpoint_score_attribute="score", checkpoint_score_order="min")),
).fit()
best = grid.get_best_result()
with best.checkpoint.as_directory() as folder:
    told(metrics=[r.metrics["score"] for r in grid], data=best.metrics["data"], cpu=best.metrics["cpu"],
         n=pathlib.Path(folder, "n").read_text(), kept=[metrics["score"] for _, metrics in best.best_checkpoints])
""",
    )
    assert facts == {"metrics": [20, 20], "data": 6, "cpu": 2, "n": "4", "kept": [10]}


def test_a_failed_function_continues_from_its_checkpoint(shell: Shell) -> None:
    (facts,) = script(
        shell,
        """
def train(config):
    start = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            start = int(pathlib.Path(folder, "n").read_text())
    for n in range(start + 1, 6):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "n").write_text(str(n))
            tune.report({"n": n, "start": start}, checkpoint=tune.Checkpoint.from_directory(folder))
        if n == 3 and start == 0:
            raise RuntimeError("a bad day")

grid = Tuner(train, run_config=RunConfig(name="exp", storage_path=STORAGE, verbose=0,
    failure_config=FailureConfig(max_failures=1))).fit()
frame = grid[0].metrics_dataframe
told(n=list(frame["n"]), start=list(frame["start"]), error=grid[0].error,
     iterations=list(frame["training_iteration"]), checkpoint=os.path.basename(grid[0].checkpoint.path))
""",
    )
    assert facts["n"] == facts["iterations"] == [1, 2, 3, 4, 5]
    assert facts["start"] == [0, 0, 0, 3, 3]
    assert facts["error"] is None
    assert facts["checkpoint"] == "checkpoint_000004"


def test_failed_trials_are_errors_of_the_grid_and_no_exception(shell: Shell) -> None:
    (facts,) = script(
        shell,
        """
def train(config):
    tune.report({"score": config["x"]})
    if config["x"] == 2:
        raise ValueError("two is bad")

grid = Tuner(train, param_space={"x": tune.grid_search([1, 2])}, run_config=RunConfig(
    name="exp", storage_path=STORAGE, verbose=0)).fit()
told(errors=[str(e) for e in grid.errors], best=grid.get_best_result("score", "min").config)
""",
    )
    (error,) = facts["errors"]  # type: ignore[misc]
    assert "ValueError: two is bad (script.py:" in error  # type: ignore[has-type]
    assert 'raise ValueError("two is bad")' in error  # type: ignore[has-type]
    assert facts["best"] == {"x": 1}


def test_a_killed_driver_is_restored_by_another_script(shell: Shell) -> None:
    shell.write(
        "model.py",
        """
        import os
        from trialpod import tune

        def train(config):
            with open(os.environ["STARTS"], "a") as file:
                file.write(f"{config['x']}\\n")
            tune.report({"score": config["x"]})
            if config["x"] == 2 and not os.path.exists(os.environ["GO"]):
                with open(os.environ["PIPE"], "w"):
                    pass
                open(os.environ["GATE"]).read()
        """,
    )
    for name in ("pipe", "gate"):
        os.mkfifo(shell.folder / name)
        shell.env[name.upper()] = str(shell.folder / name)
    shell.env |= {"GO": str(shell.folder / "go"), "STARTS": str(shell.folder / "starts")}
    shell.write(
        "driver.py",
        HEAD
        + """
import model
tuner = Tuner(model.train, param_space={"x": tune.grid_search([1, 2, 3])},
    tune_config=TuneConfig(metric="score", mode="max", max_concurrent_trials=1),
    run_config=RunConfig(name="exp", storage_path=STORAGE))
tuner.fit()
""",
    )
    running = shell.launch([sys.executable, "driver.py"])
    with (shell.folder / "pipe").open():
        pass
    running.signal(signal.SIGKILL)
    running.wait()
    shell.wait_until_all_gone()
    shell.write("go", "")
    (facts,) = script(
        shell,
        """
import model
path = os.path.join(STORAGE, "exp")
assert Tuner.can_restore(path)
grid = Tuner.restore(path, model.train).fit()
told(scores=sorted(r.metrics["score"] for r in grid), best=grid.get_best_result().config)
""",
    )
    assert facts == {"scores": [1, 2, 3], "best": {"x": 3}}
    assert sorted((shell.folder / "starts").read_text().split()) == ["1", "2", "2", "3"]


def test_fit_works_in_a_thread_and_inside_a_running_event_loop(shell: Shell) -> None:
    facts = script(
        shell,
        """
import asyncio
def train(config):
    tune.report({"score": config["x"]})

def fit(name):
    grid = Tuner(train, param_space={"x": tune.grid_search([1, 2])}, run_config=RunConfig(
        name=name, storage_path=STORAGE, verbose=0)).fit()
    told(name=name, scores=[r.metrics["score"] for r in grid])

thread = threading.Thread(target=fit, args=("thread",))
thread.start()
thread.join()

async def cell():
    fit("loop")
asyncio.run(cell())
""",
    )
    assert facts == [{"name": "thread", "scores": [1, 2]}, {"name": "loop", "scores": [1, 2]}]


def test_what_cannot_be_pickled_is_named_before_anything_starts(shell: Shell) -> None:
    shell.write(
        "script.py",
        HEAD
        + """
lock = threading.Lock()
def train(config):
    with lock:
        tune.report({"score": 1})
Tuner(train, run_config=RunConfig(name="exp", storage_path=STORAGE)).fit()
""",
    )
    done = shell.python("script.py")
    assert done.returncode == 1
    assert "the Trainable train cannot be sent to the trials" in done.stderr
    assert "lock" in done.stderr.splitlines()[-2]
    assert not (shell.folder / "storage").exists()
    done = shell.run("run", "script.py")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("stop", "iterations"),
    [
        ("{'score': 3}", [3, 3]),
        ("lambda trial_id, result: result['score'] >= 4", [4, 4]),
        ("tune.stopper.MaximumIterationStopper(2)", [2, 2]),
    ],
)
def test_every_kind_of_stop_stops_at_the_result_that_meets_it(shell: Shell, stop: str, iterations: list[int]) -> None:
    (facts,) = script(
        shell,
        f"""
import trialpod.tune.stopper
def train(config):
    for n in range(1, 1000):
        tune.report({{"score": n}})
grid = Tuner(train, tune_config=TuneConfig(num_samples=2), run_config=RunConfig(
    name="exp", storage_path=STORAGE, verbose=0, stop={stop})).fit()
told(iterations=[r.metrics["training_iteration"] for r in grid])
""",
    )
    assert facts["iterations"] == iterations


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["time_budget_s=0.7", "max_trial_hours=0.7 / 3600"])
def test_unlimited_samples_end_with_the_budget(shell: Shell, budget: str) -> None:
    (facts,) = script(
        shell,
        f"BUDGET = dict({budget})"
        """
def train(config):
    tune.report({"score": config["x"]})
grid = Tuner(train, param_space={"x": tune.uniform(0, 1)},
    tune_config=TuneConfig(metric="score", mode="max", num_samples=-1, **BUDGET),
    run_config=RunConfig(name="exp", storage_path=STORAGE, verbose=0)).fit()
told(n=len(grid), errors=grid.num_errors)
""",
    )
    assert facts["n"] >= 3  # type: ignore[operator]
    assert facts["errors"] == 0


def test_asha_stops_the_worse_half_early(shell: Shell) -> None:
    (facts,) = script(
        shell,
        """
from trialpod.tune.schedulers import ASHAScheduler
def train(config):
    for n in range(8):
        tune.report({"score": config["x"]})
grid = Tuner(train, param_space={"x": tune.grid_search([4, 3, 2, 1])},
    tune_config=TuneConfig(metric="score", mode="max", max_concurrent_trials=1,
        scheduler=ASHAScheduler(max_t=8, grace_period=1, reduction_factor=2)),
    run_config=RunConfig(name="exp", storage_path=STORAGE, verbose=0)).fit()
told(iterations={r.config["x"]: r.metrics["training_iteration"] for r in grid}, errors=grid.num_errors)
""",
    )
    assert facts["iterations"] == {"4": 8, "3": 1, "2": 1, "1": 1}


def test_parameters_can_be_objects_of_python(shell: Shell) -> None:
    (facts,) = script(
        shell,
        """
class Adam:
    def __init__(self): self.name = "adam"
class Sgd:
    def __init__(self): self.name = "sgd"

def train(config):
    tune.report({"name": config["optimizer"]().name, "value": config["value"].name})

grid = Tuner(train, param_space={"optimizer": tune.grid_search([Adam, Sgd]), "value": Adam()},
    tune_config=TuneConfig(seed=1), run_config=RunConfig(name="exp", storage_path=STORAGE)).fit()
told(names=[r.metrics["name"] for r in grid], classes=[r.config["optimizer"].__name__ for r in grid])
""",
    )
    assert facts == {"names": ["adam", "sgd"], "classes": ["Adam", "Sgd"]}
    for trial in shell.results("storage/exp")["trials"]:
        assert len(read_json_lines(Path(trial["path"], "result.json"))) == 1


class TestPrintedOutput:
    BODY = """
def f(config):
    print("epoch", config["x"])
    print("a warning", file=sys.stderr)
    tune.report({"loss": config["x"]})
    if VERBOSE == 0:
        raise ValueError("not shown either")
running = RunConfig(storage_path=STORAGE, verbose=VERBOSE)
Tuner(f, param_space={"x": tune.grid_search([1, 2])}, run_config=running).fit()
"""

    def run(self, shell: Shell, verbose: int) -> str:
        shell.write("script.py", HEAD + self.BODY.replace("VERBOSE", str(verbose)))
        done = shell.python("script.py")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def test_is_shown_by_default(self, shell: Shell) -> None:
        shown = self.run(shell, 1)
        for number in (1, 2):
            assert re.search(rf"^\(f_\w+_0000{number - 1} pid=\d+\) epoch {number}$", shown, re.MULTILINE), shown
        assert len(re.findall(r"^\(f_\w+ pid=\d+\) a warning$", shown, re.MULTILINE)) == 2
        assert "iteration 1: loss" not in shown

    def test_verbose_2_shows_results_and_0_nothing(self, shell: Shell) -> None:
        assert "_00001 iteration 1: loss=2\n" in self.run(shell, 2)
        assert self.run(shell, 0) == ""
