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
