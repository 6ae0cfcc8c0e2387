"""What runs in a trial or a decider can be read by Python 3.10, and asks for nothing that came with 3.11."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    ROOT / "runtime/trialpod",
    *(ROOT / "operator/trialpod_operator" / name for name in ("api", "decider", "engine", "experiment")),
)
NEWER = {
    "datetime": {"UTC"},
    "dt": {"UTC"},
    "enum": {"StrEnum", "ReprEnum", "verify", "member", "nonmember"},
    "typing": {"Self", "Never", "LiteralString", "Required", "NotRequired", "Unpack", "assert_never", "override"},
    "hashlib": {"file_digest"},
    "asyncio": {"timeout", "TaskGroup", "Runner", "Barrier"},
    "contextlib": {"chdir"},
    "sys": {"exception"},
    "itertools": {"batched"},
}
"""Names of modules that came with Python 3.11 or later, as far as this code could want them."""
OPERATOR_ONLY = {"operator/trialpod_operator/experiment/durable.py": {"asyncio.timeout"}}
"""A decider does not call this."""


def newer(tree: ast.AST) -> Iterator[str]:
    """Yield what a module asks for that Python 3.10 does not have; what is for type checkers does not count."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo += node.orelse
            continue
        if isinstance(node, ast.ImportFrom):
            names = NEWER.get(str(node.module), set())
            yield from (f"{node.module}.{each.name}" for each in node.names if each.name in names)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in NEWER.get(node.value.id, ())
        ):
            yield f"{node.value.id}.{node.attr}"
        todo += ast.iter_child_nodes(node)


def test_the_code_of_trials_and_deciders() -> None:
    found = {}
    for file in (each for folder in FOLDERS for each in folder.rglob("*.py")):
        name = str(file.relative_to(ROOT))
        tree = ast.parse(file.read_text(), name, feature_version=(3, 10))
        if wrong := set(newer(tree)) - OPERATOR_ONLY.get(name, set()):
            found[name] = wrong
    assert not found


def test_it_would_find_them() -> None:
    lines = ("from enum import StrEnum", "hashlib.file_digest", "if TYPE_CHECKING:", "    from typing import Self")
    code = "\n".join(lines)
    assert sorted(newer(ast.parse(code))) == ["enum.StrEnum", "hashlib.file_digest"]
