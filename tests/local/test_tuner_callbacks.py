"""Callbacks, progress reporters, `tune.run` and the metric check in real scripts with real trial processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_shell import Shell
from test_tuner_fit import script

pytestmark = pytest.mark.local

RECORDER = """
class Recorder(tune.Callback):
    def __init__(self):
        self.seen, self.results = [], 0
    def setup(self, **info):
        self.seen.append(["setup", info["num_samples"], info["total_num_samples"]])
    def on_trial_start(self, iteration, trials, trial, **info):
        self.seen.append(["start", trial.config["x"], trial.status])
    def on_trial_restore(self, iteration, trials, trial, **info):
        self.seen.append(["restore", trial.config["x"]])
    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results += 1
        self.seen.append(["result", trial.config["x"], result["n"], result["a"]["b"], result["config"]["x"]])
    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        self.seen.append(["checkpoint", trial.config["x"], os.path.basename(checkpoint.path)])
    def on_trial_save(self, iteration, trials, trial, **info):
        self.seen.append(["save", trial.config["x"]])
    def on_trial_recover(self, iteration, trials, trial, **info):
        self.seen.append(["recover", trial.config["x"]])
    def on_trial_error(self, iteration, trials, trial, **info):
        self.seen.append(["error", trial.config["x"], trial.num_failures])
    def on_trial_complete(self, iteration, trials, trial, **info):
        self.seen.append(["complete", trial.config["x"], len(trials)])
    def on_experiment_end(self, trials, **info):
        self.seen.append(["end", len(trials)])
    def get_state(self):
        return {"results": self.results}
    def set_state(self, state):
        self.results = state["results"]
        self.seen.append(["state", self.results])

def train(config):
    start = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            start = int(pathlib.Path(folder, "n").read_text())
    for n in range(start + 1, 3):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "n").write_text(str(n))
            tune.report({"n": n, "a": {"b": 5}}, checkpoint=tune.Checkpoint.from_directory(folder))
        if config["x"] == 2 and start == 0:
            raise RuntimeError("a bad day")
"""


def test_hooks_come_in_rays_order_with_what_they_are_about(shell: Shell) -> None:
    (facts,) = script(
        shell,
        RECORDER
        + """
recorder = Recorder()
Tuner(train, param_space={"x": tune.grid_search([1, 2])}, tune_config=TuneConfig(max_concurrent_trials=1),
    run_config=RunConfig(name="exp", storage_path=STORAGE, verbose=0, callbacks=[recorder],
        failure_config=FailureConfig(max_failures=1))).fit()
told(seen=recorder.seen)
""",
    )
    seen: list[list[object]] = facts["seen"]  # type: ignore[assignment]
    assert seen[0] == ["setup", 1, 2]
    assert seen[-1] == ["end", 2]
    one = [entry for entry in seen if entry[1] == 1 and entry[0] != "setup"]
    assert one[0] == ["start", 1, "PENDING"]
    assert [entry for entry in one if entry[0] == "result"] == [["result", 1, 1, 5, 1], ["result", 1, 2, 5, 1]]
    assert [entry[2] for entry in one if entry[0] == "checkpoint"] == ["checkpoint_000000", "checkpoint_000001"]
    assert all(one[place + 1][0] == "save" for place, entry in enumerate(one) if entry[0] == "checkpoint")
    assert one[-1][0] == "complete"
    two = [entry[0] for entry in seen if entry[1] == 2 and entry[0] not in ("setup", "end")]
    assert two == [
        *("start", "result", "checkpoint", "save", "recover"),
        *("start", "restore", "result", "checkpoint", "save", "complete"),
    ]


def test_failing_callback_ends_a_resumable_experiment(shell: Shell) -> None:
    facts = script(
        shell,
        RECORDER
        + """
class Fails(Recorder):
    fails = True
    def on_trial_complete(self, iteration, trials, trial, **info):
        if self.fails:
            raise OSError("no room for the log")

def tuner(callback):
    return RunConfig(name="exp", storage_path=STORAGE, verbose=0, callbacks=[callback])
first = Fails()
try:
    Tuner(train, param_space={"x": tune.grid_search([1, 3])}, tune_config=TuneConfig(max_concurrent_trials=1),
        run_config=tuner(first)).fit()
except OSError as error:
    told(error=str(error.__notes__), ended=first.seen[-1][0], results=first.results)
restored = Tuner.restore(os.path.join(STORAGE, "exp"), train)
(second,) = restored.run_config.callbacks
second.fails = False
grid = restored.fit()
told(states=[s for s in second.seen if s[0] == "state"], results=second.results, ended=grid.num_terminated)
""",
    )
    first, second = facts
    assert "callback Fails raised OSError in on_trial_complete(): no room for the log" in str(first["error"])
    assert first["ended"] == "end"
    assert second["states"] == [["state", first["results"]]]
    assert second["ended"] == 2
    assert second["results"] == 4


def test_state_that_cannot_be_pickled_hides_no_other_error(shell: Shell) -> None:
    facts = script(
        shell,
        """
class Locked(tune.Callback):
    fails = ""
    def on_trial_result(self, **info):
        if self.fails == "result":
            raise OSError("no room for the log")
    def on_experiment_end(self, trials, **info):
        if self.fails == "end":
            raise OSError("no room at the end")
    def get_state(self):
        return {"lock": threading.Lock()}

