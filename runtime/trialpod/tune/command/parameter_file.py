r"""The parameters of a trial as a file: JSON, or YAML that every reader of version 1.1 or 1.2 reads alike. Pure.

JSON is YAML but for two things: a YAML 1.1 reader takes ``1e-05`` for a text, so floats get a point there; and it
does not join surrogates, so characters beyond the first plane are written ``\U0001f600``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from trialpod.tune.command.template import plain


def encode_json(params: Mapping[str, Any]) -> str:
    """Return the parameters as one JSON object."""
    return json.dumps(plain(dict(params), "config"), indent=2, ensure_ascii=False) + "\n"


def encode_yaml(params: Mapping[str, Any]) -> str:
    """Return the parameters as a YAML mapping, one line each."""
    values = plain(dict(params), "config")
    return "".join(f"{_text(key)}: {_flow(value)}\n" for key, value in values.items()) or "{}\n"


def encode_for(path: str, params: Mapping[str, Any]) -> str:
    """Return the parameters in the format that the name of a file asks for: YAML for .yaml and .yml, else JSON."""
    return (encode_yaml if path.endswith((".yaml", ".yml")) else encode_json)(params)


def _flow(value: Any) -> str:
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    shown = (json.dumps(each)[1:-1] if each <= "\uffff" else f"\\U{ord(each):08x}" for each in value)
    return f'"{"".join(shown)}"'


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    sign = "" if exponent[0] in "+-" else "+"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{exponent}"
