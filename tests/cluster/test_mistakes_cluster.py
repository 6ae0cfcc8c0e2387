"""Mistakes that a cluster would hide: they are told within seconds."""

from __future__ import annotations

import json

import pytest
from cluster_access import Cluster
from experiments import Experiment, manifest

pytestmark = pytest.mark.usefixtures("operator")


def test_misspelt_field_of_the_template_is_named(namespace: Cluster) -> None:
    template = {"spec": {"nodeSelectr": {"disk": "ssd"}}}
    document = manifest(namespace, "typo", steps=2, template=template)
    experiment = Experiment.apply(namespace, document)
    experiment.wait(lambda _: experiment.condition("Ready").get("reason") == "InvalidTemplate", "it is told", 15)
    message = experiment.condition("Ready")["message"]
    assert "no field spec.nodeSelectr" in message
    assert "did you mean nodeSelector?" in message
    correct = {"spec": {"template": {"spec": {"nodeSelectr": None, "nodeSelector": {"disk": "ssd"}}}}}
    namespace.kubectl("patch", "te", "typo", "--type=merge", "-p", json.dumps(correct))
    experiment.wait(lambda _: experiment.condition("Ready").get("reason") == "Unschedulable", "it counts", 30)
