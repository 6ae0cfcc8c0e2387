"""Every snippet of the schedulers' pages is a valid part of a manifest, and every scheduler has a section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod.cli.main import main
from trialpod.tune import schedulers
from trialpod.tune.plugins.catalogue import SCHEDULERS

DOCS = Path(__file__).parents[4] / "docs"
PAGES = ("schedulers.md", "early-stopping.md", "population-based-training.md")
TEXT = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
SECTIONS = {part.split("\n", 1)[0]: part for part in TEXT.split("\n## ")[1:]}
SNIPPETS = {
    name: part.split("```yaml\n")[1].split("```")[0] for name, part in SECTIONS.items() if "```yaml\n" in part
}
BASE: dict[str, Any] = {"trainable": {"entrypoint": "json:loads"}, "searchSpace": {"lr": {"uniform": [0, 1]}}}


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_snippet_is_valid(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = yaml.safe_load(SNIPPETS[name])
    assert part["scheduler"]["name"] == name
    manifest = {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "documented"},
        "spec": {**BASE, **part},
    }
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(manifest))
    status = main(["validate", str(tmp_path / "experiment.yaml")])
    captured = capsys.readouterr()
    assert status == 0, captured.out + captured.err


def test_every_scheduler_has_a_section() -> None:
    for target in {*SCHEDULERS.builtin().values()}:
        names = [name for name, each in SCHEDULERS.builtin().items() if each == target]
        assert not SNIPPETS.keys().isdisjoint(names), names


def test_classes_are_imported_when_they_are_asked_for() -> None:
    for name in schedulers.__all__:
        assert getattr(schedulers, name).__name__ in (name, "AsyncHyperBandScheduler")
    assert sorted(schedulers.__all__) == dir(schedulers)
    with pytest.raises(AttributeError, match="PB3"):
        schedulers.PB3  # noqa: B018
