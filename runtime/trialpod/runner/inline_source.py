"""Which function of an inline source is the Trainable, read from its text: nothing of it is executed.

A function is preferred that takes one argument and calls ``report``; then one that no other function of the source
calls, which is not a helper. The runner and the validation of manifests decide by the same rule.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection


def syntax_problem(source: str) -> str | None:
    """Return why a source cannot be compiled by this version of Python, with its line; None when it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "the inline source", "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()
        return f"line {error.lineno} is not valid Python: {error.msg}" + (f": {line}" if line else "")
    except ValueError as error:  # a null byte
        return f"it is not valid Python: {error}"
    return None


def parameters_read(source: str, function: str) -> set[str]:
    """Return the parameters without which a function raises KeyError, as far as its text tells.

    These are the texts ``name`` of ``config["name"]``, where config is its first argument. There are none where the
    function stores into its config, passes it on, asks what is in it, or catches exceptions.

    Args:
        source: Python that compiles.
        function: a name at its top level.
    """
    node = next((n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == function), None)
    arguments = [*node.args.posonlyargs, *node.args.args] if node is not None else []
    if node is None or not arguments:
        return set()
    config = arguments[0].arg

    def is_config(part: ast.AST) -> bool:
        return isinstance(part, ast.Name) and part.id == config

    found = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.Try, ast.TryStar, ast.In, ast.NotIn)):
            return set()
        if isinstance(part, ast.Name) and part.id == config and not isinstance(part.ctx, ast.Load):
            return set()
        if isinstance(part, ast.Call) and any(map(is_config, part.args)):
            return set()
        if isinstance(part, ast.Attribute) and is_config(part.value) and part.attr not in ("get", "items"):
            return set()
        if not (isinstance(part, ast.Subscript) and is_config(part.value)):
            continue
        if not isinstance(part.ctx, ast.Load):
            return set()
        if isinstance(part.slice, ast.Constant) and isinstance(part.slice.value, str):
            found.add(part.slice.value)
    return found


def missing_parameters(source: str, function: str, space: Collection[str]) -> str | None:
    """Return a sentence on what a function reads from its config and a search space does not have; None for nothing.

    Args:
        source: Python that compiles.
        function: a name at its top level.
        space: the names at the top level of the search space.
    """
    missing = sorted(parameters_read(source, function) - set(space))
    if not missing:
        return None
    return f"{function} reads {', '.join(missing)} from its config, which spec.searchSpace does not have"


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


def defines_nothing(source: str) -> bool:
    """Return whether nothing in a source can make a function or a class.

    Raises:
        SyntaxError: the source is not Python of this version.
    """
    makers = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Call)
    return not any(isinstance(node, makers) for node in ast.walk(ast.parse(source)))


def defined_names(source: str) -> set[str] | None:
    """Return the names that a module has; None when its text does not tell.

    Raises:
        SyntaxError: the source is not Python of this version.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"{node.func.id}()")
    unclear = {"*", "__getattr__", "exec()", "globals()", "vars()", "setattr()"}
    return None if found & unclear else {name for name in found if name.isidentifier()}


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
