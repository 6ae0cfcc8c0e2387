"""Checks a document against the models and collects every mistake.

The models themselves are walked (`msgspec.inspect`), so there is no second schema that could disagree with them. What
involves more than one field is in `rules.py`; a rule only looks at parts whose form is right. Problems come in the
order of the document.

Own code in place of jsonschema: its import takes 86 ms of processor time, where reading and checking a manifest takes
185 ms with all imports, on the way to the first result of `trialpod run`. It would save the recursion (35 lines), not
the messages: each keyword needs a function of its own that names fields, ranges and the nearest word, and a second,
strict form of the schema, since that of the CRD neither refuses unknown fields nor knows durations.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import inspect

from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.api.document import MAX_DEPTH, Document, deeper_than
from trialpod_operator.api.duration import parse_duration
from trialpod_operator.api.inspection import fields_of, model_of, peel, root
from trialpod_operator.api.models import MAX_INT, Metadata, TuneExperiment
from trialpod_operator.api.paths import Path, format_path
from trialpod_operator.api.problems import Problem
from trialpod_operator.api.quantity import parse_quantity
from trialpod_operator.api.rules import check_rules
from trialpod_operator.api.search_space import PRIOR_PLACE

_FORMATS = {"duration": parse_duration, "quantity": parse_quantity}
_RAY_NAMES = {
    "param_space": "searchSpace",
    "config": "searchSpace",
    "search_alg": "searchAlgorithm",
    "max_concurrent": "maxConcurrentTrials",
    "time_budget_s": "timeBudget",
    "max_trial_hours": "maxTrialHours",
    "max_gpu_hours": "maxGpuHours",
    "stop_when_not_worth": "stopWhenNotWorth",
    "repeats": "repeats",
    "warm_start": "warmStart",
    "reuse_actors": "reusePods",
    "parallelTrialCount": "maxConcurrentTrials",
    "maxTrialCount": "numSamples",
    "parallelism": "maxConcurrentTrials",
    "algorithm": "searchAlgorithm",
    "checkpoint_at_end": "atEnd",
    "checkpoint_frequency": "frequency",
}


@dataclass(frozen=True)
class Checked:
    """What the check of one document found; `experiment` is None exactly when there are problems."""

    document: Document
    experiment: TuneExperiment | None
    problems: list[Problem]
    warnings: list[Problem] = field(default_factory=list)  # surprising, but allowed
    grid_size: int = 1  # trials per sample
    total: int | None = None  # trials in all, where that is known


def check_document(document: Document, *, started: bool = False, here: bool = False) -> Checked:
    """Check one document completely. Never raises for what a document contains.

    Args:
        document: the document.
        started: the experiment has begun, so what an earlier version accepted must do.
        here: the user who wrote it runs it on this machine, or has its files read here; it may name them. In a
            cluster it may not: the files would be the operator's.
    """
    if isinstance(document.value, dict) and (path := deeper_than({"spec": document.value.get("spec")}, MAX_DEPTH)):
        # Where it begins: what is below would be a path of a hundred names.
        problem = document.problem(path[:3], f"nested more than {MAX_DEPTH} levels deep")
        return Checked(document, None, [problem])
    walker = Walker(document)
    walker.check(root(), document.value, ())
    findings = check_rules(document, {path for path, _ in walker.problems}, started=started, here=here)
    problems = [problem for _, problem in walker.problems] + findings.problems
    experiment = None
    if not problems:
        try:
            experiment = msgspec.convert(_without_server_fields(document.value), TuneExperiment)
        except msgspec.ValidationError as error:
            problems.append(document.problem((), str(error)))
    return Checked(
        document, experiment, in_order(problems), in_order(findings.warnings), findings.grid_size, findings.total
    )


def in_order(problems: list[Problem]) -> list[Problem]:
    """Return the problems in the order of the document, without repetitions; those without a line come last."""
    unique = list(dict.fromkeys(problems))
    return sorted(unique, key=lambda problem: float("inf") if problem.line is None else problem.line)


def _without_server_fields(value: dict[str, Any]) -> dict[str, Any]:
    top = {key: part for key, part in value.items() if key not in TuneExperiment.server_fields}
    hidden = Metadata.server_fields
    return {**top, "metadata": {key: part for key, part in top["metadata"].items() if key not in hidden}}


@functools.cache
def _places() -> dict[str, list[str]]:
    """Return where each field name occurs, for fields that stand one level too high or too low."""
    places: dict[str, list[str]] = {"prior": [PRIOR_PLACE]}  # a parameter of a search is not a field of a model

    def visit(kind: inspect.Type, path: Path) -> None:
        kind, _, _ = peel(kind)
        if isinstance(kind, inspect.StructType):
            for name, each in fields_of(kind).items():
                places.setdefault(name, []).append(format_path((*path, name)))
                visit(each.type, (*path, name))

    visit(root(), ())
    return places


def describe(value: Any) -> str:
    """Return a short text for a value, with its type: `"ten" (a string)`."""
    if value is None:
        return "null (no value)"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a boolean)"
    if isinstance(value, str):
        shown = value if len(value) <= 40 else value[:37] + "..."
        return f"{msgspec.json.encode(shown).decode()} (a string)"
    if isinstance(value, int | float):
        return f"{value} (a number)"
    if isinstance(value, list):
        return "a list" if value else "[] (an empty list)"
    return "a mapping" if value else "{} (an empty mapping)"


class Walker:
    """Walks a document along the models; `problems` pairs each problem with its path."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[tuple[Path, Problem]] = []

    def check(self, kind: inspect.Type, value: Any, path: Path) -> None:
        """Check one value against its type."""
        kind, _, extra = peel(kind)
        if isinstance(kind, inspect.StructType):
            self._struct(kind, value, path)
        elif isinstance(kind, inspect.DictType):
            self._dict(kind, value, path)
        elif isinstance(kind, inspect.ListType):
            self._list(kind, value, path)
        elif isinstance(kind, inspect.LiteralType):
            self._literal(kind, value, path)
        elif isinstance(kind, inspect.UnionType):
            self._formatted(value, path, extra)
        elif isinstance(kind, inspect.BoolType):
            if not isinstance(value, bool):
                self._wrong_type(value, path, "true or false")
        elif isinstance(kind, inspect.IntType | inspect.FloatType):
            self._number(kind, value, path)
        elif isinstance(kind, inspect.StrType):
            self._string(kind, value, path, extra)
        elif not isinstance(kind, inspect.AnyType):
            raise TypeError(f"{format_path(path)}: the validator does not know {type(kind).__name__}")

    def _report(self, path: Path, message: str, *, unknown_field: bool = False) -> None:
        problem = replace(self._document.problem(path, message), unknown_field=unknown_field)
        self.problems.append((path, problem))

    def _wrong_type(self, value: Any, path: Path, wanted: str) -> None:
        hint = ""
        if isinstance(value, bool) and (word := self._document.unquoted_words.get(path)):
            if "a string" in wanted:
                hint = f'; {word} without quotes is a boolean, write "{word}"'
        elif isinstance(value, int | float) and not isinstance(value, bool) and "a string" in wanted:
            hint = "; put it in quotes"
        elif value is None:
            hint = "; leave the field out for its default"
        elif isinstance(value, str) and _is_quoted(value, wanted):
            hint = "; remove the quotes"
        self._report(path, f"{describe(value)} is not allowed here; it must be {wanted}{hint}")

    def _struct(self, kind: inspect.StructType, value: Any, path: Path) -> None:
        if not isinstance(value, dict):
            self._wrong_type(value, path, "a mapping with the fields " + ", ".join(fields_of(kind)))
            return
        fields = fields_of(kind)
        server_fields = model_of(kind).server_fields
        for key, part in value.items():
            if key in fields:
                self.check(fields[key].type, part, (*path, key))
            elif key not in server_fields:
                self._report((*path, key), self._unknown(key, fields, path), unknown_field=True)
        for name, each in fields.items():
            if each.required and name not in value:
                self._report((*path, name), self._missing(each))

    def _unknown(self, key: str, fields: dict[str, inspect.Field], path: Path) -> str:
        guess = nearest(key, fields)
        if guess is None and _RAY_NAMES.get(key) in fields:
            guess = _RAY_NAMES[key]
        if guess is None and key.replace("_", "").lower() in {name.lower() for name in fields}:
            guess = nearest(key.replace("_", ""), fields)
        elsewhere = [place for place in _places().get(key, []) if place != format_path((*path, key))]
        if len(elsewhere) == 1:  # the very name goes before one that is like it
            advice = f"it belongs at {elsewhere[0]}."
        elif guess is not None:
            advice = f'did you mean "{guess}"?'
        else:
            advice = ""
        return f"unknown field{f'; {advice}' if advice else '.'} Allowed here: {', '.join(fields)}"

    @staticmethod
    def _missing(each: inspect.Field) -> str:
        kind, _, extra = peel(each.type)
        if isinstance(kind, inspect.LiteralType):
            return f"is missing; it must be {' or '.join(map(str, kind.values))}"
        if "expected" in extra:
            return f"is missing; it must be {extra['expected']}"
        if isinstance(kind, inspect.StructType):
            return f"is missing; it is a mapping with the fields {', '.join(fields_of(kind))}"
        return "is missing"

    def _dict(self, kind: inspect.DictType, value: Any, path: Path) -> None:
        if not isinstance(value, dict):
            self._wrong_type(value, path, "a mapping")
            return
        if kind.max_length is not None and len(value) > kind.max_length:
            self._report(path, f"{len(value)} entries; at most {kind.max_length} are allowed")
        for key, part in value.items():
            self.check(kind.key_type, key, (*path, key))
            self.check(kind.value_type, part, (*path, key))

    def _list(self, kind: inspect.ListType, value: Any, path: Path) -> None:
        if not isinstance(value, list):
            self._wrong_type(value, path, "a list")
            return
        if kind.max_length is not None and len(value) > kind.max_length:
            self._report(path, f"{len(value)} items; at most {kind.max_length} are allowed")
        for index, part in enumerate(value):
            self.check(kind.item_type, part, (*path, index))

    def _literal(self, kind: inspect.LiteralType, value: Any, path: Path) -> None:
        if isinstance(value, str) and value in kind.values:
            return
        choices = [str(choice) for choice in kind.values]
        if not isinstance(value, str):
            self._wrong_type(value, path, f"a string: {' or '.join(choices)}")
            return
        guess = nearest(value, choices) if len(choices) > 1 else None
        hint = f' (did you mean "{guess}"?)' if guess else ""
        self._report(path, f"{describe(value)} is not allowed here{hint}; it must be {' or '.join(choices)}")

    def _number(self, kind: inspect.IntType | inspect.FloatType, value: Any, path: Path) -> None:
        whole = isinstance(kind, inspect.IntType)
        allowed = ("a whole number" if whole else "a number") + _range(kind, value)
        right = isinstance(value, int) if whole else isinstance(value, int | float)
        if not right or isinstance(value, bool):
            self._wrong_type(value, path, allowed)
        elif (kind.ge is not None and value < kind.ge) or (kind.le is not None and value > kind.le):
            self._report(path, f"{value} is out of bounds; it must be {allowed}")

    def _string(self, kind: inspect.StrType, value: Any, path: Path, extra: dict[str, Any]) -> None:
        expected = extra.get("expected", "text")
        if not isinstance(value, str):
            self._wrong_type(value, path, "a string" + (f" ({expected})" if "expected" in extra else ""))
        elif kind.min_length and not value:
            self._report(path, f'"" is empty; it must be {expected}')
        elif (kind.pattern and not re.fullmatch(kind.pattern, value)) or (
            kind.max_length is not None and len(value) > kind.max_length
        ):
            long = kind.max_length is not None and len(value) > 40 and "at most" not in expected
            limit = f" of at most {kind.max_length} characters" if long else ""
            self._report(path, f"{describe(value)} is not allowed here; it must be {expected}{limit}")

    def _formatted(self, value: Any, path: Path, extra: dict[str, Any]) -> None:
        if isinstance(value, float):
            device = str(path[-1])
            if "/" in device and extra["format"] == "quantity" and not value.is_integer():
                self._report(path, f"{value} is not whole: Kubernetes hands out {device} only as whole devices")
                return
            self._report(path, f'{value} is not allowed here; write it in quotes: "{value}"')
        elif not isinstance(value, int | str) or isinstance(value, bool):
            if isinstance(value, dict) and path[-1] in ("requests", "limits"):
                message = "each amount is the request and the limit: write it without this level, such as {cpu: 2}"
                self._report(path, f"{message}; what differs belongs in spec.template.spec.containers")
                return
            self._wrong_type(value, path, extra["expected"])
        else:
            try:
                _FORMATS[extra["format"]](value)
            except InvalidInputError as error:
                self._report(path, str(error))


def _is_quoted(text: str, wanted: str) -> bool:
    if wanted == "true or false":
        return text.lower() in ("true", "false")
    return "number" in wanted and re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", text) is not None


def _range(kind: inspect.IntType | inspect.FloatType, value: Any) -> str:
    le = kind.le
    if le == MAX_INT and not (isinstance(value, int | float) and value > le):
        le = None  # a bound of form; of interest only to those who go beyond it
    if kind.ge is not None and le is not None:
        return f" from {kind.ge} to {le}"
    if kind.ge is not None:
        return f", {kind.ge} or more"
    return f", {le} or less" if le is not None else ""
