"""Public training programs in images of their own, as they are: ASHA, a drain, a pause, and to the end.

Darknet is a program in C, as Debian has it; Sockeye a training script in Python, as PyPI has it.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_access import RESTRICTED, ROOT, Cluster
from experiments import Experiment, assert_history, storage_spec
from testcluster import images

pytestmark = [pytest.mark.addon, pytest.mark.usefixtures("operator"), pytest.mark.timeout(600)]

EXAMPLES = ROOT / "examples" / "commands"


def document(namespace: Cluster, name: str, files: Path, image: str) -> dict[str, Any]:
    """Return an example as it is, with its files in a ConfigMap and an image."""
    contents = {file.name: base64.b64encode(file.read_bytes()).decode() for file in files.iterdir()}
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "binaryData": contents}
    namespace.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(data))
    made: dict[str, Any] = yaml.safe_load((EXAMPLES / name / "experiment.yaml").read_text())
    made["metadata"]["namespace"] = namespace.namespace
    container = {
        "name": "trial",
        "image": image,
        "workingDir": "/example",
        "securityContext": {**RESTRICTED, "runAsUser": 12345},
        "volumeMounts": [{"name": "example", "mountPath": "/example"}],
    }
    (parameter,) = made["spec"]["searchSpace"].values()
    parameter["loguniform"] = [float(bound) for bound in parameter["loguniform"]]  # PyYAML takes 1e-5 for a string
    made["spec"] |= {
        "storage": storage_spec(namespace),
        "maxConcurrentTrials": 2,
        "template": {
            "spec": {
                "terminationGracePeriodSeconds": 15,
                "containers": [container],
                "volumes": [{"name": "example", "configMap": {"name": name}}],
            }
        },
    }
    return made


def drain_and_pause(namespace: Cluster, faults: Cluster, made: dict[str, Any]) -> Experiment:
    """Run an experiment to its end; its trials are drained after the first checkpoint, and paused later."""
    faults.kubectl("cordon", "node-a")
    try:
        experiment = Experiment.apply(namespace, made)
        namespace.wait_for(lambda: experiment.checkpoint_iterations(), "the first checkpoint", 120)
    finally:
        faults.kubectl("uncordon", "node-a")
    try:
        faults.kubectl(
            "drain", "node-b", "--ignore-daemonsets", "--delete-emptydir-data", "--force",
            "--pod-selector=app.kubernetes.io/name=trialpod-trial", "--timeout=60s", timeout=90,
        )  # fmt: skip
        experiment.wait(lambda status: status["disruptions"] >= 1, "the drain", 60)
        experiment.wait(lambda status: status["trials"].get("running"), "they run again", 90)
    finally:
        faults.kubectl("uncordon", "node-b")
    for value in (True, False):
        patch = json.dumps({"spec": {"suspend": value}})
        namespace.kubectl("patch", "te", experiment.name, "--type=merge", "-p", patch)
        if value:
            experiment.wait(lambda _: experiment.condition("Suspended").get("status") == "True", "the pause", 60)
    status = experiment.wait_until_over(280)
    assert (status["trials"]["done"], status["failures"]) == (made["spec"]["numSamples"], 0)
    assert any(trial["status"]["attempt"] >= 3 for trial in experiment.trials()), "drained and paused"
    assert_history(experiment)
    return experiment


def lengths(experiment: Experiment, step: int, repeated: int = 0) -> list[int]:
    """Return the last iteration of each trial; a trial has all results up to there, and few of them twice."""
    found = []
    for rows in experiment.results():
        iterations = [row["training_iteration"] for row in rows]
        assert sorted(set(iterations)) == list(range(step, iterations[-1] + 1, step)), "none is lost"
        assert len(iterations) - len(set(iterations)) <= repeated
        found.append(iterations[-1])
    return sorted(found)


def test_a_program_in_c(tmp_path: Path, restricted: Cluster, faults: Cluster) -> None:
    for file in (EXAMPLES / "darknet").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, tmp_path / "images.py"], check=True)
    made = document(restricted, "darknet", tmp_path, images.import_debian("darknet"))
    shortest, *_, longest = lengths(drain_and_pause(restricted, faults, made), 1000)
    assert longest == 6000
    assert shortest < longest, "the scheduler ended what was behind"


def test_a_script_in_python(tmp_path: Path, restricted: Cluster, faults: Cluster) -> None:
    subprocess.run([sys.executable, EXAMPLES / "sockeye" / "sentences.py", tmp_path], check=True)
    made = document(restricted, "sockeye", tmp_path, images.import_added("sockeye"))
    experiment = drain_and_pause(restricted, faults, made)
    # It prints a value before it saves its state: ended between the two, it computes that value again.
    shortest, *_, longest = lengths(experiment, 1, repeated=2)
    assert longest == 8
    assert shortest < longest, "the scheduler ended what was behind"
    assert "Resuming from saved state" in experiment.logs()
