"""Trials that are Jobs of the real Job controller: a program in an image with nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster_access import RESTRICTED, Cluster
from experiments import Experiment, assert_history, manifest

pytestmark = pytest.mark.usefixtures("operator")

STEPS = 12


def pod_template(image: str) -> dict[str, Any]:
    """Return the template of a pod that may do nothing but run the program."""
    container = {"name": "trial", "image": image, "securityContext": {**RESTRICTED, "runAsUser": 12345}}
    return {"spec": {"terminationGracePeriodSeconds": 15, "containers": [container]}}


def climb(
    namespace: Cluster, name: str, template: dict[str, Any], heights: list[float], hold: int = 0, **spec: Any
) -> dict[str, Any]:
    """Return an experiment whose trials are objects like `template` that run the program."""
    document = manifest(namespace, name, searchSpace={"height": {"grid_search": heights}}, **spec)
    document["spec"]["trainable"] = {
        "command": ["/climb", "{height}", str(STEPS), str(hold)],
        "metricsFrom": {"step": "step"},
        "checkpointFolder": {"readyFile": "step"},
    }
    document["spec"]["trialResource"] = {"template": template}
    del document["spec"]["stop"], document["spec"]["checkpoint"], document["spec"]["template"]
    return document


def job(image: str, **spec: Any) -> dict[str, Any]:
    """Return the template of a Job that runs the program."""
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod_template(image), **spec}}


def set_suspend(namespace: Cluster, experiment: Experiment, value: bool) -> None:
    """Suspend or resume an experiment."""
    patch = json.dumps({"spec": {"suspend": value}})
    namespace.kubectl("patch", "te", experiment.name, "--type=merge", "-p", patch)


class TestJobs:
    def test_a_job_is_evicted_paused_and_continues(self, restricted: Cluster, image: str) -> None:
        experiment = Experiment.apply(restricted, climb(restricted, "jobs", job(image), [2.5], hold=4))
        experiment.wait_for_iteration(4)
        (first,) = restricted.list("jobs", "trialpod.dev/experiment=jobs")
        assert first["metadata"]["ownerReferences"][0]["kind"] == "TuneTrial"
        assert experiment.trial_status()["podName"].startswith(first["metadata"]["name"])
        restricted.evict(experiment.running_pod())
        experiment.wait_for_iteration(8)
        set_suspend(restricted, experiment, True)
        experiment.wait(lambda _: experiment.condition("Suspended").get("status") == "True", "it is suspended", 60)
        restricted.wait_for(lambda: not restricted.list("jobs"), "its Job is gone", 60)
        set_suspend(restricted, experiment, False)
        assert experiment.wait_until_over()["best"]["value"] == "30"
        trial = experiment.trial_status()
        assert (trial["attempt"], trial["failures"], trial["disruptions"]) == (3, 0, 1)
        for start in (4, 8):
            words = f"begins at {start}: resumed=1, user 12345"
            restricted.wait_for(lambda words=words: words in experiment.logs(), "the log of each attempt is kept", 60)
        (rows,) = experiment.results()
        assert [row["training_iteration"] for row in rows] == list(range(1, STEPS + 1))
        assert_history(experiment)
        restricted.wait_for(lambda: not restricted.list("jobs"), "all Jobs are gone", 60)

    def test_a_scheduler_ends_jobs_that_are_behind(self, restricted: Cluster, image: str) -> None:
        asha = {"name": "asha", "parameters": {"max_t": STEPS, "grace_period": 2, "reduction_factor": 3}}
        document = climb(restricted, "asha", job(image), [4.0, 3.0, 2.0, 1.0], scheduler=asha, maxConcurrentTrials=2)
        experiment = Experiment.apply(restricted, document)
        assert experiment.wait_until_over()["best"]["value"] == "48"
        lengths = {rows[0]["config"]["height"]: len(rows) for rows in experiment.results()}
        assert lengths[4.0] == STEPS
        assert 2 <= lengths[1.0] < STEPS
        assert_history(experiment)

    def test_the_deadline_of_a_job_is_a_failure(self, restricted: Cluster, image: str) -> None:
        template = job(image, activeDeadlineSeconds=8)
        experiment = Experiment.apply(restricted, climb(restricted, "late", template, [1.0], hold=2))
        experiment.wait_until_over()
        trial = experiment.trial_status()
        assert trial["state"] == "ERROR", trial
        assert "the Job failed: DeadlineExceeded" in trial["message"]

    def test_a_job_whose_pod_is_refused_is_named(self, restricted: Cluster, image: str) -> None:
        template = job(image)
        template["spec"]["template"]["spec"]["hostNetwork"] = True
        experiment = Experiment.apply(restricted, climb(restricted, "refused", template, [1.0]))
        said = experiment.wait(lambda _: experiment.trial_status().get("waiting"), "it waits", 60)
        restricted.wait_for(
            lambda: "hostNetwork" in (experiment.trial_status().get("waiting") or {}).get("message", ""),
            "the reason is named",
            60,
        )
        assert said["reason"] == "TrialResourceWaiting"

    def test_a_job_that_the_api_server_refuses_is_named(self, restricted: Cluster, image: str) -> None:
        template = job(image, completionMode="Sometimes")
        experiment = Experiment.apply(restricted, climb(restricted, "wrong", template, [1.0]))
        waiting = experiment.wait(lambda _: experiment.trial_status().get("waiting"), "it waits", 60)
        assert waiting["reason"] == "InvalidTrialResource"
        assert "completionMode" in waiting["message"]

    def test_kinds_that_are_not_there_or_not_allowed_are_named(self, restricted: Cluster, image: str) -> None:
        replicated = [{"name": "leader", "template": {"spec": {"template": pod_template(image)}}}]
        for version, reason in (("v1alpha1", "InvalidTemplate"), ("v1", "TrialKindMissing")):
            template = {
                "apiVersion": f"nothing.example.com/{version}",
                "kind": "Machine",
                "spec": {"replicatedJobs": replicated},
            }
            document = climb(restricted, f"kind-{version}", template, [1.0])
            document["spec"]["trialResource"] |= {
                "podTemplatePath": "spec.replicatedJobs[0].template.spec.template",
                "successCondition": "status.phase == Done",
                "failureCondition": "status.phase == Failed",
            }
            experiment = Experiment.apply(restricted, document)
            waiting = experiment.wait(lambda _, e=experiment: e.trial_status().get("waiting"), "it waits", 60)
            assert waiting["reason"] == reason, waiting
