"""The status of a TuneExperiment as typed models, and what both kinds' statuses are made of.

Written by the operator only. Nothing here grows with the number of trials or results: per-trial data is in the
TuneTrials, series are in the storage. What is absent is unknown or does not apply; the encoded form is the whole
status, so each writer replaces the old one (a field that went away is simply no longer in it). Numbers that a
user's code reported are text, see `format_value`. Fields are only ever added, and readers ignore those that they do
not know.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from trialpod_operator.api import reasons

NEVER_OBSERVED = -1
"""`observedGeneration` of an object that no operator has seen yet."""

Time = Annotated[str, Meta(extra={"format": "date-time"})]
Number = Annotated[str, Meta(max_length=64)]
Count = Annotated[int, Meta(ge=0)]
Params = dict[str, Any]


class StatusModel(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """Base of all parts of a status."""


class Condition(StatusModel, frozen=True, kw_only=True):
    """One observation of an object, in the usual form of Kubernetes."""

    type: Annotated[
        str,
        Meta(
            description="What is observed, such as Ready or Stalled.",
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        ),
    ]
    status: Annotated[
        Literal["True", "False", "Unknown"], Meta(description="Whether it is so: True, False or Unknown.")
    ]
    reason: Annotated[
        str,
        Meta(
            description=f"Why, as one word for programs:{reasons.explain('condition')}",
            min_length=1,
            max_length=1024,
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
    ]
    message: Annotated[str, Meta(description="Why, and what to do about it, for people.", max_length=32768)]
    last_transition_time: Annotated[Time, Meta(description="When status last changed.")]
    observed_generation: Annotated[
        Count | None, Meta(description="The metadata.generation for which this was found.")
    ] = None


class Waiting(StatusModel, frozen=True, kw_only=True):
    """Why trials that should run do not run."""

    reason: Annotated[
        str, Meta(description=f"What is waited for, as one word for programs:{reasons.explain('waiting')}")
    ]
    message: Annotated[str, Meta(description="What is waited for, in words, with the next step.", max_length=32768)]
    count: Annotated[Count, Meta(description="How many trials wait for it.")] = 1
    since: Annotated[Time | None, Meta(description="Since when; of several, the first.")] = None


class TrialCounts(StatusModel, frozen=True, kw_only=True):
    """How many trials there are, by state."""

    pending: Annotated[
        Count, Meta(description="Trials that are queued, or wait for a retry or for their pod to run.")
    ]
    starting: Annotated[
        Count, Meta(description="Those of the pending ones whose pod was created and does not run yet.")
    ] = 0
    running: Annotated[Count, Meta(description="Trials whose process runs.")]
    paused: Annotated[Count, Meta(description="Trials that the scheduler or a suspension holds back.")]
    terminated: Annotated[Count, Meta(description="Trials that ended well, or were stopped early.")]
    error: Annotated[Count, Meta(description="Trials that failed for good.")]
    done: Annotated[Count, Meta(description="Trials that ended: terminated and error.")]
    total: Annotated[Count | None, Meta(description="Trials in all; absent when there is no limit.")] = None
    progress: Annotated[
        str, Meta(description='done and total for people, such as "12/40"; "12" without a limit.')
    ] = ""


class RepeatsStatus(StatusModel, frozen=True, kw_only=True):
    """What the repeats of a config showed."""

    mean: Annotated[Number, Meta(description="Mean of their values; text.")]
    spread: Annotated[Number | None, Meta(description="Their standard deviation; absent for a single one.")] = None
    number: Annotated[Count, Meta(description="How many they are.")]


class BestTrial(StatusModel, frozen=True, kw_only=True):
    """The trial whose latest result is the best so far."""

    trial: Annotated[str, Meta(description="Name of its TuneTrial.")]
    trial_id: Annotated[str, Meta(description="Its id.")]
    value: Annotated[Number, Meta(description="Value of spec.metric in its latest result that has it; text.")]
    iteration: Annotated[Count, Meta(description="training_iteration of its latest result.")] = 0
    repeats: Annotated[RepeatsStatus | None, Meta(description="What its repeats showed, by which it was chosen.")] = (
        None
    )
    params: Annotated[Params, Meta(description="Its parameters.")] = {}
    checkpoint: Annotated[str | None, Meta(description="URI of its newest checkpoint.")] = None


class FrontTrial(StatusModel, frozen=True, kw_only=True):
    """A trial of the Pareto front."""

    trial: Annotated[str, Meta(description="Name of its TuneTrial.")]
    trial_id: Annotated[str, Meta(description="Its id.")]
    values: Annotated[
        dict[str, str], Meta(description="Values of spec.metrics in its latest result that has all of them; text.")
    ]


Hours = Annotated[str, Meta(max_length=32)]


class ResourceHours(StatusModel, frozen=True, kw_only=True):
    """Hours of one resource that attempts took, and what came of them; of what is counted in bytes, GiB-hours."""

    used: Annotated[
        Hours, Meta(description="Taken by attempts that have ended. More than the sum below by what is undecided.")
    ] = "0"
    useful: Annotated[Hours, Meta(description="Of trials that came to their end.")] = "0"
    stopped: Annotated[Hours, Meta(description="Of trials that were stopped early.")] = "0"
    lost: Annotated[
        Hours, Meta(description="Done again, because an attempt was interrupted before it had saved.")
    ] = "0"
    failed: Annotated[Hours, Meta(description="Of attempts that failed, and of trials in ERROR.")] = "0"


class BudgetStatus(StatusModel, frozen=True, kw_only=True):
    """How a budget of hours that is planned stands."""

    unit: Annotated[Literal["GPU", "trial"], Meta(description="What the hours are of: GPU or trial.")]
    limit: Annotated[Hours | None, Meta(description="Hours of the budget; absent without one.")] = None
    used: Annotated[Hours, Meta(description="Hours that attempts have taken, those that run included.")] = "0"
    left: Annotated[Hours | None, Meta(description="Hours that are left; absent without a budget.")] = None
    reserved: Annotated[Hours | None, Meta(description="Hours that are kept to train the best trial to its end.")] = (
        None
    )
    expected_gain: Annotated[
        Number | None,
        Meta(description="By how much the next hour is expected to improve the metric; absent while unknown."),
    ] = None
    message: Annotated[str, Meta(description="All of it in words.", max_length=1024)] = ""


class TuneExperimentStatus(StatusModel, frozen=True, kw_only=True):
    """What has become of an experiment; written by the operator."""

    observed_generation: Annotated[
        int, Meta(description="The metadata.generation that this status is about; -1 before the first look.")
    ]
    conditions: Annotated[
        list[Condition],
        Meta(
            description="Ready (valid, and running or succeeded), Stalled (cannot continue without help), "
            "Suspended, Succeeded and Failed.",
            max_length=16,
        ),
    ] = []
    message: Annotated[str, Meta(description="The state of the experiment, in one sentence.", max_length=32768)] = ""
    trials: Annotated[TrialCounts | None, Meta(description="How many trials there are, by state.")] = None
    failures: Annotated[
        Count | None, Meta(description="Attempts that ended by the fault of their own code or limits.")
    ] = None
    disruptions: Annotated[
        Count | None,
        Meta(
            description="Attempts that the cluster ended: preemption, drain, loss of a node. They never fail a trial."
        ),
    ] = None
    best: Annotated[BestTrial | None, Meta(description="The best trial so far.")] = None
    pareto_front: Annotated[
        list[FrontTrial],
        Meta(
            description="With several metrics: trials that meet all thresholds and that no other one dominates, "
            "the best in the first metric first; 25 of them at most.",
            max_length=25,
        ),
    ] = []
    resources: Annotated[
        dict[str, ResourceHours],
        Meta(
            description="Hours that trials have taken: of trial (each attempt counts 1), of cpu, memory and devices.",
            max_length=32,
        ),
    ] = {}
    budget: Annotated[
        BudgetStatus | None,
        Meta(
            description="What of the budget is used; with algorithm auto and a budget of hours, or stopWhenNotWorth."
        ),
    ] = None
    waiting: Annotated[
        Waiting | None, Meta(description="Why trials that should run do not run; absent when none waits.")
    ] = None
    start_time: Annotated[
        Time | None,
        Meta(
            description="When the operator started it. From then on most fields of spec cannot change, and "
            "spec.trainable only while `trainableFixed` is false."
        ),
    ] = None
    trainable_fixed: Annotated[
        bool | None,
        Meta(
            description="Whether spec.trainable cannot change any more, because a trial has reported a result (with "
            "spec.metric, where there is one) or saved a checkpoint. False while spec.trainable is not what "
            "trials run, so that it can be changed back."
        ),
    ] = None
    completion_time: Annotated[Time | None, Meta(description="When it ended.")] = None
    seed: Annotated[Count | None, Meta(description="The seed in use: spec.seed, or the one chosen at the start.")] = (
        None
    )
    storage_uri: Annotated[str | None, Meta(description="Where its results and checkpoints are.")] = None
    retried: Annotated[
        Annotated[str, Meta(max_length=16384)] | None,
        Meta(
            description="The value of the annotation trialpod.dev/retry that was acted on last: failed trials are "
            "retried once for each new value."
        ),
    ] = None


def format_hours(hours: float) -> str:
    """Return hours as a status holds them: text, to the second."""
    return f"{hours:.4f}".rstrip("0").rstrip(".")


def format_value(value: float | None) -> str | None:
    """Return a reported number as a status holds it: text of at most 8 significant digits; None stays None.

    JSON knows neither NaN nor infinities, encoders disagree about floats (a status must not differ after one round
    trip), and a column of `kubectl get` should be readable. The exact number is in the storage.
    """
    if value is None:
        return None
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return format(value, ".8g")


def format_time(seconds: float) -> str:
    """Return a time as Kubernetes writes it: RFC 3339, UTC, whole seconds.

    Args:
        seconds: since the epoch.
    """
    return dt.datetime.fromtimestamp(int(seconds), dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
