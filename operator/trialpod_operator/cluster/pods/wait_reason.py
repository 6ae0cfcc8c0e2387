"""Why something does not run, with the next step: what pods and refusals of the API server are translated into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["waiting", "stuck"]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Why something does not run.

    Attributes:
        reason: one word for programs.
        message: what it waits for.
        remedy: what to do.
        severity: `stuck` when waiting alone will not help.
        since: in seconds since the epoch, where that is known.
    """

    reason: str
    message: str
    remedy: str
    severity: Severity = "waiting"
    since: float | None = None

    @property
    def text(self) -> str:
        """The message with the remedy."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message
