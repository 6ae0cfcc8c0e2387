from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trialpod_operator.api.document import Document
from trialpod_operator.api.loader import check_text, load_manifests
from trialpod_operator.api.paths import format_path
from trialpod_operator.api.problems import InvalidManifestError
from trialpod_operator.api.validation import check_document

VALID: dict[str, Any] = {
    "apiVersion": "trialpod.dev/v1alpha1",
    "kind": "TuneExperiment",
    "metadata": {"name": "digits", "labels": {"a": "b"}},
    "spec": {
        "trainable": {"configMapRef": {"name": "code", "key": "train.py", "entrypoint": "train:f"}},
        "searchSpace": {"lr": {"uniform": [0, 1]}},
        "metric": "accuracy",
        "mode": "max",
        "numSamples": 3,
        "scheduler": {"name": "asha", "parameters": {"max_t": 9}},
        "stop": {"training_iteration": 9},
        "stoppers": [{"name": "maximum_iteration", "parameters": {"max_iter": 5}}],
        "checkpoint": {"frequency": 1},
        "failurePolicy": {"maxFailures": 1},
        "storage": {"uri": "s3://bucket/p"},
        "resources": {"cpu": 1},
        "template": {"spec": {"containers": [{"name": "trial"}]}},
    },
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
STRICT = [
    (), ("metadata",), ("spec",), ("spec", "trainable"), ("spec", "trainable", "configMapRef"), ("spec", "scheduler"),
    ("spec", "stoppers", 0), ("spec", "checkpoint"), ("spec", "failurePolicy"), ("spec", "storage"),
]  # fmt: skip


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, part in items for each in _paths(part, (*path, key)))]


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def _is_judged(document: Any) -> bool:
    try:
        return len(load_manifests(json.dumps(document), "m")) == 1
    except InvalidManifestError as error:
        return bool(error.problems)


def test_the_manifest_of_these_tests_is_valid() -> None:
    assert [str(problem) for problem in check_text(json.dumps(VALID), "m").problems] == []


@given(st.sampled_from(STRICT), st.text(min_size=1, max_size=12).map(lambda text: text + "Q"), JSON)
@settings(deadline=None)
def test_an_unknown_field_is_always_reported_with_its_path(path: tuple[str | int, ...], key: str, value: Any) -> None:
    document = copy.deepcopy(VALID)
    _at(document, path)[key] = value
    problems = check_text(json.dumps(document), "m").problems
    assert [problem.path for problem in problems] == [format_path((*path, key))]
    assert "unknown field" in problems[0].message
    assert "Allowed here: " in problems[0].message


@given(st.sampled_from(_paths(VALID)[1:]), JSON)
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_at_any_place_is_valid_or_a_problem(path: tuple[str | int, ...], value: Any) -> None:
    document = copy.deepcopy(VALID)
    _at(document, path[:-1])[path[-1]] = value
    assert _is_judged(document)


@given(st.sampled_from(_paths(VALID)[1:]))
@settings(deadline=None)
def test_any_missing_field_is_a_default_or_a_problem(path: tuple[str | int, ...]) -> None:
    document = copy.deepcopy(VALID)
    del _at(document, path[:-1])[path[-1]]
    assert _is_judged(document)


@given(JSON)
@settings(deadline=None)
def test_any_document_is_refused_with_problems(value: Any) -> None:
    assert check_text(json.dumps(value), "m").problems


@pytest.mark.parametrize("levels", [400, 1_500])
def test_what_is_nested_too_deeply_is_a_problem(levels: int) -> None:
    space: Any = {"uniform": [0, 1]}
    for _ in range(levels):
        space = {"a": space}
    checked = check_document(Document({**VALID, "spec": {**VALID["spec"], "searchSpace": space}}))
    assert checked.experiment is None
    assert [str(problem) for problem in checked.problems] == ["spec.searchSpace.a: nested more than 100 levels deep"]


def _only(change: dict[str, Any]) -> str:
    problems = check_text(json.dumps({**VALID, "spec": {**VALID["spec"], **change}}), "m").problems
    assert len(problems) == 1, problems
    return str(problems[0])


def test_field_at_the_wrong_level_gets_its_path() -> None:
    assert "it belongs at spec.checkpoint.numToKeep" in _only({"numToKeep": 2})


def test_a_prior_in_another_place_gets_its_path() -> None:
    prior = {"center": 0.3}
    for change in ({"prior": {"x": prior}}, {"searchSpace": {"x": {"uniform": [0, 1], "prior": prior}}}):
        assert "spec.searchAlgorithm.parameters.prior" in _only(change)


def test_names_of_ray_lead_to_ours() -> None:
    assert 'did you mean "searchSpace"?' in _only({"param_space": {}})
    assert 'did you mean "numSamples"?' in _only({"num_samples": 2})
    assert 'did you mean "timeBudget"?' in _only({"time_budget_s": 2})


def test_a_search_space_mistake_has_the_line_of_its_place() -> None:
    text = json.dumps(VALID, indent=1).replace('"uniform"', '"unifrom"')
    (problem,) = check_text(text, "m").problems
    assert problem.path.startswith("spec.searchSpace.lr")
    assert problem.line is not None
    assert '"lr"' in text.splitlines()[problem.line - 1] or '"unifrom"' in text.splitlines()[problem.line - 1]


def test_a_parameter_with_a_dot_in_its_name_is_found_again() -> None:
    text = """apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: a}
spec:
  trainable: {entrypoint: "a:b"}
  searchSpace:
    first: 1
    n.x: {randint: [5, 1]}
"""
    (problem,) = check_text(text, "m").problems
    assert problem.path.startswith('spec.searchSpace["n.x"].randint')
    assert problem.line == 8


def test_what_is_allowed_but_surprising_is_a_warning() -> None:
    document = {**VALID, "spec": {**VALID["spec"], "numSamples": -1, "checkpoint": {"scoreOrder": "min"}}}
    report = check_text(json.dumps(document), "m")
    assert report.problems == []
    assert {warning.path for warning in report.warnings} == {"spec.numSamples", "spec.checkpoint.scoreOrder"}


def test_part_of_a_device_is_refused_as_such_at_once() -> None:
    for amount in (0.5, "0.5"):
        found = _only({"resources": {"nvidia.com/gpu": amount}})
        assert "0.5 is not whole: Kubernetes hands out nvidia.com/gpu only as whole devices" in found
