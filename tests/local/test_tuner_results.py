"""What scripts get to see of trials: results as in Ray Tune, and what there is after a run that was cut short."""

from __future__ import annotations

import pytest
from command_shell import Shell
from test_tuner_fit import script

pytestmark = pytest.mark.local


class TestLastResult:
    def test_done_keys_and_what_is_known_without_one(self, shell: Shell) -> None:
        (facts,) = script(
            shell,
            """
def f(config):
    if config["x"] == 3:
        raise ValueError("early")
    for i in range(3):
        tune.report({"loss": i})
    if config["x"] == 2:
        raise ValueError("late")
seen = []
class Watch(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        if trial.config["x"] == 1:
            seen.append([result["loss"], trial.last_result["loss"], trial.last_result["done"]])
    def on_trial_complete(self, iteration, trials, trial, **info):
        seen.append(["complete", trial.last_result["loss"], trial.last_result["done"]])
grid = Tuner(f, param_space={"x": tune.grid_search([1, 2, 3])},
    run_config=RunConfig(storage_path=STORAGE, verbose=0, callbacks=[Watch()])).fit()
rows = [json.loads(line) for line in open(os.path.join(grid[0].path, "result.json"))]
frame = grid.get_dataframe()
told(done=[r.metrics.get("done") for r in grid], rows=[row["done"] for row in rows], keys=list(rows[0]), seen=seen,
     early={name: grid[2].metrics.get(name) for name in ("loss", "config")}, frame=len(frame),
     csv=open(os.path.join(grid[0].path, "progress.csv")).readline().strip().split(",")[:5],
     ids=len(set(frame["trial_id"].dropna())))
""",
        )
        assert facts["done"] == [True, False, None]
        assert facts["rows"] == [False, False, False]
        assert facts["seen"] == [[0, 0, False], [1, 1, False], [2, 2, False], ["complete", 2, True]]
        first = ["loss", "timestamp", "checkpoint_dir_name", "done", "training_iteration"]
        assert (facts["keys"][:5], facts["csv"]) == (first, first)  # type: ignore[index]
        assert facts["early"] == {"loss": None, "config": {"x": 3}}
        assert (facts["frame"], facts["ids"]) == (3, 3)

    def test_a_stopped_trial_is_done_in_its_files_too(self, shell: Shell) -> None:
        (facts,) = script(
            shell,
            """
class T(tune.Trainable):
    def step(self):
        return {"loss": self.training_iteration}
grid = Tuner(T, run_config=RunConfig(storage_path=STORAGE, verbose=0,
    stop=lambda trial_id, result: result["loss"] >= 2)).fit()
rows = [json.loads(line) for line in open(os.path.join(grid[0].path, "result.json"))]
told(rows=[row["done"] for row in rows][:3], done=grid[0].metrics["done"], keys=list(rows[0]))
""",
        )
        assert facts["rows"] == [False, False, True]
        assert facts["done"] is True
        first = ["loss", "done", "training_iteration", "date", "timestamp", "time_this_iter_s", "time_total_s"]
        assert facts["keys"][:7] == first  # type: ignore[index]


class TestCutShort:
    def test_a_callbacks_error_leaves_fit_as_itself(self, shell: Shell) -> None:
        (facts,) = script(
            shell,
            """
class MyError(Exception):
    pass
class Broken(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["loss"] == 2:
            raise MyError("mine")
def f(config):
    for i in range(1, 4):
        tune.report({"loss": i})
tuner = Tuner(f, run_config=RunConfig(name="e", storage_path=STORAGE, verbose=0, callbacks=[Broken()]))
try:
    tuner.fit()
except MyError as error:
    grid = tuner.get_results()
    told(text=str(error), notes=error.__notes__, trials=len(grid), loss=grid[0].metrics.get("loss"))
""",
        )
        assert facts["text"] == "mine"
        assert "the callback Broken raised MyError in on_trial_result()" in str(facts["notes"])
        assert facts["trials"] == 1
        assert facts["loss"] is not None

    def test_results_are_there_after_an_interrupt(self, shell: Shell) -> None:
        (facts,) = script(
            shell,
            """
import signal, time
class Interrupt(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        os.kill(os.getpid(), signal.SIGINT)
def f(config):
    for i in range(1000):
        tune.report({"loss": i})
        time.sleep(0.05)
tuner = Tuner(f, run_config=RunConfig(name="e", storage_path=STORAGE, verbose=0, callbacks=[Interrupt()]))
try:
    tuner.fit()
except KeyboardInterrupt:
    told(trials=len(tuner.get_results()), loss=tuner.get_results()[0].metrics["loss"])
""",
        )
        assert facts["trials"] == 1


