"""Deciding classes that a manifest names: they copy trials, take seconds, and lose their node."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_access import Cluster
from experiments import Experiment, assert_history, manifest
from test_deciders_cluster import deciders
from testcluster import layout

TRIALPOD = Path(sys.executable).with_name("trialpod")
pytestmark = pytest.mark.usefixtures("operator")

OWN = '''
import json
import os
import time

from trialpod import tune
from trialpod.tune.schedulers import FIFOScheduler, TrialScheduler
from trialpod.tune.schedulers.trial_scheduler import Exploit
from trialpod.tune.search import Searcher
from trialpod.tune.stopper import Stopper


class Climb(tune.Trainable):
    def setup(self, config):
        self.number, self.total = 0, 0.0

    def step(self):
        time.sleep(float(os.environ.get("PAUSE_S", "0")))
        self.number += 1
        self.total += self.config["height"]
        return {"score": self.total}

    def save_checkpoint(self, folder):
        with open(folder + "/state", "w") as file:
            json.dump([self.number, self.total], file)

    def load_checkpoint(self, folder):
        with open(folder + "/state") as file:
            self.number, self.total = json.load(file)


class CopyBest(FIFOScheduler):
    """Pauses each trial at step 6 until all are there; then the worst continues from the best, a step higher."""

    def __init__(self, trials):
        super().__init__()
        self.trials, self.scores = trials, {}

    def on_trial_result(self, tune_controller, trial, result):
        if result["training_iteration"] != 6 or trial.trial_id in self.scores:
            return TrialScheduler.CONTINUE
        self.scores[trial.trial_id] = result["score"]
        if len(self.scores) < self.trials:
            return TrialScheduler.PAUSE
        best = tune_controller.get_trial(max(self.scores, key=self.scores.get))
        worst = min(self.scores, key=self.scores.get)
        copied = Exploit(best.trial_id, {"height": best.config["height"] + 1.0}, "copied")
        if worst == trial.trial_id:
            return copied
        tune_controller.exploit_paused(tune_controller.get_trial(worst), copied)
        return TrialScheduler.CONTINUE

    def horizons(self, trial):
        return None

    def choose_trial_to_run(self, tune_controller):
        paused = tune_controller.paused_trials() if len(self.scores) == self.trials else []
        return next(iter([*tune_controller.pending_trials(), *paused]), None)


class Surrogate(Searcher):
    """Fits a Gaussian process to what is known and takes the candidate of the best upper bound; takes two seconds."""

    def __init__(self, seconds):
        super().__init__(metric="score", mode="max")
        self.seconds, self.known, self.asked = seconds, [], {}

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        import numpy as np
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF

        began, candidates = time.monotonic(), np.linspace(0.0, 4.0, 41)
        x = np.array([[height] for height, _ in self.known] or [[0.0]])
        y = np.array([score for _, score in self.known] or [0.0])
        while True:
            model = GaussianProcessRegressor(RBF(0.5), alpha=1e-3, optimizer=None, normalize_y=True).fit(x, y)
            mean, deviation = model.predict(candidates[:, None], return_std=True)
            if time.monotonic() - began > self.seconds:
                break
        untried = [i for i in range(41) if not any(abs(candidates[i] - height) < 1e-9 for height, _ in self.known)]
        best = max(untried, key=lambda i: (round(float(mean[i] + 2 * deviation[i]), 6), -i))
        self.asked[trial_id] = round(float(candidates[best]), 3)
        return {"height": self.asked[trial_id]}

    def on_trial_complete(self, trial_id, result=None, error=False):
        if result is not None:
            height = self.asked.pop(trial_id)
            self.known.append((height, -((height - 1.7) ** 2)))


class Enough(Stopper):
    """Ends a trial after so many steps, and all when that many results are there."""

    def __init__(self, steps, results):
        self.steps, self.results, self.count = steps, results, 0

    def __call__(self, trial_id, result):
        self.count += 1
        return result["training_iteration"] >= self.steps

    def stop_all(self):
        return self.count >= self.results


class Wrong(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        return self.threshold

    def horizons(self, trial):
        return None
'''


def document(namespace: Cluster, decider: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return an experiment whose code is a ConfigMap in all of its pods, the decider's too."""
    text = yaml.safe_dump(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"own.py": OWN}}
    )
    namespace.kubectl("apply", "-f", "-", input=text)
    made = manifest(namespace, "classes", **spec)
    made["spec"]["trainable"] = {"entrypoint": "own:Climb"}
    made["spec"]["decider"] = decider
    for name in ("stop", "searchSpace"):
        if name not in spec:
            del made["spec"][name]
    seconds = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    made["spec"]["template"]["spec"] |= {
        "tolerations": [{"key": f"node.kubernetes.io/{key}", **seconds} for key in ("not-ready", "unreachable")],
        "volumes": [{"name": "own", "configMap": {"name": "own"}}],
        "containers": [
            {
                "name": "trial",
                "env": [{"name": "PYTHONPATH", "value": "/own"}, {"name": "PAUSE_S", "value": "0.5"}],
                "volumeMounts": [{"name": "own", "mountPath": "/own"}],
            }
        ],
    }
    return made


