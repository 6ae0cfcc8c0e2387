"""A command as a Trainable, as it travels to an attempt: argument templates, where metrics come from, checkpoints.

What the texts mean is in `trialpod.tune.command`; this module only has their form.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MetricsFormat = Literal["auto", "text", "json", "csv", "none"]
AtHorizon = Literal["continue", "freeze"]

DEFAULT_GRACE_S = 30.0
"""From SIGTERM to SIGKILL of a command that has to end by a decision."""
DEFAULT_SETTLE_S = 2.0
"""How long the checkpoint folder must stay unchanged before it counts as whole."""


class _Part(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of the parts: keyword-only; an unknown field is refused."""


class MetricsSpec(_Part, kw_only=True, frozen=True):
    """Where the results of a command come from. The output is always read, unless `format` is "none"."""

    format: MetricsFormat = "auto"  # of the output: JSON objects and name=value pairs, or only one of them
    pattern: str = ""  # a regular expression with named groups, instead of `format`
    names: list[str] = []  # with it, a line with none of them and without the objective is ignored
    step: str = ""  # the value that is the iteration; "" = results are counted
    file: str = ""  # path template of a file of JSON lines, CSV or text
    tensorboard: str = ""  # path template of a folder with event files
    mlflow: str = ""  # path template of an MLflow file store
    prometheus: str = ""  # URL of metrics in Prometheus' text format
    interval_s: float = 5.0  # between two reads of `prometheus`


class CheckpointFolderSpec(_Part, kw_only=True, frozen=True):
    """When what a command keeps in TRIALPOD_CHECKPOINT_DIR counts as a checkpoint."""

    ready_file: str = ""  # a checkpoint is complete each time this file in the folder is written
    settle_s: float = DEFAULT_SETTLE_S  # without a ready file: time without a change, in seconds


class CommandSpec(_Part, kw_only=True, frozen=True):
    """One command."""

    command: list[str]  # argument templates; never given to a shell
    env: dict[str, str] = {}  # variable -> template
    resume_args: list[str] = []  # appended when the command starts from a checkpoint
    parameters_file: str = ""  # path template of a JSON or YAML file to write the parameters to
    parameter_env_prefix: str = ""  # each parameter is the variable PREFIX + NAME too
    working_dir: str = ""  # path template; "" = where the experiment was started (in a pod: the image's)
    grace_s: float = DEFAULT_GRACE_S
    at_horizon: AtHorizon = "continue"
    metrics: MetricsSpec = MetricsSpec()
    checkpoints: CheckpointFolderSpec = CheckpointFolderSpec()
