"""Every YAML block of docs/gitops.md can be applied unchanged, as far as that can be said without a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod_operator.api.loader import check_text
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods.template import copied_labels

ROOT = Path(__file__).resolve().parents[3]
DOC = (ROOT / "docs/gitops.md").read_text()
HEALTH = (ROOT / "charts/trialpod/argocd/health.lua").read_text()
VALUES = yaml.safe_load((ROOT / "charts/trialpod/values.yaml").read_text())
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
DOCUMENTS: list[dict[str, Any]] = [document for block in BLOCKS for document in yaml.safe_load_all(block)]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [document for document in DOCUMENTS if document["kind"] == kind]


def test_each_block_is_whole_objects() -> None:
    assert {document["kind"] for document in DOCUMENTS} == {
        "TuneExperiment",
        "Application",
        "ConfigMap",
        "Job",
        "GitRepository",
        "HelmRelease",
        "Kustomization",
    }
    for document in DOCUMENTS:
        assert document["apiVersion"]
        assert document["metadata"]["name"]
        assert document["metadata"]["namespace"]


@pytest.mark.parametrize("block", [block for block in BLOCKS if "kind: TuneExperiment\nmetadata" in block])
def test_experiments_are_valid(block: str) -> None:
    assert [str(problem) for problem in check_text(block, "gitops.md").problems] == []


def test_documented_health_scripts_are_those_of_the_chart() -> None:
    (config,) = of_kind("ConfigMap")
    prefix = f"resource.customizations.health.{names.GROUP}_"
    kinds = (names.EXPERIMENT_KIND, names.TRIAL_KIND)
    assert config["data"] == {f"{prefix}{kind}": HEALTH for kind in kinds}


def unknown(given: dict[str, Any], known: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for key, value in given.items():
        if key not in known:
            found.append(f"{path}{key}")
        elif isinstance(value, dict) and isinstance(known[key], dict):
            found += unknown(value, known[key], f"{path}{key}.")
    return found


def test_the_values_that_it_gives_to_the_chart_exist() -> None:
    given = [
        application["spec"]["source"]["helm"]["valuesObject"]
        for application in of_kind("Application")
        if "helm" in application["spec"]["source"]
    ]
    given += [release["spec"]["values"] for release in of_kind("HelmRelease")]
    assert len(given) == 2
    for values in given:
        assert unknown(values, VALUES) == []


def test_argo_applies_at_the_server_and_ignores_no_difference() -> None:
    for application in of_kind("Application"):
        assert "ServerSideApply=true" in application["spec"]["syncPolicy"]["syncOptions"]
        assert "ignoreDifferences" not in application["spec"]


def test_tool_ownership_marks_are_not_copied_to_trials() -> None:
    marks = {
        "app.kubernetes.io/instance": "experiments",
        "argocd.argoproj.io/instance": "experiments",
        "kustomize.toolkit.fluxcd.io/name": "experiments",
        "helm.toolkit.fluxcd.io/name": "experiments",
    }
    assert copied_labels({**marks, "team": "a"}) == {"team": "a"}


def test_links_lead_to_files_and_sections_that_exist() -> None:
    for page in ("gitops.md", "monitoring.md"):
        text = (ROOT / "docs" / page).read_text()
        for target, section in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", text):
            path = ROOT / "docs" / target
            assert path.exists(), target
            if section:
                titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                assert section in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
