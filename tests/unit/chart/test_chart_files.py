"""What can be said of the chart without Helm: values, their schema and comments, the permissions, the documentation.

tests/cluster/test_chart.py renders it with Helm and installs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from trialpod_operator.cluster import names, operator
from trialpod_operator.cluster.identity import certificates
from trialpod_operator.kube_client import probe_pod

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "trialpod"
VALUES_TEXT = (CHART / "values.yaml").read_text()
VALUES = yaml.safe_load(VALUES_TEXT)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {file.name: file.read_text() for file in (CHART / "templates").rglob("*") if file.is_file()}


def rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of one of the chart's templates."""
    found = re.search(rf'define "trialpod.{name}" -}}}}\n(.*?){{{{- end }}}}', TEMPLATES["_helpers.tpl"], re.DOTALL)
    assert found
    made: list[dict[str, Any]] = yaml.safe_load(found[1])
    return made


RULES = rules("rules")


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        yield (*path, key), value
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def schema_at(path: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the schema of a value; None where anything may stand."""
    part: dict[str, Any] = SCHEMA
    for key in path:
        if "properties" not in part:
            return None
        part = part["properties"][key]
    return part


def test_every_value_has_a_comment_above_it() -> None:
    lines = VALUES_TEXT.splitlines()
    for number, line in enumerate(lines):
        if re.match(r" *[A-Za-z]+:( |$)", line):
            group = line.endswith(":") and lines[number + 1].strip().startswith("#")
            assert lines[number - 1].strip().startswith("#") or group, line


@pytest.mark.parametrize(("path", "value"), list(leaves(VALUES)), ids=lambda part: str(part)[:40])
def test_every_value_is_in_the_schema_and_so_is_its_type(path: tuple[str, ...], value: Any) -> None:
    schema = schema_at(path)
    if schema is not None and "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kinds = {bool: "boolean", int: "integer number", str: "string", list: "array", dict: "object"}[type(value)]
        assert not set(kinds.split()).isdisjoint(types)


def test_schema_matches_values_and_refuses_unknown_ones() -> None:
    def visit(schema: dict[str, Any], values: dict[str, Any]) -> None:
        if "properties" in schema:
            assert schema["additionalProperties"] is False
            assert set(schema["properties"]) - {"global"} == set(values)
            for key, part in schema["properties"].items():
                if isinstance(values.get(key), dict):
                    visit(part, values[key])

    visit(SCHEMA, VALUES)


def test_templates_use_values_that_exist_and_every_value_is_used() -> None:
    known = {".".join(path) for path, _ in leaves(VALUES)}
    used = {name for text in TEMPLATES.values() for name in re.findall(r"\.Values\.([A-Za-z.]+)", text)}
    assert used <= known
    assert {path.partition(".")[0] for path in used} == set(VALUES)


def test_policy_judges_all_images_and_pod_templates_of_a_spec() -> None:
    """A field of the manifest that brings an image or a pod template needs a line in the policy."""
    crd = yaml.safe_load((ROOT / "crds" / "trialpod.dev_tuneexperiments.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]

    def paths(schema: dict[str, Any], path: str) -> Iterator[str]:
        for name, part in schema.get("properties", {}).items():
            if name in ("image", "template"):
                yield f"{path}.{name}"
            yield from paths(part, f"{path}.{name}")

    judged = TEMPLATES["admissionpolicy.yaml"].replace(".?", ".")
    found = list(paths(spec, "object.spec"))
    assert len(found) == 4
    assert [path for path in found if path not in judged] == []


def test_policy_judges_all_images_of_a_pod() -> None:
    """A field of a pod that brings an image needs a line in the policy; templates have no ephemeral containers."""
    fields = files("trialpod_operator.api").joinpath("pod_fields.txt").read_text()
    bring_images = set(re.findall(r"(\w+)=V1(?:Container|ImageVolumeSource)\b", fields))
    assert bring_images == {"containers", "initContainers", "image"}
    text = TEMPLATES["admissionpolicy.yaml"]
    images = text[text.index("name: images") : text.index("validations:")]
    assert "map(c, c.image)" in images
    assert "map(v, v.image.reference)" in images


def test_operator_has_no_wildcard_and_lists_no_secrets() -> None:
    for text in TEMPLATES.values():
        assert not re.search(r"(apiGroups|resources|verbs):.*\*", text)
    secrets = [rule for rule in RULES if "secrets" in rule["resources"]]
    assert [rule["verbs"] for rule in secrets] == [["get"]]
    pods = {verb for rule in RULES for verb in rule["verbs"] if rule["resources"] == ["pods"]}
    assert pods == {"get", "list", "watch", "create", "patch", "delete", "deletecollection"}
    assert not any("exec" in resource or "attach" in resource for rule in RULES for resource in rule["resources"])


def test_permissions_are_those_of_the_names_in_use() -> None:
    named = {name for rule in RULES for name in rule.get("resourceNames", [])}
    assert named == {names.CA_CONFIG_MAP}
    ours = {
        resource.partition("/")[0]
        for rule in RULES
        if rule["apiGroups"] == [names.GROUP]
        for resource in rule["resources"]
    }
    assert ours == {names.EXPERIMENTS, names.TRIALS}


def test_own_namespace_has_permissions_to_secret_and_lease() -> None:
    named = {name: rule["verbs"] for rule in rules("ownRules") for name in rule.get("resourceNames", [])}
    assert named == {certificates.SECRET: ["get", "update"], operator.LEASE_NAME: ["get", "update"]}


@pytest.fixture
def permissions_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """tools/make_permissions on copies, in `tmp_path`, of what it reads and writes."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("make_permissions", str(ROOT / "tools/make_permissions"))
    tool: Any = ModuleType(loader.name)
    tool.__file__ = loader.path
    loader.exec_module(tool)
    tool.ROOT = tmp_path
    for name in ("HELPERS", "RBAC", "LIST", "CHANGELOG"):
        copied = tmp_path / getattr(tool, name).name
        copied.write_text(getattr(tool, name).read_text())
        setattr(tool, name, copied)
    return tool


def test_permissions_tables_and_list_match_the_chart() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/make_permissions", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        f"{done.stderr}A new permission has to be explained to users who upgrade: write a line for CHANGELOG.md that "
        "names it, a comment above the rule, and run tools/make_permissions"
    )


