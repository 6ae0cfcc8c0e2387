"""What a plain YAML scalar means to kubectl.

kubectl reads a manifest with sigs.k8s.io/yaml (go-yaml v2), turns it into JSON, and decodes that with integers kept.
This is neither YAML 1.1 nor 1.2, and not what PyYAML does:

* `1e-4` is a number, `1_000` is 1000, `010` is 8, and so is `0o10`; `0x1F`, `0b1` work; `08` is 8 (a float);
* `1:30` and `2001-01-01` are strings;
* y, n, yes, no, on, off, true, false are booleans in lower, Title and UPPER case;
* `1.0` and `1e3` become the integers 1 and 1000, because that is how they pass through JSON;
* an integer that does not fit in 64 bits becomes a float.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None


def _cases(*words: str) -> list[str]:
    return [form for word in words for form in (word, word.capitalize(), word.upper())]


WORDS: dict[str, Scalar] = {
    **dict.fromkeys(_cases("y", "yes", "true", "on"), True),
    **dict.fromkeys(_cases("n", "no", "false", "off"), False),
    **dict.fromkeys(["", "~", *_cases("null")], None),
}
"""Words that are not strings when they stand without quotes."""

_NOT_FINITE = {
    *(sign + form for sign in ("", "+", "-") for form in (".inf", ".Inf", ".INF")),
    ".nan",
    ".NaN",
    ".NAN",
}
_INTEGER = re.compile(
    r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]([0-7]+)|0([0-7]+)|(0|[1-9][0-9]*))", re.ASCII
)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_POINT_FLOAT = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?", re.ASCII)
_MANY_DIGITS = 400


class NotFiniteError(ValueError):
    """The scalar is an infinity or not a number, which JSON cannot carry."""


def resolve_plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar without a tag.

    Raises:
        NotFiniteError: it is `.inf`, `-.inf` or `.nan`.
    """
    if text in WORDS:
        return WORDS[text]
    if text in _NOT_FINITE:
        raise NotFiniteError(text)
    first = text[0]
    if first == ".":
        return _to_json_number(float(text.replace("_", ""))) if _POINT_FLOAT.fullmatch(text) else text
    if first not in "+-0123456789":
        return text
    plain = text.replace("_", "")
    if (match := _INTEGER.fullmatch(plain)) and len(plain) <= _MANY_DIGITS:
        value = _integer(match)
        if -(2**63) <= value < 2**64:
            return value if value < 2**63 else float(value)
    if _FLOAT.fullmatch(plain):
        number = float(plain)
        # Go's parser refuses what overflows, so that the scalar stays a string.
        return text if number in (float("inf"), float("-inf")) else _to_json_number(number)
    return text


def _integer(match: re.Match[str]) -> int:
    sign, hexadecimal, binary, octal, old_octal, decimal = match.groups()
    if hexadecimal:
        value = int(hexadecimal, 16)
    elif binary:
        value = int(binary, 2)
    elif octal or old_octal:
        value = int(octal or old_octal, 8)
    else:
        value = int(decimal)
    return -value if sign == "-" else value


def _to_json_number(number: float) -> int | float:
    """Return what is left of a float after its way through JSON: Go writes 1000.0 as 1000."""
    if number.is_integer() and -(2**63) <= number < 2**63:
        return int(number)
    return number
