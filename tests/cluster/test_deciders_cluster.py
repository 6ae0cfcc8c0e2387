"""Code of a script that decides, in the cluster: with kills of decider and operator, and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster
from operator_release import Operator
from script_runs import environment
from testcluster import images

SCRIPT = '''
import sys
import time

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher


class Climber(Searcher):
    """Ray's example of a searcher of one's own; its suggestions take a while."""

    def __init__(self):
        super().__init__(metric="score", mode="max")
        self.best, self.count = 0.0, 0

    def suggest(self, trial_id):
        time.sleep(SECONDS)
        self.count += 1
        return {"x": self.best + self.count, "pause": PAUSE}

    def on_trial_complete(self, trial_id, result=None, error=False):
        if result:
            self.best = max(self.best, result["score"] / 10)


class BelowMean(FIFOScheduler):
    """Stops a trial that is below the mean of all at step 3."""

    def __init__(self):
        super().__init__()
        self.scores = []

    def on_trial_result(self, tune_controller, trial, result):
        if result["training_iteration"] == 3:
            self.scores.append(result["score"])
            if result["score"] < sum(self.scores) / len(self.scores):
                return TrialScheduler.STOP
        return TrialScheduler.CONTINUE


def train(config):
    for step in range(1, 9):
        time.sleep(config["pause"])
        tune.report({"score": (config["x"] % 7) * step})


tuner = tune.Tuner(
    tune.with_resources(train, {"cpu": CPUS, "memory": 128 * 2**20}),
    tune_config=tune.TuneConfig(
        metric="score", mode="max", num_samples=NUMBER, max_concurrent_trials=1,
        search_alg=Climber(), scheduler=BelowMean(),
    ),
    run_config=tune.RunConfig(name="own", stop=lambda trial_id, result: result["training_iteration"] >= 6),
)
grid = tuner.fit()
for result in grid:
    metrics = result.metrics
    print("ROW", round(result.config["x"], 6), metrics["training_iteration"], round(metrics["score"], 6))
'''

WAIT_S = 150
"""How long a script may take to start and submit: other tests run on the same processors."""

DRAWING_SCRIPT = """
from ray import tune


def train(config):
    for step in range(1, 4):
        tune.report({"score": config["width"] * step})


tuner = tune.Tuner(
    tune.with_resources(train, {"cpu": CPUS, "memory": 128 * 2**20}),
    param_space={
        "depth": tune.grid_search([1, 2, 3]),
        "width": tune.sample_from(lambda spec: 10 * spec.config.depth),
        "pause": PAUSE,
    },
    tune_config=tune.TuneConfig(metric="score", mode="max"),
    run_config=tune.RunConfig(name="own"),
)
for result in tuner.fit():
    print("ROW", result.config["depth"], result.config["width"], result.metrics["score"])
