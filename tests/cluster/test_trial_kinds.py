"""Trials of other projects' kinds: JobSets with their real controller, the others with their real definitions.

For those others there is no controller here: the test does what it would do, makes the pod of the template and writes
the status. What is tested of them is that the API server takes the objects, and what the operator makes of both.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_access import ROOT, Cluster
from experiments import Experiment, assert_history
from jobset_release import JobSets
from test_trial_objects_cluster import STEPS, climb, pod_template

from trialpod_operator.api.trial_resource.check import kind_of
from trialpod_operator.api.trial_resource.field_paths import find
from trialpod_operator.api.trial_resource.pod_templates import ARGO_CONTAINER

pytestmark = [pytest.mark.addon, pytest.mark.usefixtures("operator")]


@pytest.fixture(scope="module")
def jobsets(cluster: Cluster) -> Iterator[JobSets]:
    """JobSet's controller."""
    made = JobSets.install(cluster)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def definitions(cluster: Cluster) -> Iterator[None]:
    """The definitions of the other kinds."""
    files = subprocess.run([ROOT / "tools/trial_kinds"], capture_output=True, text=True, check=True).stdout.split()
    names = [yaml.safe_load(Path(file).read_text())["metadata"]["name"] for file in files]
    arguments = [part for file in files for part in ("-f", file)]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", *arguments, timeout=120)

    def established() -> bool:  # `kubectl wait` fails on one that has no conditions yet
        found = cluster.kubectl_json("get", "crd", *names)["items"]
        conditions = [(each.get("status") or {}).get("conditions") or [] for each in found]
        return all(
            {"Established": "True"}.items() <= {c["type"]: c["status"] for c in each}.items() for each in conditions
        )

    cluster.wait_for(established, "the definitions", 60)
    yield
    cluster.kubectl("delete", "crd", *names, "--ignore-not-found", timeout=120)


def jobset(image: str, **leader: Any) -> dict[str, Any]:
    """Return a JobSet of a leader, which runs the trial, and a worker with a command of its own."""
    worker = pod_template(image)
    worker["spec"]["containers"][0]["command"] = ["/climb", "${trialParameters.height}", "1000", "0"]
    worker["spec"]["containers"][0]["env"] = [{"name": "TRIALPOD_CHECKPOINT_DIR", "value": "/tmp/worker"}]
    worker["spec"]["containers"][0]["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp/worker"}]
    worker["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    replicated = [
        {"name": "workers", "template": {"spec": {"backoffLimit": 0, "template": worker}}},
        {"name": "leader", "template": {"spec": {"backoffLimit": 0, "template": pod_template(image), **leader}}},
    ]
    success = {"operator": "All", "targetReplicatedJobs": ["leader"]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {"successPolicy": success, "replicatedJobs": replicated},
    }


LEADER = "spec.replicatedJobs[name=leader].template.spec.template"


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("jobsets")
class TestJobSets:
    def test_a_leader_with_a_worker_is_evicted_and_continues(self, restricted: Cluster, image: str) -> None:
        document = climb(restricted, "sets", jobset(image), [2.5], hold=4)
        document["spec"]["trialResource"]["podTemplatePath"] = LEADER
        experiment = Experiment.apply(restricted, document)
        experiment.wait_for_iteration(4)
        assert len(restricted.list("pods")) == 2
        (leader,) = experiment.pods()
        restricted.evict(leader)
        experiment.wait_for_iteration(8)
        patch = json.dumps({"spec": {"suspend": True}})
        restricted.kubectl("patch", "te", "sets", "--type=merge", "-p", patch)
        experiment.wait(lambda _: experiment.condition("Suspended").get("status") == "True", "it is suspended", 60)
        restricted.wait_for(lambda: not restricted.list("pods"), "all its pods are gone", 60)
        restricted.kubectl("patch", "te", "sets", "--type=merge", "-p", json.dumps({"spec": {"suspend": False}}))
        assert experiment.wait_until_over()["best"]["value"] == "30"
        trial = experiment.trial_status()
        assert (trial["attempt"], trial["failures"], trial["disruptions"]) == (3, 0, 1)
        (rows,) = experiment.results()
        assert [row["training_iteration"] for row in rows] == list(range(1, STEPS + 1))
        assert_history(experiment)
        restricted.wait_for(lambda: not restricted.list("jobsets"), "all JobSets are gone", 60)

    def test_a_worker_that_fails_fails_the_trial(self, restricted: Cluster, image: str) -> None:
        template = jobset(image)
        worker = template["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
        worker["command"] = ["/climb"]  # ends with status 2
        document = climb(restricted, "worker", template, [1.0], hold=4)
        document["spec"]["trialResource"]["podTemplatePath"] = LEADER
        experiment = Experiment.apply(restricted, document)
        experiment.wait_until_over()
        trial = experiment.trial_status()
        assert trial["state"] == "ERROR", trial
        assert "the JobSet failed: FailedJobs" in trial["message"]


def pytorch_job(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": pod}}},
    }


def ray_job(pod: dict[str, Any]) -> dict[str, Any]:
    group = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray-head", "image": "any:1"}]}}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "spec": {
            "entrypoint": "unused",
            "submissionMode": "K8sJobMode",
            "rayClusterSpec": {"headGroupSpec": group},
            "submitterPodTemplate": pod,
        },
    }


