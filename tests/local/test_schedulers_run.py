"""The schedulers that pause, copy and resize trials, with real processes: what they decide is what trials do."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command_shell import Shell, read_json_lines

from trialpod_operator.engine.choices import Decision
from trialpod_operator.engine.trial import Trial
from trialpod_operator.view.reading import ReadExperiment

pytestmark = [pytest.mark.local, pytest.mark.once, pytest.mark.slow]

EXPERIMENT = Path("storage/exp")
HEAD = """
import json, os, pathlib, sys, tempfile, time
from trialpod import tune
from trialpod.tune import Tuner, TuneConfig, RunConfig, CheckpointConfig
from trialpod.tune.schedulers import *

def fit(trainable, scheduler, space, length, trials=1, slots=2, search=None, **more):
    config = TuneConfig(metric=more.get("metric", "score"), mode="max", scheduler=scheduler, num_samples=trials,
        max_concurrent_trials=slots, search_alg=search, reuse_actors=more.get("reuse", False))
    config.seed = 1
    rules = CheckpointConfig(**({} if not isinstance(trainable, type) else {"checkpoint_at_end": False}))
    run = RunConfig(name="exp", storage_path=os.path.abspath("storage"), verbose=1, checkpoint_config=rules,
        stop={"training_iteration": length} if length else None)
    return Tuner(trainable, param_space=space, tune_config=config, run_config=run).fit()
"""
CLASS = """
class Train(tune.Trainable):
    def setup(self, config):
        self.lr, self.total = config["lr"], 0
    def step(self):
        self.total += self.lr
        dies_at = int(os.environ.get("DIES_AT", 0))
        if dies_at and self.training_iteration + 1 >= dies_at and not os.path.exists(os.environ["KILLED"]):
            open(os.environ["KILLED"], "w").close()
            os.kill(int(os.environ["SHELL_PID"]), 9)
            time.sleep(60)
        return {"score": self.total, "cpus": tune.get_context().get_trial_resources().required_resources.get("CPU")}
    def save_checkpoint(self, folder):
        return {"total": self.total}
    def load_checkpoint(self, state):
        self.total = state["total"]
os.environ.setdefault("SHELL_PID", str(os.getpid()))
"""
IN_PLACE = """
def take_over(self, config):
    self.lr, self.total = config["lr"], 0
    return True
Train.reset_config = take_over
"""
FUNCTION = """
def Train(config):
    done, total = 0, 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            done, total = json.loads(pathlib.Path(folder, "state.json").read_text())
    while True:
        done, total = done + 1, total + config["lr"]
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "state.json").write_text(json.dumps([done, total]))
            tune.report({"score": total}, checkpoint=tune.Checkpoint.from_directory(folder))
"""
PBT = """
fit(Train, PopulationBasedTraining(time_attr="training_iteration", perturbation_interval=3, synch=%s,
    hyperparam_mutations={"lr": tune.uniform(0.5, 9)}), {"lr": tune.grid_search([1, 2, 3, 4, 5, 6])}, 12)