"""


class Script:
    """A Ray script with deciding code of its own, run as its user would."""

    def __init__(
        self,
        folder: Path,
        namespace: Cluster,
        *,
        text: str = SCRIPT,
        local: bool = False,
        image: str = "",
        **values: Any,
    ) -> None:
        for key, value in {"SECONDS": 0, "PAUSE": 0.2, "NUMBER": 4, "CPUS": 0.1, **values}.items():
            text = text.replace(key, str(value))
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "script.py"
        file.write_text(text)
        environ = environment(folder, namespace)
        if image:
            environ["TRIALPOD_IMAGE"] = image
        if local:
            environ |= {"TRIALPOD_BACKEND": "local", "TRIALPOD_STORAGE": str(folder / "results")}
        self.output = folder / "output"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trialpod.compat.ray", "--replace", str(file)],
                cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def table(self, timeout_s: float = 280) -> list[str]:
        """Return the rows that it prints at its end."""
        try:
            assert self._process.wait(timeout_s) == 0, self.output.read_text()
        finally:
            self._process.kill()
        return sorted(line for line in self.output.read_text().splitlines() if line.startswith("ROW"))

    def leave(self) -> None:
        """End it; the experiment continues."""
        self._process.kill()
        self._process.wait()


def deciders(namespace: Cluster) -> list[dict[str, Any]]:
    found = namespace.list("pods", "trialpod.dev/role=decider")
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def kill_decider(namespace: Cluster) -> None:
    for pod in deciders(namespace):
        namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")


def done(namespace: Cluster) -> int:
    item = namespace.get("tuneexperiment", "own") or {}
    return int(((item.get("status") or {}).get("trials") or {}).get("done") or 0)


@pytest.mark.together
@pytest.mark.usefixtures("operator")
class TestOwnCode:
    def test_ray_script_decides_as_on_one_machine(self, tmp_path: Path, namespace: Cluster) -> None:
        expected = Script(tmp_path / "local", namespace, local=True, PAUSE=0.01).table()
        script = Script(tmp_path / "cluster", namespace)
        (pod,) = namespace.wait_for(lambda: deciders(namespace), "the decider's pod", WAIT_S)
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False
        assert all("secret" not in volume for volume in spec["volumes"])
        assert script.table() == expected
        assert len(expected) == 4
        namespace.wait_for(lambda: not deciders(namespace), "the end of the decider", 60)

    def test_decides_in_an_image_without_trialpod(self, tmp_path: Path, namespace: Cluster) -> None:
        expected = Script(tmp_path / "local", namespace, local=True, PAUSE=0.01, NUMBER=2).table()
        image = images.import_debian("bookworm")
        script = Script(tmp_path / "cluster", namespace, image=image, NUMBER=2, CPUS=0.5)
        (pod,) = namespace.wait_for(lambda: deciders(namespace), "the decider's pod", WAIT_S)
        assert pod["spec"]["containers"][0]["image"] == image
        assert script.table() == expected

    def test_sample_from_draws_in_the_decider(self, tmp_path: Path, namespace: Cluster) -> None:
        script = Script(tmp_path, namespace, text=DRAWING_SCRIPT)
        namespace.wait_for(lambda: deciders(namespace), "the decider's pod", WAIT_S)
        assert script.table() == [f"ROW {depth} {10 * depth} {30 * depth}" for depth in (1, 2, 3)]

    def test_experiment_continues_without_its_script(self, tmp_path: Path, namespace: Cluster) -> None:
        script = Script(tmp_path, namespace)
        namespace.wait_for(lambda: deciders(namespace), "the decider's pod", WAIT_S)
        script.leave()
        namespace.wait_condition("tuneexperiment", "own", "Succeeded", 200)
        assert done(namespace) == 4


class TestKills:
    def test_same_table_with_decider_and_operator_killed(self, tmp_path: Path, own_operator: Operator) -> None:
        namespace = own_operator.served
        expected = Script(tmp_path / "local", namespace, local=True, PAUSE=0.01, NUMBER=5).table()
        script = Script(tmp_path / "cluster", namespace, SECONDS=1, PAUSE=0.6, NUMBER=5)
        namespace.wait_for(lambda: done(namespace) >= 1, "the first trial's end", 120)
        kill_decider(namespace)
        namespace.wait_for(lambda: done(namespace) >= 2, "the second trial's end", 120)
        own_operator.kill()
        namespace.wait_for(lambda: done(namespace) >= 3, "the third trial's end", 120)
        kill_decider(namespace)
        own_operator.kill()
        assert script.table() == expected


@pytest.mark.together
@pytest.mark.usefixtures("operator")
class TestProblems:
    def test_too_little_memory_is_named_with_what_to_raise(self, tmp_path: Path, namespace: Cluster) -> None:
        script = Script(tmp_path, namespace, PAUSE=2)
        namespace.wait_for(lambda: deciders(namespace), "the decider's pod", WAIT_S)
        script.leave()
        patch = '{"spec": {"decider": {"resources": {"memory": "8Mi"}}}}'
        namespace.kubectl("patch", "te", "own", "--type=merge", "-p", patch)

        def named() -> bool:
            item = namespace.get("tuneexperiment", "own") or {}
            conditions = (item.get("status") or {}).get("conditions") or []
            return any(each["reason"] in ("DeciderOutOfMemory", "DeciderFailed") for each in conditions)

        namespace.wait_for(named, "the reason", 90)
        patch = '{"spec": {"decider": {"resources": {"memory": "512Mi"}}}}'
        namespace.kubectl("patch", "te", "own", "--type=merge", "-p", patch)
        namespace.wait_condition("tuneexperiment", "own", "Succeeded", 200)
