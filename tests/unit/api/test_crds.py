"""The generated definitions: complete, documented, bounded, in step with the models and with what is committed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trialpod_operator.api import cel, crds
from trialpod_operator.api.inspection import changeable
from trialpod_operator.api.models import TuneExperimentSpec
from trialpod_operator.api.status_models import (
    Condition,
    TrialCounts,
    TuneExperimentStatus,
    format_time,
    format_value,
)
from trialpod_operator.api.trial_models import TuneTrialSpec, TuneTrialStatus
from trialpod_operator.cluster import names

ROOT = Path(__file__).parents[3]
DEFINITIONS = {definition["spec"]["names"]["kind"]: definition for definition in crds.definitions().values()}
Schema = dict[str, Any]


def schema(kind: str) -> Schema:
    (version,) = DEFINITIONS[kind]["spec"]["versions"]
    whole: Schema = version["schema"]["openAPIV3Schema"]
    return whole


def properties(part: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, each in part.get("properties", {}).items():
        yield f"{path}.{name}", each
        yield from properties(each, f"{path}.{name}")
    if "items" in part:
        yield from properties(part["items"], f"{path}[]")


ALL = [(kind, path, part) for kind in DEFINITIONS for path, part in properties(schema(kind), "")]
IDS = [f"{kind}{path}" for kind, path, _ in ALL]


def at(whole: Schema, path: str) -> Schema:
    """Return the schema at ".spec.storage.uri"; conditions are looked into as by a printer column."""
    for part in path.strip(".").split("."):
        if part == "metadata":
            return {"type": "object"}
        whole = whole["properties"][part]
    return whole


@pytest.mark.once
def test_the_committed_files_are_those_that_the_models_give() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "make_crds", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_definitions_have_the_names_that_the_operator_uses() -> None:
    assert {
        (definition["spec"]["group"], kind, definition["spec"]["names"]["plural"])
        for kind, definition in DEFINITIONS.items()
    } == {
        (names.GROUP, names.EXPERIMENT_KIND, names.EXPERIMENTS),
        (names.GROUP, names.TRIAL_KIND, names.TRIALS),
    }
    for definition in DEFINITIONS.values():
        (version,) = definition["spec"]["versions"]
        assert version["name"] == names.VERSION
        assert version["subresources"] == {"status": {}}


@pytest.mark.parametrize(("kind", "path", "part"), ALL, ids=IDS)
def test_every_field_is_documented(kind: str, path: str, part: Schema) -> None:
    if path != ".metadata":
        assert part["description"].endswith(".")


@pytest.mark.parametrize(("kind", "path", "part"), ALL, ids=IDS)
def test_every_field_has_a_type_and_user_input_a_bound(kind: str, path: str, part: Schema) -> None:
    assert "type" in part or part.get("x-kubernetes-int-or-string")
    if not path.startswith(".spec") or part.get("x-kubernetes-preserve-unknown-fields"):
        return
    if path.startswith(".spec.template."):
        return
    if part.get("type") == "string":
        assert "maxLength" in part or "enum" in part
    if part.get("type") == "array":
        assert "maxItems" in part
    if part.get("type") == "object":
        assert "properties" in part or "maxProperties" in part
    if part.get("type") == "integer" and kind == "TuneExperiment":
        assert "maximum" in part


@pytest.mark.parametrize(("kind", "path", "part"), ALL, ids=IDS)
def test_no_input_is_refused_by_a_bare_expression(kind: str, path: str, part: Schema) -> None:
    """Of a `pattern` the API server shows the regular expression, of a rule its message."""
    if kind == "TuneExperiment" and path.startswith(".spec"):
        assert "pattern" not in part


@pytest.mark.parametrize(
    ("kind", "part", "model"),
    [
        ("TuneExperiment", "spec", TuneExperimentSpec),
        ("TuneExperiment", "status", TuneExperimentStatus),
        ("TuneTrial", "spec", TuneTrialSpec),
        ("TuneTrial", "status", TuneTrialStatus),
    ],
)
def test_the_fields_are_those_of_the_models(kind: str, part: str, model: type[msgspec.Struct]) -> None:
    assert tuple(schema(kind)["properties"][part]["properties"]) == model.__struct_encode_fields__


def test_only_scalars_have_defaults() -> None:
    defaults = {path: part["default"] for kind, path, part in ALL if "default" in part and path.startswith(".spec")}
    assert defaults == {
        ".spec.checkpoint.frequency": 0,
        ".spec.checkpoint.atEnd": False,
        ".spec.checkpoint.artifacts": False,
        ".spec.failurePolicy.maxFailures": 0,
        ".spec.failurePolicy.failFast": False,
        ".spec.reusePods": False,
        ".spec.finishedPods": "Delete",
        ".spec.storage.createBucket": False,
        ".spec.storage.deletionPolicy": "Retain",
        ".spec.suspend": False,
        ".spec.tag": "",
        ".spec.stop": False,
        ".spec.warmStart.auto": False,
    }


def test_an_object_that_nobody_has_looked_at_says_so() -> None:
    assert schema("TuneExperiment")["properties"]["status"]["default"] == {"observedGeneration": -1}
    assert schema("TuneTrial")["properties"]["status"]["default"] == {"observedGeneration": -1, "state": "PENDING"}


def test_status_requires_nothing() -> None:
    required = [path for _, path, part in ALL if path.startswith(".status") and "required" in part]
    assert required == []
    assert set(at(schema("TuneExperiment"), ".status.conditions")["items"]["required"]) == {
        "type", "status", "reason", "message", "lastTransitionTime"
    }  # fmt: skip


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_columns_and_selectable_fields_exist(kind: str) -> None:
    (version,) = DEFINITIONS[kind]["spec"]["versions"]
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert len(columns) == len(version["additionalPrinterColumns"])
    for column in columns.values():
        if "conditions[" not in column["jsonPath"]:
            assert at(schema(kind), column["jsonPath"])["type"] in (column["type"], "object")
    for field in version.get("selectableFields", []):
        assert at(schema(kind), field["jsonPath"])["type"] == "string"


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_every_rule_points_at_a_field_that_exists(kind: str) -> None:
    whole = schema(kind)
    found = 0
    for path, part in [("", whole), *((path, part) for each, path, part in ALL if each == kind)]:
        for rule in part.get("x-kubernetes-validations", []):
            found += 1
            assert rule["message"], path
            if "fieldPath" in rule:
                assert at(part, rule["fieldPath"])
    assert found > 4


def test_every_list_of_rules_belongs_to_a_model() -> None:
    lists = {name: each for name, each in vars(cel).items() if isinstance(each, list) and name.isupper()}
    assert len(lists) > 4
    used = [id(each) for each in cel.RULES.values()]
    assert [name for name, each in lists.items() if id(each) not in used] == []


def test_what_can_change_is_what_a_local_run_lets_change() -> None:
    fixed = {rule.field_path for rule in cel.RULES[crds.TuneExperiment] if "oldSelf" in rule.rule}
    assert fixed == {
        *(f".spec.{name}" for name in cel.spec_fields() if name not in changeable("any time")),
        ".spec.storage",
        ".spec.storage.uri",
        ".spec.storage.endpoint",
        ".spec.storage.scopedCredentials",
    }


def test_a_trial_can_only_be_told_to_stop() -> None:
    fixed = {rule.field_path for rule in cel.RULES[TuneTrialSpec]}
    assert fixed == {f".{name}" for name in TuneTrialSpec.__struct_encode_fields__}


def test_a_status_is_plain_data_and_counts_of_zero_are_in_it() -> None:
    counts = TrialCounts(pending=0, running=0, paused=0, terminated=0, error=0, done=0)
    status = TuneExperimentStatus(
        observed_generation=2,
        trials=counts,
        conditions=[
            Condition(type="Ready", status="True", reason="Running", message="", last_transition_time=format_time(0))
        ],
    )
    assert msgspec.to_builtins(status) == {
        "observedGeneration": 2,
        "trials": {"pending": 0, "running": 0, "paused": 0, "terminated": 0, "error": 0, "done": 0},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Running",
                "message": "",
                "lastTransitionTime": "1970-01-01T00:00:00Z",
            }
        ],
    }


def test_a_newer_status_can_be_read() -> None:
    status = msgspec.convert({"observedGeneration": 1, "fromTheFuture": {"a": 1}}, TuneExperimentStatus)
    assert status.observed_generation == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (0.9777777777777777, "0.97777778"),
        (12345678.0, "12345678"),
        (1e-9, "1e-09"),
        (-0.5, "-0.5"),
        (3, "3"),
        (float("nan"), "NaN"),
        (float("inf"), "Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_reported_numbers_are_short_text(value: float | None, text: str | None) -> None:
    assert format_value(value) == text
