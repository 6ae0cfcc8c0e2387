"""What is wrong with a document: collected in one pass, so that a user sees all of it at once."""

from __future__ import annotations

from dataclasses import dataclass

from trialpod.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it is ("spec.searchSpace.lr"), and what was found, what is allowed, what to do.

    `line` is the 1-based line in the file, when it is known; `unknown_field` is True where no field has that name.
    """

    path: str
    message: str
    line: int | None = None
    unknown_field: bool = False

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


class InvalidManifestError(InvalidInputError):
    """A manifest with at least one problem; `problems` has them all, in the order of the document."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__("\n".join([f"{source}: {count}", *(f"  {problem}" for problem in problems)]))
