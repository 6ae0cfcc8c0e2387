"""The object of another kind that runs an attempt, and what is shown of it with its pod."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.trial_resource.check import kind_of
from trialpod_operator.cluster.pods.build import ObjectRef, PodOptions
from trialpod_operator.cluster.pods.reading import own_name
from trialpod_operator.cluster.pods.template import TemplateError, TrialTemplateError
from trialpod_operator.cluster.pods.terminated import read_termination
from trialpod_operator.cluster.trial_objects.build import build_object
from trialpod_operator.cluster.trial_objects.composite import compose

POD: dict[str, Any] = {
    "spec": {"containers": [{"name": "beside", "image": "b"}, {"name": "train", "image": "any:1"}]}
}
TEMPLATE: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"labels": {"team": "vision"}},
    "spec": {"template": POD, "ttlSecondsAfterFinished": 5, "x": "${trialParameters.lr}"},
}
OPTIONS = PodOptions(address="https://reports:8443", runtime_image="trialpod:1")


def build(template: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the Job of the first attempt of the first trial."""
    experiment = msgspec.convert(
        {
            "apiVersion": "trialpod.dev/v1alpha1",
            "kind": "TuneExperiment",
            "metadata": {"name": "digits", "labels": {"owner": "jane"}},
            "spec": {
                "trainable": {"command": ["./train", "--lr={lr}"]},
                "searchSpace": {"lr": {"uniform": [0, 1]}},
                "resources": {"cpu": 1},
                "trialResource": {"template": template, **more},
            },
        },
        TuneExperiment,
    )
    owner = ObjectRef(namespace="team", name="digits", uid="u1")
    trial = ObjectRef(namespace="team", name="digits-a-0", uid="u2")
    return build_object(experiment, owner, trial, "a_0", 1, {"lr": 0.5}, OPTIONS)


class TestBuild:
    def test_the_primary_pod_has_what_a_pod_of_a_trial_has(self) -> None:
        before = copy.deepcopy(TEMPLATE)
        made = build(TEMPLATE, primaryContainer="train")
        assert before == TEMPLATE
        assert made["metadata"]["name"] == "digits-a-0-1"
        assert made["metadata"]["labels"] == {
            "owner": "jane", "team": "vision", "app.kubernetes.io/managed-by": "trialpod",
            "trialpod.dev/experiment": "digits", "trialpod.dev/trial-id": "a_0", "trialpod.dev/attempt": "1",
            "trialpod.dev/object": "digits-a-0-1",
        }  # fmt: skip
        assert made["spec"]["x"] == "0.5"
        assert (made["spec"]["backoffLimit"], made["spec"]["ttlSecondsAfterFinished"]) == (0, 5)
        pod = made["spec"]["template"]
        beside, train = pod["spec"]["containers"]
        assert "command" not in beside
        assert train["command"][-1] == "trialpod.runner.pod"
        assert train["resources"]["limits"] == {"cpu": "1"}
        assert {each["name"] for each in train["env"]} >= {"TRIALPOD_RUNNER", "TRIALPOD_ADDRESS"}
        assert [each["name"] for each in pod["spec"]["initContainers"]] == ["trialpod-runtime"]
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["metadata"]["labels"]["trialpod.dev/object"] == "digits-a-0-1"
        assert pod["metadata"]["annotations"]["trialpod.dev/container"] == "train"
        assert "name" not in pod["metadata"]

    def test_what_the_template_may_not_have_is_named_in_its_place(self) -> None:
        template = copy.deepcopy(TEMPLATE)
        template["spec"]["template"]["spec"]["volumes"] = [{"name": "trialpod-identity"}]
        path = r"spec\.trialResource\.template\.spec\.template\.spec\.volumes\[0\]"
        with pytest.raises(TemplateError, match=path):
            build(template)

    def test_a_parameter_that_a_trial_lacks_is_named(self) -> None:
        template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "x": "${trialParameters.width}"}}
        with pytest.raises(TrialTemplateError, match="no parameter 'width'; it has lr"):
            build(template)

    @pytest.mark.parametrize("field", ["terminationGracePeriodSeconds", "volumes"])
    def test_value_that_does_not_fit_its_field_is_the_trials(self, field: str) -> None:
        template = copy.deepcopy(TEMPLATE)
        template["spec"]["template"]["spec"][field] = "${trialParameters.lr:json}"
        with pytest.raises(TrialTemplateError, match=rf"spec\.template\.spec\.{field}: must be a "):
            build(template)


def job(*conditions: str) -> dict[str, Any]:
    made = [{"type": kind, "status": "True", "reason": f"Of{kind}", "message": "it says so"} for kind in conditions]
    return {"metadata": {"name": "j", "namespace": "team", "uid": "u"}, "status": {"conditions": made}}


def pod(state: dict[str, Any], phase: str = "Running", **more: Any) -> dict[str, Any]:
    status = {"phase": phase, "containerStatuses": [{"name": "trial", "state": state, **more}]}
    return {"metadata": {"name": "j-x", "uid": "p"}, "spec": {"containers": [{"name": "trial"}]}, "status": status}


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}


KIND = kind_of({"template": {"apiVersion": "batch/v1", "kind": "Job"}})


class TestComposites:
    def test_without_a_pod_it_is_pending(self) -> None:
        shown = compose(job(), None, KIND)
        assert (shown["status"]["phase"], own_name(shown), read_termination(shown)) == ("Pending", "", None)

    def test_with_a_pod_it_is_that_pod_by_the_name_of_the_object(self) -> None:
        shown = compose(job(), pod({"running": {}}), KIND)
        assert (shown["metadata"]["name"], shown["metadata"]["uid"], own_name(shown)) == ("j", "u", "j-x")
        assert read_termination(shown) is None

    @pytest.mark.parametrize(
        ("item", "its_pod", "gone", "reason"),
        [
            (job("Failed"), None, False, "TrialResourceFailed"),
            (job("Complete"), None, False, "TrialResourceFailed"),
            (job("FailureTarget"), pod({"running": {}}), False, "TrialResourceFailed"),
            (job("Failed"), pod(ended(1), "Failed"), False, "ContainerFailed"),
            (job(), pod({"running": {}}), True, "PodVanished"),
            (job("Failed"), pod({"running": {}}), True, "TrialResourceFailed"),
            (job(), pod({"running": {}}, restartCount=1, lastState=ended(3)), False, "ContainerFailed"),
            (job(), pod(ended(0), "Succeeded"), False, "ExitedSilently"),
        ],
    )
    def test_how_it_ended_is_read_from_both(
        self, item: dict[str, Any], its_pod: dict[str, Any] | None, gone: bool, reason: str
    ) -> None:
        found = read_termination(compose(item, its_pod, KIND, gone=gone))
        assert found is not None
        assert found.reason == reason

    def test_a_disruption_of_the_pod_goes_before_the_controller(self) -> None:
        evicted = pod(ended(143), "Failed")
        target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        evicted["status"]["conditions"] = [target]
        found = read_termination(compose(job("Failed"), evicted, KIND))
        assert found is not None
        assert (found.kind, found.reason) == ("disruption", "EvictionByEvictionAPI")

    def test_an_object_has_a_moment_after_its_pod_has_succeeded(self) -> None:
        assert compose(job(), pod(ended(0), "Succeeded"), KIND)["status"]["phase"] == "Running"
        assert compose(job("Complete"), pod(ended(0), "Succeeded"), KIND)["status"]["phase"] == "Succeeded"
