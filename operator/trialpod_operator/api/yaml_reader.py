"""YAML and JSON text to documents: PyYAML composes the nodes, plain scalars mean what they mean to kubectl.

kubectl (go-yaml v2, then JSON) differs from PyYAML: `1e-4` is a number, `1:30` and `2001-01-01` are strings, y, n,
yes, no, on and off are booleans, and `1.0` becomes the integer 1 on its way through JSON. Numbers that it reads as
another than they seem to be are refused: octal and binary ones, such as 010, which is 8.

Every mistake becomes a `Problem` with its line, and nothing else is raised, whatever the text. What would silently
surprise is a problem, too: duplicate keys, unquoted y/n/on/off as keys, tags, and merges that kubectl would apply in
another order.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from trialpod_operator.api.document import MAX_DEPTH, Document
from trialpod_operator.api.paths import Path, format_path
from trialpod_operator.api.problems import Problem

MAX_NODES = 200_000
"""Values in one document, with aliases written out. The API server takes no object of more than 3 MiB anyway."""

Scalar = str | int | float | bool | None

_PLAIN = "plain"
_CORE = "tag:yaml.org,2002:"
_SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
_NEEDED = {"int": "a whole number", "float": "a number", "bool": "a boolean", "null": "null"}


def _cases(*words: str) -> list[str]:
    return [form for word in words for form in (word, word.capitalize(), word.upper())]


_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(_cases("y", "yes", "true", "on"), True),
    **dict.fromkeys(_cases("n", "no", "false", "off"), False),
    **dict.fromkeys(["", "~", *_cases("null")], None),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0[xX][0-9a-fA-F]+)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_MISLEADING = re.compile(r"[-+]?(0[0-9]+|0[oO][0-7]+|0[bB][01]+)", re.ASCII)
_ODD_UNDERSCORE = re.compile(r"[^0-9a-fA-F_]_")
_INT64 = range(-(2**63), 2**63)


class UnsupportedScalarError(ValueError):
    """A plain scalar that JSON cannot carry, or that kubectl reads as another number than it seems to be."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Composes nodes; the implicit tags are `plain`, `seq` and `map`, so that quoted scalars are distinguished."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Return the tag of a node that has none."""
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else f"{_CORE}str"
        return "seq" if kind is yaml.SequenceNode else "map"


def resolve_plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar without a tag.

    Raises:
        UnsupportedScalarError: it has to be written in another way.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise UnsupportedScalarError(f"{text} cannot be sent to Kubernetes: JSON has no infinity and no NaN")
    digits = text if text[0] == "_" else text.replace("_", "")
    is_number = _INTEGER.fullmatch(digits) or _FLOAT.fullmatch(digits)
    if _MISLEADING.fullmatch(digits) or (is_number and _ODD_UNDERSCORE.search(text)):
        raise UnsupportedScalarError(
            f'{text} is not the number that it seems to be: write it in decimal digits, or "{text}" in quotes'
        )
    if _INTEGER.fullmatch(digits) and len(digits) <= 20 and (value := int(digits, 0)) in _INT64:
        return value
    if _FLOAT.fullmatch(digits) and math.isfinite(number := float(digits)):
        return int(number) if number.is_integer() and int(number) in _INT64 else number
    return text


def read_documents(text: str) -> tuple[list[Document], list[Problem]]:
    """Read all documents of a YAML or JSON file; empty ones are left out.

    Returns:
        The documents, and all problems of their form. Nothing after a syntax error can be read.
    """
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        text = _SURROGATES.sub(_join_surrogates, text)
    documents: list[Document] = []
    problems: list[Problem] = []
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            builder = _Builder()
            value = builder.build(node, (), 0)
            problems.extend(builder.problems)
            if value is not None or builder.problems:
                documents.append(Document(value, builder.lines, {}, builder.words))
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(error, text))
    except UnicodeError:
        problems.append(Problem("", "the text is not valid Unicode; save the file as UTF-8"))
    except RecursionError:
        problems.append(Problem("", f"the document is nested more than {MAX_DEPTH} levels deep"))
    return documents, problems


def _join_surrogates(match: re.Match[str]) -> str:
    before = match.string[: match.start()]
    if (len(before) - len(before.rstrip("\\"))) % 2:
        return match[0]
    return bytes.fromhex(match[1] + match[2]).decode("utf-16-be")


def _syntax_problem(error: Any, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else None
    found = getattr(error, "problem", None) or str(getattr(error, "reason", "") or error).splitlines()[0]
    if mark is None and isinstance(position := getattr(error, "position", None), int):
        line = text.count("\n", 0, position) + 1
        return Problem("", f"a character that YAML does not allow: {found}", line)
    lines = text.splitlines()
    if line is not None:
        line = min(line, max(1, len(lines)))  # the end of the text is after its last line
    content = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in content[: len(content) - len(content.lstrip())]:
        return Problem("", "a tab in the indentation: YAML wants spaces", line)
    if "mapping values are not allowed" in found:
        found += '; is the line indented as its neighbours, and is a text with ": " in quotes?'
    return Problem("", f"not valid YAML: {found}", line)


class _Builder:
    """Turns one document's nodes into plain data."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.words: dict[Path, str] = {}
        self.problems: list[Problem] = []
        self._count = 0
        self._full = False
        self._open: set[int] = set()

    def build(self, node: Any, path: Path, depth: int, line: int | None = None) -> Any:
        self.lines.setdefault(path, line or node.start_mark.line + 1)
        self._count += 1
        if self._count > MAX_NODES:
            if not self._full:
                self._full = True
                self._report(path, node, f"the document has more than {MAX_NODES} values (aliases written out)")
            return None
        if depth > MAX_DEPTH:
            self._report(path, node, f"nested more than {MAX_DEPTH} levels deep")
            return None
        if isinstance(node.value, str):
            return self._scalar(node, path)
        if id(node) in self._open:
            self._report(path, node, "an alias that contains itself")
            return None
        if node.tag not in ("seq", "map", _CORE + "seq", _CORE + "map"):
            self._report(path, node, f"the tag {_short(node.tag)} is not supported; leave it out")
        self._open.add(id(node))
        try:
            if _is_mapping(node):
                return self._mapping(node, path, depth)
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value) if not self._full]
        finally:
            self._open.discard(id(node))

    def _report(self, path: Path, node: Any, message: str) -> None:
        self.problems.append(Problem(format_path(path), message, node.start_mark.line + 1))

    def _scalar(self, node: Any, path: Path) -> Any:
        text: str = node.value
        kind = node.tag.removeprefix(_CORE)
        if kind == "str":
            return text
        try:
            value = resolve_plain(text)
        except UnsupportedScalarError as error:
            self._report(path, node, str(error))
            return None
        if kind == _PLAIN:
            if isinstance(value, bool):
                self.words[path] = text
            return value
        fits = {
            "int": isinstance(value, int) and not isinstance(value, bool),
            "float": isinstance(value, int | float) and not isinstance(value, bool),
            "bool": isinstance(value, bool),
            "null": value is None,
        }
        if kind not in fits:
            self._report(path, node, f"the tag {_short(node.tag)} is not supported; leave it out")
        elif not fits[kind]:
            self._report(path, node, f'"{text}" is not {_NEEDED[kind]}, as its tag !!{kind} says')
        return value

    def _mapping(self, node: Any, path: Path, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if self._full:
                break
            line = key_node.start_mark.line + 1
            if key_node.tag == _PLAIN and key_node.value == "<<":
                self._merge(value_node, path, depth, result, first_lines)
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in first_lines:
                message = (
                    f"the key is there twice, on lines {first_lines[key]} and {line}; kubectl keeps only the last"
                )
                self.problems.append(Problem(format_path((*path, key)), message, line))
                continue
            first_lines[key] = line
            result[key] = self.build(value_node, (*path, key), depth + 1, line)
        return result

    def _key(self, node: Any, path: Path) -> str | None:
        if not isinstance(node.value, str):
            self._report(path, node, "a list or a mapping cannot be a key")
            return None
        if node.tag != _PLAIN:
            return str(node.value)
        text: str = node.value
        try:
            value = resolve_plain(text)
        except UnsupportedScalarError as error:
            self._report((*path, text), node, str(error))
            return None
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            name = "true" if value else "false"
            message = f'the key {text} means the boolean {name} to YAML 1.1 and kubectl; write "{text}" in quotes'
            self._report((*path, text), node, message)
        elif isinstance(value, int):
            return str(value)
        else:
            what = "an empty key" if value is None and not text else f"the key {text} is not a string"
            self._report((*path, text) if text else path, node, f'{what}; write "{text}" in quotes')
        return None

    def _merge(self, node: Any, path: Path, depth: int, result: dict[str, Any], first_lines: dict[str, int]) -> None:
        sources = node.value if not isinstance(node.value, str) and not _is_mapping(node) else [node]
        for source in sources:
            if not _is_mapping(source):
                self._report(path, node, "<< merges mappings only: an alias of one, or a list of aliases")
                continue
            merged = self.build(source, path, depth + 1)
            for key, value in (merged or {}).items():
                if key in first_lines:
                    message = f'kubectl lets << overwrite the "{key}" above it; put << first in its mapping'
                    self._report((*path, key), node, message)
                result.setdefault(key, value)


def _is_mapping(node: Any) -> bool:
    return getattr(node, "id", "") == "mapping"


def _short(tag: str) -> str:
    return "!!" + tag.removeprefix(_CORE) if tag.startswith(_CORE) else tag
