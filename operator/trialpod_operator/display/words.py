"""How numbers, times, parameters and foreign text are written for a person.

Pure functions. Whatever comes in (a user's exception text, a parameter of any type, NaN), what goes out is one line
without control characters, so that nothing a trial says can move the cursor or break a table.
"""

from __future__ import annotations

import functools
import math
import pprint
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trialpod.protocol.values import OpaqueValue, readable

_CONTROLS = ("Cc", "Cs", "Cn", "Zl", "Zp")
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Me", "Mc", "Zl", "Zp")


def plural(count: int, noun: str) -> str:
    """Return ``1 trial``, ``2 trials``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float | None) -> str:
    """Return a time span in seconds as words: ``0.42 s``, ``14.2 s``, ``3 min 05 s``, ``2 h 05 min``."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days:,} d {hours:02d} h"


def clock(seconds: float | None) -> str:
    """Return a time span in seconds as a clock for narrow columns: ``0:14``, ``1:02:03``."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate(per_unit: float | None, unit: str) -> str:
    """Return a rate such as ``12 trials/min``, with one decimal below ten; empty when it is unknown."""
    if per_unit is None or not math.isfinite(per_unit) or per_unit < 0:
        return ""
    return f"{per_unit:,.0f} {unit}" if per_unit >= 10 else f"{per_unit:.1f} {unit}"


def number(value: Any) -> str:
    """Return a metric: four significant digits for floats, integers in full, ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return brief(value)


def one_line(text: str) -> str:
    """Return text on one line: runs of white space become one space, control and invisible characters disappear."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    words = " ".join(text.split())
    if words.isascii() and words.isprintable():
        return words
    composed = unicodedata.normalize("NFC", words)
    return "".join(c for c in composed if unicodedata.category(c) not in _INVISIBLE)


def printed_line(text: str) -> str:
    """Return a line that a trial printed: spaces stay, escape sequences and control characters disappear."""
    if text.isascii() and text.isprintable():
        return text.rstrip()
    text = _ESCAPE_SEQUENCE.sub("", text).expandtabs()
    kept = (c for c in text if c == "\u200d" or unicodedata.category(c) not in _CONTROLS)
    return "".join(kept).rstrip()


def cell_width(text: str) -> int:
    """Return the number of terminal cells that text made by `one_line` takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def clip(text: str, width: int) -> str:
    """Cut text to at most `width` cells, ending in an ellipsis where something is missing."""
    if (len(text) if text.isascii() else cell_width(text)) <= width:
        return text
    if width <= 0:
        return ""
    kept: list[str] = []
    room = width - 1
    for character in text:
        room -= cell_width(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Clip or fill text to exactly `width` cells; `right` puts it at the right edge."""
    if text.isascii() and len(text) <= width:  # nearly every cell of a large table
        return text.rjust(width) if right else text.ljust(width)
    text = clip(text, width)
    fill = " " * (width - cell_width(text))
    return fill + text if right else text + fill


def brief(value: Any, limit: int = 24) -> str:
    """Return any parameter value in at most `limit` cells: floats as %.4g, strings bare, containers compactly."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return clip(one_line(value), limit)
    if isinstance(value, bytes):
        return f"<{plural(len(value), 'byte')}>"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(brief(item, limit) for item in value[: limit // 2])
        if len(value) > limit // 2:
            inner += ", …"
        return clip(f"[{inner}]", limit)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{one_line(str(key))}: {brief(item, limit)}" for key, item in value.items())
        return clip(f"{{{inner}}}", limit)
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value whose own repr fails is still shown by its type
        text = f"<{type(value).__name__}>"
    return clip(one_line(text), limit)


_PLAIN = frozenset({float, int, str, bool, type(None)})
_key_line = functools.lru_cache(1024)(one_line)  # all trials have the same keys


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters as one level, keys joined with ``/``."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{_key_line(str(key))}"
        if value.__class__ not in _PLAIN and isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}/"))
        else:
            flat[name] = value
    return flat


def parameters(config: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """Return parameters on one line, ``lr=0.01, layers=2``; `names` limits them to those flattened keys."""
    flat = flatten(config)
    chosen = list(flat) if names is None else [name for name in names if name in flat]
    titles = short_names(chosen)
    return ", ".join(f"{title}={brief(flat[name])}" for title, name in zip(titles, chosen, strict=True))


def same(left: Any, right: Any) -> bool:
    """Tell whether two parameter values are one and the same (NaN equals NaN, arrays compare by their text)."""
    if type(left) is not type(right):
        return False
    try:
        return bool(left == right) or repr(left) == repr(right)
    except Exception:  # noqa: BLE001 - foreign types (arrays) may refuse to compare; their text decides
        return brief(left, 200) == brief(right, 200)


class VaryingParameters:
    """Finds the parameters whose values differ between trials.

    A parameter that was once found to vary stays in the list, so that columns do not come and go.
    """

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._varying: dict[str, None] = {}
        self._seen: set[str] = set()

    def observe(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Take a trial's parameters into account; the second time for one trial costs nothing."""
        if trial_id in self._seen:
            return
        self._seen.add(trial_id)
        first_trial = len(self._seen) == 1
        flat = flatten(config)
        for name, value in flat.items():
            if name in self._first:
                if name not in self._varying and not same(self._first[name], value):
                    self._varying[name] = None
            else:
                self._first[name] = value
                if not first_trial:
                    self._varying[name] = None
        for name in self._first.keys() - flat.keys():
            self._varying[name] = None

    @property
    def names(self) -> list[str]:
        """The flattened names of the parameters that vary, in the order of the configuration."""
        return [name for name in self._first if name in self._varying]


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last part of each flattened name where that is unambiguous, else the whole name."""
    leaves = [name.rpartition("/")[2] for name in names]
    return [leaf if leaf and leaves.count(leaf) == 1 else name for leaf, name in zip(leaves, names, strict=True)]


# -- parameters as text that can be pasted into a script or a manifest --

WIDTH = 88
_NUMBER = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_OTHER = re.compile(r"^(y|Y|n|N|0[oO][0-7_]+|0[xX][0-9a-fA-F_]+)$")


class _Code:
    """A value shown by an expression that makes it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def python_literal(params: Mapping[str, Any]) -> str:
    """Return parameters as a Python dict display; NaN and infinities as ``float("nan")``, objects by their repr."""
    return pprint.pformat(_python(params), width=WIDTH, sort_dicts=False)


def _python(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _python(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_python(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_python(item) for item in value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return _Code(f'float("{value}")')
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    plain = readable(value)
    if isinstance(value, OpaqueValue) and isinstance(plain, (list, dict)):
        return _python(plain)  # an array or a dataclass: what it consists of can be pasted
    return _Code(brief(value, 200))


def yaml_text(params: Mapping[str, Any]) -> str:
    """Return parameters as YAML that kubectl and `trialpod run` read back to the same values.

    YAML readers differ in what they take for a number or a boolean, so every string that any of them would take for
    one is quoted (PyYAML alone leaves ``1e-4`` and ``y`` bare).
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
    Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", _OTHER, list("yYnN0"))

    def dump(allow_unicode: bool) -> str:
        plain = _yaml(params)
        text = yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=allow_unicode, width=10_000)
        return str(text).rstrip("\n")

    text = dump(allow_unicode=True)
    # Invisible characters (other line breaks above all) do not survive PyYAML's plain style; escapes do.
    return text if text.replace("\n", "").isprintable() else dump(allow_unicode=False)


def _yaml(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, int) else str(key): _yaml(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_yaml(item) for item in value]
    value = readable(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _yaml(value) if isinstance(value, (list, dict)) else brief(value, 200)
