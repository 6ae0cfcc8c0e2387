"""Causes outside of a trial's own code, on a real cluster: told with their remedy, which works."""

from __future__ import annotations

import base64
import time

import pytest
from cluster_access import IMAGE, Cluster
from experiments import STEPS, Experiment, manifest

pytestmark = pytest.mark.usefixtures("operator")


def test_an_init_container_is_heard(namespace: Cluster) -> None:
    document = manifest(namespace, "fetches", failurePolicy={"maxFailures": 0})
    command = ["sh", "-c", "echo first; echo cannot fetch data set; exit 3"]
    document["spec"]["template"]["spec"]["initContainers"] = [{"name": "fetch", "image": IMAGE, "command": command}]
    experiment = Experiment.apply(namespace, document)
    experiment.wait_until_over()
    assert (
        "init container fetch exited with status 3: first / cannot fetch data set"
        in (experiment.trial_status()["message"])
    )
    namespace.wait_for(lambda: "cannot fetch data set" in experiment.logs(), "its output is kept", 90)


def test_the_end_of_long_output_is_kept(namespace: Cluster) -> None:
    prints = """
def train(config):
    for number in range(120_000):
        print(f"batch {number:07d} of an epoch with a bar that is long ----------")
    print("out of memory")
    os._exit(1)
"""
    document = manifest(namespace, "talks", source=f"import os{prints}", failurePolicy={"maxFailures": 0})
    experiment = Experiment.apply(namespace, document)
    experiment.wait_until_over()
    namespace.wait_for(lambda: experiment.logs(), "its output is kept", 90)
    text = experiment.logs()
    assert "batch 0000000 of" in text
    assert "batch 0119999 of" in text
    assert text.rstrip().endswith("out of memory")
    assert text.count("part of the output is left out here") == 1
    assert 4_000_000 < len(text) < 5_000_000


def test_a_corrected_image_continues_within_seconds(namespace: Cluster) -> None:
    document = manifest(namespace, "misspelt", steps=3, image="trialpod/nowhere:1", numSamples=2)
    experiment = Experiment.apply(namespace, document)
    experiment.wait(lambda status: (status.get("waiting") or {}).get("reason") == "ImagePullFailed", "it is told", 60)
    began = time.monotonic()
    namespace.kubectl("patch", "te", "misspelt", "--type=merge", "-p", f'{{"spec":{{"image":"{IMAGE}"}}}}')
    experiment.wait(lambda _: experiment.checkpoint_iterations(), "a trial runs", 90)
    assert time.monotonic() - began < 30
    assert experiment.wait_until_over()["trials"]["terminated"] == 2


def test_refused_keys_name_the_secret_and_new_ones_help(namespace: Cluster) -> None:
    wrong = {name: base64.b64encode(b"wrong-key").decode() for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": wrong}
    namespace.apply(secret)
    document = manifest(namespace, "locked", steps=2)
    document["spec"]["storage"]["credentialsSecret"] = "keys"
    experiment = Experiment.apply(namespace, document)
    experiment.wait(lambda _: experiment.condition("Stalled"), "it is told", 60)
    assert experiment.condition("Stalled")["reason"] == "Refused"
    assert "from the Secret keys" in experiment.condition("Stalled")["message"]
    experiment.wait_for_event("Stalled", "the Secret keys")
    right = namespace.get("secret", "minio")
    assert right is not None
    namespace.apply({**secret, "data": right["data"]})
    experiment.wait_until_over(60)


def test_all_trials_run_the_code_of_the_start(namespace: Cluster) -> None:
    def put(text: str) -> None:
        code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"steps.py": text}}
        namespace.apply(code)

    put(STEPS)
    document = manifest(namespace, "pinned", steps=5, numSamples=2, maxConcurrentTrials=1)
    document["spec"]["trainable"] = {"configMapRef": {"name": "code", "key": "steps.py", "entrypoint": "steps:Steps"}}
    experiment = Experiment.apply(namespace, document)
    experiment.running_pod()
    put(STEPS.replace('"score":', '"changed": 1, "score":'))
    experiment.wait_until_over()
    results = experiment.results()
    assert [len(each) for each in results] == [5, 5]
    assert not any("changed" in line for each in results for line in each)
