"""Mistakes that a cluster would hide: they are told within seconds."""

from __future__ import annotations

import json

import pytest
from cluster_access import Cluster
from experiments import Experiment, manifest, storage_at

pytestmark = pytest.mark.usefixtures("operator")
SLOW = """
import time
from trialpod import tune

def train(config):
    for step in range(600):
        time.sleep(0.5)
        tune.report({"score": step})
"""


def test_misspelt_field_of_the_template_is_named(namespace: Cluster) -> None:
    template = {"spec": {"nodeSelectr": {"disk": "ssd"}}}
    document = manifest(namespace, "typo", steps=2, template=template)
    experiment = Experiment.apply(namespace, document)
    experiment.wait(lambda _: experiment.condition("Ready").get("reason") == "InvalidTemplate", "it is reported", 15)
    message = experiment.condition("Ready")["message"]
    assert "no field spec.nodeSelectr" in message
    assert "did you mean nodeSelector?" in message
    correct = {"spec": {"template": {"spec": {"nodeSelectr": None, "nodeSelector": {"disk": "ssd"}}}}}
    namespace.kubectl("patch", "te", "typo", "--type=merge", "-p", json.dumps(correct))
    experiment.wait(lambda _: experiment.condition("Ready").get("reason") == "Unschedulable", "it counts", 30)


def test_emptied_storage_stalls_it_within_seconds(namespace: Cluster) -> None:
    document = manifest(namespace, "gone", steps=600, source=SLOW, numSamples=2, checkpoint={})
    experiment = Experiment.apply(namespace, document)
    experiment.wait(lambda status: (status.get("best") or {}).get("iteration", 0) > 5, "it runs", 60)
    place = storage_at(namespace, "gone")
    place.delete_many(place.list())
    # While its objects are being removed, one that it reads may be missing, which is another reason for a second.
    named = ("StorageEmptied", "JournalDamaged")
    experiment.wait(lambda _: experiment.condition("Stalled").get("reason") in named, "it is reported", 20)
    assert experiment.condition("Stalled")["status"] == "True"
    experiment.wait_for_event("Stalled")
