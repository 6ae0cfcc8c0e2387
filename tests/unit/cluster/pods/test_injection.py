"""Commands in images of their own: which pods get the runtime, and what they get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_objects import EXPERIMENT, OPTIONS, TRIAL, experiment

from trialpod_operator.cluster.pods.build import build_pod
from trialpod_operator.cluster.pods.template import TemplateError

OURS = "trialpod/trialpod:1"
PYTHON = "/var/run/trialpod-runtime/bin/python"


def pod(runtime: str | None = None, runtime_image: str = OURS, **spec: Any) -> dict[str, Any]:
    """Return the pod of a command."""
    trainable = {"command": ["/climb", "{x}"], **({"runtime": runtime} if runtime else {})}
    manifest = experiment(**{"trainable": trainable, **spec})
    return build_pod(manifest, EXPERIMENT, TRIAL, "d75de_00001", 1, replace(OPTIONS, runtime_image=runtime_image))


def command(made: dict[str, Any]) -> list[str]:
    found: list[str] = made["spec"]["containers"][0]["command"]
    return found


class TestWhichPodsGetTheRuntime:
    def test_an_image_of_its_own_gets_it(self) -> None:
        made = pod(image="r/climb:1")
        (init,) = made["spec"]["initContainers"]
        assert (init["name"], init["image"]) == ("trialpod-runtime", OURS)
        assert command(made) == [PYTHON, "-ISu", "-m", "trialpod.runner.pod"]

    @pytest.mark.parametrize("image", [None, OURS, OPTIONS.default_image])
    def test_an_image_that_has_it_does_not(self, image: str | None) -> None:
        made = pod(image=image)
        assert "initContainers" not in made["spec"]
        assert command(made)[0] == "python"

    def test_it_can_be_declined_and_asked_for(self) -> None:
        assert "initContainers" not in pod("image", image="r/climb:1")["spec"]
        assert command(pod("injected"))[0] == PYTHON

    def test_a_function_gets_it_with_packages(self) -> None:
        made = pod(trainable={"entrypoint": "train:run"}, image="r/climb:1")
        (init,) = made["spec"]["initContainers"]
        assert "/opt/portable/packages" in init["command"]
        assert command(made)[-2:] == ["trialpod.runner.image_python", "trialpod.runner.pod"]
        assert "/opt/portable/packages" not in pod(image="r/climb:1")["spec"]["initContainers"][0]["command"]

    def test_an_operator_without_an_image_for_it_says_so(self) -> None:
        assert "initContainers" not in pod(runtime_image="", image="r/climb:1")["spec"]
        with pytest.raises(TemplateError, match=r"spec\.trainable\.runtime: .*TRIALPOD_RUNTIME_IMAGE"):
            pod("injected", runtime_image="")

    def test_a_command_of_the_template_goes_before_it(self) -> None:
        template = {"spec": {"containers": [{"name": "trial", "image": "r/climb:1", "command": ["/start"]}]}}
        assert command(pod(template=template)) == ["/start"]
        with pytest.raises(TemplateError, match=r"containers\[0\]\.command: .*injected"):
            pod("injected", template=template)


class TestWhatTheyGet:
    def test_it_passes_the_restricted_standard(self) -> None:
        (init,) = pod(image="r/climb:1")["spec"]["initContainers"]
        assert init["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "allowPrivilegeEscalation": False,
        }

    def test_it_asks_for_no_more_than_the_trial_does(self) -> None:
        resources = {"cpu": 2, "memory": "1Gi", "gpu": 1}
        made = pod(image="r/climb:1", resources=resources)
        (init,) = made["spec"]["initContainers"]
        assert init["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
        assert init["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}

    def test_the_trial_reads_one_volume_that_it_cannot_write(self) -> None:
        made = pod(image="r/climb:1")
        (mount,) = [m for m in made["spec"]["containers"][0]["volumeMounts"] if m["name"] == "trialpod-runtime"]
        assert mount == {"name": "trialpod-runtime", "mountPath": "/var/run/trialpod-runtime", "readOnly": True}
        assert {"name": "trialpod-runtime", "emptyDir": {}} in made["spec"]["volumes"]

    def test_a_container_of_the_same_name_is_refused(self) -> None:
        template = {"spec": {"initContainers": [{"name": "trialpod-runtime", "image": "x"}]}}
        with pytest.raises(TemplateError, match=r"initContainers\[0\]\.name"):
            pod(image="r/climb:1", template=template)
