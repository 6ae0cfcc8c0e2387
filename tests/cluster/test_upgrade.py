"""Upgrade to another image, rollback, uninstall and reinstall, while an experiment runs."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from cluster_access import IMAGE, Cluster
from experiments import Experiment, assert_history, assert_unbroken, counts, manifest
from operator_release import CHART, RELEASE, Operator
from testcluster import layout, nodes

pytestmark = pytest.mark.timeout(400)
STEPS = 350
TAG = "second"
SECOND_IMAGE = f"docker.io/trialpod/trialpod:{TAG}"
"""This tree's image under another name: to Kubernetes and Helm, another release."""


def pods_of(experiment: Experiment) -> dict[str, tuple[str, int]]:
    """Return its pods' uids and restarts, by name."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(each["restartCount"] for each in pod["status"].get("containerStatuses") or []),
        )
        for pod in experiment.pods()
    }


def running(namespace: Cluster, name: str, steps: int = STEPS, **spec: Any) -> Experiment:
    """Return an experiment both of whose trials run and have results."""
    experiment = Experiment.apply(namespace, manifest(namespace, name, steps=steps, numSamples=2, **spec))
    experiment.wait(lambda status: status.get("trials", {}).get("running") == 2, "both run", 90)
    experiment.wait_for_checkpoint(3)
    return experiment


def results_of(experiment: Experiment) -> int:
    """Return how many results the resources of its trials show."""
    return sum(int((each.get("status") or {}).get("iteration") or 0) for each in experiment.trials())


def continues(experiment: Experiment, within_s: float = 60) -> None:
    seen = results_of(experiment)
    experiment.cluster.wait_for(
        lambda: results_of(experiment) > seen, f"{experiment.name} has new results", within_s, every=0.5
    )


def assert_nothing_lost(experiment: Experiment, steps: int = STEPS) -> None:
    status = experiment.wait_until_over()
    assert status["trials"]["terminated"] == 2, status
    assert status["failures"] == 0
    assert_history(experiment)
    for trial in experiment.results():
        assert_unbroken(counts(trial), steps)


def image_of(operator: Operator) -> str:
    return str(operator.pod()["spec"]["containers"][0]["image"])


def test_upgrade_and_rollback_restart_no_pod_and_lose_nothing(own_operator: Operator) -> None:
    for node in layout.NODES:
        nodes.ctr(node, "images", "tag", "--force", f"docker.io/{IMAGE.removeprefix('docker.io/')}", SECOND_IMAGE)
    own_operator.upgrade(image=SECOND_IMAGE)
    assert image_of(own_operator) == SECOND_IMAGE
    experiment = running(own_operator.served, "carried")
    pods = pods_of(experiment)
    assert len(pods) == 2

    kept = ["upgrade", RELEASE, str(CHART), "--reset-then-reuse-values", "--dry-run=server"]
    assert TAG in own_operator.cluster.helm(*kept), "new values get their defaults, old ones stay"
    began = time.monotonic()
    own_operator.upgrade()
    assert IMAGE in image_of(own_operator)
    continues(experiment)
    print(f"upgraded, and results are written again, after {time.monotonic() - began:.1f} s")
    assert pods_of(experiment) == pods

    began = time.monotonic()
    own_operator.cluster.helm("rollback", RELEASE, "--wait", "--timeout=120s")
    assert image_of(own_operator) == SECOND_IMAGE
    continues(experiment)
    print(f"rolled back, and results are written again, after {time.monotonic() - began:.1f} s")
    assert pods_of(experiment) == pods
    assert_nothing_lost(experiment)
    assert all(int(trial["status"].get("attempt", 1)) == 1 for trial in experiment.trials())


def test_uninstall_keeps_experiments_and_reinstall_resumes(own_operator: Operator) -> None:
    experiment = running(own_operator.served, "left", steps=250)
    pods = pods_of(experiment)
    iterations = experiment.checkpoint_iterations()
    own_operator.cluster.helm("uninstall", RELEASE, "--wait", "--timeout=60s")
    assert experiment.object, "the experiment stays"
    assert len(experiment.trials()) == 2
    own_operator.served.wait_for(
        lambda: max(experiment.checkpoint_iterations()) > max(iterations) + 5, "its trials continue alone", 60
    )
    assert pods_of(experiment) == pods
    own_operator.upgrade()
    continues(experiment)
    assert pods_of(experiment) == pods
    assert_nothing_lost(experiment, 250)


def test_recipe_removes_objects_that_a_finalizer_holds(own_operator: Operator) -> None:
    namespace = own_operator.served
    document = manifest(namespace, "held", steps=400)
    document["spec"]["storage"]["deletionPolicy"] = "Delete"
    experiment = Experiment.apply(namespace, document)
    experiment.wait_for_checkpoint(2)
    own_operator.cluster.helm("uninstall", RELEASE, "--wait", "--timeout=60s")
    namespace.kubectl("delete", "te", "held", "--wait=false")
    time.sleep(3)  # nobody may take the finalizer off meanwhile
    assert experiment.object["metadata"]["finalizers"] == ["trialpod.dev/storage"]
    patch = json.dumps({"metadata": {"finalizers": None}})
    namespace.kubectl("patch", "te", "held", "--type=merge", "-p", patch)
    namespace.wait_for(lambda: experiment.object == {}, "it goes", 90)
    namespace.wait_for(lambda: not namespace.list("pods"), "its pods go", 60)
    assert experiment.checkpoint_iterations(), "what is stored stays"
