"""`trialpod completion SHELL`: a script that completes commands, options and names of experiments in a shell.

The script is made from the commands' own parsers and runs nothing of trialpod: a key press costs no start of Python.
Names are those of folders in ./trialpod-results.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass

from trialpod.cli.command import Command

SHELLS = ("bash", "zsh", "fish")
_NAMES = ("NAME", "TRIAL")
"""What is in the placeholder of an argument that may be the name of an experiment."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command: how it is written, what it does, and the values that it takes."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What can follow a command."""

    name: str
    help: str
    options: tuple[Option, ...]
    names: bool
    """Whether it takes the name of an experiment."""


def usages() -> list[Usage]:
    """Return the usage of each command; of one whose packages are not installed only its name is known."""
    from trialpod.cli.main import CommandUnavailableError, built_in_names, load_command, parser_of

    found = []
    for name in built_in_names():
        try:
            command = load_command(name)
        except CommandUnavailableError:
            found.append(Usage(name, "", (), names=False))
        else:
            found.append(_usage(name, command.help, parser_of(command)))
    return found


def _usage(name: str, help_line: str, parser: ArgumentParser) -> Usage:
    options, names = [], False
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        if action.option_strings:
            choices = tuple(map(str, action.choices or ()))
            takes_value = action.nargs != 0
            text = " ".join((action.help or "").replace("%%", "%").split())
            options.append(Option(tuple(action.option_strings), text, takes_value, choices))
        else:
            names = names or any(word in str(action.metavar or "").upper() for word in _NAMES)
    return Usage(name, help_line, tuple(options), names)


def script(shell: str) -> str:
    """Return the script for a shell, one of `SHELLS`."""
    found = usages()
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](found)


def _bash(found: Sequence[Usage]) -> str:
    cases, values = [], []
    for usage in found:
        flags = " ".join(flag for option in usage.options for flag in option.flags)
        cases.append(f'    {usage.name}) flags="{flags}" names={int(usage.names)} ;;')
        for option in usage.options:
            if option.takes_value:
                choices = " ".join(option.choices)
                pattern = "|".join(f"{usage.name}:{flag}" for flag in option.flags)
                values.append(f'    {pattern}) choices="{choices}" value=1 ;;')
    commands = " ".join(["help", *(usage.name for usage in found)])
    return f"""# trialpod: completion for bash. To load it: source <(trialpod completion bash)
_trialpod() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" flags="" choices="" names=0 value=0
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W "{commands} --help --version --verbose" -- "$current")
    return
  fi
  case "$command" in
{chr(10).join(cases)}
    help) flags="{" ".join(usage.name for usage in found)}"
      mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current"); return ;;
  esac
  case "$command:$previous" in
{chr(10).join(values)}
  esac
  if [[ -n $choices ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
  elif [[ $value -eq 0 && $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current")
  else
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(
      compgen -f -- "$current"
      [[ $names -eq 1 && $value -eq 0 && -d trialpod-results ]] && cd trialpod-results && compgen -d -- "$current"
    )
  fi
}}
complete -F _trialpod trialpod
"""


def _zsh(found: Sequence[Usage]) -> str:
    described = "\n".join(f"    {_zsh_quoted(f'{usage.name}:{usage.help}')}" for usage in found)
    cases = []
    for usage in found:
        specs = []
        for option in usage.options:
            value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
            text = option.help.replace("[", "(").replace("]", ")").replace(":", " ")
            tail = value if option.takes_value else ""
            specs += [_zsh_quoted(f"*{flag}[{text}]{tail}") for flag in option.flags]
        rest = "_trialpod_names" if usage.names else "_files"
        cases.append(f"    {usage.name}) _arguments {' '.join(specs)} '*:argument:{rest}' ;;")
    return f"""#compdef trialpod
# trialpod: completion for zsh. To load it: source <(trialpod completion zsh), after compinit
_trialpod_names() {{
  local -a found
  [[ -d trialpod-results ]] && found=(trialpod-results/*(/N:t))
  (( $#found )) && compadd -a found
  _files
}}
_trialpod() {{
  local -a commands
  commands=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command="$words[2]"
  shift words
  (( CURRENT-- ))
  case "$command" in
{chr(10).join(cases)}
    help) _describe command commands ;;
  esac
}}
compdef _trialpod trialpod
"""


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(found: Sequence[Usage]) -> str:
    lines = [
        "# trialpod: completion for fish. To load it: trialpod completion fish | source",
        "complete -c trialpod -n __fish_use_subcommand -f -a help -d 'show the help of a command'",
        "complete -c trialpod -n '__fish_seen_subcommand_from help' -f -a "
        + _fish_quoted(" ".join(usage.name for usage in found)),
    ]
    for usage in found:
        lines.append(
            f"complete -c trialpod -n __fish_use_subcommand -f -a {usage.name} -d {_fish_quoted(usage.help)}"
        )
        seen = f"-n '__fish_seen_subcommand_from {usage.name}'"
        for option in usage.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = " -r" if option.takes_value else ""
            choices = f" -f -a {_fish_quoted(' '.join(option.choices))}" if option.choices else ""
            lines.append(f"complete -c trialpod {seen} {flags}{value}{choices} -d {_fish_quoted(option.help)}")
        if usage.names:
            names = "(for each in trialpod-results/*/; basename $each; end)"
            lines.append(f"complete -c trialpod {seen} -a '{names}' -d experiment")
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="whose completion to print")
    parser.epilog = (
        "bash: put `source <(trialpod completion bash)` into ~/.bashrc; zsh: the same with zsh into ~/.zshrc, after "
        "compinit; fish: trialpod completion fish > ~/.config/fish/completions/trialpod.fish"
    )


def _run(options: Namespace) -> int:
    print(script(options.shell), end="")
    return 0


command = Command("completion", "print a script that completes commands in bash, zsh or fish", _configure, _run)
