"""Every manifest in the pages for a cluster and in examples/kubernetes is valid, and their Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from trialpod_operator.api.loader import check_text

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("kubernetes.md", "pods.md", "lifecycle.md", "troubleshooting.md")
DOC = "\n".join((ROOT / "docs" / page).read_text() for page in PAGES)
EXAMPLES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
WHOLE = """
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: part}
spec:
  trainable: {entrypoint: "train:train"}
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)


def problems(text: str, source: str) -> list[str]:
    return [str(problem) for problem in check_text(text, source).problems]


@pytest.mark.parametrize("number", range(len(blocks("yaml"))))
def test_yaml_of_the_documentation_is_valid(number: int) -> None:
    text = blocks("yaml")[number]
    if list(yaml.safe_load(text) if "---" not in text else ()) == ["metadata"]:
        text = WHOLE.replace("metadata: {name: part}\n", text)
    elif not any("kind" in document for document in yaml.safe_load_all(text)):
        text = WHOLE + re.sub("^(?=.)", "  ", text, flags=re.MULTILINE)  # a part of a spec
    elif "TuneExperiment\n" not in text:
        return  # a resource of somebody else's
    assert problems(text, f"block {number}") == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_for_a_cluster_are_valid(path: Path) -> None:
    assert problems(path.read_text(), str(path)) == []


def test_there_are_blocks_and_examples() -> None:
    assert len(blocks("yaml")) >= 3
    assert {path.name for path in EXAMPLES} >= {"digits.yaml", "gpu.yaml", "configmap.yaml"}


def test_python_of_the_documentation_makes_a_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for text in blocks("python"):
        found: dict[str, object] = {"__name__": "documented"}
        exec(compile(text, "docs/kubernetes.md", "exec"), found)
        assert "tuner" in found