"""
PB2 = PBT.replace("PopulationBasedTraining", "PB2").replace(
    'hyperparam_mutations={"lr": tune.uniform(0.5, 9)}', 'hyperparam_bounds={"lr": [0.5, 9]}'
)
HYPERBAND = """
fit(Train, HyperBandScheduler(max_t=9), {"lr": tune.grid_search([1, 9, 5, 2, 8, 3, 7, 4, 6])}, None, slots=%d)
"""


def trials(shell: Shell) -> list[Trial]:
    return list(ReadExperiment(shell.folder / EXPERIMENT).engine.state.trials.values())


def results(shell: Shell, trial: Trial) -> list[dict[str, Any]]:
    (folder,) = (shell.folder / EXPERIMENT).glob(f"*_{trial.trial_id}_*")
    return read_json_lines(folder / "result.json")


def run(shell: Shell, script: str, killed: bool = False) -> list[Trial]:
    """Run a script to its end, or until it is killed; no process is left afterwards."""
    shell.write("script.py", HEAD + script)
    done = shell.python("script.py", timeout_s=90)
    said = done.stdout + done.stderr
    assert done.returncode == (-signal.SIGKILL if killed else 0), said
    assert "left paused" not in said
    return trials(shell)


def run_with_a_kill(shell: Shell, script: str, at: int) -> list[Trial]:
    """Kill the driver when a trial comes to a step; then continue."""
    shell.env |= {"DIES_AT": str(at), "KILLED": str(shell.folder / "killed")}
    run(shell, script, killed=True)
    shell.env["TRIALPOD_RESUME"] = "1"
    return run(shell, script)


def kinds(trial: Trial, kind: str) -> list[Decision]:
    return [decision for decision in trial.decisions if decision.kind == kind]


def check_every_score(shell: Shell, found: list[Trial], length: int, disruptions: bool = False) -> int:
    """Check that every result follows from the state that its trial continued from; return how many exploits."""
    rows = {trial.trial_id: results(shell, trial) for trial in found}
    exploits = 0
    for trial in found:
        assert (trial.status, trial.failures) == ("TERMINATED", 0)
        if not disruptions:
            assert trial.disruptions == 0
        mine = rows[trial.trial_id]
        assert mine[-1]["training_iteration"] >= length
        followed = kinds(trial, "exploit")
        exploits += len(followed)
        for before, row in zip([None, *mine], mine, strict=False):
            step, grown = row["training_iteration"], row["config"]["lr"]
            origins = [0.0] if step == 1 else []
            if before is not None and before["training_iteration"] == step - 1:
                origins.append(before["score"])
            if disruptions:
                origins += [other["score"] for other in mine if other["training_iteration"] == step - 1]
            for decision in followed:
                if decision.reason.get("from_iteration") == step - 1:
                    source = rows[decision.reason["source_trial"]]
                    origins += [other["score"] for other in source if other["training_iteration"] == step - 1]
            assert any(abs(row["score"] - origin - grown) < 1e-9 for origin in origins), (row, origins)
    return exploits


def check_policies(shell: Shell, found: list[Trial], exploits: int) -> None:
    lines = (shell.folder / EXPERIMENT / "pbt_global.txt").read_text().splitlines()
    assert len(lines) >= exploits  # one that was told and could not be carried out is noted, too
    for trial in found:
        path = shell.folder / EXPERIMENT / f"pbt_policy_{trial.trial_id}.txt"
        if kinds(trial, "exploit"):
            assert json.loads(path.read_text().splitlines()[-1])[5]["lr"] == pytest.approx(trial.config["lr"])


@pytest.mark.parametrize("kind", [CLASS, CLASS + IN_PLACE, FUNCTION], ids=["class", "in place", "function"])
def test_population_larger_than_slots_takes_turns(shell: Shell, kind: str) -> None:
    found = run(shell, kind + PBT % False)
    exploits = check_every_score(shell, found, 12)
    assert exploits > 0
    assert max(trial.attempt for trial in found) > 2
    check_policies(shell, found, exploits)


def test_a_population_in_step_copies(shell: Shell) -> None:
    found = run(shell, CLASS + PBT % True)
    exploits = check_every_score(shell, found, 12)
    assert exploits > 0
    check_policies(shell, found, exploits)
    spread = {decision.iteration for trial in found for decision in kinds(trial, "exploit")}
    assert spread <= {3, 6, 9, 12}


@pytest.mark.parametrize("synch", [False, True])
def test_a_population_is_killed_in_the_middle_and_continues(shell: Shell, synch: bool) -> None:
    found = run_with_a_kill(shell, CLASS + PBT % synch, 7)
    exploits = check_every_score(shell, found, 12, disruptions=True)
    assert exploits > 0
    check_policies(shell, found, exploits)


def test_bandits_choose_within_their_bounds(shell: Shell) -> None:
    found = run(shell, CLASS + PB2 % False)
    assert check_every_score(shell, found, 12) > 0
    for trial in found:
        for decision in kinds(trial, "exploit"):
            assert decision.reason["scheduler"] == "pb2"
        assert all(0.5 <= row["config"]["lr"] <= 9 for row in results(shell, trial))


def test_parameters_that_the_search_space_lacks_are_drawn(shell: Shell) -> None:
    script = PBT % False
    script = script.replace('"lr": tune.grid_search', '"base": tune.grid_search')
    found = run(shell, CLASS + script)
    assert check_every_score(shell, found, 12) > 0
    first = [results(shell, trial)[0] for trial in found]
    assert len({row["config"]["lr"] for row in first}) == 6
    assert [row["config"]["base"] for row in first] == [1, 2, 3, 4, 5, 6]


def check_hyperband(shell: Shell, found: list[Trial]) -> None:
    """Nine trials in a bracket of 9 steps: 3 long ones, 5 middle ones, and one that is left over."""
    best = max(found, key=lambda trial: trial.value or 0)
    assert best.iteration == 9
    assert best.value == pytest.approx(9 * best.config["lr"])
    for trial in found:
        assert trial.status == "TERMINATED"
        assert [row["training_iteration"] for row in results(shell, trial)][-1] == trial.iteration
        assert trial.value == pytest.approx(trial.iteration * trial.config["lr"])


def test_hyperband_cuts_its_brackets_down(shell: Shell) -> None:
    found = run(shell, CLASS + HYPERBAND % 2)
    check_hyperband(shell, found)
    assert [(trial.iteration, trial.failures, trial.disruptions) for trial in found[:3]] == [(9, 0, 0)] * 3
    middle = sorted(found[3:8], key=lambda trial: trial.config["lr"])
    assert [trial.iteration for trial in middle] == [3, 3, 3, 9, 9]
    assert all(len(results(shell, trial)) == trial.iteration for trial in found)


def test_hyperband_is_killed_in_the_middle_and_continues(shell: Shell) -> None:
    check_hyperband(shell, run_with_a_kill(shell, CLASS + HYPERBAND % 3, 4))


def test_hyperband_for_bohb_tells_searcher_of_pauses(shell: Shell) -> None:
    searcher = """
