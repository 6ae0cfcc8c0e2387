"""Experiments for the tests in the cluster: manifests, what became of them, and what is in their storage."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from api_client import KubectlError
from cluster_access import ACCESS_KEY, BUCKET, ENDPOINT, SECRET_KEY, Cluster

from trialpod.storage.base import KeyMissingError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.client import S3Client
from trialpod.storage.s3.credentials import Credentials
from trialpod.storage.s3.storage import S3Storage
from trialpod_operator.experiment.fsck.examine import examine

T = TypeVar("T")

STEPS = '''
import json
import time
from pathlib import Path

from trialpod import tune


class Steps(tune.Trainable):
    """Counts its steps, each of which takes a while."""

    def setup(self, config):
        self.count = 0
        self.seconds = config.get("seconds", 0.2)

    def step(self):
        time.sleep(self.seconds)
        self.count += 1
        return {"score": self.config.get("x", 1.0) * self.count, "count": self.count}

    def save_checkpoint(self, folder):
        Path(folder, "count.json").write_text(json.dumps(self.count))

    def load_checkpoint(self, folder):
        self.count = json.loads(Path(folder, "count.json").read_text())
'''


class _Keys:
    source = "the test"

    def get(self) -> Credentials:
        return Credentials(ACCESS_KEY, SECRET_KEY)

    def refused(self, credentials: Credentials) -> bool:
        return False


def storage_spec(namespace: Cluster) -> dict[str, Any]:
    """Return the storage of a test's experiments."""
    return {"uri": f"s3://{BUCKET}/{namespace.namespace}", "endpoint": ENDPOINT, "credentialsSecret": "minio"}


def storage_at(cluster: Cluster, name: str) -> S3Storage:
    """Return a place in the bucket below that of a namespace."""
    options = StorageOptions(endpoint=cluster.minio_endpoint(), addressing="path").resolved({})
    client = S3Client(BUCKET, options, credentials=_Keys())
    return S3Storage.open(f"s3://{BUCKET}/{cluster.namespace}/{name}", client=client)


def manifest(namespace: Cluster, name: str, *, steps: int = 20, source: str = STEPS, **spec: Any) -> dict[str, Any]:
    """Return an experiment of class Trainables that checkpoint every step, unless `spec` says otherwise."""
    return {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": name, "namespace": namespace.namespace},
        "spec": {
            "trainable": {"source": source},
            "searchSpace": {"x": {"uniform": [0.5, 1.5]}},
            "metric": "score",
            "mode": "max",
            "numSamples": 1,
            "seed": 7,
            "stop": {"training_iteration": steps},
            "checkpoint": {"frequency": 1, "numToKeep": 2},
            "storage": storage_spec(namespace),
            "template": {"spec": {"terminationGracePeriodSeconds": 15}},
            **spec,
        },
    }


