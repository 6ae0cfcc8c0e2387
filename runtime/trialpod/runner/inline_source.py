"""Which function of an inline source is the Trainable, read from its text: nothing of it is executed.

A function is preferred that takes one argument and calls ``report``; then one that no other function of the source
calls, which is no helper. The runner and the validation of manifests decide by the same rule.
"""

from __future__ import annotations

import ast


def candidates(source: str) -> list[str]:
    """Return the names of the functions that may be the trainable: one when it is clear, none without a function.

    Raises:
        SyntaxError: the source is not Python of this version.
    """
    functions = {
        node.name: node
        for node in ast.parse(source).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    }
    fitting = [name for name, node in functions.items() if _takes_a_config(node)] or list(functions)
    reporting = [name for name in fitting if "report" in _calls(functions[name])]
    if len(reporting) == 1:
        return reporting
    left = reporting or fitting
    called = {name for other in functions.values() for name in _calls(other) if name != other.name}
    return [name for name in left if name not in called] or left


def has_class(source: str) -> bool:
    """Return whether a class is defined in a source, which may derive from Trainable.

    Raises:
        SyntaxError: the source is not Python of this version.
    """
    return any(isinstance(node, ast.ClassDef) for node in ast.parse(source).body)


def _takes_a_config(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    keywords = sum(default is None for default in arguments.kw_defaults)
    return required <= 1 and bool(positional or arguments.vararg) and not keywords


def _calls(node: ast.AST) -> set[str]:
    """Return the names of what is called, or passed on by name, in a function."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            if isinstance(part.func, ast.Attribute):
                found.add(part.func.attr)
        elif isinstance(part, ast.Name):
            found.add(part.id)
    return found
