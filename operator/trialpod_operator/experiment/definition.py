"""What an experiment is made of, in a form that is compared when it is run again: the part that must not change.

A manifest is compared field by field. Of what a script made, a readable text of each part is stored at the start. The
budget, stop rules, checkpoint rules and the code of the Trainable are not in it: they may change.
"""

from __future__ import annotations

import hashlib
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.plugins.described import arguments_of
from trialpod.tune.search import SearchGenerator
from trialpod.tune.search.sample import Categorical, Domain, Function
from trialpod_operator.api.inspection import changeable, fixed_part
from trialpod_operator.api.search_space import varies

MAX_TEXT = 200
MAX_SHOWN = 12

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MISSING = object()


@dataclass(frozen=True)
class Difference:
    """One field that differs; None = it is not there."""

    field: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        old, new = _shown(self.old), _shown(self.new)
        return f"{self.field}: {old} -> {new if new != old else 'other code of that name'}"


def describe(request: ExperimentRequest) -> dict[str, Any]:
    """Return the definition of what a `Tuner` was given, as JSON has it."""
    search = request.search_alg.searcher if isinstance(request.search_alg, SearchGenerator) else request.search_alg
    space = _flat(request.param_space)
    return {
        "script": _script(),
        "constants": [name for name, (_, constant) in space.items() if constant],
        "trainable": request.trainable_name,
        "param_space": {name: text for name, (text, _) in space.items()},
        "metric": request.metric,
        "mode": request.mode,
        "metrics": ", ".join(map(str, request.objectives)) or None,
        "algorithm": request.algorithm,
        "warm_start": None if request.warm_start is None else str(request.warm_start),
        "scheduler": None if request.scheduler is None else _text(request.scheduler),
        "search_alg": None if search is None else _text(search),
    }


def differences(stored: Mapping[str, Any], document: Mapping[str, Any]) -> list[Difference]:
    """Return what must not differ between two documents of one experiment (``experiment.json``), and does.

    Args:
        stored: of the earlier run.
        document: of this one.
    """
    if isinstance(stored.get("manifest"), dict) and isinstance(document.get("manifest"), dict):
        return _of_specs(stored["manifest"].get("spec", {}), document["manifest"].get("spec", {}))
    before, now = stored.get("definition"), document.get("definition")
    if isinstance(before, dict) and isinstance(now, dict):
        return _of_definitions(before, now)
    return []  # an older version wrote it: the engine compares what it knows


def _of_definitions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    found: list[Difference] = []
    # Of a script that was not edited, constants may be others: a date, a temporary folder.
    same_script = now.get("script") is not None and before.get("script") == now.get("script")
    ignored = {*now.get("constants", ())} & {*before.get("constants", ())} if same_script else set()
    for key, new in now.items():
        old = before.get(key)
        if key in ("script", "constants"):
            continue
        if isinstance(new, dict):
            old = old if isinstance(old, dict) else {}
            for name in [*old, *(name for name in new if name not in old)]:
                if key == "param_space" and name in ignored:
                    continue
                found += _compared(f"{key}.{name}", old.get(name), new.get(name))
        else:
            found += _compared(key, old, new)
    return found


def _compared(field: str, old: Any, new: Any) -> list[Difference]:
    if old == new or (isinstance(old, str) and isinstance(new, str) and _same_code(old, new)):
        return []
    return [Difference(field, old, new)]


def _of_specs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    found: list[Difference] = []
    for key in [*now, *(key for key in before if key not in now)]:
        if key not in changeable("any time") | {"stop", "checkpoint"}:
            old, new = (fixed_part(key, each.get(key, _MISSING)) for each in (before, now))
            _compare(f"spec.{key}", old, new, found)
    return [each for each in found if each.field != "spec.trainable.source"]  # code may change


def _compare(field: str, old: Any, new: Any, found: list[Difference]) -> None:
    if old == new:
        return
    old, new = (None if value is _MISSING else value for value in (old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old and new:
        if len(old) == len(new) == 1 and set(old) != set(new):  # one distribution in place of another
            found.append(Difference(field, _text(old), _text(new)))
            return
        for key in [*old, *(key for key in new if key not in old)]:
            _compare(f"{field}.{key}", old.get(key, _MISSING), new.get(key, _MISSING), found)
    elif old != new:
        found.append(Difference(field, None if old is None else _text(old), None if new is None else _text(new)))


def _script() -> str | None:
    """Return a digest of the script that runs and its arguments; None when there is none, as in a notebook."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        text = Path(file).read_bytes() if file else None
    except OSError:
        text = None
    return None if text is None else hashlib.sha256(text + "\0".join(sys.argv[1:]).encode()).hexdigest()[:16]


def _flat(space: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[str, bool]]:
    """Return the text of each parameter, and whether it is a constant."""
    flat: dict[str, tuple[str, bool]] = {}
    for key, value in space.items():
        if isinstance(value, Mapping) and value and set(value) != {"grid_search"}:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _text(value), not varies({"x": value})
    return flat


def _text(value: Any) -> str:
    """Return a text that is the same in each process for what is written in the same way in a script."""
    text = _described(value)
    if len(text) > MAX_TEXT:
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
        text = f"{text[:MAX_TEXT]}... [{digest}]"
    return text


def _described(value: Any) -> str:
    if isinstance(value, Categorical):
        return f"choice({_listed(value.categories)})"
    if isinstance(value, Function):
        return f"sample_from({_described(value.func)})"
    if isinstance(value, Domain):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!s}: {_described(entry)}" for key, entry in value.items()) + "}"
    if type(value) in (list, tuple):
        return _listed(value)
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_described, value)))}}}"
    if isinstance(value, types.FunctionType):
        return f"{value.__name__} [{_digest(value)}]"
    if isinstance(value, type):
        return value.__qualname__
    arguments = arguments_of(value)
    if arguments is not None:
        given = (f"{key}={_described(entry)}" for key, entry in arguments.items())
        return f"{type(value).__name__}({', '.join(given)})"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a class of the user's
        return type(value).__name__
    return type(value).__name__ if _ADDRESS.search(text) else text


def _listed(values: Sequence[Any]) -> str:
    return f"[{', '.join(map(_described, values))}]"


def _digest(function: types.FunctionType) -> str:
    """Return a digest of a function's code; it says the version of Python, which decides how code looks."""
    found = hashlib.sha256()

    def add(code: types.CodeType) -> None:
        found.update(code.co_code)
        found.update(repr(code.co_names).encode())
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                add(constant)
            else:
                found.update(_described(constant).encode(errors="surrogatepass"))

    add(function.__code__)
    return f"py{sys.version_info.major}.{sys.version_info.minor}:{found.hexdigest()[:8]}"


_CODE = re.compile(r"\[py(\d+\.\d+):[0-9a-f]{8}\]")


def _same_code(old: str, new: str) -> bool:
    """Return whether two texts differ only in digests that different versions of Python made."""
    if set(_CODE.findall(old)) == set(_CODE.findall(new)):
        return False
    return _CODE.sub("", old) == _CODE.sub("", new)


def _shown(text: str | None) -> str:
    return "none" if text is None else _CODE.sub("", text).replace(" )", ")").replace(" ,", ",").rstrip()


def report(found: Sequence[Difference]) -> str:
    """Return the differences as lines."""
    lines = [f"  {difference}" for difference in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        lines.append(f"  and {len(found) - MAX_SHOWN} more")
    return "\n".join(lines)
