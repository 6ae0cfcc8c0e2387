"""The pod in which a script's own deciding code runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from trialpod_operator.api.document import Document
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.api.validation import check_document
from trialpod_operator.cluster import names
from trialpod_operator.cluster.decider.pod import build_decider, digest
from trialpod_operator.cluster.pods.build import ObjectRef, PodOptions
from trialpod_operator.cluster.pods.template import TemplateError

OWNER = ObjectRef(namespace="team", name="digits", uid="u-1")
OPTIONS = PodOptions(address="https://operator:8443", default_image="trialpod/trial:1")


def experiment(**spec: Any) -> TuneExperiment:
    pickle = {"uri": "s3://tune/runs/digits/.trialpod/decider.pkl", "sha256": "0" * 64}
    manifest = {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "digits"},
        "spec": {
            "trainable": {"entrypoint": "train:train"},
            "storage": {"uri": "s3://tune/runs", "credentialsSecret": "minio"},
            **spec,
            "decider": {key: part for key, part in {"pickle": pickle, **spec.get("decider", {})}.items() if part},
        },
    }
    checked = check_document(Document(manifest))
    assert checked.experiment is not None, checked.problems
    return checked.experiment


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    return dict(only)


class TestPod:
    def test_has_no_permissions_and_no_keys(self) -> None:
        pod = build_decider(experiment(), OWNER, 1, OPTIONS)
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert all("secret" not in volume for volume in pod["spec"]["volumes"])
        assert container(pod)["securityContext"]["allowPrivilegeEscalation"] is False

    def test_belongs_to_the_experiment_and_to_no_trial(self) -> None:
        metadata = build_decider(experiment(), OWNER, 3, OPTIONS)["metadata"]
        assert metadata["name"] == "digits-decider-3"
        assert metadata["ownerReferences"][0]["uid"] == "u-1"
        assert metadata["labels"][names.ROLE_LABEL] == names.DECIDER_ROLE
        assert names.TRIAL_ID_LABEL not in metadata["labels"]

    def test_is_like_a_trial_without_its_devices(self) -> None:
        template = {
            "spec": {
                "nodeSelector": {"zone": "a"},
                "containers": [
                    {"name": "trial", "image": "own:2", "command": ["sh"], "env": [{"name": "A", "value": "1"}]},
                    {"name": "beside", "image": "other:1"},
                ],
            }
        }
        made = build_decider(experiment(template=template, resources={"cpu": 8, "gpu": 2}), OWNER, 1, OPTIONS)
        assert made["spec"]["nodeSelector"] == {"zone": "a"}
        only = container(made)
        assert only["image"] == "own:2"
        assert only["command"] == ["python", "-m", "trialpod_operator.decider"]
        assert {"name": "A", "value": "1"} in only["env"]
        assert only["resources"]["limits"] == {"cpu": "250m", "memory": "1Gi"}

    def test_annotations_of_trialpod_are_refused(self) -> None:
        template = {"metadata": {"annotations": {"trialpod.dev/pod-spec": "x"}}}
        manifest = experiment()
        unchecked = msgspec.structs.replace(manifest, spec=msgspec.structs.replace(manifest.spec, template=template))
        with pytest.raises(TemplateError, match=r"annotations\[trialpod\.dev/pod-spec\]: is trialpod's own"):
            build_decider(unchecked, OWNER, 1, OPTIONS)

    def test_resources_are_its_own(self) -> None:
        made = build_decider(experiment(decider={"resources": {"memory": "4Gi"}}), OWNER, 1, OPTIONS)
        assert container(made)["resources"]["requests"] == {"cpu": "250m", "memory": "4Gi"}

    def test_is_made_again_when_resources_or_image_change(self) -> None:
        digests = {
            digest(each.spec)
            for each in (
                experiment(),
                experiment(image="own:3"),
                experiment(decider={"resources": {"memory": "4Gi"}}),
                experiment(decider={"image": "own:4"}),
                experiment(decider={"pickle": None, "scheduler": {"entrypoint": "mine:Own"}}),
                experiment(decider={"pickle": None, "scheduler": {"entrypoint": "mine:Other"}}),
            )
        }
        assert len(digests) == 6
        assert digest(experiment(numSamples=9).spec) in digests

    def test_an_image_without_trialpod_gets_it(self) -> None:
        options = replace(OPTIONS, runtime_image="trialpod/trialpod:1")
        made = build_decider(experiment(image="own:2"), OWNER, 1, options)
        (init,) = made["spec"]["initContainers"]
        assert init["image"] == "trialpod/trialpod:1"
        assert container(made)["command"][-2:] == ["trialpod.runner.image_python", "trialpod_operator.decider"]
        made = build_decider(experiment(image="own:2", decider={"image": OPTIONS.default_image}), OWNER, 1, options)
        assert container(made)["image"] == OPTIONS.default_image
        assert "initContainers" not in made["spec"]
