"""The TuneTrial resource as typed models: one trial of an experiment, for people and tools that look at trials.

Made by the operator, which never reads its own decisions from here: those are in the experiment's journal. The only
thing that a user says in a TuneTrial is `stop`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from trialpod_operator.api.models import Model
from trialpod_operator.api.status_models import Condition, Count, Number, StatusModel, Time, Waiting

TRIAL_KIND = "TuneTrial"
PENDING = "PENDING"

TrialState = Literal["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]


class TuneTrialSpec(Model, frozen=True, kw_only=True):
    """One point of the search space. Written once by the operator; only stop can change."""

    experiment: Annotated[
        str, Meta(description="Name of the TuneExperiment that it belongs to.", min_length=1, max_length=63)
    ]
    trial_id: Annotated[
        str, Meta(description="Its id within the experiment, such as d75de_00012.", min_length=1, max_length=63)
    ]
    index: Annotated[int, Meta(ge=0, description="Its place in the order of creation, from 0.")]
    tag: Annotated[
        str, Meta(description="Its number and its drawn parameters, such as 3_lr=0.01.", max_length=1024)
    ] = ""
    params: Annotated[dict[str, Any], Meta(description="Its parameters.")] = msgspec.field(default_factory=dict)
    stop: Annotated[
        bool, Meta(description="Set it to true to stop this trial. It keeps its results, and does not start again.")
    ] = False


class LastDecision(StatusModel, frozen=True, kw_only=True):
    """The latest decision about a trial, with its evidence."""

    kind: Annotated[str, Meta(description="What was decided: continue, pause, stop or exploit.")]
    reason: Annotated[
        str, Meta(description="Who decided, as one word: scheduler, stopper, stop_rule, user and so on.")
    ]
    message: Annotated[str, Meta(description="The decision in one sentence.", max_length=32768)] = ""
    data: Annotated[
        dict[str, Any], Meta(description="The evidence: rung, value, cutoff and the like, as the algorithm gave it.")
    ] = msgspec.field(default_factory=dict)
    time: Annotated[Time | None, Meta(description="When it was made.")] = None


class TrialCheckpoint(StatusModel, frozen=True, kw_only=True):
    """A committed checkpoint."""

    name: Annotated[str, Meta(description="Its folder below the trial's, such as checkpoint_000003.")]
    iteration: Annotated[Count, Meta(description="training_iteration of the result that it belongs to.")]
    size: Annotated[Count, Meta(description="Its size in bytes.")] = 0


class TuneTrialStatus(StatusModel, frozen=True, kw_only=True):
    """What has become of a trial; written by the operator."""

    observed_generation: Annotated[
        int, Meta(description="The metadata.generation that this status is about; -1 before the first look.")
    ]
    state: Annotated[
        TrialState,
        Meta(
            description="PENDING, RUNNING, PAUSED, TERMINATED (ended, or stopped early) or ERROR (failed for good)."
        ),
    ]
    message: Annotated[
        str, Meta(description="The state of the trial, in one sentence; the error of a failed one.")
    ] = ""
    attempt: Annotated[Count, Meta(description="Number of the latest attempt, from 1; 0 = none yet.")]
    pod_name: Annotated[str | None, Meta(description="The pod of the latest attempt.")] = None
    node_name: Annotated[str | None, Meta(description="The node that this pod runs on, or ran on.")] = None
    iteration: Annotated[Count, Meta(description="training_iteration of the latest result.")]
    params: Annotated[
        dict[str, Any] | None, Meta(description="The parameters in use, once an exploit has changed them.")
    ] = None
    value: Annotated[
        Number | None, Meta(description="Value of the experiment's metric in the latest result that has it; text.")
    ] = None
    best_value: Annotated[Number | None, Meta(description="The best value of that metric so far; text.")] = None
    failures: Annotated[Count, Meta(description="Attempts that ended by the fault of their own code or limits.")]
    disruptions: Annotated[
        Count, Meta(description="Attempts that the cluster ended: preemption, drain, loss of a node.")
    ]
    restarts: Annotated[Count, Meta(description="Attempts that followed a failure or a disruption.")] = 0
    start_time: Annotated[Time | None, Meta(description="When the first attempt began.")] = None
    last_report_time: Annotated[
        Time | None,
        Meta(description="When its attempt last reported a result or a checkpoint, or began; while it runs."),
    ] = None
    completion_time: Annotated[Time | None, Meta(description="When the trial ended.")] = None
    last_decision: Annotated[LastDecision | None, Meta(description="The latest decision, with its evidence.")] = None
    waiting: Annotated[Waiting | None, Meta(description="Why it should run and does not.")] = None
    checkpoint: Annotated[TrialCheckpoint | None, Meta(description="The newest committed checkpoint.")] = None
    storage_uri: Annotated[str | None, Meta(description="Where its results and checkpoints are.")] = None
    conditions: Annotated[list[Condition], Meta(description="Ready, Succeeded and Failed.", max_length=16)] = (
        msgspec.field(default_factory=list)
    )


class TuneTrial(Model, frozen=True, kw_only=True):
    """One trial of a TuneExperiment."""

    api_version: Literal["trialpod.dev/v1alpha1"]
    kind: Literal["TuneTrial"]
    metadata: Annotated[dict[str, Any], Meta(description="The usual metadata of a Kubernetes object.")]
    spec: Annotated[TuneTrialSpec, Meta(description="One point of the search space.")]
    status: Annotated[TuneTrialStatus | None, Meta(description="What has become of it.")] = None
