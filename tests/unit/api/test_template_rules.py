from __future__ import annotations

from typing import Any

import pytest

from trialpod_operator.api.template_rules import check_template


def _container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


@pytest.mark.parametrize(
    "template",
    [{}, {"metadata": {}, "spec": {}}, _container(image="a"), _container(resources={"limits": {"cpu": "1000m"}})],
)
def test_a_template_that_agrees_with_the_short_cuts_passes(template: dict[str, Any]) -> None:
    assert list(check_template(template, "a", {"cpu": 1})) == []


def test_only_the_trials_container_is_compared() -> None:
    containers = [{"name": "side", "image": "b"}, {"name": "trial", "image": "c"}]
    found = list(check_template({"spec": {"containers": containers}}, "a", {}))
    assert [path for path, _ in found] == [("spec", "containers", 1, "image")]


@pytest.mark.parametrize(
    ("template", "fragment"),
    [
        ({"containers": []}, "below template.spec"),
        ({"spec": []}, "must be a mapping"),
        ({"spec": {"containers": {}}}, "must be a list"),
        ({"spec": {"containers": ["x"]}}, "with a name"),
        ({"spec": {"restartPolicy": "Always"}}, "must be Never"),
        (_container(image="b"), "contradicts spec.image"),
        (_container(resources={"requests": {"cpu": 2}}), "contradicts spec.resources"),
        (_container(resources={"requests": {"cpu": []}}), "is not a Kubernetes quantity"),
    ],
)
def test_a_mistake_in_a_template_is_named(template: dict[str, Any], fragment: str) -> None:
    ((_, message),) = check_template(template, "a", {"cpu": 1})
    assert fragment in message


SHAPES: list[tuple[dict[str, Any], tuple[str | int, ...]]] = [
    *(
        ({"metadata": {part: wrong}}, ("metadata", part, *below))
        for part in ("labels", "annotations")
        for wrong, below in (("a=b", ()), (["a"], ()), ({"a": 1}, ("a",)))
    ),
    *(
        ({"spec": {field: wrong}}, ("spec", field, *below))
        for field, wrong, below in (
            ("os", "windows", ()),
            ("securityContext", "x", ()),
            ("volumes", {"name": "v"}, ()),
            ("volumes", ["v"], (0,)),
            ("volumes", [{"name": ["v"]}], (0, "name")),
            ("initContainers", {"name": "i"}, ()),
            ("initContainers", ["i"], (0,)),
            ("terminationGracePeriodSeconds", "30s", ()),
            ("terminationGracePeriodSeconds", True, ()),
            ("activeDeadlineSeconds", "60", ()),
        )
    ),
    *(
        ({"spec": {part: [{"name": "a", field: wrong}]}}, ("spec", part, 0, field, *below))
        for part in ("containers", "initContainers")
        for field, wrong, below in (
            ("env", {"A": "b"}, ()),
            ("env", ["A=b"], (0,)),
            ("env", [{"name": {}}], (0, "name")),
            ("volumeMounts", {"name": "v"}, ()),
            ("volumeMounts", ["v"], (0,)),
            ("resources", ["cpu"], ()),
            ("resources", {"limits": ["cpu"]}, ("limits",)),
            ("resources", {"requests": "1"}, ("requests",)),
            ("securityContext", "x", ()),
            ("securityContext", {"capabilities": ["ALL"]}, ("capabilities",)),
            ("securityContext", {"capabilities": {"add": 1}}, ("capabilities", "add")),
            ("securityContext", {"capabilities": {"add": [{}]}}, ("capabilities", "add", 0)),
        )
    ),
]
"""Templates with one field of another type, and that field."""


class TestOutline:
    @pytest.mark.parametrize(("template", "path"), SHAPES)
    def test_field_of_another_type_is_named(self, template: dict[str, Any], path: tuple[str | int, ...]) -> None:
        ((found, message),) = check_template(template, None, {})
        assert found == path
        assert "such as" in message or "quotes" in message

    @pytest.mark.parametrize("value", [None, {}, []])
    def test_fields_that_say_nothing_pass(self, value: Any) -> None:
        nothing = {"labels": None, "annotations": {"a": None}}
        pod = {"volumes": None, "os": None, "containers": [{"name": "a", "env": None, "resources": None}]}
        assert list(check_template({"metadata": nothing, "spec": {**pod, "affinity": value}}, None, {})) == []

    def test_placeholder_may_stand_for_anything(self) -> None:
        text = "${trialParameters.x=1:json}"
        pod = {"terminationGracePeriodSeconds": text, "volumes": [text], "containers": [{"name": "a", "env": text}]}
        template = {"metadata": {"labels": text}, "spec": pod}
        assert list(check_template(template, None, {}, placeholders=True)) == []
        assert len(list(check_template(template, None, {}))) == 4

    @pytest.mark.parametrize("part", ["labels", "annotations"])
    def test_what_is_trialpods_own_is_refused(self, part: str) -> None:
        ((path, message),) = check_template({"metadata": {part: {"trialpod.dev/made-for": "a/1"}}}, None, {})
        assert path == ("metadata", part, "trialpod.dev/made-for")
        assert "trialpod's own" in message
