"""Experiments in the queues of a real Kueue: their parallelism is the quota's, and no step and no retry is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_access import Cluster
from experiments import Experiment, assert_history, assert_unbroken, counts, manifest
from kueue_release import PRIORITY, QUEUE, Kueue
from operator_release import Operator
from test_groups_cluster import STEPS_TO_DO, assert_complete, group_manifest, worker
from testcluster import layout

from trialpod_operator.cluster.pods.queues import IN_QUEUE

pytestmark = [pytest.mark.addon, pytest.mark.timeout(600)]  # the first one installs Kueue

RESOURCES = {"cpu": "100m", "memory": "128Mi"}


@pytest.fixture(scope="module")
def kueue(cluster: Cluster, operator: Operator) -> Iterator[Kueue]:
    """Kueue, for as long as these tests run."""
    try:
        yield Kueue.install(cluster)
    finally:
        Kueue(cluster).remove()


@pytest.fixture
def queued(kueue: Kueue) -> Iterator[Cluster]:
    """A namespace with the queue `research`, which has room for two trials."""
    namespace = kueue.make_namespace()
    kueue.set_quota(namespace, "200m", preemption={"withinClusterQueue": "LowerPriority"})
    kueue.add_queue(namespace)
    yield namespace
    kueue.delete_namespace(namespace)


def in_queue(namespace: Cluster, name: str, *, queue: str = "research", **spec: Any) -> dict[str, Any]:
    """Return an experiment whose pods go through a queue."""
    document = manifest(namespace, name, resources=RESOURCES, **spec)
    document["spec"]["template"]["metadata"] = {"labels": {QUEUE: queue}}
    return document


def is_gated(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def why(namespace: Cluster, name: str) -> dict[str, Any]:
    """Return what `trialpod why` says of an experiment."""
    command = [str(Path(sys.executable).with_name("trialpod")), "why", name, "-n", namespace.namespace, "--json"]
    environment = {**os.environ, "KUBECONFIG": str(layout.KUBECONFIG)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def names_the_quota(answer: dict[str, Any]) -> bool:
    """Return whether `trialpod why` says what is missing in the queue, and what is used there."""
    return "insufficient unused quota for cpu" in json.dumps(
        answer["waiting"]
    ) and "m of 200m (test-flavor)" in json.dumps(answer["queues"])


def test_parallelism_follows_quota_and_why_names_the_queue(queued: Cluster) -> None:
    experiment = Experiment.apply(queued, in_queue(queued, "many", steps=3, numSamples=10, maxConcurrentTrials=10))
    seen: list[dict[str, Any]] = []

    def look() -> bool:
        pods = experiment.pods()
        running = [pod for pod in pods if not is_gated(pod) and pod["status"]["phase"] in ("Pending", "Running")]
        assert len(running) <= 2, [pod["metadata"]["name"] for pod in running]
        gated = [pod for pod in pods if is_gated(pod)]
        assert len(gated) <= IN_QUEUE + 2, len(gated)  # two more when both that were admitted have just ended
        waiting = experiment.status.get("waiting") or {}
        if "insufficient" in str(waiting.get("message")) and not any(map(names_the_quota, seen)):
            assert waiting["reason"] == "Queued", waiting
            assert "from the queue research" in waiting["message"], waiting
            seen.append(why(queued, "many"))  # it asks a moment later: the next one may have been admitted by then
        return bool(experiment.status.get("completionTime"))

    queued.wait_for(look, "many is over", 280, every=1.0)
    assert any(map(names_the_quota, seen)), seen
    status = experiment.status
    assert (status["trials"]["terminated"], status.get("failures", 0), status.get("disruptions", 0)) == (10, 0, 0)
    assert_history(experiment)


def test_preempted_trial_resumes_without_lost_step_or_failure(kueue: Kueue, queued: Cluster) -> None:
    kueue.set_quota(queued, "100m", preemption={"withinClusterQueue": "LowerPriority"})
    urgent = f"urgent-{queued.namespace}"
    queued.apply(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": urgent},
            "value": 1000,
        }
    )
    try:
        experiment = Experiment.apply(queued, in_queue(queued, "low", steps=30))
        experiment.wait_for_checkpoint(3)
        pod = queued.pod("urgent", ["sleep", "3"], resources={"requests": RESOURCES})
        pod["metadata"]["labels"] = {QUEUE: "research", PRIORITY: urgent}
        queued.apply(pod)
        experiment.wait(lambda status: status.get("disruptions") == 1, "it was preempted", 60)
        queued.wait_pod("urgent", timeout=90)
        status = experiment.wait_until_over()
    finally:
        queued.kubectl("delete", "workloadpriorityclass", urgent)
    assert (status["trials"]["terminated"], status.get("failures", 0), status["disruptions"]) == (1, 0, 1)
    assert_unbroken(counts(experiment.results()[0]), 30, repeated=0)
    assert "Kueue" in queued.events()
    assert_history(experiment)


def test_missing_or_stopped_queue_is_named_and_retried(kueue: Kueue, queued: Cluster) -> None:
    experiment = Experiment.apply(queued, in_queue(queued, "nowhere", queue="absent", steps=3))

    def says(*words: str) -> bool:
        message = str((experiment.status.get("waiting") or {}).get("message"))
        return all(each in message for each in words)

    queued.wait_for(lambda: says("LocalQueue absent doesn't exist", "spec.template.metadata"), "it says so", 60)
    assert experiment.condition("Ready")["reason"] == "Queued"
    kueue.add_queue(queued, "absent", stopPolicy="Hold")
    queued.wait_for(lambda: says("LocalQueue absent is", "has stopped it"), "it says that it is stopped", 60)
    kueue.add_queue(queued, "absent", stopPolicy="None")
    status = experiment.wait_until_over()
    assert (status["trials"]["terminated"], status.get("failures", 0), status.get("disruptions", 0)) == (1, 0, 0)
    assert experiment.trial_status()["attempt"] == 1


def test_suspended_experiment_leaves_queue_and_rejoins(queued: Cluster) -> None:
    experiment = Experiment.apply(queued, in_queue(queued, "pause", steps=15, numSamples=3, maxConcurrentTrials=3))
    experiment.wait_for_checkpoint(3)
    queued.kubectl("patch", "te", "pause", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    queued.wait_for(lambda: experiment.condition("Suspended").get("status") == "True", "it is suspended", 60)
    queued.wait_for(lambda: not queued.list("pods"), "its pods are gone, also those that waited", 60)

    def is_empty() -> bool:
        status = (queued.get("localqueue", "research") or {})["status"]
        return not (status.get("reservingWorkloads") or status.get("pendingWorkloads"))

    queued.wait_for(is_empty, "the quota is free", 60)
    queued.kubectl("patch", "te", "pause", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    status = experiment.wait_until_over()
    assert (status["trials"]["terminated"], status.get("failures", 0), status.get("disruptions", 0)) == (3, 0, 0)
    for results in experiment.results():
        assert_unbroken(counts(results), 15, repeated=0)


def test_the_pods_of_a_trial_are_admitted_together_or_not_at_all(kueue: Kueue, queued: Cluster) -> None:
    kueue.set_quota(queued, "400m")  # one trial of three pods, and a third of another one
    document = group_manifest(queued, numSamples=2, maxConcurrentTrials=2, resources=RESOURCES)
    document["spec"]["template"]["metadata"] = {"labels": {QUEUE: "research"}}
    experiment = Experiment.apply(queued, document)
    waited = False

    def look() -> bool:
        nonlocal waited
        pods = experiment.pods()
        free = [pod["metadata"]["labels"]["trialpod.dev/trial-id"] for pod in pods if not is_gated(pod)]
        held = {pod["metadata"]["labels"]["trialpod.dev/trial-id"] for pod in pods if is_gated(pod)}
        active = {each for each in free if each not in held}
        waited = waited or (len(active) == 1 and len(held) == 1)
        return bool(experiment.status.get("completionTime"))

    queued.wait_for(look, "both trials are over", 200, every=1.0)
    assert waited
    status = experiment.status
    assert (status["trials"]["terminated"], status.get("failures", 0), status.get("disruptions", 0)) == (2, 0, 0)
    for results in experiment.results():
        assert_unbroken(counts(results), STEPS_TO_DO, repeated=0)


def test_group_that_lost_a_pod_releases_and_regains_quota(kueue: Kueue, queued: Cluster) -> None:
    kueue.set_quota(queued, "300m")  # one trial of three pods, and nothing beside it
    document = group_manifest(queued, resources=RESOURCES)
    document["spec"]["template"]["metadata"] = {"labels": {QUEUE: "research"}}
    experiment = Experiment.apply(queued, document)
    experiment.wait_for_checkpoint(3)
    queued.kubectl("delete", "pod", worker(experiment, 2), "--wait=false")
    trial = assert_complete(experiment, disruptions=1)
    assert trial["attempt"] == 2
    queued.wait_for(lambda: not queued.list("pods"), "no pod is held by a finalizer", 60)