from trialpod.tune.search import Searcher
class Listening(Searcher):
    def __init__(self):
        super().__init__()
        self.count, self.heard = 0, []
    def set_search_properties(self, metric, mode, config, **spec):
        return True
    def suggest(self, trial_id):
        self.count += 1
        return {"lr": self.count * 7 % 10}
    def hear(self, what, trial_id, *more):
        self.heard.append(what)
        pathlib.Path("heard.txt").open("a").write(json.dumps([what, trial_id, *more]) + "\\n")
    def on_trial_result(self, trial_id, result):
        if "hyperband_info/budget" in result:
            self.hear("budget", trial_id, result["hyperband_info/budget"])
    def on_pause(self, trial_id):
        self.hear("pause", trial_id)
    def on_unpause(self, trial_id):
        self.hear("unpause", trial_id)
    def on_trial_complete(self, trial_id, result=None, error=False):
        self.hear("complete", trial_id)
    def on_trial_stopped(self, trial_id, result=None):
        self.hear("stopped", trial_id)
    def get_state(self):
        return {"count": self.count, "heard": self.heard}
    def set_state(self, state):
        self.count, self.heard = state["count"], state["heard"]
fit(Train, HyperBandForBOHB(max_t=9), {}, None, trials=9, slots=3, search=Listening())
"""
    found = run(shell, CLASS + searcher)
    heard = [json.loads(line) for line in (shell.folder / "heard.txt").read_text().splitlines()]
    names = [name for name, *_ in heard]
    assert names.count("pause") >= 8
    assert names.count("unpause") >= 3
    assert {more[-1] for name, *more in heard if name == "budget"} >= {1.0, 3.0}
    assert names.count("complete") + names.count("stopped") == 9
    assert max(found, key=lambda trial: trial.value or 0).iteration == 9
    for trial in found:
        assert trial.value == pytest.approx(trial.iteration * trial.config["lr"])


def test_the_median_rule_stops_the_worse_half(shell: Shell) -> None:
    rule = """
fit(Train, MedianStoppingRule(time_attr="training_iteration", grace_period=2, min_samples_required=2),
    {"lr": tune.grid_search([6, 5, 1, 2, 4, 3])}, 8, slots=2)
