"""`tests/corpus/changes.yaml` as the validator sees it; tests/cluster/test_crds_cluster.py asks the API server."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod_operator.api import cel
from trialpod_operator.api.loader import check_text

CHANGES = yaml.safe_load((Path(__file__).parents[2] / "corpus" / "changes.yaml").read_text())


def changed(change: dict[str, Any]) -> dict[str, Any]:
    """Return the base manifest with one change."""
    manifest: dict[str, Any] = copy.deepcopy(CHANGES["base"])
    ((path, value),) = ((path, value) for path, value in change.items() if path != "says")
    place = manifest
    *parents, last = path.split(".", 2)
    for part in parents:
        place = place[part]
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value
    return manifest


def problems(change: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in check_text(json.dumps(changed(change)), "changes").problems]


@pytest.mark.parametrize("change", CHANGES["nobody"], ids=str)
def test_the_validator_accepts_what_nobody_refuses(change: dict[str, Any]) -> None:
    assert problems(change) == []


@pytest.mark.parametrize("change", [*CHANGES["server"], *CHANGES["validator"]], ids=str)
def test_the_validator_refuses_all_that_anybody_refuses(change: dict[str, Any]) -> None:
    assert problems(change)


def test_another_value_is_tried_for_every_field() -> None:
    assert {*CHANGES["others"], "storage"} == set(cel.spec_fields())
