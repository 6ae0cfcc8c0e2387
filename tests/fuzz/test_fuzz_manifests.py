"""Any text is an experiment or a list of problems with path and line, in bounded time; never a traceback."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz_values import MORE, WRONG, changed, damaged, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from trialpod_operator.api.loader import check_text
from trialpod_operator.api.validation import check_document
from trialpod_operator.cluster.stored_manifest import check_stored

CORPUS = Path(__file__).parents[1] / "corpus" / "manifests"
EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = [
    file.read_text() for folder in (CORPUS / "valid", CORPUS / "invalid") for file in sorted(folder.glob("*.*"))
] + [file.read_text() for file in sorted(EXAMPLES.rglob("*.yaml"))]


def _documents() -> list[Any]:
    found = []
    for file in [*sorted((CORPUS / "valid").glob("*.yaml")), *sorted(EXAMPLES.rglob("*.yaml"))]:
        found += [each for each in yaml.safe_load_all(file.read_text()) if isinstance(each, dict)]
    return [each for each in found if each.get("kind") == "TuneExperiment"]


# A check imports the library of the search algorithm, which takes seconds each; a search for more takes them all.
_SLOW = ("bayesopt", "bohb", "hyperopt", "zoopt", "nevergrad", "optuna", "hebo", '"ax"', " ax")
TEXTS = [text for text in TEXTS if MORE > 1 or not any(name in text for name in _SLOW)]
DOCUMENTS = [each for each in _documents() if MORE > 1 or not any(name in json.dumps(each) for name in _SLOW)]
BUDGET_S = 10.0  # of the processor, with imports; what is wanted is milliseconds


def judge(text: str) -> list[str]:
    """Check a manifest and what is said about it; return the problems."""
    began = time.process_time()
    report = check_text(text, "m.yaml")
    assert time.process_time() - began < BUDGET_S
    lines = text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + text.count("\u2029") + 1
    for problem in report.problems:
        assert len(problem.message) > 5
        assert problem.line is None or 1 <= problem.line <= lines
        assert str(problem)
    if not report.problems:
        assert report.experiments or report.others
        assert all(each.experiment is not None for each in report.experiments)
    return [str(problem) for problem in report.problems]


@settings(max_examples=examples(40))
@given(data=st.data())
def test_manifest_with_arbitrary_fields_is_valid_or_refused(data: st.DataObject) -> None:
    document = data.draw(changed(data.draw(st.sampled_from(DOCUMENTS)), WRONG))
    try:
        judge(json.dumps(document, default=repr))
    except UnicodeEncodeError:
        return


@settings(max_examples=examples(40))
@given(data=st.sampled_from(TEXTS).flatmap(lambda text: damaged(text.encode())))
def test_a_damaged_text_is_taken_or_has_problems(data: bytes) -> None:
    judge(data.decode("utf-8", "replace"))


@settings(max_examples=examples(40))
@given(text=st.one_of(st.text(max_size=60), st.text(alphabet="{}[]:,-&*!|>'\"%@`# \n\tab0.<?~", max_size=60)))
def test_any_text_at_all_has_problems(text: str) -> None:
    judge(text)


HEAD = (
    "apiVersion: trialpod.dev/v1alpha1\nkind: TuneExperiment\nmetadata: {name: a}\n"
    'spec:\n  trainable: {entrypoint: "a:b"}\n'
)
HEAD_VALUE = {"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "a"}}


def laughs(levels: int, form: str) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        below = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(
            f"a{level}: &a{level} " + (f"[{below}]" if form == "list" else f"{{<<: [{below}], k: [{below}]}}")
        )
    return HEAD + "  searchSpace:\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (laughs(12, "list"), "values (aliases written out)"),
        (laughs(8, "map"), ""),
        (HEAD + "  searchSpace: " + "[" * 5000, ""),
        (HEAD + "  searchSpace: " + "{a: " * 500 + "1" + "}" * 500, "levels deep"),
        (HEAD + "  searchSpace: &a {b: *a}\n", "an alias that contains itself"),
        (HEAD + "  numSamples: 3\n  numSamples: 4\n", "the key is there twice, on lines 6 and 7"),
        (HEAD + "  numSamples: " + "9" * 100_000 + "\n", "numSamples"),
        (HEAD + "  numSamples: 1e999999\n", "numSamples"),
        (HEAD + "  numSamples: .nan\n", "no NaN"),
        (HEAD + "  numSamples: -.inf\n", "no infinity"),
        (HEAD + "  numSamples: null\n  metric: \n", ""),
        (HEAD + "  seed: 170141183460469231731687303715884105728\n", "seed"),
        (HEAD.replace("name: a", 'name: "\\u202e\\0é"'), "metadata.name"),
        (HEAD.replace('"a:b"', "!!python/object/apply:os.system [id]"), "tag"),
        (HEAD + "  ? [a, b]\n  : 1\n", "cannot be a key"),
        (HEAD + "  searchSpace:\n" + "".join(f"    k{number}: 1\n" for number in range(3000)), ""),
        ("%YAML 9.9\n---\n" + HEAD, ""),
        ("- " * 3000 + "x", "levels deep"),
        ("? " * 3000, ""),
        ("!" * 3000, ""),
        ("&a " * 300, ""),
        ("'" + "x\n" * 20_000, ""),
        ('{"a": "\\ud800"}', ""),
        ("\0", ""),
        ("\ufeff" * 10, ""),
    ],
    ids=lambda value: repr(value[-40:]) if len(value) > 60 else None,
)
def test_parser_bombs_are_refused_quickly(text: str, says: str) -> None:
    assert says in "\n".join(judge(text))


@settings(max_examples=examples(40))
@given(data=st.data())
def test_object_with_arbitrary_fields_is_valid_or_refused(data: st.DataObject) -> None:
    document = data.draw(changed(data.draw(st.sampled_from(DOCUMENTS)), WRONG))
    if not isinstance(document, dict):
        return
    checked = check_stored(document)
    assert checked.experiment is not None or checked.problems
    assert check_document is not None


_POD = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "trial", "resources": {"limits": {}}}]}}
_STEP = {"name": "train", "container": {"image": "a:1"}, "sidecars": [{"name": "b"}], "metadata": {"labels": {}}}
RESOURCES: list[dict[str, Any]] = [
    {
        "template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": _POD, "parallelism": 1}},
        "primaryContainer": "trial",
    },
    {
        "template": {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"labels": {"lr": "${trialParameters.lr}"}},
            "spec": {"entrypoint": "train", "templates": [_STEP]},
        },
        "podTemplatePath": "spec.templates[name=train]",
    },
    {"template": {"apiVersion": "jobset.x-k8s.io/v1", "kind": "JobSet", "spec": {
        "replicatedJobs": [{"name": "main", "replicas": 1, "template": {"spec": {"template": _POD}}}]
    }}},
]  # fmt: skip
"""Objects that run a trial: spec.trialResource."""


@settings(max_examples=examples(100))
@given(data=st.data())
def test_trial_object_with_any_fields_is_valid_or_refused(data: st.DataObject) -> None:
    resource = data.draw(changed(data.draw(st.sampled_from(RESOURCES)), WRONG))
    spec = {
        "trainable": {"command": ["./train", "--lr={lr}"]},
        "searchSpace": {"lr": {"uniform": [0, 1]}},
        "trialResource": resource,
    }
    checked = check_stored({**HEAD_VALUE, "spec": spec})
    assert checked.experiment is not None or checked.problems