"""
    found = run(shell, CLASS + rule)
    by_lr = {trial.config["lr"]: trial.iteration for trial in found}
    assert by_lr[6] == by_lr[5] == 8
    assert by_lr[1] < 8
    for trial in found:
        assert [row["training_iteration"] for row in results(shell, trial)] == list(range(1, trial.iteration + 1))


def test_promotion_asha_promotes_the_best(shell: Shell) -> None:
    promotion = """
fit(Train, PromotionASHAScheduler(max_t=8, grace_period=2, reduction_factor=2),
    {"lr": tune.grid_search([1, 2, 3, 4, 5, 6, 7, 8])}, None, slots=2)
"""
    found = run(shell, CLASS + promotion)
    best = max(found, key=lambda trial: trial.config["lr"])
    assert (best.iteration, best.value) == (8, 64)
    assert sum(trial.iteration for trial in found) < 8 * 8
    for trial in found:
        assert [row["training_iteration"] for row in results(shell, trial)] == list(range(1, trial.iteration + 1))
        assert (trial.failures, trial.disruptions) == (0, 0)


def test_trials_grow_into_what_is_free(shell: Shell) -> None:
    changing = """
base = MedianStoppingRule(time_attr="training_iteration", grace_period=99)
share = DistributeResources(total_resources={"cpu": 2}, increase_by={"cpu": 0.5})
trainable = tune.with_resources(Train, {"cpu": 0.5})
fit(trainable, ResourceChangingScheduler(base, share), {"lr": tune.grid_search([1, 2])}, 6, slots=2)
"""
    found = run(shell, CLASS + changing)
    for trial in found:
        rows = results(shell, trial)
        assert [row["training_iteration"] for row in rows] == list(range(1, 7))
        assert [row["score"] for row in rows] == [step * trial.config["lr"] for step in range(1, 7)]
        assert rows[0]["cpus"] == 0.5
        assert rows[-1]["cpus"] >= 1.0  # all that the other one leaves, once that has ended
        assert (trial.failures, trial.disruptions) == (0, 0)


def test_a_schedule_is_replayed(shell: Shell) -> None:
    replay = """
fit(Train, PopulationBasedTrainingReplay(policy=[
    ["0_a", "1_b", 3, 3, {"lr": 5}, {"lr": 7}], ["0_a", "2_b", 9, 6, {"lr": 4}, {"lr": 2}],
]), {"lr": 1, "other": 3}, 8)
"""
    (trial,) = run(shell, CLASS + replay)
    rows = results(shell, trial)
    assert [row["training_iteration"] for row in rows] == list(range(1, 9))
    assert [row["config"]["lr"] for row in rows] == [4] * 6 + [2] * 2
    assert [row["score"] for row in rows] == [4, 8, 12, 16, 20, 24, 26, 28]
    assert trial.config == {"lr": 2, "other": 3}


def test_a_population_is_found_by_its_name_in_a_manifest(shell: Shell) -> None:
    shell.write("train.py", "import os, time\nfrom trialpod import tune\n" + CLASS)
    shell.manifest(
        trainable={"entrypoint": "train:Train"},
        metric="score",
        mode="max",
        numSamples=6,
        seed=3,
        maxConcurrentTrials=3,
        stop={"training_iteration": 9},
        searchSpace={"lr": {"uniform": [0, 1]}},
        scheduler={
            "name": "pbt",
            "parameters": {
                "time_attr": "training_iteration",
                "perturbation_interval": 3,
                "hyperparam_mutations": {"lr": {"uniform": [0, 1]}},
            },
        },
    )
    done = shell.run("run", "experiment.yaml", "--storage", "storage", timeout_s=90)
    assert done.returncode == 0, done.stdout + done.stderr
    found = trials(shell)
    exploits = check_every_score(shell, found, 9)
    assert exploits > 0
    check_policies(shell, found, exploits)
    changed = next(trial for trial in found if kinds(trial, "exploit"))
    explained = shell.run("explain", changed.trial_id, str(EXPERIMENT))
    assert "reset to" in explained.stdout
