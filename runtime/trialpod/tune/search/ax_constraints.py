"""Constraints between parameters as Ax reads them: `eval` sees them there, so they are arithmetic or are refused.

Invariant: what `renamed` returns has nothing in it but Ax's names of parameters, numbers, ``+ - * / ( )`` and
comparisons.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

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


def holds(constraint: str, values: Mapping[str, float]) -> bool:
    """Return whether values meet a constraint that `renamed` returned; True for what only Ax can judge.

    Args:
        constraint: with Ax's names.
        values: by those names.
    """
    try:
        return bool(_value(ast.parse(constraint, mode="eval").body, values))
    except (SyntaxError, TypeError, ArithmeticError):
        return True


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=operator_, operand=operand) if type(operator_) in _SIGNS:
            return _SIGNS[type(operator_)] * _value(operand, values)
        case ast.BinOp(left=left, op=operator_, right=right) if type(operator_) in _OPERATIONS:
            return float(_OPERATIONS[type(operator_)](_value(left, values), _value(right, values)))
        case ast.Compare(left=left, ops=operators, comparators=comparators):
            sides = [_value(each, values) for each in (left, *comparators)]
            pairs = zip(operators, sides, sides[1:], strict=False)
            return all(_COMPARISONS[type(each)](one, other) for each, one, other in pairs)
    raise TypeError(f"{ast.dump(node)} is not arithmetic")


_SIGNS: dict[type[ast.unaryop], int] = {ast.UAdd: 1, ast.USub: -1}
_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _refusal(constraint: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"AxSearch: parameter_constraints are parameters, numbers, + - * / and a comparison, such as "
        f'"x1 + 2 * x2 <= 2", got {constraint!r:.80}: {why}',
        parameter="parameter_constraints",
    )
