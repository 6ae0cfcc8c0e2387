"""Trials whose pods have no keys to the storage, but ask the operator for short-lived ones."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

from cluster_access import SECRET_KEY, Cluster
from experiments import STEPS, Experiment, assert_history, assert_unbroken, counts, manifest
from operator_release import Operator

from trialpod.storage.base import KeyMissingError

TRIES = (
    STEPS
    + '''

def denied(call):
    from trialpod.storage.base import StorageUnavailableError

    try:
        call()
    except StorageUnavailableError as error:
        return "denies access" in str(error)
    return False


class Curious(Steps):
    """Tries what its keys are not for, at its third step."""

    def step(self):
        result = super().step()
        result["denied"] = self.tries() if self.count == 3 else -1
        return result

    def tries(self):
        import dataclasses, os
        import msgspec
        from trialpod.storage.options import StorageOptions
        from trialpod.storage.registry import open_storage

        endpoint, bucket, mine = self.config["endpoint"], self.config["bucket"], self.config["mine"]
        options = StorageOptions(endpoint=endpoint, credentials_from="reports", retry_s=0.0)
        place = open_storage(f"s3://{bucket}", options, check=False)
        assert not any(name.startswith("AWS_") for name in os.environ)
        assert not os.path.exists("/var/run/trialpod-storage")
        return sum(
            map(
                denied,
                (
                    lambda: place.read(f"{mine}/other/secret"),
                    lambda: place.write(f"{mine}/other/secret", b"forged"),
                    lambda: place.list(f"{mine}/other"),
                    lambda: place.list(),
                    lambda: place.read(f"{mine}/scoped/.trialpod/experiment.json"),
                    lambda: place.write(f"{mine}/scoped/.trialpod/experiment.json", b"{}"),
                ),
            )
        )
'''
)
SESSION_TOKEN = "eyJhbGciOi"
"""What MinIO's session tokens begin with: the head of a JSON Web Token, in base64."""


def scoped(namespace: Cluster, name: str, **spec: Any) -> dict[str, Any]:
    document = manifest(namespace, name, **spec)
    document["spec"]["storage"]["scopedCredentials"] = {"duration": "15m"}
    return document


def test_trial_saves_and_resumes_with_keys_scoped_to_its_data(operator: Operator, namespace: Cluster) -> None:
    document = scoped(namespace, "scoped", steps=16, source=TRIES)
    storage = document["spec"]["storage"]
    bucket, _, mine = storage["uri"].removeprefix("s3://").partition("/")
    document["spec"]["trainable"]["attribute"] = "Curious"
    document["spec"]["searchSpace"] |= {"endpoint": storage["endpoint"], "bucket": bucket, "mine": mine}
    experiment = Experiment(namespace, "scoped")
    other = Experiment(namespace, "other").storage
    other.write("secret", b"of another experiment")
    namespace.apply(document)

    pod = experiment.running_pod()
    assert "trialpod-storage" not in {volume["name"] for volume in pod["spec"]["volumes"]}
    experiment.wait_for_checkpoint(6)
    namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    printed = namespace.logs(experiment.running_pod()["metadata"]["name"])
    assert experiment.wait_until_over()["trials"]["terminated"] == 1

    (results,) = experiment.results()
    assert_unbroken(counts(results), 16, repeated=16)
    assert 6 in [result["denied"] for result in results if result["count"] == 3]
    assert results[-1]["trial_id"]
    assert other.read("secret") == b"of another experiment"
    assert_history(experiment)

    everything = namespace.kubectl(
        "get", "te,tt,pods,configmaps,events,serviceaccounts,leases", "-o", "yaml", "--show-managed-fields"
    )
    everything += printed + experiment.logs() + operator.logs()
    for key in experiment.storage.list(".trialpod"):
        with contextlib.suppress(KeyMissingError):  # a snapshot has taken its place meanwhile
            everything += experiment.storage.read(key).decode("utf-8", "replace")
    for secret in (SECRET_KEY, base64.b64encode(SECRET_KEY.encode()).decode(), SESSION_TOKEN):
        assert secret not in everything


def test_trials_that_continue_from_each_others_checkpoints(operator: Operator, namespace: Cluster) -> None:
    scheduler = {
        "name": "pbt",
        "parameters": {
            "time_attr": "training_iteration",
            "perturbation_interval": 3,
            "hyperparam_mutations": {"x": {"uniform": [0.5, 1.5]}},
            "quantile_fraction": 0.5,
        },
    }
    experiment = Experiment.apply(
        namespace, scoped(namespace, "pbt", steps=15, numSamples=2, maxConcurrentTrials=2, scheduler=scheduler)
    )
    assert experiment.wait_until_over()["trials"]["terminated"] == 2
    exploited = [trial for trial in experiment.trials() if trial["status"].get("attempt", 1) > 1]
    assert exploited, "a trial has continued from the other one's checkpoint"
    assert not any(trial["status"].get("failures") for trial in experiment.trials())


def test_a_store_that_makes_no_keys_stalls_the_experiment(operator: Operator, namespace: Cluster) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nobodys-secret"}
    metadata = {"name": "nobody", "namespace": namespace.namespace}
    namespace.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys})
    document = scoped(namespace, "refused", steps=2)
    document["spec"]["storage"]["credentialsSecret"] = "nobody"
    experiment = Experiment.apply(namespace, document)
    stalled = experiment.wait(lambda _: experiment.condition("Stalled"), "it stalls", 90)
    assert stalled["reason"] == "ScopedCredentialsRefused"
    assert "AccessDenied (The Access Key Id you provided does not exist" in stalled["message"]
    assert "check the keys that the operator has" in stalled["message"]
    assert "nobodys-secret" not in stalled["message"]
    assert not experiment.pods()
