"""Parameters as text that can be pasted into a script or a manifest."""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping
from typing import Any

from trialpod.protocol.values import OpaqueValue, readable
from trialpod_operator.display.words import brief

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