def table(results: list[list[dict[str, Any]]]) -> list[tuple[float, int, float]]:
    """Return height, steps and score of each trial's last result."""
    rows = [max(trial, key=lambda row: row["training_iteration"]) for trial in results]
    return sorted((row["config"]["height"], row["training_iteration"], round(row["score"], 6)) for row in rows)


def run_here(folder: Path, made: dict[str, Any]) -> list[tuple[float, int, float]]:
    """Run the same manifest on this machine; return its table."""
    here = copy.deepcopy(made)
    del here["spec"]["storage"], here["spec"]["template"], here["metadata"]["namespace"]
    here["spec"]["checkpoint"] = {"frequency": 1}
    folder.mkdir()
    (folder / "own.py").write_text(OWN)
    (folder / "manifest.yaml").write_text(yaml.safe_dump(here))
    command = [TRIALPOD, "run", "manifest.yaml", "--storage", "results"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted(folder.glob("results/classes/*/result.json"))
    return table([[json.loads(line) for line in file.read_text().splitlines()] for file in files])


@pytest.mark.together
class TestSchedulers:
    def test_own_one_pauses_and_copies(self, tmp_path: Path, namespace: Cluster) -> None:
        decider = {
            "scheduler": {"entrypoint": "own:CopyBest", "parameters": {"trials": 3}},
            "stoppers": [{"entrypoint": "own:Enough", "parameters": {"steps": 10, "results": 1000}}],
        }
        space = {"height": {"grid_search": [1.0, 2.0, 3.0]}}
        made = document(namespace, decider, searchSpace=space, maxConcurrentTrials=2)
        expected = run_here(tmp_path / "here", made)
        assert expected == [(2.0, 10, 20.0), (3.0, 10, 30.0), (4.0, 10, 34.0)], "the worst continues from the best"
        experiment = Experiment.apply(namespace, made)
        experiment.wait_until_over()
        assert table(experiment.results()) == expected
        attempts = sorted(trial["status"]["attempt"] for trial in experiment.trials())
        assert attempts[1:] == [2, 2], "but for the last at step 6, each was paused"
        assert_history(experiment)

    def test_error_is_in_the_condition_with_its_line(self, namespace: Cluster) -> None:
        made = document(
            namespace, {"scheduler": {"entrypoint": "own:Wrong"}}, searchSpace={"height": {"uniform": [0, 1]}}
        )
        experiment = Experiment.apply(namespace, made)
        experiment.wait(lambda _: experiment.condition("Failed").get("status") == "True", "it has failed", 120)
        message = experiment.condition("Failed")["message"]
        assert "Wrong.on_trial_result raised AttributeError" in message
        assert 'File "/own/own.py", line' in message
        assert "return self.threshold" in message
        command = [TRIALPOD, "why", "classes", "-n", namespace.namespace, "--kubeconfig", str(layout.KUBECONFIG)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "return self.threshold" in said.stdout, said.stderr


class TestSlowSearchers:
    def test_same_table_with_its_node_lost(self, tmp_path: Path, namespace: Cluster, faults: Cluster) -> None:
        decider = {
            "searchAlgorithm": {"entrypoint": "own:Surrogate", "parameters": {"seconds": 2.0}},
            "stoppers": [{"entrypoint": "own:Enough", "parameters": {"steps": 4, "results": 1000}}],
        }
        made = document(namespace, decider, numSamples=5, maxConcurrentTrials=1)
        beside = ThreadPoolExecutor(1)
        here = beside.submit(run_here, tmp_path / "here", made)
        faults.kubectl("cordon", "node-a")
        try:
            experiment = Experiment.apply(namespace, made)
            (pod,) = namespace.wait_for(lambda: deciders(namespace), "the decider's pod", 60)
            experiment.wait(
                lambda status: (status.get("trials") or {}).get("done", 0) >= 1, "the first trial's end", 120
            )
        finally:
            faults.kubectl("uncordon", "node-a")
        (pod,) = deciders(namespace)
        assert pod["spec"]["nodeName"] == "node-b"
        faults.kill_node("node-b")
        try:
            experiment.wait_until_over()
            (last,) = {each["spec"]["nodeName"] for each in deciders(namespace)} or {"node-a"}
            assert last == "node-a"
        finally:
            faults.start_node("node-b")
        expected = here.result()
        assert table(experiment.results()) == expected
        assert len(expected) == 5
        assert_history(experiment)
