"""Pods that run one trial after the other (spec.reusePods), on a real Kubernetes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from experiments import Experiment, manifest
from operator_release import Operator

PRINTS = """
import time
from trialpod import tune

def train(config):
    print(f"here is {tune.get_context().get_trial_id()}")
    for step in range(3):
        time.sleep(0.5)
        tune.report({"score": config["x"] * step})
"""


@pytest.mark.timeout(300)
def test_trials_share_a_few_pods_across_operator_restart(own_operator: Operator) -> None:
    namespace = own_operator.served
    document = manifest(
        namespace, "reused", source=PRINTS, numSamples=12, maxConcurrentTrials=3, reusePods=True, checkpoint={}
    )
    experiment = Experiment.apply(namespace, document)
    pods: dict[str, set[str]] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            for pod in namespace.list("pods", "trialpod.dev/experiment=reused"):
                metadata = pod["metadata"]
                pods.setdefault(metadata["uid"], set()).add(metadata["labels"]["trialpod.dev/trial-id"])

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        experiment.wait(lambda status: status.get("trials", {}).get("terminated", 0) >= 4, "some trials are over")
        own_operator.kill()
        own_operator.wait_ready()
        status: dict[str, Any] = experiment.wait_until_over(180)
        namespace.wait_for(lambda: not experiment.pods(), "the pods are deleted")
    finally:
        over.set()
        watching.join()
    assert (status["trials"]["terminated"], status["failures"], status["disruptions"]) == (12, 0, 0)
    assert [len(results) for results in experiment.results()] == [3] * 12
    assert {trial["status"]["attempt"] for trial in experiment.trials()} == {1}
    assert len(pods) <= 4, pods
    storage = experiment.storage
    for trial in experiment.trials():
        trial_id = trial["spec"]["trialId"]
        (key,) = (each for each in storage.list() if each.endswith("/log.txt") and f"_{trial_id}_" in each)
        lines = storage.read(key).decode().splitlines()
        own = [line for line in lines if line.startswith(("trialpod: trial", "here is"))]
        assert own == [f"trialpod: trial {trial_id} attempt 1", f"here is {trial_id}"]
