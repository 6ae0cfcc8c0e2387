from __future__ import annotations

import re
from pathlib import Path

from trialpod_operator.api.loader import load_manifests
from trialpod_operator.api.reference import CLUSTER_ONLY, manifest_reference

PAGE = manifest_reference()
ROOT = Path(__file__).parents[3]


class TestReference:
    def test_is_the_committed_page(self) -> None:
        assert (ROOT / "docs" / "manifest.md").read_text() == PAGE, "run tools/make_crds"

    def test_has_an_example_that_is_valid(self) -> None:
        (block,) = re.findall(r"^```yaml.*?\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        (experiment,) = load_manifests(block, "docs/manifest.md")
        assert experiment.name == "climb"

    def test_has_every_field_once(self) -> None:
        fields, section = [], ""
        for line in PAGE.splitlines():
            section = line.removeprefix("## ") if line.startswith("## ") else section
            if match := re.match(r"\| `(\w+)` \|", line):
                fields.append(f"{section}.{match[1]}")
        assert len(fields) == len(set(fields))
        for field in ("spec.metric", "spec.trainable.entrypoint", "spec.stoppers[].name", "spec.storage.uri"):
            assert field in fields
        assert {f"spec.{name}" for name in CLUSTER_ONLY} <= set(fields)

    def test_marks_what_is_for_clusters(self) -> None:
        marked = [line for line in PAGE.splitlines() if line.endswith("*cluster* |")]
        assert any(line.startswith("| `image` |") for line in marked)
        assert not any(line.startswith("| `metric` |") for line in marked)

    def test_marks_what_cannot_change(self) -> None:
        marked = {line.split("`")[1] for line in PAGE.splitlines() if "*fixed*" in line and line.startswith("| `")}
        assert {"metric", "searchSpace", "trainable", "scheduler", "replicas", "uri"} <= marked
        assert marked.isdisjoint({"numSamples", "image", "resources", "workers", "storage", "decider"})

    def test_says_what_mappings_hold(self) -> None:
        assert "| `env` | mapping of texts |" in PAGE
        assert "| `stop` | mapping of numbers |" in PAGE
        assert "| `resources` | mapping of amounts |" in PAGE
