"""`ResumeConfig`: which trials go on when an experiment is taken up again."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from trialpod.errors import InvalidInputError, NotSupportedError, nearest


class ResumeType(enum.Enum):
    """What becomes of a trial."""

    RESUME = "resume"  # it goes on from its newest checkpoint
    RESTART = "restart"  # it starts anew
    SKIP = "skip"  # it stays as it is


_Kind = ResumeType  # the class below has an attribute of that name


@dataclass
class ResumeConfig:
    """Which trials go on when an experiment is taken up again.

    Args:
        finished: for trials that came to their end; only SKIP is supported.
        unfinished: for trials that were interrupted; RESUME or SKIP.
        errored: for trials that failed; any.

    Raises:
        InvalidInputError: an argument is no `ResumeConfig.ResumeType`.
        NotSupportedError: finished trials are to run again, or unfinished ones are to start anew.
    """

    ResumeType = ResumeType

    finished: _Kind = ResumeType.SKIP
    unfinished: _Kind = ResumeType.RESUME
    errored: _Kind = ResumeType.SKIP

    def __post_init__(self) -> None:
        for argument in ("finished", "unfinished", "errored"):
            setattr(self, argument, _resume_type(argument, getattr(self, argument)))
        if self.finished is not ResumeType.SKIP:
            raise NotSupportedError(
                f"ResumeConfig(finished={self.finished.name}): trials that have ended cannot run again; start "
                "another experiment with their configs, or give this one a higher num_samples"
            )
        if self.unfinished is ResumeType.RESTART:
            raise NotSupportedError(
                "ResumeConfig(unfinished=RESTART): interrupted trials go on from their newest checkpoints (from the "
                "beginning when they have none), or stay as they are: RESUME or SKIP"
            )


def _resume_type(argument: str, value: object) -> ResumeType:
    if isinstance(value, ResumeType):
        return value
    if isinstance(value, str) and value.upper() in ResumeType.__members__:
        return ResumeType[value.upper()]
    guess = nearest(value, ResumeType.__members__) if isinstance(value, str) else None
    raise InvalidInputError(
        f"ResumeConfig({argument}={value!r}): must be ResumeConfig.ResumeType.RESUME, RESTART or SKIP"
        + (f" (did you mean {guess}?)" if guess else "")
    )
