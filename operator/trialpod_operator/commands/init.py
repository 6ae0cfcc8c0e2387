"""`trialpod init`: write a small experiment that runs as it is. It never overwrites a file without `--force`."""

from __future__ import annotations

import argparse
import shlex
from importlib import resources
from pathlib import Path

from trialpod.cli.command import Command
from trialpod.cli.program import program
from trialpod.errors import InvalidInputError

FILES = ("train.py", "experiment.yaml", "README.md")


def write_example(directory: Path, *, force: bool, command: bool = False) -> list[Path]:
    """Write the example's files and return their paths.

    Args:
        directory: Where to; made when it does not exist.
        force: Overwrite files that exist.
        command: The example whose Trainable is a command.

    Raises:
        InvalidInputError: A file is in the way, or the directory cannot be written; nothing was written then.
    """
    targets = [directory / name for name in FILES]
    in_the_way = [target.name for target in targets if target.exists() or target.is_symlink()]
    if in_the_way and not force:
        raise InvalidInputError(
            f"{directory} already has {', '.join(in_the_way)}; nothing was written. "
            "Name another directory, or add --force to overwrite"
        )
    templates = resources.files("trialpod_operator.local") / "templates"
    if command:
        templates /= "command"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for target in targets:
            target.write_bytes((templates / target.name).read_bytes())
    except OSError as error:
        where = error.filename or directory
        raise InvalidInputError(f"cannot write {where}: {error.strerror or error}") from error
    return targets


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "directory", nargs="?", default=".", metavar="DIR", help="folder to write into (default: the current one)"
    )
    parser.add_argument("--command", action="store_true", help="for a program that does not import trialpod")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def run(options: argparse.Namespace) -> int:
    """Write the files and say what to do next."""
    directory = Path(options.directory)
    for path in write_example(directory, force=options.force, command=options.command):
        print(f"wrote {path}")
    step = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    print(f"\nnext: {step}{program()} run experiment.yaml")
    return 0


command = Command(
    name="init", help="write a small working example: train.py and experiment.yaml", configure=configure, run=run
)
