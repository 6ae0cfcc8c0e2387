"""What ends an attempt, on the real cluster: the trial resumes from its checkpoint, and the right thing is counted.

Each test is one row of the table in `trialpod_operator.cluster.pods.terminated`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_access import Cluster
from experiments import Experiment, assert_history, assert_unbroken, counts, manifest
from operator_release import Operator, processes_of

STEPS_TO_DO = 40


def begun(namespace: Cluster, name: str = "steps") -> Experiment:
    """Return an experiment whose one trial runs and has a checkpoint."""
    document = manifest(namespace, name, steps=STEPS_TO_DO)
    toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    document["spec"]["template"]["spec"]["tolerations"] = [
        {"key": "node.kubernetes.io/not-ready", **toleration},
        {"key": "node.kubernetes.io/unreachable", **toleration},
    ]
    experiment = Experiment.apply(namespace, document)
    experiment.wait_for_checkpoint(3)
    return experiment


@pytest.fixture
def somewhere(operator: Operator, namespace: Cluster) -> Experiment:
    """An experiment whose one trial runs and has a checkpoint."""
    return begun(namespace)


@pytest.fixture
def on_node_b(operator: Operator, namespace: Cluster, faults: Cluster) -> Iterator[Experiment]:
    """The same on node-b, where nothing else is."""
    faults.kubectl("cordon", "node-a")
    try:
        experiment = begun(namespace)
        assert experiment.running_pod()["spec"]["nodeName"] == "node-b"
    finally:
        faults.kubectl("uncordon", "node-a")
    yield experiment
    faults.kubectl("taint", "node", "node-b", "trialpod.dev/test-", check=False)


def assert_continued(experiment: Experiment, *, lost_steps: int = 0, attempts: int = 2) -> dict[str, Any]:
    """Assert that the trial came to its end, was disrupted and did not fail; return its status."""
    status = experiment.wait_until_over()
    trial = experiment.trial_status()
    assert (trial["state"], trial["failures"]) == ("TERMINATED", 0), trial
    assert trial["disruptions"] == attempts - 1, trial
    assert trial["attempt"] == attempts, trial
    assert (status["failures"], status["disruptions"]) == (0, attempts - 1)
    assert_unbroken(counts(experiment.results()[0]), STEPS_TO_DO, repeated=lost_steps)
    assert_history(experiment)
    return trial


def test_a_drained_trial_loses_no_step(operator: Operator, namespace: Cluster) -> None:
    """No other test runs beside it: the node takes no pods meanwhile."""
    experiment = begun(namespace, "drained")
    node = experiment.running_pod()["spec"]["nodeName"]
    try:
        namespace.kubectl(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
            "--pod-selector=trialpod.dev/experiment=drained", "--timeout=60s", timeout=90,
        )  # fmt: skip
    finally:
        namespace.kubectl("uncordon", node)
    assert_continued(experiment)
    assert "Disrupted" in namespace.events()
    assert "evicting" in namespace.events()


def test_trial_leaves_tainted_node_without_losing_a_step(on_node_b: Experiment, faults: Cluster) -> None:
    faults.kubectl("taint", "node", "node-b", "trialpod.dev/test=gone:NoExecute")
    assert assert_continued(on_node_b)["nodeName"] == "node-a"


@pytest.mark.together
def test_preempted_trial_resumes_when_there_is_room(operator: Operator, namespace: Cluster) -> None:
    namespace.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent-test"},
            "value": 1000000,
            "globalDefault": False,
        }
    )
    document = manifest(namespace, "modest", steps=STEPS_TO_DO, resources={"nvidia.com/gpu": 4})
    document["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-b"}
    experiment = Experiment.apply(namespace, document)
    experiment.wait_for_checkpoint(3)
    gpus = {"limits": {"nvidia.com/gpu": "4"}}
    namespace.apply(
        namespace.pod("urgent", ["sleep", "3"], node="node-b", resources=gpus, priorityClassName="urgent-test")
    )
    namespace.wait_pod("urgent", timeout=90)
    assert_continued(experiment)


@pytest.mark.together
def test_a_deleted_pod_is_a_disruption(somewhere: Experiment) -> None:
    somewhere.cluster.kubectl("delete", "pod", somewhere.running_pod()["metadata"]["name"], "--wait=false")
    assert_continued(somewhere)


@pytest.mark.together
def test_vanished_pod_costs_only_steps_since_checkpoint(somewhere: Experiment) -> None:
    name = somewhere.running_pod()["metadata"]["name"]
    somewhere.cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--wait=false")
    assert_continued(somewhere, lost_steps=5)


def test_a_trial_continues_after_its_node_is_lost(on_node_b: Experiment, faults: Cluster) -> None:
    faults.kill_node("node-b")
    try:
        trial = assert_continued(on_node_b, lost_steps=5)
        assert trial["nodeName"] == "node-a"
    finally:
        faults.start_node("node-b")


def test_a_restart_of_the_kubelet_is_not_noticed(on_node_b: Experiment, faults: Cluster) -> None:
    faults.restart_kubelet("node-b")
    assert_continued(on_node_b, attempts=1)


@pytest.mark.together
def test_a_killed_trial_process_is_a_failure_and_is_retried(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(
        namespace, manifest(namespace, "killed", steps=STEPS_TO_DO, failurePolicy={"maxFailures": 1})
    )
    experiment.wait_for_checkpoint(2)
    for pid in processes_of(experiment.running_pod(), "trialpod.runner"):
        with contextlib.suppress(ProcessLookupError):  # it went with the one before
            os.kill(pid, signal.SIGKILL)
    experiment.wait_until_over()
    trial = experiment.trial_status()
    assert (trial["state"], trial["failures"], trial["disruptions"]) == ("TERMINATED", 1, 0), trial
    assert_unbroken(counts(experiment.results()[0]), STEPS_TO_DO, repeated=5)


@pytest.mark.timeout(420)
def test_operator_crash_does_not_disturb_running_trials(own_operator: Operator) -> None:
    scheduler = {"name": "asha", "parameters": {"max_t": 80, "grace_period": 5, "reduction_factor": 3}}
    document = manifest(own_operator.served, "orphans", steps=80, numSamples=4, scheduler=scheduler)
    experiment = Experiment.apply(own_operator.served, document)
    experiment.wait_for_checkpoint(2)
    before = {pod["metadata"]["uid"] for pod in experiment.pods()}
    own_operator.kill()
    own_operator.wait_ready()
    own_operator.delete_pod()
    own_operator.wait_ready()
    own_operator.kill()
    status = experiment.wait_until_over(240)
    assert (status["failures"], status["disruptions"]) == (0, 0)
    assert status["trials"]["terminated"] == 4
    assert {trial["status"]["attempt"] for trial in experiment.trials()} == {1}
    for results in experiment.results():
        numbers = counts(results)
        assert numbers == list(range(1, len(numbers) + 1))
    assert before
