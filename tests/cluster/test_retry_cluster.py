"""Failed trials are retried on the real cluster, after what they lacked was put right."""

from __future__ import annotations

import json

import pytest
from cluster_access import Cluster
from experiments import Experiment, manifest
from operator_release import Operator

from trialpod_operator.cluster import names

NEEDY = """
import os

from trialpod import tune


def train(config):
    if "DATA" not in os.environ:
        raise RuntimeError("DATA is not set")
    tune.report({"score": 1.0})
"""


@pytest.mark.usefixtures("operator")
class TestRetry:
    def test_corrected_experiment_succeeds(self, namespace: Cluster) -> None:
        document = manifest(namespace, "needy", steps=1, source=NEEDY, numSamples=2)
        document["spec"]["checkpoint"] = {}
        experiment = Experiment.apply(namespace, document)
        experiment.wait_until_over()
        assert experiment.condition("Failed")["status"] == "True"
        assert "DATA is not set" in experiment.condition("Failed")["message"]
        container = {"name": names.CONTAINER, "env": [{"name": "DATA", "value": "1"}]}
        patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
        namespace.kubectl("patch", "te", "needy", "--type=merge", "-p", json.dumps(patch))
        namespace.kubectl("annotate", "te", "needy", f"{names.RETRY_ANNOTATION}=1")
        experiment.wait(lambda status: status.get("retried") == "1", "the request is taken")
        experiment.wait_until_over()
        assert [trial["status"]["state"] for trial in experiment.trials()] == ["TERMINATED"] * 2
        assert experiment.condition("Succeeded")["status"] == "True"

    def test_unschedulable_trials_do_not_run(self, namespace: Cluster, operator: Operator) -> None:
        document = manifest(namespace, "huge", steps=1, resources={"cpu": "500"})
        experiment = Experiment.apply(namespace, document)
        experiment.wait(lambda status: (status.get("waiting") or {}).get("reason") == "Unschedulable", "it waits", 90)
        namespace.wait_for(lambda: experiment.trial_status().get("state"), "the trial has a state", 90)
        assert experiment.trial_status()["state"] == "PENDING"
        assert (experiment.status["trials"]["running"], experiment.status["trials"]["starting"]) == (0, 1)
        namespace.kubectl("delete", "te", "huge", "--wait=false")
