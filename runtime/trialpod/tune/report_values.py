"""From what user code returns to one flat result: names, values, encoding, stop rules.

Invariants: a result's keys are strings; a nested dict becomes "outer/inner" keys; an encoded result is a snapshot,
so what the user changes later has no effect. An error names the key.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from trialpod import variables
from trialpod.errors import InvalidInputError, WrongTypeError, nearest
from trialpod.protocol.messages import AUTO_RESULT_KEYS, MAX_RESULT_BYTES, StopRule
from trialpod.protocol.nested import NestedNames
from trialpod.protocol.values import MetricsEncoder, number, plain_encoder, real_number
from trialpod.tune.result_keys import DEFAULT_METRIC

log = logging.getLogger(__name__)

MAX_UNJUDGED = 1000
"""Results without any key of the stop rules, after which a trial that nothing else ends has failed."""
LENIENT_VARIABLE = "TUNE_DISABLE_STRICT_METRIC_CHECKING"
_MISSPELT = 0.85  # similarity from which one name is the other one, misspelt
_converted_keys: set[str] = set()
_unpicklable_keys: set[str] = set()


def _warn_unpicklable(key: str, reason: str) -> None:
    if key not in _unpicklable_keys:
        _unpicklable_keys.add(key)
        log.warning("the metric %r is stored as text, because it cannot be pickled: %s", key, reason)


_encode = MetricsEncoder(_warn_unpicklable).encode


def metrics_of(given: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics that a call of `report` means, in any of its forms but ``report({...})``."""
    if given is None:
        if not named:
            raise WrongTypeError("tune.report needs metrics, as in tune.report({'loss': 0.1}); it got none")
        only = named.get("metrics")
        return dict(only) if len(named) == 1 and isinstance(only, Mapping) else named
    if isinstance(given, Mapping):
        if named:
            raise InvalidInputError(
                "tune.report got both a dict of metrics and keyword metrics "
                f"({', '.join(f'{key}=...' for key in named)}); put all metrics into the dict. Its only other "
                "argument is checkpoint=..."
            )
        return dict(given)
    only_number = as_number(given)
    if only_number is None:
        tensor = type(given).__module__.partition(".")[0] == "torch"
        raise WrongTypeError(
            "tune.report needs a dict of metrics, as in tune.report({'loss': 0.1}); "
            f"it got {type(given).__name__}" + ("; call .item() on it" if tensor else "")
        )
    return {DEFAULT_METRIC: only_number, **named}


def flatten(metrics: dict[str, Any], names: NestedNames | None = None) -> dict[str, Any]:
    """Return a flat copy of `metrics` in which a nested ``{"a": {"b": 1}}`` is ``{"a/b": 1}``.

    `names` takes the flat names of the dicts.
    """
    flat: dict[str, Any] = {}
    for key, value in metrics.items():
        if key.__class__ is not str:
            key = key_name(key)
        if isinstance(value, dict) and value:
            _flatten_into(flat, key, value, names)
        else:
            flat[key] = value
    return flat


def _flatten_into(flat: dict[str, Any], prefix: str, metrics: dict[Any, Any], names: NestedNames | None) -> None:
    if names is not None:
        names.add(prefix)
    for key, value in metrics.items():
        name = f"{prefix}/{key if key.__class__ is str else key_name(key)}"
        if isinstance(value, dict) and value:
            _flatten_into(flat, name, value, names)
        else:
            flat[name] = value


def key_name(key: object) -> str:
    """Return the name of a metric whose key is not exactly a str."""
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        name = str(key)
        if name not in _converted_keys:
            _converted_keys.add(name)
            warnings.warn(f"the metric key {key} is an int; it is reported as {name!r}", stacklevel=4)
        return name
    raise InvalidInputError(
        f"a metric has the key {key!r} of type {type(key).__name__}; keys are strings (or integers)"
    )


def encode(result: dict[str, Any], *, keeps_types: bool = True) -> bytes:
    """Return the MessagePack of a flat result."""
    try:
        data = _encode(result) if keeps_types else plain_encoder.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError(_blame(result, error)) from error
    if len(data) > MAX_RESULT_BYTES:
        largest = max(result, key=lambda key: len(_encode(result[key])))
        raise InvalidInputError(
            f"this result is {len(data) / 1e6:.1f} MB with {len(result)} keys, the largest is {largest!r}; "
            f"the limit is {MAX_RESULT_BYTES / 1e6:.1f} MB. Larger data belongs in a checkpoint"
        )
    return data


