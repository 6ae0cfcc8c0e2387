"""``python -m trialpod.compat.ray SCRIPT [ARGS]`` or ``-m MODULE [ARGS]``: runs what was written for Ray Tune."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from types import TracebackType

from trialpod.cli.scripts import execute
from trialpod.compat.ray import install
from trialpod.errors import InvalidInputError

_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run the script as `python SCRIPT` would, a module as `python -m MODULE` would; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trialpod.compat.ray",
        description="Run a script written for Ray Tune: `import ray` means trialpod in it and in its trials.",
        usage="%(prog)s [-h] [--replace] (SCRIPT | -m MODULE) [ARGS ...]",
    )
    parser.add_argument("--replace", action="store_true", help="hide a real Ray that is installed")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module: `-m package.tune`")
    parser.add_argument("script", help="the script (.py), or with -m the module")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(argv)
    if not options.module and not os.path.isfile(options.script):
        parser.error(f"{options.script} does not exist")
    try:
        install(replace=options.replace)
    except InvalidInputError as error:
        parser.error(str(error))
    sys.argv = [options.script, *options.args]
    # As Python does; the folder of this module's caller ("" for -m) makes room for the script's.
    sys.path[0] = os.getcwd() if options.module else os.path.dirname(os.path.realpath(options.script))
    try:
        if options.module:
            file = _file_of(options.script)
            if file is None:
                parser.error(f"there is no module {options.script} that can be run")
            options.script = file
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            options.script = os.path.abspath(options.script)
            execute(options.script)
    except SystemExit:
        raise
    # Whatever the script raises is shown as by `python SCRIPT`.
    except BaseException as error:  # noqa: BLE001
        sys.stdout.flush()
        error.__traceback__ = _of_script(error.__traceback__, options.script)
        sys.excepthook(type(error), error, error.__traceback__)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _file_of(module: str) -> str | None:
    """Return the file that `python -m MODULE` runs, or None when there is no such module."""
    try:
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{module}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a package imports something that is missing
        return None
    return found.origin if found is not None else None


def _of_script(trace: TracebackType | None, script: str) -> TracebackType | None:
    """Return a traceback without what lies before the script: the frames that run it."""
    at = trace
    while at is not None:
        if at.tb_frame.f_code.co_filename == script:
            return at
        at = at.tb_next
    return trace  # it cannot be read or compiled


if __name__ == "__main__":
    sys.exit(main())
