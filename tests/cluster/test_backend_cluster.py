"""A script whose trials run in the cluster, and the commands that ask about them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_access import ACCESS_KEY, BUCKET, ENDPOINT, ROOT, SECRET_KEY, Cluster
from experiments import Experiment, storage_spec
from operator_release import Operator
from script_runs import environment

pytestmark = pytest.mark.usefixtures("operator")

MODULE = """
def higher(height, lr):
    return height + lr * (1.0 - height)
"""

SCRIPT = """
import sys
import time

from own_module import higher
from trialpod import tune


def train(config):
    height = 0.0
    for _ in range(int(config["steps"])):
        height = higher(height, config["lr"])
        time.sleep(0.2)
        tune.report({"height": height})


tuner = tune.Tuner(
    tune.with_resources(train, {"cpu": CPU, "memory": 128 * 2**20}),
    param_space={"lr": tune.loguniform(1e-3, 1), "steps": STEPS, "note": {"choice": 1}},
    tune_config=tune.TuneConfig(metric="height", mode="max", num_samples=NUMBER, seed=3, max_concurrent_trials=2),
    run_config=tune.RunConfig(name="climb", storage_path=sys.argv[1]),
)
grid = tuner.fit()
best = grid.get_best_result()
print("BEST", len(grid), best.config["note"], len(best.metrics_dataframe), flush=True)
"""


class Desk:
    """A user's machine: a folder with a script, and an environment that names the cluster."""

    def __init__(self, folder: Path, namespace: Cluster) -> None:
        self.folder = folder
        self.storage = f"s3://{BUCKET}/{namespace.namespace}"
        (folder / "own_module.py").write_text(MODULE)
        self.environ = environment(folder, namespace) | {
            "AWS_ENDPOINT_URL_S3": namespace.minio_endpoint(),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        del self.environ["TRIALPOD_STORAGE"]  # its script names the place

    def write(self, *, number: int = 2, steps: int = 5, cpu: float = 0.1) -> list[str]:
        text = SCRIPT.replace("NUMBER", str(number)).replace("STEPS", str(steps)).replace("CPU", str(cpu))
        (self.folder / "script.py").write_text(text)
        return [sys.executable, "script.py", self.storage]

    def run(self, *command: str, timeout: float = 180) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def trialpod(self, *arguments: str) -> str:
        return self.run(str(Path(sys.executable).with_name("trialpod")), *arguments)


@pytest.fixture
def desk(tmp_path: Path, namespace: Cluster) -> Desk:
    return Desk(tmp_path, namespace)


def test_script_with_own_modules_runs_and_gets_results(desk: Desk, namespace: Cluster) -> None:
    shown = desk.run(*desk.write())
    assert "climb: 2 trials" in shown
    assert "best trial: climb-" in shown
    assert "BEST 2 {'choice': 1} 5" in shown
    assert not list(desk.folder.glob("trialpod-results/*"))
    namespace.wait_condition("tuneexperiment", "climb", "Succeeded", 90)
    assert desk.trialpod("status", "climb").startswith("climb: Succeeded, 2/2 trials")
    assert "next: trialpod best climb" in desk.trialpod("why", "climb")
    # Again, with more to do: it continues with the same experiment.
    assert "BEST 4 {'choice': 1} 5" in desk.run(*desk.write(number=4))


def test_ctrl_c_keeps_experiment_and_script_reattaches(desk: Desk, namespace: Cluster) -> None:
    command = desk.write(steps=40)
    script = subprocess.Popen(command, cwd=desk.folder, env=desk.environ, stdout=subprocess.PIPE, text=True)
    assert script.stdout is not None
    for line in script.stdout:
        if "started" in line:
            break
    script.send_signal(signal.SIGINT)
    assert "continues in the cluster" in script.communicate(timeout=90)[0]
    assert Experiment(namespace, "climb").status
    shown = desk.run(*command)
    assert "BEST 2" in shown
    assert {trial["status"]["attempt"] for trial in Experiment(namespace, "climb").trials()} == {1}


def test_why_says_what_the_scheduler_says(desk: Desk, namespace: Cluster) -> None:
    command = desk.write(cpu=100)
    with subprocess.Popen(
        command, cwd=desk.folder, env=desk.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as script:
        assert script.stdout is not None
        warning = next(line for line in script.stdout if "warning" in line)
        script.send_signal(signal.SIGINT)
        script.communicate(timeout=90)
    assert "Unschedulable" in warning
    said = desk.trialpod("why", "climb")
    assert "Insufficient cpu" in said
    assert "spec.resources" in said
    assert "why: trialpod why climb" in desk.trialpod("status", "climb")


def test_the_example_with_a_config_map_runs_as_it_is(namespace: Cluster) -> None:
    text = (ROOT / "examples/kubernetes/configmap.yaml").read_text()
    assert ENDPOINT in text
    namespace.apply(text.replace("s3://tune/experiments", storage_spec(namespace)["uri"]))
    experiment = Experiment(namespace, "climb")
    assert experiment.wait_until_over(120)["trials"]["terminated"] == 8


def test_the_operator_and_the_documentation_agree_on_where_it_is(operator: Operator) -> None:
    pods = operator.cluster.list("pods", "app.kubernetes.io/part-of=trialpod")
    assert pods