def test_new_right_needs_a_changelog_entry(
    permissions_tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = permissions_tool
    assert tool.keep_list(check=True) == 0
    helpers = tmp_path / "_helpers.tpl"
    text = helpers.read_text()
    wider = re.sub(r"(resources: \[pods\]\n  verbs: \[)", r"\1impersonate, ", text, count=1)
    assert wider != text
    helpers.write_text(wider)
    assert tool.keep_list(check=True) == 1
    assert tool.keep_list(check=False) == 1
    told = capsys.readouterr().err
    assert "new permission: operator, in each namespace that it serves: impersonate pods" in told
    assert "say in CHANGELOG.md what it is for, as `impersonate pods`" in told
    with (tmp_path / "CHANGELOG.md").open("a") as file:
        file.write("* The operator may `impersonate pods`, for a test.\n")
    assert tool.keep_list(check=True) == 1
    assert tool.keep_list(check=False) == 0
    assert tool.keep_list(check=True) == 0


def test_network_policy_and_trials_agree_on_the_label_of_a_trial() -> None:
    assert f"{names.NAME_LABEL}: {names.TRIAL_POD_NAME}" in TEMPLATES["networkpolicy.yaml"]
    assert f'"{names.NAME_LABEL}" "{names.TRIAL_POD_NAME}"' in TEMPLATES["networkpolicy.yaml"]
    assert f"{names.NAME_LABEL}: {names.TRIAL_POD_NAME}" in (ROOT / "docs/trial-kinds.md").read_text()
    assert names.STORAGE_FINALIZER in (CHART / "README.md").read_text()


def test_network_policy_lets_the_pod_of_check_through_as_a_trial() -> None:
    pod = probe_pod.build(probe_pod.Probe(image="train:1"), "check", "team")
    assert pod["metadata"]["labels"][names.NAME_LABEL] == names.TRIAL_POD_NAME


def test_chart_test_uses_the_standard_library_only() -> None:
    text = (CHART / "files/check.py").read_text()
    assert "{{" not in text
    imported = set(re.findall(r"^import (\w+)", text, re.MULTILINE))
    assert imported <= set(sys.stdlib_module_names)
    compile(text, "check.py", "exec")
