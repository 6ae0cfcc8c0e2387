"""Constraints between parameters as Ax reads them: `eval` sees them there, so they are arithmetic or are refused.

Invariant: what `renamed` returns has nothing in it but Ax's names of parameters, numbers, ``+ - * / ( )`` and
comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trialpod.errors import InvalidInputError

_ARITHMETIC = re.compile(r"(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?![\w.])|<=|>=|[-+*/()<>=])+", re.ASCII)
_MAX_CHARACTERS = 1000


def renamed(constraint: str, names: Mapping[str, str]) -> str:
    """Return a constraint with Ax's names of parameters.

    Args:
        constraint: such as "x1 + 2 * x2 <= 2", with spaces around names.
        names: ours -> Ax's.

    Raises:
        InvalidInputError: something in it is neither a parameter nor arithmetic.
    """
    words = constraint.split()
    if len(constraint) > _MAX_CHARACTERS:
        raise _refusal(constraint, f"it has more than {_MAX_CHARACTERS} characters")
    for word in words:
        if word not in names and (not _ARITHMETIC.fullmatch(word) or "**" in word or "//" in word):
            raise _refusal(constraint, f"{word!r:.80} is none of these; put spaces around the names of parameters")
    return " ".join(names.get(word, word) for word in words)


def _refusal(constraint: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"AxSearch: parameter_constraints are parameters, numbers, + - * / and a comparison, such as "
        f'"x1 + 2 * x2 <= 2", got {constraint!r:.80}: {why}',
        parameter="parameter_constraints",
    )
