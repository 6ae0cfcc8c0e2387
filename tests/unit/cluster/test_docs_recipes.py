"""docs/recipes.md: its lines are those of the files, and the Workflow's conditions mean what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod_operator.api.loader import check_text
from trialpod_operator.cluster.status import conditions
from trialpod_operator.cluster.status.conditions import Problem, observe_experiment, update_conditions

ROOT = Path(__file__).resolve().parents[3]
HOOKS = ROOT / "examples/kubernetes/hooks"
PAGE = (ROOT / "docs/recipes.md").read_text()
WORKFLOW = yaml.safe_load((HOOKS / "argo.yaml").read_text())
TUNE = next(each for each in WORKFLOW["spec"]["templates"] if each["name"] == "tune")


def matches(condition: str, status: dict[str, Any]) -> bool:
    """Evaluate a condition as Argo does: a label selector over paths into the object."""
    found = re.fullmatch(r"([\w.]+) (?:in \(([\w, ]+)\)|== (\w+))", condition)
    assert found is not None, condition
    value: Any = {"status": status}
    for part in found[1].split("."):
        if isinstance(value, list):
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = (value or {}).get(part)
    return value in ((found[2] or found[3]).split(", "))


def status_of(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "started": True, "state": "", "message": "", "finished": False, "stopping": False, "suspended": False,
        "running": 1, "held": 0, "waiting": None, "problem": None, **changes,
    }  # fmt: skip
    found = update_conditions([], observe_experiment(**given), generation=1, now=0.0)
    return {"conditions": [{"type": each.type, "status": each.status, "reason": each.reason} for each in found]}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, (False, False)),
        ({"started": False}, (False, False)),
        ({"suspended": True, "running": 0}, (False, False)),
        ({"stopping": True}, (False, False)),
        ({"finished": True}, (True, False)),
        ({"finished": True, "state": conditions.ENDED_BY_BUDGET}, (True, False)),
        ({"finished": True, "state": conditions.ENDED_BADLY}, (False, True)),
        ({"problem": Problem(reason="InvalidSpec", message="", stalled=True)}, (False, True)),
        ({"problem": Problem(reason="StorageUnavailable", message="")}, (False, False)),
    ],
)
def test_the_workflow_waits_for_the_end(changes: dict[str, Any], verdict: tuple[bool, bool]) -> None:
    status = status_of(**changes)
    resource = TUNE["resource"]
    assert (matches(resource["successCondition"], status), matches(resource["failureCondition"], status)) == verdict


def test_the_experiment_of_the_workflow_is_valid() -> None:
    manifest = yaml.safe_load(TUNE["resource"]["manifest"])
    beside = yaml.safe_load((HOOKS / "experiment.yaml").read_text())
    assert manifest["spec"] == beside["spec"]
    named = TUNE["resource"]["manifest"].replace("generateName: fit-", "generateName: fit-\n  name: fit-x7k2p")
    assert not check_text(named, "argo.yaml").problems, "the API server adds a name and keeps the prefix"
    assert not check_text((HOOKS / "experiment.yaml").read_text(), "experiment.yaml").problems


def test_the_page_shows_what_the_files_do() -> None:
    script = (HOOKS / "run.sh").read_text()
    shown = [line for line in PAGE.partition("## With Argo")[0].splitlines() if line.startswith(("kubectl", "best="))]
    assert len(shown) > 6
    assert all(line in script for line in shown)
    block = next(block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "resource:" in block)
    for key, value in yaml.safe_load(block)["resource"].items():
        assert TUNE["resource"][key] == value
    assert yaml.safe_load(block)["outputs"] == TUNE["outputs"]


def test_the_code_of_all_steps_is_python() -> None:
    jobs = [yaml.safe_load((HOOKS / name).read_text()) for name in ("prepare.yaml", "train-best.yaml")]
    codes = [job["spec"]["template"]["spec"]["containers"][0]["command"][2] for job in jobs]
    codes += [each["container"]["args"][0] for each in WORKFLOW["spec"]["templates"] if "container" in each]
    assert len(codes) == 4
    for code in codes:
        compile(code, "step", "exec")
