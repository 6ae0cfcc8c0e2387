"""Conditions on an object of any kind: when it has succeeded, when it has failed. Pure.

``status.conditions[type=Complete].status == True``, ``status.phase == "Succeeded"``, ``status.succeeded > 0``;
several with ``&&`` and ``||`` (``&&`` binds closer). Katib's form of the first,
``status.conditions.#(type=="Complete")#|#(status=="True")#``, is read too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod_operator.api.trial_resource.field_paths import Segment, find, parse_path

EXPECTED = 'a condition such as status.conditions[type=Complete].status == True or status.phase == "Succeeded"'

_KATIB = re.compile(
    r'status\.conditions\.#\(type\s*==\s*"(\w+)"\)#?\|#\(status\s*==\s*"(\w+)"\)#?(?:\|#\(reason\s*==\s*"(\w+)"\)#?)?'
)
_CLAUSE = re.compile(r'\s*(\S+?)\s*(==|!=|>=|<=|>|<)\s*(?:"([^"]*)"|([^\s"]+))\s*')

_ORDERS: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


@dataclass(frozen=True)
class _Clause:
    path: tuple[Segment, ...]
    operator: str
    value: str

    def holds(self, item: Mapping[str, Any]) -> bool:
        found = find(item, self.path)
        if self.operator == "==":
            return found is not None and _is(found, self.value)
        if self.operator == "!=":
            return found is not None and not _is(found, self.value)
        try:
            return _ORDERS[self.operator](float(found), float(self.value))
        except (TypeError, ValueError):
            return False


@dataclass(frozen=True)
class Condition:
    """A condition; it holds when all clauses of one of its alternatives do."""

    alternatives: tuple[tuple[_Clause, ...], ...]

    def holds(self, item: Mapping[str, Any]) -> bool:
        """Return whether it holds of an object. What a path does not find is never right."""
        return self._met(item) is not None

    def words(self, item: Mapping[str, Any]) -> str:
        """Return what the object says about a condition that holds of it: its reason and message, "" for nothing."""
        for clause in self._met(item) or ():
            around = find(item, clause.path[:-1]) if len(clause.path) > 1 else None
            if isinstance(around, Mapping):
                said = [str(around[name]) for name in ("reason", "message") if around.get(name)]
                if said:
                    return ": ".join(said)
        return ""

    def _met(self, item: Mapping[str, Any]) -> tuple[_Clause, ...] | None:
        return next((all_of for all_of in self.alternatives if all(each.holds(item) for each in all_of)), None)


def parse_condition(text: str) -> Condition:
    """Return a condition.

    Raises:
        InvalidInputError: it cannot be read.
    """
    return Condition(
        tuple(tuple(_clause(part, text) for part in all_of.split("&&")) for all_of in _alternatives(text))
    )


def _alternatives(text: str) -> list[str]:
    katib = _KATIB.fullmatch(text.strip())
    if katib is None:
        return text.split("||")
    kind, status, reason = katib.groups()
    parts = [f"status.conditions[type={kind}].status == {status}"]
    parts += [f"status.conditions[type={kind}].reason == {reason}"] if reason else []
    return [" && ".join(parts)]


def _clause(text: str, whole: str) -> _Clause:
    found = _CLAUSE.fullmatch(text)
    if found is None:
        raise InvalidInputError(f'"{whole}" cannot be read; it must be {EXPECTED}')
    path, operator, quoted, plain = found.groups()
    value = plain if quoted is None else quoted
    if operator not in ("==", "!="):
        try:
            float(value)
        except ValueError:
            raise InvalidInputError(f'"{whole}" compares with {value}, which is not a number') from None
    return _Clause(parse_path(path), operator, value)


def _is(found: Any, value: str) -> bool:
    if isinstance(found, bool):  # `true` in YAML; the status of a Kubernetes condition is a text, "True"
        return str(found).lower() == value.lower()
    return str(found) == value