def _blame(result: dict[str, Any], error: Exception) -> str:
    for key, value in result.items():
        try:
            _encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as cause:
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            return f"the metric {key!r} of type {kind} cannot be reported: {cause}"
    return f"this result cannot be reported: {error}"


def as_number(value: Any) -> float | None:
    """Return a metric's value as a number, or None if it is none."""
    return number(value)


class StopRuleError(InvalidInputError):
    """A stop rule is on a metric that the trial does not report, so it would never end the trial."""


class StopRules:
    """Judges the entries of the ``stop`` dict: a result is the last one when ``result[key] >= value`` for any.

    A key that can only be a misspelt one is an error at the first result. Others may be reported later: they are
    warned of, and only where nothing else ends the trial (`must_end`) `MAX_UNJUDGED` results without any of the keys
    are an error.
    """

    def __init__(self, rules: Iterable[StopRule], *, strict: bool | None = None) -> None:
        """Take the rules."""
        self._rules = tuple((rule.key, rule.value) for rule in rules)
        self._warned: set[str] = set()
        self._judged = False  # a result had a number under one of the keys
        self._unjudged = 0
        if strict is None:
            strict = not variables.is_on(LENIENT_VARIABLE, os.environ.get(LENIENT_VARIABLE, ""))
        self._strict = strict
        self.must_end = False
        """Whether nothing but these rules ends the trial: a class steps until it is stopped."""

    def met(self, result: dict[str, Any]) -> bool:
        """Whether this result ends the trial."""
        missing = ""
        for key, limit in self._rules:
            value = result.get(key)
            if value.__class__ is not int and value.__class__ is not float:
                found = as_number(value)
                if found is None:
                    self._miss(key, result)
                    missing = key
                    continue
                value = found
            self._judged = True
            if value >= limit:
                return True
        if missing and not self._judged and self.must_end:
            self._unjudged += 1
            if self._strict and self._unjudged >= MAX_UNJUDGED:
                what = _explain(missing, result, f"is in none of {MAX_UNJUDGED:,} results")
                raise StopRuleError(f"{what}; nothing else ends the trial")
        return False

    def were_met(self, metrics: Mapping[str, Any]) -> bool:
        """Whether an earlier result, of which these metrics are known, ended the trial."""
        numbers = ((as_number(metrics.get(key)), limit) for key, limit in self._rules)
        return any(number is not None and number >= limit for number, limit in numbers)

    def _miss(self, key: str, result: dict[str, Any]) -> None:
        if key in self._warned:
            return
        self._warned.add(key)
        if self._strict and key not in result and is_misspelt(key, result):
            raise StopRuleError(_explain(key, result))
        log.warning("%s; the rule is ignored until a result has a number for it", _explain(key, result))


def is_misspelt(key: str, result: Mapping[str, Any]) -> bool:
    """Return whether a key that the result does not have is one that it has, misspelt: "training_iterations"."""
    import difflib

    lower = key.lower()
    close = difflib.get_close_matches(lower, [name.lower() for name in result], n=1, cutoff=_MISSPELT)
    return bool(close) and (close[0] == lower or _without_digits(close[0]) != _without_digits(lower))


def _without_digits(name: str) -> str:
    return "".join(character for character in name if not character.isdigit())


def _explain(key: str, result: Mapping[str, Any], what: str = "is not in the result") -> str:
    if key in result:
        return f"stop: {key!r} is not a number but {result[key]!r:.60}"
    guess = nearest(key, result)
    shown = ", ".join(sorted(name for name in result if name not in AUTO_RESULT_KEYS or name == guess))
    hint = f"; did you mean {guess!r}?" if guess else ""
    return f"stop: {key!r} {what}, which has {shown or 'no metrics'}{hint}"


def amount_of(result: Mapping[str, Any], name: str) -> int | float:
    """Return a number that totals are made of.

    Raises:
        InvalidInputError: it is not a finite number.
    """
    found = real_number(result[name])
    if found is None or not math.isfinite(found):
        raise InvalidInputError(
            f"the metric {name} must be a finite number, because it is added up, not {result[name]!r:.60}"
        )
    return found
