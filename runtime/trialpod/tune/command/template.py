"""The templates of a command: ``{lr}``, ``{optimizer.lr}``, ``{dropout=0.1}``, ``{{`` and ``}}``. Pure.

A template becomes one argument or one variable, whatever is in the values: nothing is split, no shell reads it. A
brace that is neither a placeholder nor doubled is refused, so that a typing error cannot become part of an argument.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trialpod.errors import InvalidInputError, TrainableError, nearest
from trialpod.protocol.command import CommandSpec

ARGUMENTS = "{args}"
"""An argument that becomes ``--name=value`` for every parameter that nothing else names."""
PARAMS_JSON, PARAMS_YAML = "params.json", "params.yaml"
BUILT_IN = ("trial_id", "trial_name", "trial_dir", "checkpoint_dir", PARAMS_JSON, PARAMS_YAML)
"""Placeholders that are not parameters. A parameter of the same name goes before them."""
_FILES = ("parametersFile", "metrics.file", "metrics.tensorboard", "metrics.mlflow")
"""Fields that are paths, seen from the working directory."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NAME = re.compile(r"[^\s=:{}/.]([^={}:]*[^\s={}:/.])?")
_CODE = re.compile(r"[\s\"'`$();,<>|&+*!\\]")
"""In a name before a ``=``: code of a shell or of awk in braces, such as ``{print "n="}``, not a default."""
_CODE_DEFAULT = re.compile(r"[`$;\n]")
"""In a default: code again, such as ``{x=$1; y=2}``."""


class TemplateError(InvalidInputError):
    """A template of a command cannot be read, or asks for what there is not.

    Attributes:
        field: the field of the command that it is in: "command[2]", "env.LR".
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.reason = message


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A parameter, or a built-in name, in a template; `default` stands for a parameter that a trial does not have."""

    name: str
    default: str | None = None


def parse(template: str) -> list[str | Placeholder]:
    """Return the texts and placeholders of a template, in order.

    Raises:
        TemplateError: a brace stands alone, or a placeholder has no name.
    """
    parts: list[str | Placeholder] = []
    text, end = "", 0
    for token in _TOKEN.finditer(template):
        text += template[end : token.start()]
        end = token.end()
        if token[0] in ("{{", "}}"):
            text += token[0][0]
            continue
        if len(token[0]) == 1:
            double = token[0] * 2
            raise TemplateError(
                f"{_shown(template)} has a single {token[0]}; write {double} for the character itself"
            )
        name, equals, default = token[1].partition("=")
        if not _NAME.fullmatch(name) or (equals and (_CODE.search(name) or _CODE_DEFAULT.search(default))):
            raise TemplateError(
                f"{token[0]} in {_shown(template)} is not a placeholder: write {{name}} or {{name=default}} with the "
                f"name of a parameter; for the braces themselves write {{{token[0]}}}"
            )
        if text:
            parts.append(text)
            text = ""
        parts.append(Placeholder(name, default if equals else None))
    text += template[end:]
    if text or not parts:
        parts.append(text)
    return parts


def lookup(params: Mapping[str, Any], name: str) -> tuple[Any, bool]:
    """Return the value of a parameter, nested ones as ``a.b`` or ``a/b``, and whether there is one."""
    if name in params:
        return params[name], True
    for at, character in enumerate(name):
        if character in "./" and isinstance(inner := params.get(name[:at]), Mapping):
            value, found = lookup(inner, name[at + 1 :])
            if found:
                return value, True
    return None, False


def leaves(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every parameter that is not a mapping, under its dotted name."""
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{name}.")
        else:
            yield name, value


def render_value(value: Any, name: str) -> str:
    """Return a parameter as the text of an argument: numbers in their shortest exact form, mappings as JSON.

    Raises:
        TrainableError: it has no form as text.
    """
    value = plain(value, name)
    if isinstance(value, str):
        text = value
    elif isinstance(value, float):
        text = repr(value)
    else:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if "\0" in text:
        raise TrainableError(f"the parameter {name} has a NUL character, which no argument of a process can hold")
    return text


def plain(value: Any, name: str) -> Any:
    """Return a parameter as JSON data: numbers of NumPy become plain ones.

    Raises:
        TrainableError: it is an object that only Python knows.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner, f"{name}[{at}]") for at, inner in enumerate(value)]
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return plain(item(), name)
    raise TrainableError(
        f"the parameter {name} is a {type(value).__name__}, which a command cannot be given; use numbers, texts, "
        "lists and mappings"
    )


def render(template: str, params: Mapping[str, Any], built_in: Mapping[str, str]) -> str:
    """Return a template with its values.

    Raises:
        TemplateError, TrainableError: it asks for a parameter that the trial does not have, or cannot be read.
    """
    shown = []
    for part in parse(template):
        if isinstance(part, str):
            shown.append(part)
            continue
        value, found = lookup(params, part.name)
        if found:
            shown.append(render_value(value, part.name))
        elif part.name in built_in:
            shown.append(built_in[part.name])
        elif part.default is not None:
            shown.append(part.default)
        else:
            known = ", ".join(name for name, _ in leaves(params)) or "none"
            raise TemplateError(
                f"the trial has no parameter {part.name!r}; it has {known}; "
                f"write {{{part.name}=default}} for a parameter that some trials do not have"
            )
    return "".join(shown)


