"""Kueue in the test cluster, from its own chart, for the tests that need it; nothing of it stays behind.

Invariants: its webhooks for pods see only the namespaces that `Kueue.make_namespace` makes, so it cannot disturb
other tests; those for kinds that are not there, and its aggregated API (which a cluster needs another certificate
for), are left out. What a session left that was killed is removed by the next one that installs it.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import yaml
from cluster_access import Cluster, KubectlError, go_program, go_source
from testcluster import binaries, images

NAMESPACE = "kueue-system"
REPOSITORY = "docker.io/trialpod/kueue"
NAMESPACE_LABEL = "trialpod.dev/queues"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"

_WEBHOOKS = ("pod", "clusterqueue", "cohort", "resourceflavor", "workload")
_KINDS = ("workloads", "localqueues", "clusterqueues", "resourceflavors", "workloadpriorityclasses")
_FLAVOR = "test-flavor"

_CONFIGURATION = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "leaderElection": {"leaderElect": False},
    "internalCertManagement": {"enable": True},
    "managedJobsNamespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "yes"}},
    "integrations": {"frameworks": ["pod"]},
}
_VALUES = {
    "controllerManager": {
        "featureGates": [{"name": "VisibilityOnDemand", "enabled": False}],
        "manager": {
            "image": {"repository": REPOSITORY, "pullPolicy": "Never"},
            "podSecurityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        },
        "readinessProbe": {"initialDelaySeconds": 1, "periodSeconds": 1},
    },
    "managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(_CONFIGURATION)},
}


class Kueue:
    """The installed Kueue, of the whole cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @classmethod
    def install(cls, cluster: Cluster) -> Kueue:
        """Install it, from what `tools/build_go kueue` has built, and wait until it is active."""
        made = cls(cluster)
        made.remove()  # what a session left that was killed
        program = go_program("kueue")
        tag = program.name.rpartition("-")[2]
        images.import_program(f"{REPOSITORY}:{tag}", program, "manager")
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        _apply(_objects(tag))
        own = Cluster(NAMESPACE)
        try:
            own.kubectl("rollout", "status", "deployment/kueue-controller-manager", "--timeout=120s", timeout=130)
        except KubectlError as error:
            raise AssertionError(f"{error}\n{own.describe_failure()}") from error
        flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": _FLAVOR}}
        cluster.wait_for(lambda: cluster.apply(flavor), "Kueue's webhooks answer", 60, every=0.5)
        return made

    def remove(self) -> None:
        """Remove all of it; its webhooks first, so that nothing waits for an answer of a pod that is gone."""
        cluster = self.cluster
        label = ("-l", "app.kubernetes.io/name=kueue", "--ignore-not-found")
        if cluster.get("crd", "workloads.kueue.x-k8s.io") is None and cluster.get("namespace", NAMESPACE) is None:
            return
        cluster.kubectl("delete", "namespaces", "-l", NAMESPACE_LABEL, "--ignore-not-found", timeout=120)
        cluster.kubectl("delete", "mutatingwebhookconfigurations,validatingwebhookconfigurations", *label)
        for kind in _KINDS:
            self._delete_all(f"{kind}.v1beta2.kueue.x-k8s.io")
        cluster.kubectl("delete", "crds", *label, timeout=120)
        cluster.kubectl("delete", "clusterroles,clusterrolebindings", *label)
        cluster.kubectl("delete", "rolebindings", "-n", "kube-system", *label)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=120)

    def make_namespace(self) -> Cluster:
        """Return a new namespace whose pods Kueue looks at, if they name a queue."""
        return self.cluster.make_namespace("queued", {NAMESPACE_LABEL: "yes"})

    def delete_namespace(self, namespace: Cluster) -> None:
        """Delete it with its queues, while Kueue is there to let its pods go."""
        self.cluster.delete_namespace(namespace.namespace, wait=True)
        self.cluster.kubectl("delete", "clusterqueue", namespace.namespace, "--ignore-not-found")

    def set_quota(self, namespace: Cluster, cpu: str, **spec: Any) -> None:
        """Make or change the ClusterQueue of the namespace's queues; `spec` is more of its specification."""
        quotas = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "64Gi"}]
        group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": _FLAVOR, "resources": quotas}]}
        self.cluster.apply(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "ClusterQueue",
                "metadata": {"name": namespace.namespace},
                "spec": {"namespaceSelector": {}, "resourceGroups": [group], **spec},
            }
        )

    def add_queue(self, namespace: Cluster, name: str = "research", **spec: Any) -> None:
        """Make or change a LocalQueue."""
        namespace.apply(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "LocalQueue",
                "metadata": {"name": name},
                "spec": {"clusterQueue": namespace.namespace, **spec},
            }
        )

    def _delete_all(self, kind: str) -> None:
        """Delete all objects of a kind; their finalizers are Kueue's, which may be gone."""
        try:
            found = self.cluster.kubectl_json("get", kind, "--all-namespaces")["items"]
        except KubectlError:
            return  # the kind is not there any more
        for each in found:
            metadata = each["metadata"]
            place = ("-n", metadata["namespace"]) if "namespace" in metadata else ()
            nothing = json.dumps({"metadata": {"finalizers": None}})
            self.cluster.kubectl("delete", kind, metadata["name"], *place, "--wait=false", "--ignore-not-found")
            self.cluster.kubectl("patch", kind, metadata["name"], *place, "--type=merge", "-p", nothing, check=False)


def _objects(tag: str) -> list[dict[str, Any]]:
    values = yaml.safe_dump(_VALUES)
    chart = go_source("kueue") / "charts/kueue"
    tagged = f"controllerManager.manager.image.tag={tag}"
    command = [binaries.path("helm"), "template", "kueue", chart, "-n", NAMESPACE, "-f", "-", "--set-string", tagged]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=True, timeout=120)
    found = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
    for each in found:
        if each["kind"].endswith("WebhookConfiguration"):
            each["webhooks"] = [hook for hook in each["webhooks"] if hook["name"].split(".")[0][1:] in _WEBHOOKS]
    return [each for each in found if each["kind"] != "APIService"]


def _apply(objects: list[dict[str, Any]]) -> None:
    # What the manager needs is there before it is.
    objects.sort(key=lambda each: each["kind"] == "Deployment")
    for namespace in sorted({each["metadata"].get("namespace", "default") for each in objects}):
        items = [each for each in objects if each["metadata"].get("namespace", "default") == namespace]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        # On the server's side: the definitions are too large for an annotation.
        Cluster(namespace).kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text, timeout=120)
