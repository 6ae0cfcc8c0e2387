"""The `trialpod` command: finds the sub-command, runs it, and turns what goes wrong into a message and a status.

trialpod's own sub-commands are the modules of `trialpod_operator.commands` with an attribute `command`; those of
other packages are entry points of the group `trialpod.commands`. Only the chosen one is imported, none for the list
of commands. The metadata of what is installed is read only where no module has the name: importing
`importlib.metadata` costs 60 ms.

Exit statuses: 0 done; 130 interrupted; else the `exit_status` of the error: 1 the work failed, 2 the user's input
cannot be used. A user never sees a traceback for a mistake of their own, unless `--verbose` or TRIALPOD_DEBUG=1 asks
for it.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from trialpod import __version__, variables
from trialpod.cli.command import Command
from trialpod.cli.program import remember
from trialpod.errors import InvalidInputError, TrialpodError, nearest
from trialpod.missing import install_command

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "trialpod.commands"
PACKAGE = "trialpod_operator.commands"
INTERRUPTED, BROKEN_PIPE = 130, 141


class CommandUnavailableError(TrialpodError):
    """A sub-command is installed, but something that it needs is not."""

    exit_status = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: the arguments after the program's name; default: those of this process.
    """
    remember()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader (`| head`) has gone. What is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except TrialpodError as error:
        if variables.shows_tracebacks(os.environ.get(variables.DEBUG, "")) or _verbose_flag(arguments):
            from traceback import print_exception

            print_exception(error)
        print(f"trialpod: {error}", file=sys.stderr)
        return error.exit_status


def _verbose_flag(arguments: Sequence[str]) -> bool:
    """Return whether -v was given; the error may be that no command could read it."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(argument == "--verbose" or re.fullmatch("-v+", argument) for argument in before)


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    top, subparsers = _top_parser()
    try:
        if not name:
            if not {"-h", "--help"}.isdisjoint(arguments):
                top.epilog = _command_list()
            top.parse_args(arguments)
            top.epilog = _command_list()
            top.print_help()
            return 2
        command = load_command(name)
        parser = subparsers.add_parser(name, **_parser_texts(command))
        _configure(parser, command)
        namespace = _parsed(top, parser, arguments)
    except SystemExit as end:  # argparse has printed the help, or what was wrong
        return end.code if isinstance(end.code, int) else 2
    namespace.verbose += namespace.leading_verbose
    try:
        return command.run(namespace)
    except ModuleNotFoundError as error:  # what a command imports only when it needs it
        if install_command(error.name or "") is None:
            raise
        _unavailable(name, error)


def _top_parser() -> tuple[ArgumentParser, Any]:
    parser = ArgumentParser(
        prog="trialpod",
        description="Hyperparameter tuning: trials as pods on Kubernetes, or as processes on this machine.",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-v", "--verbose", dest="leading_verbose", action="count", default=0, help="say more, and show tracebacks"
    )
    parser.add_argument("-V", "--version", action="version", version=f"trialpod {__version__}")
    return parser, parser.add_subparsers(
        metavar="COMMAND", help="one of those below; `trialpod COMMAND --help` shows its options"
    )


def _parser_texts(command: Command) -> dict[str, Any]:
    return {"description": f"{command.help[:1].upper()}{command.help[1:]}.", "allow_abbrev": False}


def _configure(parser: ArgumentParser, command: Command) -> None:
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more, and show tracebacks")
    command.configure(parser)


def _parsed(top: ArgumentParser, parser: ArgumentParser, arguments: list[str]) -> Namespace:
    """Parse; what follows ``--`` goes to the positional arguments ``args``, of a script, wherever options stand."""
    if "--" not in arguments:
        return top.parse_args(arguments)
    split = arguments.index("--")
    if not any(action.dest == "args" for action in parser._actions):  # noqa: SLF001 - it has no public list
        return top.parse_args(arguments)
    namespace = top.parse_args(arguments[:split])
    namespace.args = [*namespace.args, *arguments[split + 1 :]]
    return namespace


def parser_of(command: Command) -> ArgumentParser:
    """Return the parser of a sub-command's arguments alone."""
    parser = ArgumentParser(prog=f"trialpod {command.name}", **_parser_texts(command))
    _configure(parser, command)
    return parser


def built_in_names() -> list[str]:
    """Return the names of trialpod's own sub-commands."""
    from pkgutil import iter_modules

    folders = import_module(PACKAGE).__path__
    names = (module.name for module in iter_modules(folders) if module.name not in _HELPERS)
    return sorted(name.replace("_", "-") for name in names)


_HELPERS = frozenset({"target"})
"""Modules of the package that are not commands."""


def _module_name(command: str) -> str:
    return command.replace("-", "_")


def load_command(name: str) -> Command:
    """Import one sub-command.

    Raises:
        InvalidInputError: there is none of that name.
        CommandUnavailableError: it is there, but cannot be imported.
    """
    module = f"{PACKAGE}.{_module_name(name)}"
    own = _module_name(name).isidentifier() and name not in _HELPERS and find_spec(module) is not None
    if own:
        attribute = "command"
    else:
        installed = _entry_points()
        if name not in installed:
            guess = nearest(name, [*built_in_names(), *installed])
            hint = f"did you mean `trialpod {guess}`?" if guess else "`trialpod --help` lists the commands."
            raise InvalidInputError(f'there is no command "{name}"; {hint}')
        module, _, attribute = installed[name].value.partition(":")
    try:
        loaded: object = getattr(import_module(module), attribute)
    except ImportError as error:
        _unavailable(name, error, own=own)
    if not isinstance(loaded, Command):
        raise CommandUnavailableError(
            f"`trialpod {name}`: {module}:{attribute} is not a trialpod Command; report this to the package "
            "that provides it"
        )
    return loaded


def _unavailable(name: str, error: ImportError, *, own: bool = True) -> NoReturn:
    install = install_command(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if install is not None:
        raise CommandUnavailableError(
            f"`trialpod {name}` needs the package {error.name!r}, which is not installed; install it with: {install}"
        ) from error
    if own:
        advice = "the installation is incomplete: pip install --force-reinstall trialpod"
    else:
        advice = "reinstall the package that provides it"
    raise CommandUnavailableError(f"`trialpod {name}` cannot start: {error}; {advice}") from error


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def declaration(name: str) -> tuple[str, bool]:
    """Return the help of one of trialpod's own sub-commands, and whether it works on a cluster only.

    They are read from the file of the command: to import all of them would take ten times as long.
    """
    import ast

    module = f"{PACKAGE}.{_module_name(name)}"
    loader: Any = getattr(find_spec(module), "loader", None)
    text = loader.get_source(module) or ""
    _, found, rest = text.partition("\ncommand = Command(")
    if not found:
        return "", False
    call = ast.parse(f"Command({rest}").body[0].value  # type: ignore[attr-defined]
    given = dict(zip(("name", "help"), call.args, strict=False)) | {each.arg: each.value for each in call.keywords}
    return ast.literal_eval(given["help"]), "cluster" in given and ast.literal_eval(given["cluster"])


def _command_list() -> str:
    own = {name: declaration(name) for name in built_in_names()}
    others = [f"  {name:<14}(installed by {_distribution(point)})" for name, point in sorted(_entry_points().items())]
    in_cluster, anywhere = (
        [f"  {name:<14}{text}" for name, (text, cluster) in own.items() if cluster is wanted]
        for wanted in (True, False)
    )
    return "\n".join(["commands:", *anywhere, "", "commands for a cluster:", *in_cluster, *others])


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "another package"
