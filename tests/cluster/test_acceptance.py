"""The whole thing: the chart, an example applied with kubectl, a real model, disruptions, and the right outcome."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_access import ROOT, Cluster
from experiments import Experiment, assert_history, storage_spec
from operator_release import Operator

from trialpod_operator.api.yaml_reader import read_documents

EXAMPLE = ROOT / "examples/digits/experiment.yaml"


def example(namespace: Cluster, name: str, **changes: Any) -> dict[str, Any]:
    """The example as a user would apply it, in less time and as repeatable as training is: no scheduler."""
    (read,), _ = read_documents(EXAMPLE.read_text())  # numbers as kubectl reads them, which YAML libraries do not
    document: dict[str, Any] = read.value
    document["metadata"] |= {"name": name, "namespace": namespace.namespace}
    document["spec"] |= {
        "numSamples": 3,
        "maxConcurrentTrials": 3,
        "storage": storage_spec(namespace),
        "resources": {"cpu": "150m", "memory": "512Mi"},
        **changes,
    }
    document["spec"].pop("scheduler")
    document["spec"]["searchSpace"]["units"] = 8
    return document


def outcome(experiment: Experiment) -> list[tuple[float, float]]:
    """What training came to: for each trial its learning rate and its last accuracy."""
    last = [results[-1] for results in experiment.results()]
    return sorted((result["config"]["lr"], result["accuracy"]) for result in last)


@pytest.mark.timeout(600)
def test_example_survives_drain_and_operator_crash(own_operator: Operator, cluster: Cluster) -> None:
    namespace = own_operator.served
    undisturbed = Experiment.apply(namespace, example(namespace, "undisturbed"))
    assert undisturbed.wait_until_over(300)["trials"]["terminated"] == 6
    undisturbed.cluster.wait_condition("tuneexperiment", "undisturbed", "Succeeded", 90)

    disturbed = Experiment.apply(namespace, example(namespace, "disturbed"))
    disturbed.wait_for_checkpoint(3)
    node = disturbed.running_pod()["spec"]["nodeName"]
    cluster.kubectl(
        "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
        "--pod-selector=trialpod.dev/experiment=disturbed", "--timeout=90s", timeout=120,
    )  # fmt: skip
    cluster.kubectl("uncordon", node)
    own_operator.kill()
    status = disturbed.wait_until_over(300)

    assert status["trials"]["terminated"] == 6
    assert status["disruptions"] >= 1
    assert status["failures"] == 0
    assert outcome(disturbed) == outcome(undisturbed)
    for results in disturbed.results():
        iterations = [result["training_iteration"] for result in results]
        assert set(iterations) == set(range(1, 28))
    assert_history(disturbed)
    best = status["best"]
    assert best["value"] == undisturbed.status["best"]["value"]
    assert disturbed.storage.list()
    assert "checkpoint_" in best["checkpoint"]
