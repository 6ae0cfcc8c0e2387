"""Laying trialpod's needs over a template: nothing that the template says is lost."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_objects import experiment, pod_for
from hypothesis import given
from hypothesis import strategies as st

from trialpod_operator.api.template_rules import check_template
from trialpod_operator.cluster.pods.build import grace_seconds
from trialpod_operator.cluster.pods.template import TemplateError, copied_labels, fill, restrict

_values = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.text("abc", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
_free = st.dictionaries(st.sampled_from(["affinity", "dnsConfig", "hostAliases", "nodeSelector", "zzz"]), _values)
_container = st.fixed_dictionaries(
    {"name": st.sampled_from(["trial", "main", "side"])},
    optional={
        "image": st.just("i"),
        "command": st.just(["run"]),
        "env": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["A", "B", "TMPDIR"])}), max_size=2),
        "volumeMounts": st.just([{"name": "v", "mountPath": "/data"}]),
        "securityContext": st.dictionaries(
            st.sampled_from(["runAsUser", "readOnlyRootFilesystem"]), st.integers(0, 1)
        ),
        "lifecycle": _values,
    },
)
_spec = st.fixed_dictionaries(
    {"containers": st.lists(_container, max_size=3), "initContainers": st.lists(_container, max_size=2)},
    optional={
        "volumes": st.just([{"name": "v", "emptyDir": {}}]),
        "tolerations": st.just([{"operator": "Exists"}]),
        "terminationGracePeriodSeconds": st.integers(0, 300),
        "serviceAccountName": st.just("trainer"),
        "securityContext": st.dictionaries(st.sampled_from(["runAsUser", "fsGroup"]), st.integers(0, 3)),
    },
)


def _kept(given: Any, got: Any) -> bool:
    """Whether everything in `given` is in `got`; lists may have grown."""
    if isinstance(given, dict):
        return isinstance(got, dict) and all(key in got and _kept(value, got[key]) for key, value in given.items())
    if isinstance(given, list):
        left = list(got)
        for item in given:
            match = next((index for index, other in enumerate(left) if _kept(item, other)), None)
            if match is None:
                return False
            left = left[match + 1 :]
        return True
    return bool(given == got)


@given(_spec, _free)
def test_no_field_of_a_template_is_ever_lost(spec: dict[str, Any], free: dict[str, Any]) -> None:
    template = {"spec": {**free, **spec}, "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}
    before = copy.deepcopy(template)
    pod = pod_for(experiment(template=template))
    assert template == before
    assert _kept(before["spec"], pod["spec"])
    assert _kept(before["metadata"], pod["metadata"])
    assert pod == pod_for(experiment(template=template))


def test_labels_of_deployers_and_trialpod_are_not_passed_on() -> None:
    labels = {"team": "a", "argocd.argoproj.io/instance": "x", "helm.sh/chart": "y", "trialpod.dev/role": "decider"}
    assert copied_labels(labels) == {"team": "a"}


@pytest.mark.parametrize("own", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}])
def test_requested_privileges_do_not_contradict_defaults(own: dict[str, Any]) -> None:
    spec = {"containers": [{"name": "t", "securityContext": copy.deepcopy(own)}]}
    restrict(spec)
    assert "allowPrivilegeEscalation" not in spec["containers"][0]["securityContext"]  # type: ignore[operator]


def test_root_that_is_asked_for_stays_root() -> None:
    pod: dict[str, Any] = {"securityContext": {"runAsUser": 0}, "containers": []}
    restrict(pod)
    assert "runAsNonRoot" not in pod["securityContext"]
    container: dict[str, Any] = {"containers": [{"name": "t", "securityContext": {"runAsUser": 0}}]}
    restrict(container)
    assert container["containers"][0]["securityContext"]["runAsNonRoot"] is False


def test_windows_pods_get_no_linux_fields() -> None:
    spec = {"os": {"name": "windows"}, "containers": [{"name": "t"}]}
    restrict(spec)
    assert spec == {"os": {"name": "windows"}, "containers": [{"name": "t"}]}


def test_defaults_fill_only_the_gaps() -> None:
    target = {"a": {"b": 1}, "c": None}
    fill(target, {"a": {"b": 2, "d": 3}, "c": 4})
    assert target == {"a": {"b": 1, "d": 3}, "c": 4}


WHOLE: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"]},
    "spec": {
        "os": {"name": "linux"},
        "securityContext": {"runAsUser": 1, "seccompProfile": {"type": "Localhost"}},
        "terminationGracePeriodSeconds": 3,
        "activeDeadlineSeconds": 3,
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [{"name": "i", "securityContext": {"capabilities": {"add": ["X"]}, "privileged": True}}],
        "containers": [
            {
                "name": "trial",
                "image": "r:1",
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
                "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                "securityContext": {"runAsUser": 0, "capabilities": {"add": ["X"], "drop": ["ALL"]}},
            }
        ],
    },
}


def _positions(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _positions(value[key], (*path, key))


@pytest.mark.parametrize(
    "wrong", [None, "x", 1, [], ["x"], [1], [{"name": ["x"]}], {}, {"x": "y"}, {"x": [1]}], ids=str
)
def test_whatever_passes_the_check_is_built_or_refused(wrong: Any) -> None:
    for path in _positions(WHOLE):
        template = copy.deepcopy(WHOLE)
        at: Any = template
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = wrong
        if any(check_template(template, None, {"cpu": 1})):
            continue
        with contextlib.suppress(TemplateError):
            manifest = experiment(template=template, reusePods=True)
            pod_for(manifest)
            grace_seconds(manifest.spec)