for fails in ("result", "end", ""):
    Locked.fails = fails
    try:
        Tuner(lambda config: {"score": 1}, run_config=RunConfig(name=f"exp{fails}", storage_path=STORAGE, verbose=0,
            callbacks=[Locked()])).fit()
    except Exception as error:
        told(kind=type(error).__name__, notes=error.__notes__)
""",
    )
    assert [fact["kind"] for fact in facts] == ["OSError", "OSError", "TypeError"]
    assert "in on_trial_result()" in str(facts[0]["notes"])
    assert "in on_experiment_end()" in str(facts[1]["notes"])
    assert "what get_state() of the callback Locked returned cannot be pickled" in str(facts[2]["notes"])


def test_a_reporter_of_ones_own_sees_all_trials(shell: Shell) -> None:
    shell.write(
        "script.py",
        """
import os
from trialpod import tune

class AtTheEnd(tune.CLIReporter):
    def should_report(self, trials, done=False):
        return done

def train(config):
    tune.report({"score": config["x"]})

tune.run(train, config={"x": tune.grid_search([1, 2])}, metric="score", mode="max", name="exp",
    storage_path=os.path.abspath("storage"), progress_reporter=AtTheEnd(metric_columns={"score": "points"}))
class Broken(tune.ProgressReporter):
    def should_report(self, trials, done=False):
        raise ZeroDivisionError("never")
try:
    tune.run(train, config={"x": 1}, storage_path=os.path.abspath("storage"), progress_reporter=Broken())
except ZeroDivisionError as error:
    print(error.__notes__[0])
""",
    )
    done = shell.python("script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("== Status ==") == 1
    assert "Number of trials: 2/2 (2 TERMINATED)" in done.stdout
    assert "points" in done.stdout
    assert "the progress reporter Broken raised ZeroDivisionError in should_report(): never" in done.stdout


def test_output_has_the_names_that_were_asked_for(shell: Shell) -> None:
    (facts,) = script(
        shell,
        """
def train(config):
    print("hello from the trial")
    print("and from stderr", file=sys.stderr)
    return {"score": 1}

grid = Tuner(train, run_config=RunConfig(name="exp", storage_path=STORAGE, verbose=0,
    log_to_file=("out.txt", "err.txt"))).fit()
told(path=grid[0].path)
""",
    )
    for name in ("log.txt", "out.txt", "err.txt"):
        text = Path(str(facts["path"]), name).read_text()
        assert "hello from the trial" in text
        assert "and from stderr" in text


def test_unreported_metric_fails_the_run(shell: Shell) -> None:
    facts = script(
        shell,
        """
def train(config):
    tune.report({"accuracy": 1})

def fit(name):
    return Tuner(train, tune_config=TuneConfig(metric="acuracy", mode="max"),
        run_config=RunConfig(name=name, storage_path=STORAGE, verbose=0)).fit()
try:
    fit("strict")
except ValueError as error:
    told(error=str(error))
os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
grid = fit("loose")
told(ended=grid.num_terminated)
try:
    grid.get_best_result("acuracy")
except ValueError as error:
    told(error=str(error))
""",
    )
    assert "'acuracy' was never reported" in str(facts[0]["error"])
    assert "did you mean 'accuracy'" in str(facts[0]["error"])
    assert facts[1]["ended"] == 1
    assert "Did you mean 'accuracy'" in str(facts[2]["error"])


def test_tune_run_resumes_with_a_larger_budget(shell: Shell) -> None:
    facts = script(
        shell,
        """
def train(config):
    for n in range(3):
        tune.report({"score": config["x"] * (n + 1)})

def run(**more):
    return tune.run(train, config={"x": tune.grid_search([1, 2])}, metric="score", mode="max", name="exp",
        local_dir=STORAGE, verbose=0, **more)
analysis = run()
told(best=analysis.best_config, frame=sorted(analysis.dataframe()["score"]), rows=len(analysis.best_dataframe),
     analysis=analysis.trials[0].metric_analysis["score"]["avg"])
again = run(resume="AUTO", num_samples=2)
told(trials=len(again.trials), read=tune.ExperimentAnalysis(os.path.join(STORAGE, "exp")).best_config)
def fails(config):
    raise ValueError("no way")
try:
    tune.run(fails, storage_path=STORAGE, verbose=0)
except tune.TuneError as error:
    told(error=str(error), trials=len(error.analysis.trials))
""",
    )
    assert facts[0] == {"best": {"x": 2}, "frame": [3, 6], "rows": 3, "analysis": 2.0}
    assert facts[1] == {"trials": 4, "read": {"x": 2}}
    assert "1 of 1 trials" in str(facts[2]["error"])
    assert "ValueError: no way" in str(facts[2]["error"])


def test_a_callback_that_cannot_be_stored_still_runs(shell: Shell) -> None:
    (facts,) = script(
        shell,
        """
class Locked(tune.Callback):
    def __init__(self):
        self.lock, self.results = threading.Lock(), 0
    def on_trial_result(self, **info):
        self.results += 1

callback = Locked()
Tuner(lambda config: {"score": 1}, run_config=RunConfig(name="exp", storage_path=STORAGE, verbose=0,
    callbacks=[callback])).fit()
restored = Tuner.restore(os.path.join(STORAGE, "exp"), lambda config: 1)
told(results=callback.results, restored=restored.run_config.callbacks)
""",
    )
    assert facts == {"results": 1, "restored": []}
    assert os.path.isdir(shell.folder / "storage" / "exp")