def workflow(pod: dict[str, Any]) -> dict[str, Any]:
    container = {name: value for name, value in pod["spec"]["containers"][0].items() if name != "name"}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "spec": {"entrypoint": "train", "templates": [{"name": "train", "container": container}]},
    }


def conditions(kind: str) -> dict[str, Any]:
    now = "2026-01-01T00:00:00Z"
    times = {"lastTransitionTime": now, "lastUpdateTime": now}
    one = {"type": kind, "status": "True", "reason": "TheController", "message": "it says so", **times}
    return {"conditions": [one], "replicaStatuses": {}}


CASES = {
    "pytorchjobs": (pytorch_job, conditions("Succeeded"), conditions("Failed")),
    "rayjobs": (ray_job, {"jobStatus": "SUCCEEDED"}, {"jobStatus": "FAILED", "message": "it says so"}),
    "workflows": (workflow, {"phase": "Succeeded"}, {"phase": "Error", "message": "it says so"}),
}


@pytest.mark.usefixtures("definitions")
class TestDefinitions:
    @staticmethod
    def only(namespace: Cluster, plural: str) -> dict[str, Any]:
        found = namespace.wait_for(lambda: namespace.list(plural), f"one of the {plural} is there", 60)
        return dict(found[0])

    @staticmethod
    def set_status(namespace: Cluster, plural: str, item: dict[str, Any], status: dict[str, Any]) -> None:
        whole = ["--subresource=status"] if plural != "workflows" else []  # Argo's definition has no subresource
        patch = json.dumps({"status": status})
        namespace.kubectl("patch", plural, item["metadata"]["name"], *whole, "--type=merge", "-p", patch)

    @staticmethod
    def make_pod(namespace: Cluster, item: dict[str, Any]) -> None:
        """Make the pod that the kind's controller would make of the template."""
        template = find(item, kind_of({"template": item}).pod_template)
        spec = template.get("spec")
        if spec is None:  # Argo's
            patch = json.loads(template["podSpecPatch"])
            containers = [{**template["container"], "name": ARGO_CONTAINER}]
            fields = ("volumes", "initContainers", "securityContext", "automountServiceAccountToken")
            spec = {name: template[name] for name in fields if name in template}
            spec |= {"containers": containers, "restartPolicy": "Never", **patch}
        owner = {name: item[name] for name in ("apiVersion", "kind")}
        owner |= {"name": item["metadata"]["name"], "uid": item["metadata"]["uid"], "controller": True}
        metadata = {**template["metadata"], "name": f"{item['metadata']['name']}-0", "ownerReferences": [owner]}
        namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    @pytest.mark.parametrize("plural", CASES)
    def test_a_trial_of_the_kind_trains_to_its_end(self, restricted: Cluster, image: str, plural: str) -> None:
        made, done, _ = CASES[plural]
        experiment = Experiment.apply(restricted, climb(restricted, "done", made(pod_template(image)), [2.5]))
        item = self.only(restricted, plural)
        self.make_pod(restricted, item)
        assert experiment.wait_until_over()["best"]["value"] == "30"
        self.set_status(restricted, plural, item, done)
        restricted.wait_for(lambda: not restricted.list(plural), "the object is gone", 60)
        assert_history(experiment)

    @pytest.mark.parametrize("plural", CASES)
    def test_an_object_that_fails_fails_its_trial(self, restricted: Cluster, image: str, plural: str) -> None:
        made, _, failed = CASES[plural]
        experiment = Experiment.apply(restricted, climb(restricted, "failed", made(pod_template(image)), [2.5]))
        self.set_status(restricted, plural, self.only(restricted, plural), failed)
        experiment.wait_until_over()
        trial = experiment.trial_status()
        assert trial["state"] == "ERROR"
        assert "it says so" in trial["message"]

    def test_an_object_without_a_controller_is_named(self, restricted: Cluster, image: str) -> None:
        document = climb(restricted, "idle", pytorch_job(pod_template(image)), [2.5])
        experiment = Experiment.apply(restricted, document)
        waiting = experiment.wait(lambda _: experiment.trial_status().get("waiting"), "it waits", 90)
        assert waiting["reason"] == "TrialResourceWithoutStatus"
        assert "install the controller" in waiting["message"]
