"""Compiles the manifest form of a search space into domains: ``{loguniform: [1e-4, 1e-1]}`` and the like.

A dict whose only key is the name of a distribution is that distribution; its arguments are a list, or a dict of
named ones. ``{literal: ...}`` is its argument, untouched. What looks like a distribution and is none is a mistake:

* a dict whose only key is another system's name of one, or nearly one of ours, with a list, numbers or arguments;
* a dict of nothing but bounds (``{min: 0, max: 1}``), or with a distribution beside other keys;
* a text that calls one ("tune.uniform(0, 1)").

Every other dict is a nested config, every other value a constant. All mistakes are collected, each with the path of
the argument at fault.

A value that JSON has no form for, of a script, is ``{trialpod.dev/value: BASE64, readable: ...}``: MessagePack as in
`trialpod.protocol.values`. It comes to the trial with its type; a pickle in it is not opened here.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import re
from collections.abc import Callable
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError
from trialpod.protocol.values import opaque_decoder
from trialpod.tune.search import sample
from trialpod.tune.search.sample import Constant, SearchSpaceError
from trialpod_operator.api.problems import Problem

_NUMERIC: dict[str, Callable[..., Any]] = {
    "uniform": sample.uniform,
    "quniform": sample.quniform,
    "loguniform": sample.loguniform,
    "qloguniform": sample.qloguniform,
    "randn": sample.randn,
    "qrandn": sample.qrandn,
    "randint": sample.randint,
    "qrandint": sample.qrandint,
    "lograndint": sample.lograndint,
    "qlograndint": sample.qlograndint,
}
_LISTS = ("choice", "grid_search")
NAMES = (*_NUMERIC, *_LISTS, "literal")
"""Every key that is not a parameter's name when it stands alone in a dict."""

_PARAMETERS = {name: inspect.signature(function).parameters for name, function in _NUMERIC.items()}
_ARGUMENTS = frozenset(argument for parameters in _PARAMETERS.values() for argument in parameters)
VALUE, READABLE = "trialpod.dev/value", "readable"
_ESCAPE = "{literal: ...} around it"

_FOREIGN = {
    "normal": "randn",
    "qnormal": "qrandn",
    "gaussian": "randn",
    "gauss": "randn",
    "norm": "randn",
    "loguni": "loguniform",
    "log": "loguniform",
    "reciprocal": "loguniform",
    "uni": "uniform",
    "unif": "uniform",
    "linspace": "uniform",
    "logspace": "loguniform",
    "arange": "quniform",
    "float": "uniform",
    "double": "uniform",
    "real": "uniform",
    "range": "uniform",
    "bounds": "uniform",
    "suggest_float": "uniform",
    "suggest_uniform": "uniform",
    "suggest_loguniform": "loguniform",
    "suggest_int": "randint",
    "suggest_categorical": "choice",
    "int": "randint",
    "integer": "randint",
    "logint": "lograndint",
    "qint": "qrandint",
    "categorical": "choice",
    "category": "choice",
    "categories": "choice",
    "options": "choice",
    "choices": "choice",
    "values": "choice",
    "one_of": "choice",
    "oneof": "choice",
    "discrete": "choice",
    "select": "choice",
    "grid": "grid_search",
    "sweep": "grid_search",
}
"""What other systems, and common sense, call a distribution -> the one of ours."""
_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"), ("from", "to"))
_MODIFIERS = frozenset({"q", "log", "base", "step", "type", "distribution", "dtype", "scale", "prior"})
PRIOR_PLACE = "spec.searchAlgorithm.parameters.prior"
_KATIB = frozenset({"parameterType", "feasibleSpace"})
_INLINE = re.compile(rf"(?P<name>{'|'.join((*_NUMERIC, *_LISTS))}):(?P<given>[^\s:]+(?::[^\s:]+)*)")
"""As in a placeholder of `trialpod run -- PROGRAM`."""
_CALL = re.compile(r"\s*(?:(?P<module>(?:\w+\.)*(?:tune|random|hp))\.)?(?P<name>\w+)\((?P<given>.*)\)\s*", re.DOTALL)


