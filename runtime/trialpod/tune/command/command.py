"""`tune.Command`: a program of any language as a Trainable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.protocol.command import DEFAULT_GRACE_S, AtHorizon, CheckpointFolderSpec, CommandSpec, MetricsSpec
from trialpod.tune.command.check import parameter_names, problems


class Command:
    """A program of any language as a Trainable: it gets its parameters as arguments, and its output is read.

    Args:
        command: the program and its arguments, such as ``["python", "train.py", "--lr={lr}"]``. Each is a template:
            ``{lr}`` is a parameter, ``{optimizer.lr}`` a nested one, ``{dropout=0.1}`` has a default; ``{{`` and
            ``}}`` are braces; ``{args}`` alone becomes ``--name=value`` for every parameter that nothing else names.
            Nothing is ever given to a shell.
        env: more environment variables, as templates.
        resume_args: arguments that follow when the program starts from a checkpoint.
        parameters_file: a file to write the parameters to, JSON or (.yaml) YAML; a template.
        parameter_env_prefix: with it, each parameter is the environment variable PREFIX + NAME too.
        working_dir: where the program runs; a template. Default: where the script was started.
        grace_s: seconds from SIGTERM to SIGKILL when a decision ends the program.
        at_horizon: "continue" lets the program run while a decision is waited for, "freeze" stops it meanwhile.
        metrics: where results come from: `format`, `pattern`, `names`, `step`, `file`, `tensorboard`, `mlflow`,
            `prometheus`, `interval_s`. Default: lines of the output.
        checkpoints: `ready_file` and `settle_s`: when the folder in TRIALPOD_CHECKPOINT_DIR is a whole checkpoint.
        name: what trials are called. Default: that of the program's file.

    Raises:
        InvalidInputError: an argument cannot be used.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        resume_args: Sequence[str] = (),
        parameters_file: str = "",
        parameter_env_prefix: str = "",
        working_dir: str = "",
        grace_s: float = DEFAULT_GRACE_S,
        at_horizon: AtHorizon = "continue",
        metrics: Mapping[str, Any] | None = None,
        checkpoints: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(command, str):
            raise InvalidInputError(
                f"Command({command!r}): must be a list, such as {command.split()!r}; no shell splits a text"
            )
        given = {
            "command": [os.fspath(argument) for argument in command],
            "env": dict(env or {}),
            "resume_args": list(resume_args),
            "parameters_file": os.fspath(parameters_file),
            "parameter_env_prefix": parameter_env_prefix,
            "working_dir": os.fspath(working_dir),
            "grace_s": grace_s,
            "at_horizon": at_horizon,
            "metrics": dict(metrics or {}),
            "checkpoints": dict(checkpoints or {}),
        }
        try:
            self.command_spec = msgspec.convert(given, CommandSpec)
        except msgspec.ValidationError as error:
            fields = {"metrics": MetricsSpec, "checkpoints": CheckpointFolderSpec}
            known = "; ".join(f"{key} has {', '.join(kind.__struct_fields__)}" for key, kind in fields.items())
            raise InvalidInputError(f"Command(...): {error}. {known}") from None
        self.__name__ = name or command_name(self.command_spec.command)
        self.check(None)

    @classmethod
    def of(cls, spec: CommandSpec) -> Command:
        """Return the Command of a manifest, which has been checked."""
        made = cls.__new__(cls)
        made.command_spec = spec
        made.__name__ = command_name(spec.command)
        return made

    def check(self, space: Mapping[str, Any] | None) -> None:
        """Refuse a command that cannot work with a search space; None = only the trials know their parameters.

        Raises:
            InvalidInputError: with the first problem and its remedy.
        """
        for problem in problems(self.command_spec, None if space is None else parameter_names(space)):
            raise InvalidInputError(f"Command(...): {problem}")

    def __call__(self, config: dict[str, Any]) -> None:
        """Refuse: a runner starts the program."""
        raise InvalidInputError("a Command runs as a trial only: Tuner(command, param_space=...).fit()")

    def __repr__(self) -> str:
        return f"Command({self.command_spec.command!r})"


_INTERPRETERS = ("python", "Rscript", "bash", "sh", "julia", "perl", "ruby", "node", "java", "env", "uv", "torchrun")


def command_name(command: Sequence[str]) -> str:
    """Return what the trials of a command are called: the script that an interpreter runs, or the program."""
    if not command:
        return "command"
    program = os.path.basename(command[0])
    if program.rstrip("0123456789.").startswith(_INTERPRETERS):
        for argument in command[1:]:
            if not argument.startswith("-") and "{" not in argument and "." in os.path.basename(argument):
                program = os.path.basename(argument)
                break
    stem = program.partition(".")[0] if not program.startswith(".") else program
    return "".join(character if character.isalnum() or character in "_-" else "_" for character in stem) or "command"
