"""A public training program, as Debian has it, in an image of Debian's: ASHA, a drain, a pause, and to the end."""

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

EXAMPLE = ROOT / "examples" / "commands" / "darknet"
LAST = 6000


def document(namespace: Cluster, folder: Path) -> dict[str, Any]:
    """Return the example as it is, with its files in a ConfigMap and its image."""
    for file in EXAMPLE.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, folder / "images.py"], check=True)
    files = {file.name: base64.b64encode(file.read_bytes()).decode() for file in folder.iterdir()}
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "darknet"}, "binaryData": files}
    namespace.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(data))
    made: dict[str, Any] = yaml.safe_load((EXAMPLE / "experiment.yaml").read_text())
    made["metadata"]["namespace"] = namespace.namespace
    container = {
        "name": "trial",
        "image": images.import_debian("darknet"),
        "workingDir": "/example",
        "securityContext": {**RESTRICTED, "runAsUser": 12345},
        "volumeMounts": [{"name": "example", "mountPath": "/example"}],
    }
    made["spec"]["searchSpace"]["rate"] = {"loguniform": [1e-5, 1e-1]}  # PyYAML takes such numbers for strings
    made["spec"] |= {
        "storage": storage_spec(namespace),
        "maxConcurrentTrials": 2,
        "template": {
            "spec": {
                "terminationGracePeriodSeconds": 15,
                "containers": [container],
                "volumes": [{"name": "example", "configMap": {"name": "darknet"}}],
            }
        },
    }
    return made


def test_asha_with_a_drain_and_a_pause(tmp_path: Path, restricted: Cluster, faults: Cluster) -> None:
    made = document(restricted, tmp_path)
    faults.kubectl("cordon", "node-a")
    try:
        experiment = Experiment.apply(restricted, made)
        restricted.wait_for(lambda: experiment.checkpoint_iterations(), "the first checkpoint", 120)
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
        restricted.kubectl("patch", "te", experiment.name, "--type=merge", "-p", patch)
        if value:
            experiment.wait(lambda _: experiment.condition("Suspended").get("status") == "True", "the pause", 60)
    status = experiment.wait_until_over(280)
    assert (status["trials"]["done"], status["failures"]) == (6, 0)
    lengths = []
    for rows in experiment.results():
        batches = [row["training_iteration"] for row in rows]
        assert batches == list(range(1000, batches[-1] + 1, 1000)), "none is reported twice, none is lost"
        lengths.append(batches[-1])
    assert max(lengths) == LAST
    assert min(lengths) < LAST, "the scheduler ended what was behind"
    assert any(trial["status"]["attempt"] >= 3 for trial in experiment.trials()), "drained and paused"
    assert_history(experiment)
