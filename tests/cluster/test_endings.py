"""Attempts that end by their own fault, and pods that never run: a reason and a next step, within seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from cluster_access import Cluster
from experiments import Experiment, manifest
from operator_release import Operator

Check = Callable[[Experiment], None]

OUT_OF_MEMORY = """
from trialpod import tune

def train(config):
    tune.report({"score": 1})
    hoard = []
    while True:
        hoard.append(bytearray(16 * 1024 * 1024))
"""

FILLS_ITS_DISK = """
import time
from pathlib import Path
from trialpod import tune

def train(config):
    tune.report({"score": 1})
    with open("/trialpod/tmp/much", "wb") as file:
        for _ in range(80):
            file.write(bytes(1024 * 1024))
    time.sleep(120)
"""

EXITS_SILENTLY = """
import os
from trialpod import tune

def train(config):
    os._exit(0)
"""

IGNORES_THE_END = """
import os, signal, time
from trialpod import tune

def train(config):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for _ in range(600):
        time.sleep(0.1)
    tune.report({"score": 1})
"""


def test_out_of_memory_is_a_failure_that_names_what_to_raise(operator: Operator, namespace: Cluster) -> None:
    document = manifest(namespace, "hungry", source=OUT_OF_MEMORY, resources={"memory": "160Mi"})
    experiment = Experiment.apply(namespace, document)
    experiment.wait_until_over()
    trial = experiment.trial_status()
    assert (trial["state"], trial["failures"], trial["disruptions"]) == ("ERROR", 1, 0), trial
    assert "memory" in trial["message"]
    assert "160Mi" in trial["message"]
    assert experiment.condition("Failed")["status"] == "True"


def test_a_storage_limit_is_a_failure_that_names_what_to_raise(operator: Operator, namespace: Cluster) -> None:
    document = manifest(namespace, "messy", source=FILLS_ITS_DISK, resources={"ephemeral-storage": "40Mi"})
    experiment = Experiment.apply(namespace, document)
    experiment.wait_until_over()
    trial = experiment.trial_status()
    assert (trial["state"], trial["failures"], trial["disruptions"]) == ("ERROR", 1, 0), trial
    assert "ephemeral-storage" in trial["message"] or "storage limit" in trial["message"]


def test_a_silent_exit_with_status_zero_is_no_success(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "silent", source=EXITS_SILENTLY))
    experiment.wait_until_over()
    trial = experiment.trial_status()
    assert (trial["state"], trial["failures"]) == ("ERROR", 1), trial
    assert "status 0" in trial["message"]


def test_exit_zero_on_sigterm_without_a_result_is_a_disruption(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "deaf", source=IGNORES_THE_END))
    pod = experiment.running_pod()["metadata"]["name"]
    namespace.wait_for(lambda: experiment.trial_status().get("state") == "RUNNING", "it runs")
    namespace.wait_for(
        lambda: "trialpod" in namespace.exec(pod, "cat", "/proc/1/cmdline", check=False), "the process is there"
    )
    time.sleep(2)  # the user's handler is installed by then
    namespace.kubectl("delete", "pod", pod, "--wait=false")
    namespace.wait_for(lambda: experiment.trial_status().get("attempt") == 2, "it is retried", 60)
    trial = experiment.trial_status()
    assert (trial["failures"], trial["disruptions"]) == (0, 1), trial


def waiting(experiment: Experiment, reason: str, *words: str, within: float = 90) -> None:
    """Assert that the experiment says within seconds what it waits for."""
    found = experiment.wait(lambda status: (status.get("waiting") or {}).get("reason"), "it waits", within)
    status = experiment.status
    assert found == reason, status["waiting"]
    for word in words:
        assert word in status["waiting"]["message"], status["waiting"]
    assert experiment.condition("Ready")["status"] == "False"
    assert experiment.condition("Ready")["reason"] == reason


def test_an_image_that_does_not_exist_is_named(operator: Operator, namespace: Cluster) -> None:
    experiment = Experiment.apply(namespace, manifest(namespace, "image", image="trialpod/nowhere:1"))
    waiting(experiment, "ImagePullFailed", "trialpod/nowhere:1")


def test_a_request_that_no_node_can_meet_is_named_within_seconds(operator: Operator, namespace: Cluster) -> None:
    document = manifest(namespace, "greedy", resources={"nvidia.com/gpu": 100})
    experiment = Experiment.apply(namespace, document)
    waiting(experiment, "Unschedulable", "nvidia.com/gpu", within=90)


def test_a_config_map_that_is_missing_is_named(operator: Operator, namespace: Cluster) -> None:
    document = manifest(namespace, "codeless")
    document["spec"]["trainable"] = {"configMapRef": {"name": "absent", "key": "a.py", "entrypoint": "a:train"}}
    experiment = Experiment.apply(namespace, document)
    experiment.wait(lambda _: experiment.condition("Stalled"), "it is told", 90)
    assert experiment.condition("Stalled")["reason"] == "ConfigMapNotFound"
    assert "absent" in experiment.condition("Stalled")["message"]
    assert not experiment.pods()


@pytest.mark.timeout(200)
def test_exceeded_quota_is_named_and_retried_with_backoff(
    operator: Operator, namespace: Cluster, cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small", "namespace": namespace.namespace},
            "spec": {"hard": {"pods": "1"}},
        }
    )
    audit = cluster.audit()
    request.addfinalizer(audit.close)
    experiment = Experiment.apply(namespace, manifest(namespace, "many", steps=600, numSamples=3))
    experiment.running_pod()
    found = experiment.wait(lambda status: status.get("waiting"), "two of its trials wait", 90)
    assert found["reason"] == "QuotaExceeded"
    assert "small" in found["message"]
    assert experiment.condition("Ready")["status"] == "True", "one trial runs"
    time.sleep(20)  # as long as is counted
    refused = audit.count(
        where=lambda request: (
            request.code == 403 and request.resource == "pods" and request.namespace == namespace.namespace
        )
    )
    assert sum(refused.values()) <= 12, refused
    namespace.kubectl("delete", "resourcequota", "small")
    namespace.wait_for(lambda: len(experiment.pods()) == 3, "all three run once there is room", 60)


def test_unloadable_code_is_reported_and_retries_are_bounded(operator: Operator, namespace: Cluster) -> None:
    document = manifest(namespace, "broken", numSamples=5, maxConcurrentTrials=2)
    document["spec"]["trainable"] = {"entrypoint": "no_such_module:train"}
    experiment = Experiment.apply(namespace, document)
    status = experiment.wait_until_over()
    assert experiment.condition("Failed")["status"] == "True"
    assert "no_such_module" in status["message"]
    assert status["trials"]["error"] <= 4
