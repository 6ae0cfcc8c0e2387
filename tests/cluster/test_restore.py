"""Resources that come back from a backup as a tool like Velero brings them: other UIDs, no status."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
from cluster_access import SESSION_LABEL, Cluster, session_of
from experiments import Experiment, assert_history, assert_unbroken, counts, manifest
from operator_release import Operator


def backup(item: dict[str, Any]) -> dict[str, Any]:
    """Return what is in the backup: owners by the UIDs of then, and no status is restored."""
    metadata = item["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "ownerReferences") if key in metadata}
    return copy.deepcopy(
        {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": kept, "spec": item["spec"]}
    )


@pytest.mark.parametrize("with_trials", [False, True], ids=["experiments alone", "with their trials"])
def test_lost_namespace_is_restored_and_experiments_resume(
    operator: Operator, cluster: Cluster, namespace: Cluster, with_trials: bool
) -> None:
    # The first two trials end soon; the others take long enough to be lost while they run.
    source = (
        "import time\n"
        "from trialpod import tune\n"
        "class Steps(tune.Trainable):\n"
        "    def setup(self, config):\n"
        "        self.count = 0\n"
        "    def step(self):\n"
        "        time.sleep(0.05 if self.config['x'] < 2 else 0.5)\n"
        "        self.count += 1\n"
        "        return {'score': self.count, 'count': self.count}\n"
        "    def save_checkpoint(self, folder):\n"
        "        open(folder + '/count', 'w').write(str(self.count))\n"
        "    def load_checkpoint(self, folder):\n"
        "        self.count = int(open(folder + '/count').read())\n"
    )
    document = manifest(
        namespace, "lost", steps=60, source=source, searchSpace={"x": {"grid_search": [0, 1, 2, 3]}},
        maxConcurrentTrials=4, resources={"cpu": "250m"},
    )  # fmt: skip
    document["spec"]["storage"]["deletionPolicy"] = "Retain"
    experiment = Experiment.apply(namespace, document)
    experiment.wait(lambda status: status.get("trials", {}).get("terminated", 0) >= 2, "two of four are over", 120)
    namespace.wait_for(lambda: len(experiment.trials()) == 4, "all have begun")
    saved = [backup(experiment.object), *([backup(each) for each in experiment.trials()] if with_trials else [])]
    before = experiment.object["metadata"]["uid"]
    secret = namespace.get("secret", "minio")
    assert secret is not None
    metadata = {"name": "minio", "namespace": namespace.namespace}
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": secret["data"]}

    cluster.delete_namespace(namespace.namespace, wait=True)
    labels = {SESSION_LABEL: session_of(os.getpid())}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace.namespace, "labels": labels}}
    )
    namespace.wait_for(lambda: namespace.get("serviceaccount", "default"), "it is there again")
    namespace.apply(keys)
    reached = experiment.checkpoint_iterations()
    for item in reversed(saved):  # trials before their experiment, as it may happen
        namespace.apply(item)

    status = experiment.wait_until_over()
    assert experiment.object["metadata"]["uid"] != before
    assert status["trials"]["terminated"] == 4
    assert status["failures"] == 0
    assert_history(experiment)
    results = [counts(each) for each in experiment.results()]
    again = [each for each in results if len(each) != 60]
    for each in results:
        # Steps after the newest checkpoint may be there twice; those of finished trials are not.
        assert_unbroken(each, 60, repeated=10)
    assert len(again) <= 2, "finished trials did not run again"
    print(f"checkpoints up to {max(reached)}; results {sorted(map(len, results))}; trials {status['trials']}")
