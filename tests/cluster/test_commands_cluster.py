"""Each command of `trialpod` once against a real cluster, as somebody at a desk types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from cluster_access import ENDPOINT, ROOT, Cluster
from experiments import Experiment, manifest, storage_spec
from testcluster import layout

pytestmark = pytest.mark.usefixtures("operator")

TALKS = '''
import time

from trialpod import tune


class Talks(tune.Trainable):
    """Says each of its steps."""

    def setup(self, config):
        self.count = 0

    def step(self):
        time.sleep(0.2)
        self.count += 1
        print(f"step {self.count}", flush=True)
        return {"score": self.config["x"] * self.count}

    def save_checkpoint(self, folder):
        with open(f"{folder}/count", "w") as file:
            file.write(str(self.count))

    def load_checkpoint(self, folder):
        with open(f"{folder}/count") as file:
            self.count = int(file.read())
'''

SCRIPT = """
import time

from trialpod import tune


def train(config):
    for step in range(3):
        time.sleep(0.2)
        tune.report({"loss": config["lr"] / (step + 1)})


class Count(tune.Callback):
    results = ended = 0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results += 1

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.ended += 1


count = Count()
grid = tune.Tuner(
    tune.with_resources(train, {"cpu": 0.1, "memory": 128 * 2**20}),
    param_space={"lr": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2),
    run_config=tune.RunConfig(name="parabola", callbacks=[count]),
).fit()
print("AFTER", len(grid), count.results, count.ended)
"""


class Desk:
    """A folder and an environment for commands. Keys for the storage, and its address, are in the cluster only."""

    def __init__(self, folder: Path, namespace: Cluster) -> None:
        self.folder = folder
        self.namespace = namespace
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "TRIALPOD_"))},
            "KUBECONFIG": str(layout.KUBECONFIG),
            "HOME": str(folder),
            "TRIALPOD_NAMESPACE": namespace.namespace,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("trialpod")), *arguments],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def trialpod(self, *arguments: str, status: int = 0, timeout: float = 120) -> str:
        running = self.start(*arguments)
        try:
            shown, _ = running.communicate(timeout=timeout)
        finally:
            running.kill()
        print(f"$ trialpod {' '.join(arguments)}\n{shown}")
        assert running.returncode == status, shown
        return shown


@pytest.fixture
def desk(tmp_path: Path, namespace: Cluster) -> Desk:
    return Desk(tmp_path, namespace)


def climb(namespace: Cluster, steps: int, number: int) -> str:
    document = manifest(namespace, "climb", steps=steps, source=TALKS, numSamples=number, maxConcurrentTrials=2)
    document["spec"]["resources"] = {"cpu": "100m", "memory": "128Mi"}
    return str(yaml.safe_dump(document))


def test_an_experiment_from_its_manifest_to_its_deletion(
    desk: Desk, namespace: Cluster, request: pytest.FixtureRequest
) -> None:
    (desk.folder / "climb.yaml").write_text(climb(namespace, 300, 2))
    assert yaml.safe_load(desk.trialpod("submit", "climb.yaml", "--dry-run"))["metadata"]["name"] == "climb"
    assert "experiment climb submitted" in desk.trialpod("submit", "climb.yaml")
    assert "was there already" in desk.trialpod("submit", "climb.yaml")
    assert "experiment climb changed" in desk.trialpod("submit", "climb.yaml", "--set", "spec.numSamples=3")
    experiment = Experiment(namespace, "climb")
    experiment.wait(lambda status: (status.get("trials") or {}).get("running", 0) >= 2, "two trials run", 90)
    listed = desk.trialpod("list").splitlines()
    assert listed[1].split()[:2] == ["climb", "Running"]
    assert namespace.namespace in desk.trialpod("list", "-A")
    trial = experiment.trials()[0]["spec"]["trialId"]
    following = desk.start("logs", "climb", trial, "--follow")
    request.addfinalizer(following.kill)
    assert following.stdout is not None
    assert next(line for line in following.stdout if line.startswith("step")) == "step 1\n"
    experiment.wait_for_checkpoint(2)
    assert "step 2\n" in desk.trialpod("logs", f"climb-{trial.replace('_', '-')}")

    assert "is being suspended" in desk.trialpod("suspend", "climb")
    namespace.wait_for(lambda: not experiment.pods(), "its pods are gone", 60)
    assert "next: trialpod resume climb" in desk.trialpod("why", "climb")
    # The pods are gone; what they printed is in the storage, read with the keys of the Secret.
    namespace.wait_for(lambda: "step 2\n" in desk.trialpod("logs", "climb", trial), "the log is kept", 90, every=1)
    assert "climb resumes" in desk.trialpod("resume", "climb")
    experiment.wait(lambda status: (status.get("trials") or {}).get("running", 0) >= 2, "they run again", 60)
    experiment.wait_for_checkpoint(8)
    assert "is being stopped" in desk.trialpod("stop", "climb", "--trial", trial)
    assert "is being stopped" in desk.trialpod("stop", "climb")
    shown = desk.trialpod("status", "climb", "--watch")
    assert "all trials: trialpod results climb" in shown
    assert experiment.condition("Succeeded")["reason"] == "Stopped"
    # Both attempts of the trial were followed, until it had ended.
    rest = following.communicate(timeout=90)[0]
    assert following.returncode == 0
    assert "trialpod: attempt 2:\n" in rest

    rows = json.loads(desk.trialpod("results", "climb", "--output", "json"))
    assert {row["status"] for row in rows["trials"]} == {"TERMINATED"}
    assert rows["trials"][0]["last_result"]["score"] > 0
    assert desk.trialpod("results", "climb", "-o", "csv").startswith("trial_id,")
    assert "x:" in desk.trialpod("best", "climb", "-o", "yaml")
    assert "next: trialpod best climb" in desk.trialpod("why", "climb")
    said = desk.trialpod("delete", "climb", "--yes", "--wait")
    assert f"{storage_spec(namespace)['uri']}/climb stays" in said
    assert "there is no TuneExperiment climb" in desk.trialpod("status", "climb", status=2)


def test_script_gets_results_and_callbacks_from_manifest(desk: Desk, namespace: Cluster) -> None:
    (desk.folder / "script.py").write_text(SCRIPT)
    options = ["--storage", storage_spec(namespace)["uri"], "--secret", "minio", "--endpoint", ENDPOINT]
    assert "pickle" in desk.trialpod("submit", "script.py", *options, "--dry-run")
    assert not namespace.list("tuneexperiments")
    shown = desk.trialpod("submit", "script.py", *options)
    assert "experiment parabola submitted" in shown
    assert "AFTER" not in shown
    shown = desk.trialpod("submit", "script.py", *options, "--wait")
    assert "AFTER 2 6 2" in shown


def test_a_check_from_inside_and_outside(desk: Desk, namespace: Cluster) -> None:
    storage = ["--storage", storage_spec(namespace)["uri"], "--endpoint", ENDPOINT]
    shown = desk.trialpod("check", *storage, "--secret", "minio")
    assert "experiments can run here" in shown
    for name in (
        "API server",
        "definitions",
        "permissions",
        "operator",
        "report service",
        "image",
        "storage",
        "quota",
    ):
        assert f"fine   {name}" in shown
    assert not namespace.list("pods")
    shown = desk.trialpod("check", *storage, "--secret", "nowhere", "--timeout", "20", status=1)
    assert "nowhere" in shown
    image = ["--image", "localhost:1/nothing:1", "--timeout", "60"]
    assert "WRONG  pod" in desk.trialpod("check", *storage, "--secret", "minio", *image, status=1)


def test_missing_permissions_are_named(desk: Desk, namespace: Cluster) -> None:
    namespace.kubectl("create", "serviceaccount", "visitor")
    token = namespace.kubectl("create", "token", "visitor").strip()
    config = yaml.safe_load(layout.KUBECONFIG.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    (desk.folder / "kubeconfig").write_text(yaml.safe_dump(config))
    desk.environ["KUBECONFIG"] = "kubeconfig"
    shown = desk.trialpod("list", status=2)
    assert "you may not list tuneexperiments" in shown
    assert "the role view has the permission" in shown
    began = time.monotonic()
    shown = desk.trialpod("check", "--no-pod", status=1)
    assert time.monotonic() - began < 10
    assert "WRONG  permissions" in shown
    assert "kubectl -n" in shown
    assert "rolebinding" in shown


def test_the_first_session_of_the_documentation(desk: Desk, namespace: Cluster) -> None:
    """Each line works as it is printed, with a store that only the cluster reaches."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    page = page[page.index("## The first experiment") :]
    given = page[page.index("```yaml\n") + 8 :].partition("```")[0]
    given = given.replace("s3://tune/experiments", storage_spec(namespace)["uri"])
    (desk.folder / "climb.yaml").write_text(given)
    session = page[page.index("```sh\ntrialpod check") + 6 :].partition("```")[0]
    shown = {}
    for line in session.splitlines():
        words = line.partition("#")[0].split()
        assert words[0] == "trialpod", line
        shown[words[1]] = desk.trialpod(*words[1:])
    assert "experiments can run here" in shown["check"]
    assert "8 terminated" in shown["status"]
    assert "step 19: height" in shown["logs"]
    assert "height" in shown["best"]
    page = (ROOT / "docs/lifecycle.md").read_text()
    page = page[page.index("## Logs and results") :]
    session = page[page.index("```sh\n") + 6 :].partition("```")[0]
    for line in session.splitlines():
        words = line.partition("#")[0].replace("d75de_00003", "3").split()
        if "climb" in line and "s3://" not in line:
            desk.trialpod(*words[1:])
