"""``python -ISm trialpod.runner.image_python MODULE``: run a module of trialpod with the Python of the image.

This is the portable runtime's own Python, in a container whose image may lack trialpod (tools/make_portable_runtime).
It looks at the image's Python, and becomes it. The volume has trialpod, and the packages that it imports, for each
Python that trialpod runs on.

Invariants: where the image has a trialpod, that one runs, and nothing is added. Packages of the image go before those
of the volume, unless they are older than what trialpod needs. What does not fit is one sentence with what to do: the
container's termination message, with the exit status `UNFIT`, before anything of the user's runs.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialpod import variables
from trialpod.errors import TrialpodError
from trialpod.runner.command.program_file import machine_of, this_machine
from trialpod.runner.pod import TerminationMessage
from trialpod.runner.streams import write_stderr

UNFIT = 125
"""Exit status: no Python of the image can run a trial."""

NEEDED = {"msgspec": ((0, 21), "abi"), "minio": ((7, 2, 20), "common")}
"""Least versions of what the image may have too, and the entry of sys.path that goes first where one is older."""

DECIDER = "trialpod_operator.decider"
_NAMES = ("python", "python3")
_PROBE_TIMEOUT_S = 60.0
# Any Python can read this, so that an old one can be named.
_PROBE = """
import json, os, sys
found = {"version": list(sys.version_info[:3]), "path": sys.executable, "names": {}}
try:
    import importlib.util, sysconfig
    from importlib.metadata import version
    found["implementation"] = sys.implementation.name
    found["suffix"] = sysconfig.get_config_var("EXT_SUFFIX") or ""
    try:
        found["glibc"] = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        found["glibc"] = None
    for name in ("trialpod", "msgspec", "minio"):
        place = importlib.util.find_spec(name)
        if place is not None and place.origin:  # a folder of that name, such as the trial's work folder, is none
            try:
                found["names"][name] = version(name)
            except Exception:
                found["names"][name] = ""
except ImportError:
    pass
print("\\n" + json.dumps(found))
"""


class UnfitPythonError(TrialpodError):
    """The image has no Python that can run a trial."""


def main(arguments: list[str] | None = None) -> int:
    """Become the image's Python; return the exit status where there is none that fits."""
    (module,) = sys.argv[1:] if arguments is None else arguments
    message = TerminationMessage(os.environ.get(variables.TERMINATION_LOG) or "/dev/termination-log")
    try:
        command, environ = plan(module, Path(sys.base_prefix), os.environ)
    except UnfitPythonError as error:
        message.write(str(error))
        write_stderr(f"trialpod: {error}\n")
        return UNFIT
    os.execve(command[0], command, environ)
    raise AssertionError("never reached")


def plan(module: str, volume: Path, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line that runs the module, and its environment.

    Args:
        module: of trialpod.
        volume: where the portable runtime is.
        environ: of the container.

    Raises:
        UnfitPythonError: the image has no Python for it.
    """
    python = _find(environ.get("PATH", os.defpath), module)
    found = _probe(python, environ)
    command = [python, "-m", module]
    names: Mapping[str, str] = found["names"]
    if "trialpod" in names:
        return command, dict(environ)
    folders = _folders(found, volume / "packages")
    first = [volume / "code.zip"]
    for name, (least, folder) in NEEDED.items():
        if name in names and _numbers(names[name]) < least:
            first.append(folders[folder])
    given = environ.get("PYTHONPATH", "")
    return command, {
        **environ,
        "PYTHONPATH": os.pathsep.join([*map(str, first), *([given] if given else [])]),
        variables.PACKAGES: os.pathsep.join(map(str, folders.values())),
    }


def _find(path: str, module: str) -> str:
    for name in _NAMES:
        if found := shutil.which(name, path=path):
            return found
    what, remedy = "which a Python Trainable needs", "tune the program as spec.trainable.command"
    if module == DECIDER:
        what, remedy = "in which its own deciding code would run", "name one that has it in spec.decider.image"
    raise UnfitPythonError(
        f"the image has no {' or '.join(_NAMES)} on its PATH ({path}), {what}; add Python to the image, name its "
        f"folder in PATH, or {remedy}"
    )


def _probe(python: str, environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        built_for = machine_of(python) if isinstance(error, OSError) and error.errno == errno.ENOEXEC else ""
        if built_for not in ("", this_machine()):
            raise UnfitPythonError(
                f"the image is built for {built_for}, and this node is {this_machine()}: use an image that is built "
                "for it too, or choose nodes of the other one (nodeSelector kubernetes.io/arch)"
            ) from error
        why = str(error.strerror) if isinstance(error, OSError) else "it printed nothing that can be read"
        raise UnfitPythonError(f"the image's Python {python} does not run ({why}); correct the image") from error
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())


def _folders(found: Mapping[str, Any], packages: Path) -> dict[str, Path]:
    """Return the folders with packages for a Python."""
    version = ".".join(map(str, found["version"]))
    have = sorted(int(each.name[3:].partition("-")[0]) for each in packages.glob("cp3*-glibc"))
    span = f"3.{have[0]} to 3.{have[-1]}" if have else "no Python at all"
    else_ = "or tune the program as spec.trainable.command, which any Python can run"
    major, minor = found["version"][:2]
    if major < 3 or found.get("implementation") != "cpython":
        what = found.get("implementation", "Python").replace("cpython", "Python")
        raise UnfitPythonError(
            f"the image has {what} {version}, a Trainable runs on CPython {span}; use such an image, {else_}"
        )
    suffix = str(found.get("suffix", ""))
    if re.search(r"\d+t-", suffix):
        raise UnfitPythonError(
            f"the image's Python {version} is free-threaded, for which there are no packages; use the usual build, "
            f"{else_}"
        )
    musl = "musl" in suffix or found.get("glibc", "?") is None  # the suffix says it from Python 3.11 on
    library = "musl" if musl else "glibc"
    abi = packages / f"cp{major}{minor}-{library}"
    if not abi.is_dir():
        what = "has reached its end of life" if (major, minor) < (3, 10) else "is newer than the operator's image"
        raise UnfitPythonError(
            f"the image has Python {version}, which {what}; a Trainable runs on {span}: use an image with one of "
            f"these, {else_}"
        )
    return {
        "abi": abi,
        "library": packages / library,
        "common": packages / "common.zip",
        "files": packages / "common",
    }


if __name__ == "__main__":
    sys.exit(main())
