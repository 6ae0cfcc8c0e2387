"""Every manifest of the corpus is judged as it says: valid, or with exactly the problems in its leading comments.

A comment reads `# problem: LINE PATH: FRAGMENT`: "-" is any line, "*" any message.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trialpod_operator.api.loader import check_text
from trialpod_operator.api.problems import Problem

CORPUS = Path(__file__).parents[2] / "corpus" / "manifests"
_EXPECTED = re.compile(r"# problem: (\S+) (.*?): ?(.*)")


def _matches(problem: Problem, line: str, path: str, fragment: str) -> bool:
    return (
        (line == "-" or problem.line == int(line))
        and (problem.path == path or (fragment == "*" and problem.path.startswith(path)))
        and (fragment == "*" or fragment in problem.message)
    )


@pytest.mark.parametrize("file", sorted((CORPUS / "invalid").iterdir()), ids=lambda file: file.stem)
def test_invalid_manifest_has_exactly_the_announced_problems(file: Path) -> None:
    text = file.read_text()
    expected = [match.groups() for line in text.splitlines() if (match := _EXPECTED.fullmatch(line))]
    assert expected
    report = check_text(text, file.name)
    left = list(report.problems)
    for line, path, fragment in expected:
        found = [problem for problem in left if _matches(problem, line, path.strip(), fragment)]
        assert found, f"no problem {line} {path}: {fragment}; left: {[str(problem) for problem in left]}"
        left.remove(found[0])
    assert not left, [str(problem) for problem in left]
    lines = [problem.line for problem in report.problems if problem.line is not None]
    assert lines == sorted(lines)


@pytest.mark.parametrize("file", sorted((CORPUS / "valid").iterdir()), ids=lambda file: file.stem)
def test_a_valid_manifest_has_no_problem(file: Path) -> None:
    report = check_text(file.read_text(), file.name)
    assert [str(problem) for problem in report.problems] == []
    assert report.experiments
    assert all(checked.experiment is not None for checked in report.experiments)
