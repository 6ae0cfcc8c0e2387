from __future__ import annotations

from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod_operator.api.document import Document
from trialpod_operator.api.loader import check_text, load_manifests
from trialpod_operator.api.overrides import apply_overrides
from trialpod_operator.api.yaml_reader import read_documents

MANIFEST = """
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: digits}
spec:
  trainable: {entrypoint: "train:train"}
  searchSpace: {lr: {loguniform: [1e-4, 1e-1]}, layers: {choice: [1, 2]}}
  timeBudget: 2h
"""


def _document() -> Document:
    documents, _ = read_documents(MANIFEST)
    return documents[0]


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("spec.numSamples=10", ("spec", "numSamples"), 10),
        ("spec.searchSpace.lr.loguniform[0]=1e-3", ("spec", "searchSpace", "lr", "loguniform", 0), 0.001),
        ("spec.searchSpace.lr={uniform: [0, 1]}", ("spec", "searchSpace", "lr"), {"uniform": [0, 1]}),
        ("metadata.name=x", ("metadata", "name"), "x"),
        ("spec.checkpoint.frequency=5", ("spec", "checkpoint"), {"frequency": 5}),
        ('spec.resources["nvidia.com/gpu"]=1', ("spec", "resources"), {"nvidia.com/gpu": 1}),
        (r"spec.resources.nvidia\.com/gpu=1", ("spec", "resources"), {"nvidia.com/gpu": 1}),
        ("spec.image=a:1=2", ("spec", "image"), "a:1=2"),
        ("spec.image=", ("spec", "image"), ""),
        ('spec.metric="#loss"', ("spec", "metric"), "#loss"),
    ],
)
def test_an_override_sets_the_value_at_its_path(override: str, path: tuple[Any, ...], value: Any) -> None:
    found = apply_overrides(_document(), [override]).value
    for part in path:
        found = found[part]
    assert found == value


@pytest.mark.parametrize("null", ["null", "~", "NULL"])
def test_null_removes_a_field(null: str) -> None:
    assert "timeBudget" not in apply_overrides(_document(), [f"spec.timeBudget={null}"]).value["spec"]


def test_the_document_itself_stays_as_it_is() -> None:
    document = _document()
    apply_overrides(document, ["spec.searchSpace.lr.loguniform[0]=1"])
    assert document == _document()


def test_later_overrides_see_earlier_ones() -> None:
    overrides = ["spec.searchSpace.lr={choice: [1, 2]}", "spec.searchSpace.lr.choice[1]=3"]
    changed = apply_overrides(_document(), overrides)
    assert changed.value["spec"]["searchSpace"]["lr"] == {"choice": [1, 3]}


@pytest.mark.parametrize(
    ("override", "fragment"),
    [
        ("spec.numSamples", "write PATH=VALUE"),
        ("=3", "write PATH=VALUE"),
        ("[0]=3", "write PATH=VALUE"),
        ("numSamples=3", "did you mean spec.numSamples"),
        ("spce.numSamples=3", 'did you mean "spec"'),
        ("spec.searchSpace.lrr.loguniform[0]=1", "no list at spec.searchSpace.lrr.loguniform"),
        ("spec.searchSpace.lr.loguniforn[0]=1", 'did you mean "spec.searchSpace.lr.loguniform"'),
        ("spec.searchSpace.lr.loguniform[2]=1", r"has 2 items; its last item is \[1\]"),
        ("spec.searchSpace.lr.loguniform.a=1", "is a list"),
        ("spec.searchSpace[0]=1", "is not a list"),
        ("spec.timeBudget.x=1", "is a plain value"),
        ("spec.image={a: 1", "not valid YAML"),
        ("spec.image=.inf", "JSON has no infinity"),
        ("spec.metric=#loss", "put a text into quotes, or write null to remove the field"),
        ("spec.metric= ", "put a text into quotes, or write null to remove the field"),
    ],
)
def test_an_override_that_leads_nowhere_is_named(override: str, fragment: str) -> None:
    with pytest.raises(InvalidInputError, match=fragment) as caught:
        apply_overrides(_document(), [override])
    assert f"--set {override}" in str(caught.value)


def test_a_wrong_value_is_blamed_on_the_override() -> None:
    report = check_text(MANIFEST, "m.yaml", ["spec.numSamples=ten", "spec.numSample=1"])
    assert [problem.path for problem in report.problems] == ["spec.numSamples", "spec.numSample"]
    assert all("(from --set spec.numSample" in problem.message for problem in report.problems)
    assert all(problem.line is None for problem in report.problems)


def test_overrides_are_applied_before_the_check() -> None:
    (experiment,) = load_manifests(MANIFEST, "m.yaml", ["spec.numSamples=3", "metadata.name=other"])
    assert (experiment.name, experiment.spec.num_samples) == ("other", 3)
