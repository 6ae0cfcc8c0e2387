"""Runs a user's script or module as `python` would, for the commands that take one."""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType

from trialpod.errors import InvalidInputError, TrialpodError


def run_file(file: str, arguments: Sequence[str]) -> bool:
    """Run a script as Python would; show an error of its own, and return whether there was one.

    Raises:
        TrialpodError: an experiment in it could not continue, or cannot work.
    """
    script = os.path.abspath(file)
    from trialpod import variables
    from trialpod.compat.activation import activate

    activate(os.environ.get(variables.COMPAT, ""))
    sys.argv = [file, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    try:
        execute(script)
    except TrialpodError:
        raise
    except Exception as error:  # noqa: BLE001 - the script's own: shown as Python would
        _show_script_error(error, script)
        if isinstance(error, ModuleNotFoundError) and error.name == "ray":
            print(f"With the variable {variables.COMPAT}=ray, `import ray` means trialpod in it.", file=sys.stderr)
        return True
    return False


def run_module(module: str, arguments: Sequence[str]) -> bool:
    """Run a module as ``python -m`` would; as `run_file` otherwise.

    Raises:
        InvalidInputError: there is no such module.
        TrialpodError: an experiment in it could not continue, or cannot work.
    """
    from trialpod import variables
    from trialpod.compat.activation import activate

    activate(os.environ.get(variables.COMPAT, ""))
    sys.argv = [module, *arguments]
    sys.path.insert(0, os.getcwd())
    try:
        found = find_spec(module)
        if found is not None and found.submodule_search_locations is not None:
            found = find_spec(f"{module}.__main__")
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"-m {module}: there is no module {error.name!r} here or among the installed ones"
        ) from None
    if found is None or found.origin is None:
        raise InvalidInputError(
            f"-m {module}: there is no such module here ({os.getcwd()}) or among the installed ones; give its name "
            "with dots, as to `import`, or the path of a script without -m"
        )
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except TrialpodError:
        raise
    except Exception as error:  # noqa: BLE001 - the module's own: shown as Python would
        _show_script_error(error, found.origin)
        return True
    return False


def execute(script: str) -> None:
    """Run the file at an absolute path as ``__main__``; `sys.argv` and `sys.path` are the caller's to set.

    `runpy.run_path` would put the absolute path into `sys.argv` too, which Python leaves as typed.
    """
    if script.endswith(".pyc") or pkgutil.get_importer(script) is not None:  # compiled, or a zip archive
        runpy.run_path(script, run_name="__main__")
        return
    with io.open_code(script) as stream:
        code = compile(stream.read(), script, "exec", dont_inherit=True)
    before = sys.modules["__main__"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__file__=script, __cached__=None, __builtins__=builtins)
    try:
        exec(code, main.__dict__)
    finally:
        sys.modules["__main__"] = before


def _show_script_error(error: Exception, script: str) -> None:
    """Print a traceback that begins in the script."""
    shown = traceback.TracebackException.from_exception(error)
    first = next((at for at, frame in enumerate(shown.stack) if frame.filename == script), 0)
    shown.stack = traceback.StackSummary.from_list(shown.stack[first:])
    print("".join(shown.format()), end="", file=sys.stderr)
