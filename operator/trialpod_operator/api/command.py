"""A manifest's command as the trials get it."""

from __future__ import annotations

from trialpod.protocol.command import DEFAULT_GRACE_S, CheckpointFolderSpec, CommandSpec, MetricsSpec
from trialpod_operator.api.duration import parse_duration
from trialpod_operator.api.models import TrainableSpec

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
