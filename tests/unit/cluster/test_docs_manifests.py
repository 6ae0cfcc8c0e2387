"""Every manifest in the pages for a cluster and in examples/kubernetes is valid, and their Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from trialpod_operator.api.loader import check_text

ROOT = Path(__file__).resolve().parents[3]
PAGES = (
    "auto.md", "commands.md", "distributed.md", "gpus.md", "kubernetes.md", "lifecycle.md", "manifest.md",
    "plug-ins.md", "pods.md", "storage.md", "trial-kinds.md", "troubleshooting.md",
)  # fmt: skip
CHART_VALUES = yaml.safe_load((ROOT / "charts/trialpod/values.yaml").read_text())
EXAMPLES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
WHOLE = """
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata: {name: part}
spec:
  trainable: {entrypoint: "train:train"}
  searchSpace: {lr: {uniform: [0, 1]}}
  metric: loss
  mode: min
"""


def blocks(language: str, *pages: str) -> list[tuple[str, str]]:
    """Return the blocks of pages, each with its page and number."""
    found = []
    for page in pages:
        text = (ROOT / "docs" / page).read_text()
        matches = re.findall(rf"^```{language}\b.*\n((?:.*\n)*?)^```$", text, re.MULTILINE)
        found += [(f"{page}-{number}", block) for number, block in enumerate(matches)]
    return found


YAML = blocks("yaml", *PAGES)


def problems(text: str, source: str) -> list[str]:
    return [str(problem) for problem in check_text(text, source).problems]


@pytest.mark.parametrize("text", [text for _, text in YAML], ids=[name for name, _ in YAML])
def test_yaml_of_the_documentation_is_valid(text: str) -> None:
    documents = list(yaml.safe_load_all(text))
    if not any("kind" in document for document in documents):
        whole, part = yaml.safe_load(WHOLE), documents[0]
        if set(part) <= set(CHART_VALUES):
            return
        if set(part) <= {"metadata", "spec"}:
            whole["metadata"] |= part.get("metadata", {})
            part = part.get("spec", {})
        whole["spec"] |= part
        text = yaml.safe_dump(whole)
    elif "TuneExperiment\n" not in text:
        return  # a resource of another kind
    assert problems(text, "block") == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_for_a_cluster_are_valid(path: Path) -> None:
    assert problems(path.read_text(), str(path)) == []


def test_there_are_blocks_and_examples() -> None:
    assert len(YAML) >= 15
    assert {path.name for path in EXAMPLES} >= {"digits.yaml", "gpu.yaml", "configmap.yaml"}


def test_python_of_the_documentation_makes_a_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for _, text in blocks("python", "kubernetes.md"):
        found: dict[str, object] = {"__name__": "documented"}
        exec(compile(text, "docs/kubernetes.md", "exec"), found)
        assert "tuner" in found
