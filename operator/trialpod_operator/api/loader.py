"""Manifests from text to checked experiments: the entry point of everything that takes a file from a user.

A file may hold several documents. Those of other kinds (a ConfigMap, a Secret) are left alone; a file without any
TuneExperiment is a problem.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.api.document import Document
from trialpod_operator.api.models import API_VERSION, KIND, TuneExperiment
from trialpod_operator.api.overrides import apply_overrides
from trialpod_operator.api.problems import InvalidManifestError, Problem
from trialpod_operator.api.validation import Checked, check_document, in_order
from trialpod_operator.api.yaml_reader import read_documents

MAX_BYTES = 3 * 1024 * 1024
"""The API server takes no larger object."""


@dataclass(frozen=True)
class FileReport:
    """What one file holds, and everything that is wrong with it."""

    source: str
    experiments: list[Checked] = field(default_factory=list)
    others: list[Document] = field(default_factory=list)  # documents of other kinds
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def check_text(text: str, source: str, overrides: Sequence[str] = ()) -> FileReport:
    """Read and check all experiments in a YAML or JSON text of the user of this process, who may name files here.

    Args:
        text: the content of the file.
        source: its name, for messages.
        overrides: `--set` arguments, applied to each experiment before the check.

    Raises:
        InvalidInputError: an override cannot be applied. What is wrong with the text is in the report.
    """
    if len(text) > MAX_BYTES:
        problem = Problem("", f"the file is larger than {MAX_BYTES} bytes, which Kubernetes would refuse")
        return FileReport(source, problems=[problem])
    documents, problems = read_documents(text)
    ours = [document for document in documents if not _is_foreign(document)]
    others = [document for document in documents if _is_foreign(document)]
    checked = [check_document(_with_overrides(document, overrides), here=True) for document in ours]
    if not problems and not ours:
        found = ", ".join(sorted({str(each.value["kind"]) for each in others}))
        problems.append(Problem("", f"no {KIND} in it; {f'found only: {found}' if found else 'it is empty'}"))
    # A value whose text is wrong was left out or replaced; other problems at the same place follow from that.
    known = {problem.path for problem in problems}
    problems += [problem for each in checked for problem in each.problems if problem.path not in known]
    problems += _same_names(checked)
    warnings = [warning for each in checked for warning in each.warnings]
    return FileReport(source, checked, others, in_order(problems), in_order(warnings))


def load_manifests(text: str, source: str, overrides: Sequence[str] = ()) -> list[TuneExperiment]:
    """Return the experiments in a YAML or JSON text, at least one.

    Raises:
        InvalidManifestError: anything is wrong with the text; the error has all problems.
        InvalidInputError: an override cannot be applied.
    """
    report = check_text(text, source, overrides)
    if report.problems:
        raise InvalidManifestError(source, report.problems)
    return [each.experiment for each in report.experiments if each.experiment is not None]


def load_file(path: str, overrides: Sequence[str] = ()) -> list[TuneExperiment]:
    """Return the experiments in a file; "-" is the standard input.

    Raises:
        InvalidManifestError: anything is wrong with its content.
        InvalidInputError: the file cannot be read, or an override cannot be applied.
    """
    return load_manifests(read_text(path), display_name(path), overrides)


def display_name(path: str) -> str:
    """Return what messages call the file."""
    return "standard input" if path == "-" else path


_SUFFIXES = (".yaml", ".yml", ".json", ".py")


def read_text(path: str) -> str:
    """Return the text of a file, or of the standard input for "-".

    Raises:
        InvalidInputError: it cannot be read, or is not UTF-8.
    """
    try:
        if path == "-":
            import sys

            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES * 4)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{display_name(path)}: line {line} is not UTF-8; save the file as UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInputError(f"{display_name(path)}: cannot be read: {reason}{hint_of_file(path)}") from error


def hint_of_file(path: str) -> str:
    """Return the nearest to a file that is not there, in words; "" where none is near."""
    for suffix in _SUFFIXES:
        if os.path.isfile(path + suffix):
            return f"; did you mean {path}{suffix}?"
    folder, name = os.path.split(path)
    try:
        beside = [each for each in os.listdir(folder or ".") if each.endswith(_SUFFIXES) and each != name]
    except (OSError, ValueError):
        return ""
    guess = nearest(name, sorted(beside))
    return f"; did you mean {os.path.join(folder, guess)}?" if guess else ""


def _is_foreign(document: Document) -> bool:
    """Return whether a document is plainly of another kind, and not ours with a slip in it."""
    value = document.value
    if not isinstance(value, dict):
        return False
    version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    group = API_VERSION.partition("/")[0]
    return version.partition("/")[0] != group and nearest(kind, [KIND, "Experiment"]) is None


def _with_overrides(document: Document, overrides: Sequence[str]) -> Document:
    return apply_overrides(document, overrides) if isinstance(document.value, dict) else document


def _same_names(checked: list[Checked]) -> list[Problem]:
    problems: list[Problem] = []
    seen: dict[tuple[str | None, str], Document] = {}
    for each in checked:
        if each.experiment is not None:
            key = (each.experiment.metadata.namespace, each.experiment.name)
            if key in seen:
                message = f'the file has another experiment "{key[1]}" (line {seen[key].line}); give them two names'
                problems.append(each.document.problem(("metadata", "name"), message))
            seen.setdefault(key, each.document)
    return problems
