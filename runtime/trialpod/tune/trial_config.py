"""What a user configures of single trials: checkpoints, failures, and which of them a restored experiment resumes.

Invariants: those of `trialpod.tune.config`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from trialpod.errors import InvalidInputError, NotSupportedError, nearest, refuse_stand_ins
from trialpod.tune.arguments import choose, is_int, names_nearest, plain_int, refuse


@names_nearest
@dataclass
class CheckpointConfig:
    """Which checkpoints a trial keeps, and when a class Trainable writes them by itself.

    Args:
        num_to_keep: how many checkpoints of a trial to keep, at least 1; None keeps all. The newest is always kept,
            even when it is not among the best.
        checkpoint_score_attribute: the metric that tells which ones are best; None means the newest are.
        checkpoint_score_order: "max" or "min".
        checkpoint_frequency: every how many training iterations a class Trainable is checkpointed; 0 is never.
        checkpoint_at_end: whether a class Trainable is checkpointed when its trial ends. None means: with
            `Tuner`, yes if the class implements `save_checkpoint`, and with `tune.run`, no. (Ray's `Tuner` means yes
            for every class, which makes a class without `save_checkpoint` fail at its end.)

    Raises:
        InvalidInputError: an argument has a value that it cannot have.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        self.num_to_keep = plain_int(self.num_to_keep)
        self.checkpoint_frequency = plain_int(self.checkpoint_frequency)
        self.validate()

    def validate(self) -> None:
        """Raise InvalidInputError for a value that cannot work."""
        where = "CheckpointConfig"
        refuse_stand_ins(*vars(self).values())
        if self.num_to_keep is not None and (not is_int(self.num_to_keep) or self.num_to_keep < 1):
            refuse(where, "num_to_keep", self.num_to_keep, "an integer of at least 1, or None to keep all")
        attribute = self.checkpoint_score_attribute
        if attribute is not None and (not isinstance(attribute, str) or not attribute):
            refuse(where, "checkpoint_score_attribute", attribute, "the name of a metric, or None")
        choose(where, "checkpoint_score_order", self.checkpoint_score_order, ("max", "min"))
        if not is_int(self.checkpoint_frequency) or self.checkpoint_frequency < 0:
            refuse(
                where,
                "checkpoint_frequency",
                self.checkpoint_frequency,
                "an integer of at least 0 (0 = never)",
            )
        if self.checkpoint_at_end not in (None, True, False):
            refuse(where, "checkpoint_at_end", self.checkpoint_at_end, "True, False or None")


@names_nearest
@dataclass
class FailureConfig:
    """What happens when a trial fails. Preemptions and lost nodes are not failures and never count.

    Args:
        max_failures: how often one trial may fail and be retried, from its newest checkpoint; -1 is without
            limit.
        fail_fast: True ends the experiment at the first trial that failed for good; "raise" does so and raises
            the trial's error from `Tuner.fit`.

    Raises:
        InvalidInputError: an argument has a value that it cannot have, or both are used together.
    """

    max_failures: int = 0
    fail_fast: bool | Literal["raise"] = False

    def __post_init__(self) -> None:
        self.max_failures = plain_int(self.max_failures)
        if isinstance(self.fail_fast, str) and self.fail_fast.lower() == "raise":
            self.fail_fast = "raise"  # Ray takes it in any case
        self.validate()

    def validate(self) -> None:
        """Raise InvalidInputError for a value that cannot work."""
        where = "FailureConfig"
        refuse_stand_ins(*vars(self).values())
        if not is_int(self.max_failures) or self.max_failures < -1:
            refuse(where, "max_failures", self.max_failures, "an integer of at least -1 (-1 = without limit)")
        if not isinstance(self.fail_fast, bool) and self.fail_fast != "raise":
            refuse(where, "fail_fast", self.fail_fast, "True, False or 'raise'")
        if self.fail_fast and self.max_failures != 0:
            raise InvalidInputError(
                f"FailureConfig(fail_fast={self.fail_fast!r}, max_failures={self.max_failures!r}): an experiment "
                "that ends at the first failure cannot retry trials; leave max_failures at 0 or fail_fast at False"
            )


class ResumeType(enum.Enum):
    """What becomes of a trial."""

    RESUME = "resume"  # it resumes from its newest checkpoint
    RESTART = "restart"  # it starts again
    SKIP = "skip"  # it stays as it is


_Kind = ResumeType  # the class below has an attribute of that name


@dataclass
class ResumeConfig:
    """Which trials continue when an experiment is resumed.

    Args:
        finished: for trials that came to their end; only SKIP is supported.
        unfinished: for trials that were interrupted; RESUME or SKIP.
        errored: for trials that failed; any.

    Raises:
        InvalidInputError: an argument is no `ResumeConfig.ResumeType`.
        NotSupportedError: finished trials are to run again, or unfinished ones are to start again.
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
                "ResumeConfig(unfinished=RESTART): interrupted trials resume from their newest checkpoints (from the "
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
