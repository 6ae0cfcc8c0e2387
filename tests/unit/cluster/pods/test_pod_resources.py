"""What a pod takes, as the scheduler counts it."""

from __future__ import annotations

from typing import Any

from trialpod_operator.cluster.pods.resources import MAX_RESOURCES, pod_resources, total_resources


def container(name: str = "c", requests: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests or {}}, **more}


def test_containers_count_together_with_the_overhead() -> None:
    spec = {
        "containers": [container(requests={"cpu": "500m", "memory": "1Gi"}), container(requests={"cpu": 1})],
        "overhead": {"cpu": "250m"},
    }
    assert pod_resources({"spec": spec}) == {"cpu": 1.75, "memory": 1024.0**3}


def test_init_container_counts_as_maximum_sidecar_as_sum() -> None:
    spec = {
        "initContainers": [
            container(requests={"cpu": 1}, restartPolicy="Always"),
            container(requests={"cpu": 4, "memory": 100}),
        ],
        "containers": [container(requests={"cpu": 2, "memory": 300})],
    }
    assert pod_resources({"spec": spec}) == {"cpu": 5.0, "memory": 300.0}


def test_limit_is_default_request_and_pod_level_wins() -> None:
    spec = {
        "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": 8}}}],
        "resources": {"requests": {"cpu": "3"}},
    }
    assert pod_resources({"spec": spec}) == {"cpu": 3.0, "nvidia.com/gpu": 2.0}


def test_empty_requests_use_nothing_and_types_are_bounded() -> None:
    assert pod_resources({}) == {}
    assert pod_resources({"spec": {"containers": [container(requests={"cpu": 0, "memory": "much"})]}}) == {}
    many = {f"x.y/r{index}": 1 for index in range(40)}
    assert len(pod_resources({"spec": {"containers": [container(requests=many)]}})) == MAX_RESOURCES


def test_pods_of_one_trial_add_up() -> None:
    pod = {"spec": {"containers": [container(requests={"cpu": 1, "nvidia.com/gpu": 1})]}}
    assert total_resources([pod, pod]) == {"cpu": 2.0, "nvidia.com/gpu": 2.0}