class TestMetricOfTheScheduler:
    def test_nobody_reports_it(self, shell: Shell) -> None:
        (facts,) = script(
            shell,
            """
def f(config):
    tune.report({"loss": 1})
try:
    Tuner(f, tune_config=tune.TuneConfig(scheduler=tune.schedulers.ASHAScheduler(metric="lose", mode="min")),
        run_config=RunConfig(storage_path=STORAGE, verbose=0)).fit()
    told(error=None)
except ValueError as error:
    told(error=str(error))
""",
        )
        assert "'lose' was never reported" in str(facts["error"])
        assert "did you mean 'loss'?" in str(facts["error"])


class TestTrialsOfOneExperiment:
    def test_names_directories_and_reuse(self, shell: Shell) -> None:
        (facts,) = script(
            shell,
            """
def f(config):
    tune.report({"x": config["x"], "cwd": os.getcwd()}, checkpoint=tune.Checkpoint.from_dict({"x": config["x"]}))
class Again(tune.Trainable):
    def setup(self, config):
        self.x = config["x"]
    def step(self):
        return {"x": self.x, "done": True}
def run(trainable, name, **config):
    return Tuner(trainable, param_space={"x": tune.grid_search([1, 2, 3])}, tune_config=TuneConfig(**config),
        run_config=RunConfig(name=name, storage_path=STORAGE, verbose=0)).fit()
equal = run(f, "equal", trial_dirname_creator=lambda trial: "same", chdir_to_trial_dir=False)
named = run(f, "named", trial_name_creator=lambda trial: "mine")
reused = run(Again, "reused", reuse_actors=True, max_concurrent_trials=1)
told(equal=[[r.metrics["x"], r.checkpoint.to_dict()["x"]] for r in equal], paths=len({r.path for r in equal}),
     first=os.path.basename(equal[0].path), cwd={r.metrics["cwd"] for r in equal} == {os.getcwd()},
     named=sorted(os.path.basename(r.path)[:7] for r in named), errors=equal.num_errors + reused.num_errors,
     reused=[r.metrics["x"] for r in reused], pids=len({r.metrics["pid"] for r in reused}))
""",
        )
        assert facts["equal"] == [[1, 1], [2, 2], [3, 3]]
        assert (facts["paths"], facts["first"], facts["cwd"], facts["errors"]) == (3, "same", True, 0)
        assert facts["named"] == ["mine_0_", "mine_1_", "mine_2_"]
        assert (facts["reused"], facts["pids"]) == ([1, 2, 3], 1)


class TestRestore:
    def test_forms_of_older_scripts_and_a_renamed_folder(self, shell: Shell) -> None:
        (facts,) = script(
            shell,
            """
def f(config, data=None):
    if config["x"] == 2 and not os.path.exists(STORAGE + "/ready"):
        raise ValueError("not yet")
    tune.report({"x": config["x"] + len(data)})
def run(name):
    if os.path.exists(STORAGE + "/ready"):
        os.unlink(STORAGE + "/ready")
    grid = Tuner(tune.with_parameters(f, data=[0] * 10), param_space={"x": tune.grid_search([1, 2])},
        run_config=RunConfig(name=name, storage_path=STORAGE, verbose=0)).fit()
    assert grid.num_errors == 1
    pathlib.Path(STORAGE, "ready").touch()
    return grid.experiment_path
def xs(tuner):
    return [result.metrics.get("x") for result in tuner.fit()]
same = tune.with_parameters(f, data=[0] * 10)
moved = os.path.join(STORAGE, "moved")
os.rename(run("a"), moved)
told(stored=xs(Tuner.restore(moved, resume_errored=True)),
     overwrite=xs(Tuner.restore(run("b"), overwrite_trainable=same, resume_errored=True)),
     positional=xs(Tuner.restore(run("c"), same, True, True)),
     both=xs(Tuner.restore(run("d") + "/", same, resume_errored=True, restart_errored=True)),
     without=xs(Tuner.restore(run("e"))), can=[Tuner.can_restore(moved), Tuner.can_restore(STORAGE)])
""",
        )
        assert facts == {
            "stored": [11, 12],
            "overwrite": [11, 12],
            "positional": [11, 12],
            "both": [11, 12],
            "without": [11, None],
            "can": [True, False],
        }


class TestTimeBudget:
    @pytest.mark.slow
    @pytest.mark.once
    def test_a_silent_trial_ends_within_its_grace_period(self, shell: Shell) -> None:
        shell.write(
            "script.py",
            """
            import time
            from trialpod import tune

            def f(config):
                time.sleep(60)

            begun = time.monotonic()
            tune.Tuner(f, tune_config=tune.TuneConfig(time_budget_s=1),
                       run_config=tune.RunConfig(name="e", storage_path="storage")).fit()
            print("took", time.monotonic() - begun)
            """,
        )
        done = shell.python("script.py", timeout_s=100)
        assert done.returncode == 0, done.stderr
        assert "the time budget of 1 s is used up; waiting for 1 trial to report" in done.stdout
        took = next(line for line in done.stdout.splitlines() if line.startswith("took"))
        assert float(took.split()[1]) < 50  # the trial sleeps for 60 s
