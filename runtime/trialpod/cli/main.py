"""The `trialpod` command: finds the sub-command, runs it, and turns what goes wrong into a message and a status.

Only the chosen sub-command is imported. Sub-commands come from the entry points of the group `trialpod.commands`;
those of trialpod itself are also named here, with their help lines, so that neither `trialpod run` nor
`trialpod --help` has to search the metadata of everything that is installed for them.

Exit statuses: 0 done; 1 the work failed; 2 the user's input cannot be used; 130 interrupted. A user never sees a
traceback for a mistake of their own, unless `--verbose` or TRIALPOD_DEBUG=1 asks for it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from trialpod.cli.command import Command
from trialpod.cli.program import remember
from trialpod.errors import InvalidInputError, TrialpodError, nearest
from trialpod.missing import install_command

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from importlib.metadata import EntryPoint

GROUP = "trialpod.commands"
BUILT_IN = {
    "init": (
        "trialpod_operator.commands.init:command",
        "write a small working example: train.py and experiment.yaml",
    ),
    "run": ("trialpod_operator.commands.run:command", "run an experiment on this machine, or go on with it"),
    "validate": ("trialpod_operator.commands.validate:command", "check manifests without running anything"),
    "results": (
        "trialpod_operator.commands.results:results_command",
        "show the trials of an experiment: a directory, a URI, or by name in a cluster",
    ),
    "best": (
        "trialpod_operator.commands.results:best_command",
        "show the best trial of an experiment: a directory, a URI, or by name in a cluster",
    ),
    "checkpoints": (
        "trialpod_operator.commands.stored:checkpoints_command",
        "list the checkpoints of an experiment or a trial",
    ),
    "explain": (
        "trialpod_operator.commands.stored:explain_command",
        "say why a trial was stopped, paused, retried or told to follow another one",
    ),
    "fsck": (
        "trialpod_operator.commands.stored:fsck_command",
        "check that nothing of an experiment is lost, damaged or contradictory",
    ),
    "download": (
        "trialpod_operator.commands.stored:download_command",
        "copy checkpoints to this machine, verified",
    ),
    "list": (
        "trialpod_operator.commands.list:command",
        "list the experiments on this machine and in a cluster",
    ),
    "status": (
        "trialpod_operator.commands.status:command",
        "show the state of an experiment: a directory, a URI, or by name in a cluster",
    ),
    "why": (
        "trialpod_operator.commands.why:command",
        "say why an experiment does not proceed or has failed, and what to do",
    ),
    "logs": ("trialpod_operator.commands.logs:command", "show what a trial printed"),
    "suspend": (
        "trialpod_operator.commands.control:suspend_command",
        "have an experiment checkpoint and pause",
    ),
    "resume": (
        "trialpod_operator.commands.control:resume_command",
        "resume a suspended experiment in a cluster",
    ),
    "stop": (
        "trialpod_operator.commands.control:stop_command",
        "stop an experiment, or one trial in a cluster, gracefully",
    ),
    "completion": (
        "trialpod.cli.completion:command",
        "print a script that completes commands in bash, zsh or fish",
    ),
    "check": (
        "trialpod_operator.commands.check:command",
        "find out whether experiments can run in a cluster",
    ),
    "submit": (
        "trialpod_operator.commands.submit:command",
        "start an experiment in a cluster: a manifest, or a script",
    ),
    "retry": (
        "trialpod_operator.commands.control:retry_command",
        "try failed trials of an experiment in a cluster again",
    ),
    "delete": (
        "trialpod_operator.commands.control:delete_command",
        "delete an experiment in a cluster, and say what becomes of its data",
    ),
    "operator": ("trialpod_operator.commands.operator:command", "run the Kubernetes operator"),
}
"""The sub-commands of this distribution: entry point and help line."""

FIRST_OF_CLUSTER = "check"
"""In the help the sub-commands for clusters come under a heading of their own, from this one on."""

INTERRUPTED = 130
_USAGE = "usage: trialpod [--version] [-h] [-v] COMMAND ..."


class CommandUnavailableError(TrialpodError):
    """A sub-command is installed, but something that it needs is not."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: the arguments after the program's name; default: those of this process.
    """
    remember()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("TRIALPOD_DEBUG", "") not in ("", "0")
    leading = 0
    try:
        while arguments and arguments[0] in ("-v", "--verbose"):
            leading += 1
            del arguments[0]
        status = _dispatch(arguments, leading)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader (`| head`) has gone. What is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except TrialpodError as error:
        if debug or leading or _verbose_flag(arguments):
            from traceback import print_exception

            print_exception(error)
        print(f"trialpod: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInputError | CommandUnavailableError) else 1


def _verbose_flag(arguments: Sequence[str]) -> bool:
    """Return whether the sub-command was given -v; it need not know the option for that."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(argument == "--verbose" or re.fullmatch("-v+", argument) for argument in before)


