"""What the engine must know of an experiment's spec."""

from __future__ import annotations

from typing import Literal

import msgspec

from trialpod.protocol.messages import CheckpointRules, StopRule
from trialpod.tune.plugins.objectives import Objective
from trialpod_operator.engine.vocabulary import MANIFEST, SCRIPT, Vocabulary

BUDGET_FIELDS = frozenset(
    {
        "num_samples",
        "max_concurrent",
        "time_budget_s",
        "progress_deadline_s",
        "max_trial_hours",
        "max_gpu_hours",
        "plans_budget",
        "stop_when_not_worth",
        "repeats",
        "max_failures",
        "fail_fast",
        "strict_metric",
        "stop_rules",
        "checkpoint_rules",
    }
)
"""The settings that may change while an experiment runs, or when it is extended later. The last two apply to the
attempts that start afterwards; in a cluster the API server refuses a change of them."""


class RepeatRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The final re-evaluation, see `repeats`."""

    top: int  # of the best trials so many
    times: int  # so often each
    seed_parameter: str | None = None  # a parameter that differs between repeats


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's view of one experiment's spec."""

    name: str
    trainable_name: str
    metric: str | None = None
    mode: Literal["max", "min"] = "max"
    objectives: list[Objective] = []  # of a list of metrics; the first one is `metric` and `mode` as well
    num_samples: int = 1  # times the grid; -1 = no limit
    max_concurrent: int | None = None
    time_budget_s: float | None = None
    progress_deadline_s: float | None = None  # maximum time without a report, in seconds; then the attempt fails
    max_trial_hours: float | None = None  # of all attempts together, see `accounting`
    max_gpu_hours: float | None = None
    plans_budget: bool = False  # trials are held back so that the winner can be trained to its end, see `budget_plan`
    repeats: RepeatRules | None = None
    stop_when_not_worth: float | None = None  # least expected gain of the metric per hour
    max_failures: int = 0  # retries of one trial; -1 = no limit
    fail_fast: bool = False
    strict_metric: bool = True  # a trial that never reports `metric` has failed
    reuse: bool = False
    stop_rules: list[StopRule] = []
    checkpoint_rules: CheckpointRules = msgspec.field(default_factory=CheckpointRules)
    from_script: bool = False  # of a Tuner, not of a manifest: remedies speak Python

    @property
    def vocabulary(self) -> Vocabulary:
        """The words for what the user may change."""
        return SCRIPT if self.from_script else MANIFEST

    def fixed_differences(self, other: Settings) -> list[str]:
        """Return the names of the fields that differ from `other` and must not."""
        return [
            field
            for field in self.__struct_fields__
            if field not in BUDGET_FIELDS and getattr(self, field) != getattr(other, field)
        ]
