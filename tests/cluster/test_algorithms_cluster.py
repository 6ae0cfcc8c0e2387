"""Algorithms that change running trials, or take their time, with trials as pods."""

from __future__ import annotations

import pytest
from cluster_access import Cluster
from experiments import STEPS, Experiment, manifest
from operator_release import NAMESPACE, RELEASE, Operator

RESETS = (
    STEPS
    + """
    def reset_config(self, config):
        self.seconds = config.get("seconds", 0.2)
        return True
"""
)
POPULATION = {
    "name": "pbt",
    "parameters": {
        "time_attr": "training_iteration",
        "perturbation_interval": 5,
        "quantile_fraction": 0.5,
        "hyperparam_mutations": {"x": [0.5, 1.0, 1.5]},
    },
}


@pytest.mark.together
def test_a_population_exploits_in_its_pods_without_new_ones(
    operator: Operator, namespace: Cluster, cluster: Cluster
) -> None:
    audit = cluster.audit()
    try:
        document = manifest(
            namespace,
            "population",
            source=RESETS,
            steps=30,
            numSamples=4,
            maxConcurrentTrials=4,
            scheduler=POPULATION,
        )
        document["spec"]["searchSpace"] = {"x": {"uniform": [0.5, 1.5]}, "seconds": 0.1}
        experiment = Experiment.apply(namespace, document)
        status = experiment.wait_until_over(240)
        assert status["trials"]["terminated"] == 4, status
        assert (status["failures"], status["disruptions"]) == (0, 0)
        exploited = [trial for trial in experiment.trials() if trial["status"]["attempt"] > 1]
        assert exploited, "somebody took over another one's state"
        created = audit.count(
            user=f"system:serviceaccount:{NAMESPACE}:{RELEASE}",
            where=lambda request: (
                request.verb == "create"
                and request.resource == "pods"
                and request.namespace == namespace.namespace
                and request.code == 201
            ),
        )
        assert sum(created.values()) == 4, created
    finally:
        audit.close()
    for results in experiment.results():
        assert results[-1]["training_iteration"] == 30
    assert any(key.startswith("pbt_") for key in experiment.storage.list())


def test_optuna_suggests_while_trials_run(own_operator: Operator) -> None:
    namespace = own_operator.served
    document = manifest(
        namespace, "optuna", steps=3, numSamples=8, maxConcurrentTrials=3, searchAlgorithm={"name": "optuna"}
    )
    document["spec"]["searchSpace"] = {"x": {"uniform": [0.5, 1.5]}, "seconds": 0.05}
    experiment = Experiment.apply(namespace, document)
    experiment.wait_for_checkpoint(1)
    own_operator.kill()
    status = experiment.wait_until_over(180)
    assert status["trials"]["terminated"] == 8, status
    drawn = [trial["spec"]["params"]["x"] for trial in experiment.trials()]
    assert len(set(drawn)) == 8
