"""A manifest's command as the trials get it, and a script's as manifests have it."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from trialpod.protocol.command import DEFAULT_GRACE_S, CheckpointFolderSpec, CommandSpec, MetricsSpec
from trialpod_operator.api.duration import parse_duration
from trialpod_operator.api.models import CommandCheckpoints, CommandMetrics, TrainableSpec

FIELDS = (
    "env", "resumeArgs", "parametersFile", "parameterEnvPrefix", "workingDir", "gracePeriod", "atHorizon",
    "metricsFrom", "checkpointFolder",
)  # fmt: skip
"""The fields of a Trainable that go only with a command."""


def command_of(trainable: TrainableSpec) -> CommandSpec | None:
    """Return the command that a Trainable is, None for another kind."""
    if trainable.command is None:
        return None
    metrics, checkpoints = trainable.metrics_from, trainable.checkpoint_folder
    return CommandSpec(
        command=trainable.command,
        env=trainable.env,
        resume_args=trainable.resume_args,
        parameters_file=trainable.parameters_file or "",
        parameter_env_prefix=trainable.parameter_env_prefix or "",
        working_dir=trainable.working_dir or "",
        grace_s=DEFAULT_GRACE_S if trainable.grace_period is None else parse_duration(trainable.grace_period),
        at_horizon=trainable.at_horizon,
        metrics=MetricsSpec(
            format=metrics.format,
            pattern=metrics.pattern or "",
            names=metrics.names,
            step=metrics.step or "",
            file=metrics.file or "",
            tensorboard=metrics.tensorboard or "",
            mlflow=metrics.mlflow or "",
            prometheus=metrics.prometheus or "",
            interval_s=float(metrics.interval_seconds),
        ),
        checkpoints=CheckpointFolderSpec(
            ready_file=checkpoints.ready_file or "", settle_s=float(checkpoints.settle_seconds)
        ),
    )


def manifest_of(spec: CommandSpec) -> dict[str, Any]:
    """Return a command as `spec.trainable`, with only what differs from the defaults.

    Whole seconds are what manifests have for `intervalSeconds` and `settleSeconds`: they are rounded up.
    """
    metrics, checkpoints = spec.metrics, spec.checkpoints
    grace = round(max(spec.grace_s, 0.001), 3)
    made = TrainableSpec(
        command=spec.command,
        env=spec.env,
        resume_args=spec.resume_args,
        parameters_file=spec.parameters_file or None,
        parameter_env_prefix=spec.parameter_env_prefix or None,
        working_dir=spec.working_dir or None,
        grace_period=None if grace == DEFAULT_GRACE_S else int(grace) if grace == int(grace) else f"{grace}s",
        at_horizon=spec.at_horizon,
        metrics_from=CommandMetrics(
            format=metrics.format,
            pattern=metrics.pattern or None,
            names=metrics.names,
            step=metrics.step or None,
            file=metrics.file or None,
            tensorboard=metrics.tensorboard or None,
            mlflow=metrics.mlflow or None,
            prometheus=metrics.prometheus or None,
            interval_seconds=max(1, math.ceil(metrics.interval_s)),
        ),
        checkpoint_folder=CommandCheckpoints(
            ready_file=checkpoints.ready_file or None, settle_seconds=max(1, math.ceil(checkpoints.settle_s))
        ),
    )
    return {name: value for name, value in msgspec.to_builtins(made).items() if value != {}}
