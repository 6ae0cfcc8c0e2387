"""JobSet's controller in the test cluster, from its own chart, for the tests that need it; nothing stays behind.

Its webhooks concern JobSets and their pods only. What a session left that was killed is removed by the next one.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import yaml
from cluster_access import Cluster, KubectlError, go_program, go_source
from testcluster import binaries, images

NAMESPACE = "jobset-system"
REPOSITORY = "docker.io/trialpod/jobset"
CRD = "jobsets.jobset.x-k8s.io"

_VALUES: dict[str, Any] = {
    "image": {"repository": REPOSITORY, "pullPolicy": "Never"},
    "controller": {
        "leaderElection": {"enable": False},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "podSecurityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    },
}


class JobSets:
    """The installed controller, of the whole cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @classmethod
    def install(cls, cluster: Cluster) -> JobSets:
        """Install it, from what `tools/build_go jobset` has built, and wait until it is active."""
        made = cls(cluster)
        made.remove()
        program = go_program("jobset")
        tag = program.name.rpartition("-")[2]
        images.import_program(f"{REPOSITORY}:{tag}", program, "manager")
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        objects = _objects(tag)
        for items in ([each for each in objects if each["kind"] == "CustomResourceDefinition"], objects):
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            Cluster(NAMESPACE).kubectl(
                "apply", "--server-side", "--force-conflicts", "-f", "-", input=text, timeout=120
            )
        own = Cluster(NAMESPACE)
        try:
            own.kubectl("rollout", "status", "deployment/jobset-controller", "--timeout=120s", timeout=130)
        except KubectlError as error:
            raise AssertionError(f"{error}\n{own.describe_failure()}") from error
        return made

    def remove(self) -> None:
        """Remove all of it; its webhooks first, so that nothing waits for an answer of a pod that is gone."""
        cluster = self.cluster
        if cluster.get("crd", CRD) is None and cluster.get("namespace", NAMESPACE) is None:
            return
        kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings"
        cluster.kubectl("delete", kinds, "-l", "app.kubernetes.io/name=jobset", "--ignore-not-found")
        cluster.kubectl("delete", "crd", CRD, "--ignore-not-found", timeout=120)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=120)


def _objects(tag: str) -> list[dict[str, Any]]:
    chart = go_source("jobset") / "charts/jobset"
    command = [binaries.path("helm"), "template", "jobset", chart, "-n", NAMESPACE, "--include-crds", "-f", "-",
               "--kube-version", "1.36.0", "--set-string", f"image.tag={tag}"]  # fmt: skip
    done = subprocess.run(
        command, input=yaml.safe_dump(_VALUES), capture_output=True, text=True, check=True, timeout=120
    )
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