def render_arguments(
    spec: CommandSpec, params: Mapping[str, Any], built_in: Mapping[str, str], *, resumed: bool
) -> list[str]:
    """Return the exact arguments of a command for one trial; raises as `render`."""
    named = _named(spec)
    rendered: list[str] = []
    for template in [*spec.command, *(spec.resume_args if resumed else ())]:
        if template == ARGUMENTS and not lookup(params, "args")[1]:
            rest = ((name, value) for name, value in leaves(params) if not _covered(name, named))
            rendered += [f"--{name}={render_value(value, name)}" for name, value in rest]
        else:
            rendered.append(render(template, params, built_in))
    return rendered


def environment_name(prefix: str, name: str) -> str:
    """Return the variable that a parameter becomes: the prefix, and the name in capitals with ``_`` for the rest."""
    return prefix + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def templates(spec: CommandSpec) -> Iterator[tuple[str, str]]:
    """Yield every template of a command with the field that it is in."""
    yield from ((f"command[{at}]", text) for at, text in enumerate(spec.command))
    yield from ((f"env.{name}", text) for name, text in spec.env.items())
    yield from ((f"resumeArgs[{at}]", text) for at, text in enumerate(spec.resume_args))
    yield "parametersFile", spec.parameters_file
    yield "workingDir", spec.working_dir
    for name in ("file", "tensorboard", "mlflow", "prometheus"):
        yield f"metrics.{name}", getattr(spec.metrics, name)


def shared_files(spec: CommandSpec) -> Iterator[tuple[str, str]]:
    """Yield the fields that name the same file or folder for all trials on one machine, with their templates.

    Raises:
        TemplateError: a template cannot be read.
    """
    for field, template in templates(spec):
        path = os.path.join(spec.working_dir, template)
        if field in _FILES and template and all(isinstance(part, str) for part in parse(path)):
            yield field, template


def problems(
    spec: CommandSpec, parameters: Collection[str] | None, used: Collection[str] = ()
) -> Iterator[TemplateError]:
    """Yield what is wrong with a command before any trial has run.

    Args:
        spec: the command.
        parameters: dotted names of all parameters of the search space; None where only the trials know them.
        used: names of parameters that something else than the command takes.
    """
    if not spec.command or not spec.command[0]:
        yield TemplateError("is empty; the first item is the program, such as python", "command")
    broken = False
    for field, template in templates(spec):
        try:
            found = [part for part in parse(template) if isinstance(part, Placeholder)]
        except TemplateError as error:
            broken = True
            yield TemplateError(error.reason, field)
            continue
        for part in found if parameters is not None else ():
            if template == ARGUMENTS or part.name in BUILT_IN or part.default is not None:
                continue
            if not _known(part.name, parameters or ()):
                yield TemplateError(_unknown(part.name, parameters or ()), field)
                broken = True
    yield from _environment_problems(spec, parameters or ())
    if parameters and not broken:
        yield from _unused(spec, parameters, used)


def _environment_problems(spec: CommandSpec, parameters: Iterable[str]) -> Iterator[TemplateError]:
    for name in spec.env:
        if not name or "=" in name or "\0" in name:
            yield TemplateError(f"{name!r} is not a name of an environment variable", "env")
    if not spec.parameter_env_prefix:
        return
    seen: dict[str, str] = {}
    for parameter in parameters:
        variable = environment_name(spec.parameter_env_prefix, parameter)
        if other := seen.get(variable):
            yield TemplateError(
                f"the parameters {other} and {parameter} would both be the variable {variable}; rename one of them",
                "parameterEnvPrefix",
            )
        seen[variable] = parameter


def _unused(spec: CommandSpec, parameters: Collection[str], used: Collection[str]) -> Iterator[TemplateError]:
    """Yield an error when parameters of the search space never reach the program."""
    if spec.parameters_file or spec.parameter_env_prefix:
        return
    placeholders = {name for name in _named(spec) if name not in parameters}
    if ARGUMENTS in spec.command or placeholders & {PARAMS_JSON, PARAMS_YAML}:
        return
    unused = [name for name in parameters if not _covered(name, {*_named(spec), *used})]
    if unused:
        first = unused[0]
        yield TemplateError(
            f"nothing gives {', '.join(unused)} to the program; add --{first}={{{first}}} to the command, "
            f"{ARGUMENTS} for all parameters as --name=value, or {{{PARAMS_JSON}}} for the path of a file with them",
            "command",
        )


def _named(spec: CommandSpec) -> set[str]:
    """Return the names of all placeholders; templates that cannot be read have none."""
    found: set[str] = set()
    for _, template in templates(spec):
        if template == ARGUMENTS:
            continue
        try:
            found.update(part.name for part in parse(template) if isinstance(part, Placeholder))
        except TemplateError:
            continue
    return found


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def _covered(parameter: str, named: Collection[str]) -> bool:
    """Whether a placeholder shows a parameter: itself, a mapping that it is in, or a part of it."""
    one = _dotted(parameter)
    return any(
        one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.") for other in map(_dotted, named)
    )


def _known(name: str, parameters: Iterable[str]) -> bool:
    return _covered(name, list(parameters))


def _unknown(name: str, parameters: Collection[str]) -> str:
    close = nearest(name, [*parameters, *BUILT_IN])
    advice = f"; did you mean {{{close}}}?" if close else "."
    known = ", ".join(parameters) or "no parameter"
    return (
        f"{{{name}}} is not a parameter of the search space, which has {known}{advice} Write {{{name}=default}} for "
        f"one that may be missing, {{{{{name}}}}} for the text itself"
    )


def _shown(template: str) -> str:
    return repr(template if len(template) <= 80 else template[:77] + "...")
