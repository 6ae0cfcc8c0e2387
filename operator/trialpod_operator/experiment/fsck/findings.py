"""What a check of an experiment finds: plain data, for people and programs."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was found.

    Attributes:
        severity: "error": something is lost, damaged or contradicts itself. "warning": unusual, nothing is lost.
            "note": harmless, or a limit of what could be checked.
        check: which of the checks found it, one word for programs.
        what: what is wrong, in one sentence.
        trial: the trial's id; "" when it concerns the experiment.
        remedy: what to do; "" when there is nothing to do.
    """

    severity: Severity
    check: str
    what: str
    trial: str = ""
    remedy: str = ""


class Findings:
    """Collects findings."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def error(self, check: str, what: str, trial: str = "", remedy: str = "") -> None:
        """Add one of severity "error"."""
        self.all.append(Finding("error", check, what, trial, remedy))

    def warning(self, check: str, what: str, trial: str = "", remedy: str = "") -> None:
        """Add one of severity "warning"."""
        self.all.append(Finding("warning", check, what, trial, remedy))

    def note(self, check: str, what: str, trial: str = "", remedy: str = "") -> None:
        """Add one of severity "note"."""
        self.all.append(Finding("note", check, what, trial, remedy))

    @property
    def errors(self) -> list[Finding]:
        """Those of severity "error"."""
        return [finding for finding in self.all if finding.severity == "error"]