def _dispatch(arguments: list[str], verbosity: int) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[0] == "help":
            return _run(arguments[1], ["--help"], verbosity)
        _print_help()
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from trialpod import __version__

        print(f"trialpod {__version__}")
        return 0
    if arguments[0].startswith("-"):
        raise InvalidInputError(f"unknown option {arguments[0]}\n{_USAGE}")
    return _run(arguments[0], arguments[1:], verbosity)


def _run(name: str, arguments: list[str], verbosity: int) -> int:
    command = load_command(name)
    parser = parser_of(command)
    try:
        namespace = _parsed(parser, arguments)
    except SystemExit as end:  # argparse has said what was wrong
        return end.code if isinstance(end.code, int) else 2
    namespace.verbose += verbosity
    try:
        return command.run(namespace)
    except ModuleNotFoundError as error:  # what a command imports only when it needs it
        if install_command(error.name or "") is None:
            raise
        _unavailable(name, error)


def _parsed(parser: ArgumentParser, arguments: list[str]) -> Namespace:
    """Parse; what follows ``--`` goes to the positional arguments ``args``, of a script, wherever options stand."""
    if "--" not in arguments:
        return parser.parse_args(arguments)
    split = arguments.index("--")
    if not any(action.dest == "args" for action in parser._actions):  # noqa: SLF001 - it has no public list
        return parser.parse_args(arguments)
    namespace = parser.parse_args(arguments[:split])
    namespace.args = [*namespace.args, *arguments[split + 1 :]]
    return namespace


def parser_of(command: Command) -> ArgumentParser:
    """Return the parser of a sub-command's arguments."""
    from argparse import ArgumentParser

    parser = ArgumentParser(
        prog=f"trialpod {command.name}",
        description=f"{command.help[:1].upper()}{command.help[1:]}.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more, and show tracebacks")
    command.configure(parser)
    return parser


def load_command(name: str) -> Command:
    """Import one sub-command.

    Raises:
        InvalidInputError: there is none of that name.
        CommandUnavailableError: it is there, but cannot be imported.
    """
    if name in BUILT_IN:
        target = BUILT_IN[name][0]
    else:
        installed = _entry_points()
        if name not in installed:
            guess = nearest(name, [*BUILT_IN, *installed])
            hint = f"did you mean `trialpod {guess}`?" if guess else "`trialpod --help` lists the commands."
            raise InvalidInputError(f'there is no command "{name}"; {hint}')
        target = installed[name].value
    module, _, attribute = target.partition(":")
    try:
        loaded: object = getattr(import_module(module), attribute)
    except ImportError as error:
        _unavailable(name, error)
    if not isinstance(loaded, Command):
        raise CommandUnavailableError(
            f"`trialpod {name}`: {target} is not a trialpod Command; its package is at fault"
        )
    return loaded


def _unavailable(name: str, error: ImportError) -> NoReturn:
    install = install_command(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if install is not None:
        raise CommandUnavailableError(
            f"`trialpod {name}` needs the package {error.name!r}, which is not installed; install it with: {install}"
        ) from error
    if name in BUILT_IN:
        advice = "the installation is incomplete: pip install --force-reinstall trialpod"
    else:
        advice = "is the package that it comes from installed completely?"
    raise CommandUnavailableError(f"`trialpod {name}` cannot start: {error}; {advice}") from error


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _print_help() -> None:
    others = sorted(_entry_points().keys() - BUILT_IN.keys())
    names = list(BUILT_IN)
    in_cluster = names[names.index(FIRST_OF_CLUSTER) :]
    lines = [
        _USAGE,
        "",
        "Hyperparameter tuning: trials as pods on Kubernetes, or as processes on this machine.",
        "",
        "commands:",
        *(f"  {name:<12}{help_line}" for name, (_, help_line) in BUILT_IN.items() if name not in in_cluster),
        "",
        "commands for a cluster:",
        *(f"  {name:<12}{BUILT_IN[name][1]}" for name in in_cluster),
        *(f"  {name:<12}(installed by {_distribution(name)})" for name in others),
        "",
        "options:",
        "  -h, --help     show this help; `trialpod COMMAND --help` shows a command's",
        "  -v, --verbose  say more, and show tracebacks",
        "  --version      show the version",
    ]
    print("\n".join(lines))


def _distribution(name: str) -> str:
    distribution = _entry_points()[name].dist
    return distribution.name if distribution is not None else "another package"
