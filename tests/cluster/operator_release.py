"""Operators in the test cluster, installed by Helm from the chart, and ways to end them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cluster_access import IMAGE, ROOT, Cluster, KubectlError

NAMESPACE = "trialpod-system"
RELEASE = "trialpod"
CHART = ROOT / "charts/trialpod"
LABELS = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=operator"

TRIAL_KINDS = [
    {"apiVersion": version, "kind": kind, "resource": plural}
    for version, kind, plural in (
        ("batch/v1", "Job", "jobs"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"),
        ("kubeflow.org/v1", "PyTorchJob", "pytorchjobs"),
        ("ray.io/v1", "RayJob", "rayjobs"),
        ("argoproj.io/v1alpha1", "Workflow", "workflows"),
        ("nothing.example.com/v1", "Machine", "machines"),  # a kind that is not there
    )
]


class Operator:
    """An installed operator. `cluster` is the cluster as seen from its namespace.

    There is one that serves all namespaces, which most tests share. A test that kills its operator, changes it or has
    several has a release of its own, which serves the namespace `served` and no other one.
    """

    def __init__(self, cluster: Cluster, served: Cluster | None = None) -> None:
        self.cluster = cluster
        self._served = served

    @classmethod
    def install(cls, cluster: Cluster, *values: str) -> Operator:
        """Install or upgrade the release that serves all namespaces, and wait until it is ready."""
        made = cls(Cluster(NAMESPACE))
        made.upgrade(*values)
        return made

    @classmethod
    @contextlib.contextmanager
    def own(cls, cluster: Cluster, *values: str) -> Iterator[Operator]:
        """A release for a fresh namespace, as long as the context lasts."""
        served = cluster.make_namespace()
        made = cls(cluster.make_namespace("operator"), served)
        try:
            made.upgrade(*values)
            yield made
        finally:
            served.kubectl("delete", "tuneexperiments", "--all", "--timeout=30s", check=False, timeout=60)
            made.cluster.helm("uninstall", RELEASE, check=False)
            cluster.delete_namespace(served.namespace)
            cluster.delete_namespace(made.cluster.namespace)

    @property
    def is_own(self) -> bool:
        """Whether it is that of one test, or of one module."""
        return self._served is not None

    @property
    def served(self) -> Cluster:
        """The namespace that a test's own operator serves."""
        assert self._served is not None, "this operator serves all namespaces"
        return self._served

    def upgrade(self, *values: str, image: str = IMAGE) -> None:
        """Install the release, or give it an image and these values, and wait until it is ready.

        Args:
            values: of the chart, such as `replicas=2`.
            image: of the operator, and of trials that name none.
        """
        repository, _, tag = image.rpartition(":")
        settings = [f"image.repository={repository}", f"image.tag={tag}", f"defaults.image={image}", *values]
        if self._served is not None:
            settings += [f"watchNamespaces={{{self._served.namespace}}}", "crds.enabled=false"]
        self.cluster.helm(
            "upgrade", "--install", RELEASE, str(CHART), "--create-namespace", "--take-ownership",
            *(part for setting in settings for part in ("--set", setting)),
            "--set-json", f"trialKinds={json.dumps(TRIAL_KINDS)}",
            # A new image has the same tag here, so that only a new pod takes it.
            "--set-string", f"podAnnotations.trialpod\\.dev/image={_image_id()}",
            "--wait", "--timeout=120s",
        )  # fmt: skip

    def pod(self) -> dict[str, Any]:
        """Return the operator's pod, the newest if one is on its way out."""
        pods = [pod for pod in self.cluster.list("pods", LABELS) if not pod["metadata"].get("deletionTimestamp")]
        assert pods, "the operator has a pod"
        return max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def logs(self) -> str:
        """Return what it has logged, also before its last restart."""
        name = self.pod()["metadata"]["name"]
        before = self.cluster.logs(name, "--previous") if self._restarts() else ""
        return before + self.cluster.logs(name)

    def describe_failure(self) -> str:
        """Return what helps to understand a failed test: the last lines of its log, or why there are none."""
        try:
            return "\n".join(self.logs().splitlines()[-60:])
        except (KubectlError, AssertionError, subprocess.TimeoutExpired) as error:  # it may be what has failed
            return str(error)

    def kill(self) -> None:
        """``kill -9`` its process, wherever it is at the moment."""
        restarts = self._restarts()
        pids = processes_of(self.pod(), "operator")
        assert pids, "the operator's process runs on this machine"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.cluster.wait_for(lambda: self._restarts() > restarts, "the kubelet starts the operator again", 60)

    def delete_pod(self) -> None:
        """Delete its pod; its Deployment makes another one."""
        self.cluster.kubectl("delete", "pod", self.pod()["metadata"]["name"], "--wait=false")

    def wait_ready(self, timeout: float = 90) -> None:
        """Wait until it is active again."""
        self.cluster.kubectl(
            "rollout", "status", f"deployment/{RELEASE}", f"--timeout={timeout:.0f}s", timeout=timeout + 10
        )

    def _restarts(self) -> int:
        statuses = self.pod()["status"].get("containerStatuses") or [{}]
        return int(statuses[0].get("restartCount", 0))


def processes_of(pod: dict[str, Any], *words: str) -> list[int]:
    """Return the ids of a pod's processes on this machine whose command line has one of these words."""
    uid = pod["metadata"]["uid"]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"pod{uid}" in (entry / "cgroup").read_text() and _has(entry, words):
                found.append(int(entry.name))
        except OSError:
            continue  # it has just ended
    return sorted(found)


def _has(entry: Path, words: Sequence[str]) -> bool:
    line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
    return any(word in line for word in words)


def _image_id() -> str:
    from testcluster import images

    return images.image_key()
