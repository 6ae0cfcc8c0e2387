"""trialpod itself: the operator from its chart, the bucket of the test cluster."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from access import CONTROL_NODE, ROOT, Cluster, layout
from experiments import Experiment, storage_spec
from operator_release import LABELS, NAMESPACE, Operator
from peer import SOURCE, Part, Peer, Run

_TRAIN = """
from trialpod import tune


def train(config):
    steps_of(repr(config["x"]), config["x"], {steps}, {seconds}, lambda value: tune.report({{"score": value}}))
"""


class Trialpod(Peer):
    """The operator of this tree."""

    name = "trialpod"
    title = "trialpod"
    method = "ASHA"
    namespaces = (NAMESPACE,)
    overhead_namespaces = (layout.MINIO_NAMESPACE,)
    parts = (
        Part("operator", LABELS, NAMESPACE),
        Part("bucket", "app.kubernetes.io/name=minio", layout.MINIO_NAMESPACE),
    )

    def versions(self) -> dict[str, str]:
        """Return the versions of what it consists of."""
        command = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
        return {"trialpod": said or "unknown", "MinIO": "v0.0.0-20260212201848 (its last community version)"}

    def install(self) -> None:
        """Install it, and wait until it is ready."""
        # As fresh as the database of Katib: what the bucket's server has in memory is of this benchmark alone.
        bucket = Cluster(layout.MINIO_NAMESPACE)
        bucket.kubectl("rollout", "restart", "deployment/minio")
        bucket.kubectl("rollout", "status", "deployment/minio", "--timeout=90s", timeout=100)
        definitions = ("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        self.cluster.kubectl(*definitions)
        Operator.install(self.cluster, f"nodeSelector.kubernetes\\.io/hostname={CONTROL_NODE}")

    def remove(self) -> None:
        """Remove all of it."""
        Cluster(NAMESPACE).helm("uninstall", "trialpod", "--ignore-not-found", "--wait", check=False)

    def documents(self, run: Run) -> list[dict[str, Any]]:
        """Return what is applied: the experiment is the last one."""
        work = run.work
        volumes, mounts = run.volumes()
        spec = {
            "trainable": {
                "source": SOURCE + _TRAIN.format(steps=work.steps, seconds=work.step_s),
                "attribute": "train",
            },
            "searchSpace": {"x": {"uniform": [0.0, 1.0]}},
            "metric": "score",
            "mode": "max",
            "numSamples": work.trials,
            "maxConcurrentTrials": work.at_once,
            "seed": 7,
            "scheduler": {
                "name": "asha",
                "parameters": {"max_t": work.steps, "grace_period": 1, "reduction_factor": 2},
            },
            "storage": storage_spec(run.space),
            "template": {"spec": {"containers": [{"name": "trial", "volumeMounts": mounts}], "volumes": volumes}},
        }
        metadata = {"name": run.name, "namespace": run.space.namespace}
        return [{"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": metadata, "spec": spec}]

    def state(self, run: Run) -> tuple[bool, str]:
        """Return whether an experiment has ended, and how."""
        status = Experiment(run.space, run.name).status
        trials = status.get("trials") or {}
        now = {each["type"] for each in status.get("conditions") or [] if each["status"] == "True"}
        said = next((kind for kind in ("Succeeded", "Failed", "Ready") if kind in now), "")
        return bool(status.get("completionTime")), f"{said} {json.dumps(trials)}"

    def results(self, run: Run) -> set[str]:
        """Return the parameter of each trial with a result."""
        return {repr(each[-1]["config"]["x"]) for each in Experiment(run.space, run.name).results() if each}

    def is_overhead(self, pod: dict[str, Any], line: str) -> bool:
        """Return whether a process is not a trial."""
        return pod["metadata"]["namespace"] in (NAMESPACE, layout.MINIO_NAMESPACE)