def compile_search_space(
    document: Any, path: str = "spec.searchSpace", *, started: bool = False
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the search space as domains and grids, and all that is wrong with it.

    Args:
        document: the parsed manifest's search space; None is an empty one.
        path: where it stands, for the problems.
        started: the experiment has begun, maybe under a version that took more for constants; so does this.

    The space is complete only when there are no problems; what has one is left out of it or is None.
    """
    compiler = _Compiler(strict=not started)
    if document is None:
        return {}, []
    if not isinstance(document, dict):
        kind = type(document).__name__
        return {}, [Problem(path, f"must be a mapping of parameter names, got a {kind}")]
    if len(document) == 1:
        (key,) = document
        if named_distribution(key, document[key]) is not None:
            message = f"{key!r} stands where a parameter's name belongs; write {{lr: {{{key}: ...}}}}, say"
            return {}, [Problem(f"{path}.{key}", message)]
    return compiler.mapping(document, path), compiler.problems


class _Compiler:
    """One pass over a document; `problems` grows in its order."""

    def __init__(self, *, strict: bool) -> None:
        self.problems: list[Problem] = []
        self._strict = strict
        self._in_choice = 0

    def mapping(self, document: dict[Any, Any], path: str) -> dict[str, Any]:
        space: dict[str, Any] = {}
        for key, value in document.items():
            if isinstance(key, str):
                space[key] = self.node(value, f"{path}.{key}")
            else:
                self._report(f"{path}.{key}", f"names of parameters are strings; put {key!r} in quotes")
        return space

    def node(self, node: Any, path: str) -> Any:
        if isinstance(node, list):
            return [self.node(value, f"{path}[{index}]") for index, value in enumerate(node)]
        if not isinstance(node, dict):
            if self._strict and isinstance(node, str) and (intended := called_distribution(node)) is not None:
                self._report(
                    path, f"{node!r} is a text, not a distribution; write {intended}. For the text put {_ESCAPE}"
                )
            return node
        if VALUE in node:
            return self._packed(node, path)
        if len(node) != 1 or set(node) & _KATIB:
            self._check_several(node, path)
            return self.mapping(node, path)
        ((key, argument),) = node.items()
        name = named_distribution(key, argument)
        if name is None:
            if self._strict and (intended := foreign_distribution(key, argument)) is not None:
                self._report(
                    f"{path}.{key}",
                    f"unknown distribution {key!r}; did you mean {intended!r}, as in {_USAGE[intended]}? Known are "
                    f"{', '.join(NAMES)}. If {key!r} is a parameter of a nested config, put {_ESCAPE}",
                )
                return None
            return self.mapping(node, path)
        where = f"{path}.{key}"
        if name != key:
            self._report(
                where,
                f"unknown distribution {key!r}; did you mean {name!r}? Known are {', '.join(NAMES)}. "
                f"If {key!r} is a parameter of a nested config, put {_ESCAPE}",
            )
            return None
        if name == "sample_from":
            self._report(
                where,
                "a function cannot be written in a manifest; use choice and nested configs, or start the experiment "
                "from Python with tune.Tuner",
            )
            return None
        if name == "literal":
            return Constant(argument)
        if name in _LISTS:
            return self._values(name, argument, where)
        return self._distribution(name, argument, where)

    def _packed(self, node: dict[Any, Any], path: str) -> Any:
        try:
            return Constant(opaque_decoder.decode(base64.b64decode(node[VALUE], validate=True)))
        except (binascii.Error, TypeError, ValueError, msgspec.DecodeError, RecursionError):
            self._report(f"{path}.{VALUE}", "is not a value that a script has written; write the value itself")
            return None

    def _values(self, name: str, argument: Any, where: str) -> Any:
        if isinstance(argument, dict):
            named = "categories" if name == "choice" else "values"
            if set(argument) != {named}:
                self._report(
                    where, f"{name} takes a list of values: {{{name}: [a, b]}}; for a nested config put {_ESCAPE}"
                )
                return None
            argument, where = argument[named], f"{where}.{named}"
        if not isinstance(argument, list):
            self._report(where, f"{name} takes a list of values, got {argument!r}; for a nested config put {_ESCAPE}")
            return None
        if not argument:
            self._report(where, f"{name} needs at least one value")
            return None
        if name == "grid_search" and self._in_choice:
            self._report(
                where,
                "a grid_search inside a choice would make the number of trials random; use choice here, or put the "
                "grid_search outside",
            )
            return None
        self._in_choice += name == "choice"
        values = [self.node(value, f"{where}[{index}]") for index, value in enumerate(argument)]
        self._in_choice -= name == "choice"
        return sample.choice(values) if name == "choice" else sample.grid_search(values)

    def _distribution(self, name: str, argument: Any, where: str) -> Any:
        function = _NUMERIC[name]
        parameters = list(_PARAMETERS[name])
        usage = f"{{{name}: [{', '.join(parameters)}]}}"
        if isinstance(argument, list):
            if len(argument) > len(parameters):
                self._report(where, f"{name} takes at most {len(parameters)} arguments, got {len(argument)}: {usage}")
                return None
            given = dict(zip(parameters, argument, strict=False))
            paths = {parameter: f"{where}[{index}]" for index, parameter in enumerate(parameters)}
        elif isinstance(argument, dict):
            unknown = [key for key in argument if key not in parameters]
            for key in unknown:
                self._report(f"{where}.{key}", f"{name} has no argument {key!r}; it takes {', '.join(parameters)}")
            if unknown:
                return None
            given = dict(argument)
            paths = {parameter: f"{where}.{parameter}" for parameter in parameters}
        elif argument is None and name == "randn":
            given, paths = {}, {}
        else:
            self._report(
                where,
                f"{name} takes a list of arguments, got {argument!r}: {usage}; for a nested config put {_ESCAPE}",
            )
            return None
        missing = [
            parameter.name
            for parameter in _PARAMETERS[name].values()
            if parameter.default is parameter.empty and parameter.name not in given
        ]
        if missing:
            self._report(where, f"{name} needs {' and '.join(missing)}: {usage}")
            return None
        if self._wrong_types(given, paths):
            return None
        try:
            return function(**given)
        except SearchSpaceError as error:
            self._report(paths.get(error.argument or "", where), str(error))
        except InvalidInputError as error:
            self._report(where, str(error))
        return None

    def _wrong_types(self, given: dict[str, Any], paths: dict[str, str]) -> bool:
        found = False
        for parameter, value in given.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                hint = ""
                if isinstance(value, str) and _reads_as_number(value):
                    hint = "; take the quotes away"
                self._report(paths[parameter], f"{parameter} must be a number, got {value!r}{hint}")
                found = True
        return found

    def _check_several(self, node: dict[Any, Any], path: str) -> None:
        """Report a mapping of several keys that looks like a distribution."""
        self._check_stray_arguments(node, path)
        if not self._strict or any(each.path.startswith(f"{path}.") for each in self.problems):
            return
        if (intended := bounds_distribution(node)) is not None:
            self._report(path, f"looks like a distribution; write {intended}. For a nested config put {_ESCAPE}")
            return
        if set(node) <= _KATIB | {"name"} and set(node) & _KATIB:
            self._report(
                path,
                f"is a parameter of Katib; write {{uniform: [min, max]}}, {{randint: [min, max + 1]}} or "
                f"{{choice: [a, b]}}. For a nested config put {_ESCAPE}",
            )
            return
        for key, argument in node.items():
            if key in _NUMERIC and _is_number(argument) and None in node.values():
                self._report(f"{path}.{key}", f"the arguments of a distribution stand in brackets: {_USAGE[key]}")
                return
            rest = {other: value for other, value in node.items() if other != key}
            foreign = foreign_distribution(key, argument)
            if foreign is not None and set(rest) <= _MODIFIERS:
                log = "log" if rest.get("log") is True and not foreign.startswith(("log", "choice", "grid")) else ""
                shown = _USAGE.get(log + foreign, _USAGE[foreign])
                self._report(
                    f"{path}.{key}",
                    f"unknown distribution {key!r}; write {shown}, with no other key. For a nested config put "
                    f"{_ESCAPE}",
                )
                return
            if key in NAMES and _is_argument(argument, lists=key in _LISTS):
                others = [str(other) for other in node if other != key]
                remedy = f"take out {', '.join(others)}"
                if others == ["prior"]:
                    remedy = f"move the prior to {PRIOR_PLACE}, below the parameter's name"
                self._report(
                    f"{path}.{key}",
                    f"a distribution is the only key of its mapping; {remedy}. If {key!r} is a parameter of "
                    f"a nested config, write {{{key}: {{literal: ...}}}}",
                )
                return

    def _check_stray_arguments(self, node: dict[Any, Any], path: str) -> None:
        names = [key for key in node if key in _NUMERIC and isinstance(node[key], (list, dict))]
        if len(names) == 1 and all(key in _ARGUMENTS for key in node if key != names[0]):
            others = ", ".join(key for key in node if key != names[0])
            self._report(
                f"{path}.{names[0]}",
                f"a distribution is the only key of its mapping; move {others} into {names[0]}, as in "
                f"{{{names[0]}: {{lower: 0, upper: 1}}}}",
            )

    def _report(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))


def named_distribution(key: Any, argument: Any) -> str | None:
    """Return the distribution that a lone `key` names or all but names, None when it is a parameter's name."""
    if not isinstance(key, str):
        return None
    if key in NAMES or key == "sample_from":
        return key
    arguments_only = isinstance(argument, dict) and bool(argument) and set(argument) <= _ARGUMENTS
    if not (isinstance(argument, (list, int, float)) or arguments_only) or isinstance(argument, bool):
        return None
    written = key.lower().replace("-", "_")
    near = [(_distance(written, name), name) for name in NAMES]
    distance, name = min(near)
    return name if distance <= (1 if len(name) <= 6 else 2) else None


_USAGE = {
    **{name: f"{{{name}: [{', '.join(parameters)}]}}" for name, parameters in _PARAMETERS.items()},
    "choice": "{choice: [a, b]}",
    "grid_search": "{grid_search: [a, b]}",
}


def foreign_distribution(key: Any, argument: Any) -> str | None:
    """Return the distribution that a lone `key` stands for elsewhere, None when it is a parameter's name."""
    if not isinstance(key, str):
        return None
    name = _FOREIGN.get(key.lower().replace("-", "_"))
    return name if name is not None and _is_argument(argument, lists=name in _LISTS) else None


def bounds_distribution(node: dict[Any, Any]) -> str | None:
    """Return the distribution that a mapping of nothing but bounds means, as a manifest has it."""
    for low, high in _BOUNDS:
        if not set(node) <= {low, high} | _MODIFIERS or not {low, high} <= set(node):
            continue
        bounds = [node[low], node[high]]
        if all(isinstance(bound, (int, float)) and not isinstance(bound, bool) for bound in bounds):
            said = " ".join(str(node.get(key, "")) for key in ("type", "distribution", "prior", "scale")).lower()
            log = "log" if node.get("log") is True or "log" in said else ""
            if log and bounds[0] <= 0:
                return "{loguniform: [1e-6, 1]}, say, whose lower bound is above 0"
            shown = f"{{{log}uniform: [{bounds[0]}, {bounds[1]}]}}"
            whole = all(isinstance(bound, int) for bound in bounds)
            return f"{shown}, or {log}randint for integers" if whole else shown
    return None


def called_distribution(text: str) -> str | None:
    """Return what a text that calls a distribution means, as one writes it in a manifest; None for other texts."""
    if inline := _INLINE.fullmatch(text.strip()):
        return f"{{{inline['name']}: [{', '.join(inline['given'].split(':'))}]}}"
    match = _CALL.fullmatch(text)
    if match is None:
        return None
    name = match["name"].lower()
    known = name if name in NAMES else _FOREIGN.get(name) if match["module"] else None
    if known is None or known == "literal":
        return None if not match["module"] else "a distribution as a mapping, such as {uniform: [0, 1]}"
    arguments = match["given"].strip()
    inner = arguments if arguments.startswith("[") else f"[{arguments}]"
    return f"{{{known}: {inner}}}"


def lookalikes(space: Any, path: str = "") -> list[str]:
    """Return the places in a search space of Python objects where a distribution is written as in a manifest."""
    if isinstance(space, str):
        return [path] if called_distribution(space) is not None else []
    if isinstance(space, list):
        return [each for index, value in enumerate(space) for each in lookalikes(value, f"{path}[{index}]")]
    if not isinstance(space, dict):
        return []
    if path and len(space) == 1:
        ((key, argument),) = space.items()
        if key in _NUMERIC or key == "choice":
            return [path] if isinstance(argument, list) else []
    return [each for key, value in space.items() for each in lookalikes(value, f"{path}.{key}" if path else str(key))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_argument(value: Any, *, lists: bool) -> bool:
    """Return whether a value can be what a distribution takes; `lists`: one that takes a list of anything."""
    if isinstance(value, list):
        return lists or all(isinstance(each, (int, float, str)) and not isinstance(each, bool) for each in value)
    if isinstance(value, dict):
        words = _ARGUMENTS | _MODIFIERS | {word for pair in _BOUNDS for word in pair}
        return bool(value) and set(value) <= words
    return False


def varies(space: Any) -> bool:
    """Return whether trials of a compiled search space can differ."""
    if isinstance(space, Constant):
        return False
    if isinstance(space, sample.Categorical):
        return len(space.categories) > 1 or any(map(varies, space.categories))
    if isinstance(space, sample.Domain):
        return True
    if isinstance(space, dict):
        grid = space.get("grid_search") if len(space) == 1 else None
        if isinstance(grid, list):
            return len(grid) > 1 or any(map(varies, grid))
        return any(map(varies, space.values()))
    return isinstance(space, (list, tuple)) and any(map(varies, space))


def _distance(left: str, right: str) -> int:
    """Return the edits between two words: insert, delete, replace, or swap two neighbours (Damerau, restricted)."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(right, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                best = min(best, older[j - 2] + 1)
            row.append(best)
    return row[-1]


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