@dataclass
class Experiment:
    """A TuneExperiment in a namespace of the cluster."""

    cluster: Cluster
    name: str

    @classmethod
    def apply(cls, cluster: Cluster, document: dict[str, Any]) -> Experiment:
        """Apply a manifest."""
        cluster.apply(document)
        return cls(cluster, document["metadata"]["name"])

    @property
    def object(self) -> dict[str, Any]:
        """The resource as it is now."""
        return self.cluster.get("tuneexperiment", self.name) or {}

    @property
    def status(self) -> dict[str, Any]:
        """Its status."""
        return dict(self.object.get("status") or {})

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition, empty when there is none."""
        found = [each for each in self.status.get("conditions") or [] if each["type"] == kind]
        return dict(found[0]) if found else {}

    def trials(self) -> list[dict[str, Any]]:
        """Return its TuneTrials in order of creation."""
        found = self.cluster.list("tunetrials", f"trialpod.dev/experiment={self.name}")
        return sorted(found, key=lambda item: item["spec"]["index"])

    def trial_status(self, index: int = 0) -> dict[str, Any]:
        """Return the status of one trial."""
        trials = self.trials()
        return dict(trials[index].get("status") or {}) if len(trials) > index else {}

    def pods(self) -> list[dict[str, Any]]:
        """Return its pods that are not on their way out."""
        pods = self.cluster.list("pods", f"trialpod.dev/experiment={self.name}")
        return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]

    def running_pod(self) -> dict[str, Any]:
        """Return a pod of it that runs, once there is one."""
        return self._wait_for(
            lambda: next((pod for pod in self.pods() if pod["status"].get("phase") == "Running"), None),
            "a pod runs",
            90,
        )

    def _wait_for(self, predicate: Callable[[], T], what: str, timeout: float, every: float = 0.2) -> T:
        """Wait for something; where it does not come, say what the experiment and its pods show."""
        try:
            return self.cluster.wait_for(predicate, f"{self.name}: {what}", timeout, every)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._shown()}") from error

    def _shown(self) -> str:
        try:
            conditions = [f"{each['type']}={each['status']}" for each in self.status.get("conditions") or []]
            pods = [_shown_pod(pod) for pod in self.cluster.list("pods")]
            trials = [_shown_trial(trial) for trial in self.trials()[:4]]
        except (KubectlError, subprocess.TimeoutExpired) as error:  # the cluster itself may be what has failed
            return str(error)
        parts = {"conditions": conditions, "trials": trials, "pods": pods}
        return "; ".join(f"{what}: {', '.join(found) or 'none'}" for what, found in parts.items())

    def wait(self, holds: Callable[[dict[str, Any]], Any], what: str, timeout: float = 120) -> Any:
        """Wait until something holds of the status."""
        return self._wait_for(lambda: holds(self.status), what, timeout, every=0.3)

    def wait_for_iteration(self, iteration: int, timeout: float = 120) -> None:
        """Wait until the best result is that of an iteration: of one trial that improves, the latest.

        The trial's own status says so up to half a minute later.
        """
        found = f"it is at iteration {iteration}"
        self.wait(lambda status: (status.get("best") or {}).get("iteration") == iteration, found, timeout)

    def wait_for_checkpoint(self, iteration: int = 2, timeout: float = 120) -> None:
        """Wait until the first trial has committed a checkpoint of at least that iteration."""
        self._wait_for(
            lambda: (
                any(info >= iteration for info in self.checkpoint_iterations())
                or bool(self.status.get("completionTime"))
            ),
            f"it has a checkpoint of iteration {iteration}",
            timeout,
        )
        assert any(info >= iteration for info in self.checkpoint_iterations()), self._shown()

    def wait_for_event(self, reason: str, words: str = "") -> None:
        """Wait until an event of that reason has these words: it is posted after the status."""

        def is_there() -> bool:
            found = [event["message"] for event in self.cluster.list("events") if event["reason"] == reason]
            return any(words in message for message in found)

        self._wait_for(is_there, f"it has an event {reason} with '{words}'", 20, every=0.3)

    def wait_until_over(self, timeout: float = 180) -> dict[str, Any]:
        """Wait for the end and return the status."""
        self.wait(lambda status: status.get("completionTime"), "it ends", timeout)
        return self.status

    # -- its storage --

    @property
    def storage(self) -> S3Storage:
        """Its place in the bucket."""
        return storage_at(self.cluster, self.name)

    def results(self) -> list[list[dict[str, Any]]]:
        """Return the results of each trial from its result.json, trials in order of their directories' names."""
        storage = self.storage
        keys = sorted(key for key in storage.list() if key.endswith("/result.json"))
        return [[json.loads(line) for line in storage.read(key).splitlines()] for key in keys]

    def logs(self) -> str:
        """Return everything its pods printed, as kept in the storage."""
        storage = self.storage
        keys = sorted(key for key in storage.list() if key.endswith("/log.txt"))
        return "\n".join(storage.read(key).decode() for key in keys)

    def checkpoint_iterations(self) -> list[int]:
        """Return the iterations of the committed checkpoints in the storage."""
        storage = self.storage
        keys = [key for key in storage.list() if key.endswith("/.trialpod-manifest.json")]
        found = []
        for key in keys:
            try:
                stored = json.loads(storage.read(key))
            except KeyMissingError:
                continue  # removed by the retention rules meanwhile
            if "manifest" in stored:
                found.append(int(stored["manifest"]["checkpoint"]["iteration"]))
        return sorted(found)


def _shown_trial(trial: dict[str, Any]) -> str:
    status = trial.get("status") or {}
    return f"{trial['metadata']['name']} {status.get('state')} {str(status.get('message', ''))[:200]}".rstrip()


def _shown_pod(pod: dict[str, Any]) -> str:
    """Return where a pod is, and what it waits for."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    states = [each.get("state") or {} for each in status.get("containerStatuses") or []]
    why = [str(each["waiting"].get("reason")) for each in states if "waiting" in each]
    unmet = [each for each in status.get("conditions") or [] if each["status"] == "False" and each.get("message")]
    why += [f"{each['type']}: {each['message'][:160]}" for each in unmet[:1]]
    leaving = " leaving" if metadata.get("deletionTimestamp") else ""
    node = (pod.get("spec") or {}).get("nodeName", "no node")
    return f"{metadata['name']} {status.get('phase')}{leaving} on {node} {why or ''}".rstrip()


def assert_history(experiment: Experiment, *, verify: bool = True, timeout: float = 60) -> None:
    """Assert that the experiment's storage is whole; the operator may still be copying the last files of its trials.

    Args:
        experiment: running or over.
        verify: read every checkpoint and compare checksums.
        timeout: seconds that the copying may take.
    """
    errors: list[str] = []

    def whole() -> bool:
        found = examine(experiment.storage, verify=verify).findings
        errors[:] = [f"{each.trial}: {each.what}" for each in found if each.severity == "error"]
        return not errors

    try:
        experiment.cluster.wait_for(whole, f"the history of {experiment.name} is whole", timeout)
    finally:
        assert errors == []


def counts(results: list[dict[str, Any]]) -> list[int]:
    """Return the step numbers of a trial's results."""
    return [result["count"] for result in results]


def assert_unbroken(numbers: list[int], last: int, repeated: int = 0) -> None:
    """Assert that every step from 1 to `last` is there in order, and at most so many of them more than once."""
    assert numbers[:1] == [1], numbers
    assert numbers[-1] == last, numbers
    assert set(numbers) == set(range(1, last + 1)), numbers
    for before, after in itertools.pairwise(numbers):
        assert after <= before + 1, numbers
    assert len(numbers) - last <= repeated, numbers
