"""The parameters of an experiment: their domains as its definition has them, or as its trials show them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trialpod.protocol.readable import real_number
from trialpod.tune.search.sample import Categorical, Domain, Float, Integer
from trialpod_operator.api.search_space import compile_search_space
from trialpod_operator.display.words import brief

MAX_CHOICES = 100
_WRITTEN = re.compile(r"(?P<name>\w+)\((?P<low>[-+.\deinf]+), (?P<high>[-+.\deinf]+)\)")


@dataclass(slots=True)
class Parameter:
    """One parameter by its dotted name.

    Attributes:
        kind: "float", "int", "categorical" or "other".
        low: the smallest value, None when there is none.
        high: the largest one.
    """

    name: str
    kind: str = "other"
    log: bool = False
    low: float | None = None
    high: float | None = None
    choices: list[Any] = field(default_factory=list)
    declared: bool = False


class Parameters:
    """Collects them: first what is declared, then what is observed."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        """Take ``experiment.json``."""
        self._found: dict[str, Parameter] = {}
        self._texts: dict[str, set[str]] = {}
        manifest, definition = stored.get("manifest"), stored.get("definition")
        if isinstance(manifest, Mapping):
            spec = manifest.get("spec")
            space, _ = compile_search_space((spec or {}).get("searchSpace"), started=True)
            for name, node in dotted(space):
                self._declare(name, node)
        elif isinstance(definition, Mapping):
            for name, text in (definition.get("param_space") or {}).items():
                self._declare_text(str(name), str(text))

    def observe(self, config: Iterable[tuple[str, Any]]) -> None:
        """Take in a trial's config, as pairs of dotted names and values."""
        for name, value in config:
            known = self._found.get(name)
            if known is None:
                known = self._found[name] = Parameter(name)
            if not known.declared:
                self._widen(known, value)

    def described(self) -> list[dict[str, Any]]:
        """Return all as data, in the order in which they became known."""
        return [
            {
                "name": each.name,
                "kind": each.kind,
                "log": each.log,
                "low": each.low,
                "high": each.high,
                "choices": each.choices,
            }
            for each in self._found.values()
        ]

    def _declare(self, name: str, node: Any) -> None:
        found = Parameter(name, declared=True)
        if isinstance(node, Mapping) and set(node) == {"grid_search"}:
            found.kind, found.choices = "categorical", list(node["grid_search"])
        elif isinstance(node, Categorical):
            found.kind, found.choices = "categorical", list(node.categories)
        elif isinstance(node, (Float, Integer)):
            found.kind = "float" if isinstance(node, Float) else "int"
            found.log = node.sampler.get("name") == "loguniform"
            found.low, found.high = _finite(node.lower), _finite(node.upper)
        elif not isinstance(node, Domain):
            found.kind, found.choices = "categorical", [node]
        else:
            found.declared = False
        if found.kind == "categorical" and all(real_number(each) is not None for each in found.choices):
            numbers = [float(each) for each in found.choices]
            found.low, found.high = min(numbers, default=None), max(numbers, default=None)
        self._found[name] = found

    def _declare_text(self, name: str, text: str) -> None:
        """Take what `trialpod_operator.experiment.definition` wrote of a script's domain."""
        match = _WRITTEN.match(text)
        found = self._found[name] = Parameter(name)
        if match is not None and match["name"].endswith(("uniform", "int", "randint")):
            low, high = _number(match["low"]), _number(match["high"])
            if low is not None and high is not None:
                whole = "." not in match["low"] + match["high"] and "e" not in match["low"] + match["high"]
                found.kind, found.declared = "int" if whole else "float", True
                found.low, found.high, found.log = low, high, "log" in match["name"]

    def _widen(self, known: Parameter, value: Any) -> None:
        number = real_number(value)
        if number is not None and known.kind in ("other", "int", "float") and not self._texts.get(known.name):
            known.kind = "float" if isinstance(number, float) or known.kind == "float" else "int"
            if math.isfinite(number):
                known.low = number if known.low is None else min(known.low, number)
                known.high = number if known.high is None else max(known.high, number)
            return
        if isinstance(value, (str, bool, type(None))) or number is not None:
            known.kind = "categorical"
        texts = self._texts.setdefault(known.name, set())
        text = brief(value, 200)
        if text not in texts and len(texts) < MAX_CHOICES:
            texts.add(text)
            known.choices.append(value if isinstance(value, (str, bool, int, float, type(None))) else text)


def dotted(nested: Mapping[Any, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Return the leaves of nested maps with their dotted names; an empty map and a grid are leaves."""
    for key, value in nested.items():
        if isinstance(value, Mapping) and value and set(value) != {"grid_search"}:
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(text: str) -> float | None:
    try:
        return _finite(float(text))
    except ValueError:
        return None
