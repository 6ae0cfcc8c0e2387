"""The fields of a pod template that are known without a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trialpod_operator.api.document import Document
from trialpod_operator.api.paths import format_path
from trialpod_operator.api.pod_fields import hint_for, unknown_fields
from trialpod_operator.api.validation import check_document

ROOT = Path(__file__).parents[3]
SOURCE = "def train(config): ..."


def trial(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trial", **fields}]}}


@pytest.mark.once
def test_list_is_that_of_the_kubernetes_client() -> None:
    tool = [sys.executable, ROOT / "tools" / "make_pod_fields", "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("template", "path", "hint"),
    [
        ({"spec": {"nodeSelectr": {}}}, "spec.nodeSelectr", "did you mean nodeSelector?"),
        ({"spec": {"tolerations": [{"operater": "Exists"}]}}, "spec.tolerations[0].operater", "operator?"),
        (trial(imag="a"), "spec.containers[0].imag", "did you mean image?"),
        (trial(env=[{"name": "A", "valueFrom": {"secretRef": {}}}]), "env[0].valueFrom.secretRef", "secretKeyRef?"),
        (trial(nodeSelector={}), "spec.containers[0].nodeSelector", "a pod has it: spec.nodeSelector"),
        ({"spec": {"env": []}}, "spec.env", "a container has it: spec.containers[0].env"),
        ({"metadata": {"lables": {}}}, "metadata.lables", "did you mean labels?"),
        ({"spec": {"zzzzzzz": 1}}, "spec.zzzzzzz", "has no such field"),
    ],
)
def test_unknown_field_is_named_with_the_nearest(template: dict[str, Any], path: str, hint: str) -> None:
    ((found, message),) = unknown_fields(template)
    assert format_path(found).endswith(path)
    assert hint in message


def test_fields_of_many_kinds_are_known() -> None:
    volume = {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "a"}}]}}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
    pod = {"volumes": [volume], "affinity": affinity, "nodeSelector": {"any/key": "x"}, "os": {"name": "linux"}}
    resources = {"limits": {"nvidia.com/gpu": 1}, "claims": [{"name": "gpu", "request": "r"}]}
    template = trial(resources=resources, securityContext={"capabilities": {"drop": ["ALL"]}}, envFrom=None)
    template["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    template["spec"] |= pod
    assert list(unknown_fields(template)) == []


@pytest.mark.parametrize("template", [{"spec": []}, {"spec": {"containers": ["x", 1]}}, {"spec": None}, {}])
def test_templates_of_another_form_are_left_to_other_checks(template: dict[str, Any]) -> None:
    assert list(unknown_fields(template)) == []


def test_hint_takes_the_path_of_the_api_server() -> None:
    assert hint_for("spec.containers[0].volumeMounts[2].mountPth") == "did you mean mountPath?"
    assert hint_for("spec.nowhere.mountPth") == hint_for("") == ""


class TestManifest:
    @staticmethod
    def check(**spec: Any) -> list[str]:
        given = {"trainable": {"source": SOURCE}, "searchSpace": {"x": {"uniform": [0, 1]}}, **spec}
        item = {"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "a"}}
        checked = check_document(Document({**item, "spec": given}))
        assert not checked.problems
        return [str(warning) for warning in checked.warnings]

    def test_misspelt_field_of_the_template_is_a_warning(self) -> None:
        (warning,) = self.check(template={"spec": {"nodeSelectr": {}}})
        assert warning.startswith("spec.template.spec.nodeSelectr: a pod of Kubernetes 1.")
        assert warning.endswith("has no such field; did you mean nodeSelector?")

    def test_so_is_one_of_an_object_of_another_kind(self) -> None:
        pod = {"spec": {"restartPolicy": "Never", "nodeSelectr": {}, "containers": [{"name": "a", "image": "a:1"}]}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod}}
        (warning,) = self.check(trainable={"command": ["./train", "--x={x}"]}, trialResource={"template": job})
        assert warning.startswith("spec.trialResource.template.spec.template.spec.nodeSelectr: a pod of")
