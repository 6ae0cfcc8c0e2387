"""Each command and field that a message names exists: what users are told to type is accepted.

The messages are the texts in the source. That the advice helps in its situation is tested where it is printed.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from trialpod.cli.main import load_command, parser_of

pytestmark = [pytest.mark.once, pytest.mark.xdist_group("advice")]

ROOT = Path(__file__).parents[2]

COMMAND = re.compile(r"(?:^|[\s`(/])trialpod ([a-z][a-z-]*)([^`\n;|<]*)")
FIELD = re.compile(r"\bspec((?:\.[a-zA-Z][a-zA-Z0-9]*)+)")
EXTRA = re.compile(r"trialpod\[([a-z0-9-]+)\]")
NO_COMMANDS = frozenset(
    [
        "added",
        "add",
        "adds",
        "authority",
        "cannot",
        "charts",
        "deleted",
        "does",
        "ended",
        "exp",
        "for",
        "has",
        "import",
        "in",
        "is",
        "it",
        "itself",
        "mounts",
        "needs",
        "of",
        "on",
        "reads",
        "sets",
        "that",
        "this",
        "to",
        "was",
        "will",
        "writes",
    ]
)
"""Words that follow the product's name in a sentence."""
NO_ADVICE = {"commands/completion.py", "api/reference.py", "variables.py", "compat/ray/table.py"}
FREE = "x-kubernetes-preserve-unknown-fields"
PLACE = "PLACE"
"""Stands for options that say where an experiment is, with or without its name before them."""


@cache
def messages() -> tuple[tuple[str, str], ...]:
    """Return (place, text) of each text in the source that is no docstring, with something for each `{...}`."""
    return tuple(_messages())


def _messages() -> Iterator[tuple[str, str]]:
    for folder in (ROOT / "operator/trialpod_operator", ROOT / "runtime/trialpod"):
        for path in sorted(folder.rglob("*.py")):
            if any(path.as_posix().endswith(each) for each in NO_ADVICE):
                continue
            source = path.read_text()
            if not re.search(r"trialpod [a-z]|\bspec\.|trialpod\[", source):
                continue
            tree = ast.parse(source)
            skipped: set[int] = set()
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr):
                    skipped.add(id(node.value))
                if isinstance(node, ast.JoinedStr):
                    skipped.update(map(id, node.values))
            for node in ast.walk(tree):
                if id(node) not in skipped and (text := text_of(node)):
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", text


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else put_in(ast.unparse(part)) for part in node.values
        )
    return ""


def put_in(expression: str) -> str:
    """Return something that could stand for a part of a message."""
    return PLACE if re.search(r"flags|\b_?(connection|location|where)\b(?!\.)", expression) else "exp"


def commands() -> Iterator[tuple[str, list[str]]]:
    for place, text in messages():
        for name, rest in COMMAND.findall(text):
            if name not in NO_COMMANDS:
                yield place, [name, *words_of(rest)]


def words_of(rest: str) -> list[str]:
    """Return a command's arguments, without the sentence that continues after it."""
    rest = re.split(r"[,:)](?:\s|$)|\.(?:\s|$)| - ", rest)[0]
    words = shlex.split(rest)
    ends = [
        at
        for at, word in enumerate(words)
        if word.startswith("-") or not re.fullmatch(r"[a-z']+", word) or word in ("exp", "team")
    ]
    return words[: ends[-1] + 1] if ends else []


def test_commands_in_messages_are_accepted() -> None:
    found = list(commands())
    assert len(found) > 60
    assert [f"{place}: trialpod {shlex.join(words)}" for place, words in found if not is_command(words)] == []


def test_fields_in_messages_exist() -> None:
    named = [
        (place, field)
        for place, text in messages()
        for field in FIELD.findall(text)
        # Of other kinds: a Job, a JobSet.
        if "api/trial_resource" not in place and not field.startswith(".replicatedJobs")
    ]
    assert len(named) > 100
    assert [f"{place}: spec{field}" for place, field in named if not is_field(field.strip(".").split("."))] == []


def test_extras_in_messages_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [(place, extra) for place, text in messages() for extra in EXTRA.findall(text) if extra != "exp"]
    assert named
    assert [each for each in named if each[1] not in project["optional-dependencies"]] == []


def is_command(words: list[str]) -> bool:
    parser = parser_of(load_command(words[0]))
    if len(words) == 1 and any(action.required for action in parser._actions):
        return True  # named alone, as in "`trialpod retry` retries what failed"
    given = shlex.join(words[1:])
    forms = [given.replace(PLACE, form) for form in ("-n team", "exp -n team", "exp")] if PLACE in given else [given]
    return any(accepts(parser, form) for form in forms)


def accepts(parser: ArgumentParser, arguments: str) -> bool:
    try:
        parser.parse_args(shlex.split(arguments))
    except SystemExit as refused:
        return refused.code == 0
    return True


@cache
def fields() -> dict[str, Any]:
    """Return the schema of `spec` of both kinds."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            for version in document["spec"]["versions"]:
                found |= version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return {"properties": found}


def is_field(words: list[str]) -> bool:
    schema = fields()
    for word in words:
        if word.endswith("exp") or "properties" not in schema or FREE in schema:
            return True
        if word not in schema["properties"]:
            return False
        schema = schema["properties"][word]
    return True
