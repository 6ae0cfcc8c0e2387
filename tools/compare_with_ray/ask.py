"""Runs the probes of subjects, on Ray or on what stands for it here, and writes down what they found.

    ask.py --into FOLDER SUBJECT ... [--only PROBE ...]

FOLDER/SUBJECT.json holds the answers, with a hash of each probe's source: a probe that has its answer is not asked
again.

A probe is a function in behaviours/SUBJECT.py with ``@probe``, which uses ``ray`` as its users do and returns facts:
a dict of behaviours, each a name and a plain value, or a function that returns it. Run it with a Python that has
``ray[tune]==2.60.0``, or with ``python -m trialpod.compat.ray``. What differs from run to run (folders, dates, trial
ids) is replaced by a word, and an exception is its class and the classes that it derives from.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import io
import json
import linecache
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

BEHAVIOURS = Path(__file__ if "__file__" in globals() else sys.argv[0]).resolve().parent / "behaviours"
PROBES: dict[str, Callable[[str], dict[str, Any]]] = {}
_REPLACED = (
    (re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"), "DATE"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{5,8}_\d{5}"), "ID"),
    (re.compile(r"_[0-9a-f]{8}(?=_|\b)"), "_ID"),
)


def probe(function: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Register a probe; it is called with the path of an empty folder."""
    PROBES[function.__name__] = function
    return function


def raised(call: Callable[[], Any]) -> Any:
    """Return what `call` returns, or which exception it raises."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # which one is the question
        return {"raises": [cls.__name__ for cls in type(error).__mro__[:-2] if cls is not Exception] or ["Exception"]}


@contextlib.contextmanager
def printed() -> Iterator[io.StringIO]:
    """Collect what is printed meanwhile."""
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        yield stream


def plain(value: Any, folder: str) -> Any:
    """Return `value` as plain data, without what differs from run to run."""
    if value is None or isinstance(value, bool | int | float):
        return value if value == value else "NaN"
    if isinstance(value, str):
        value = value.replace(f"file://{folder}", "FOLDER").replace(folder, "FOLDER")
        for pattern, word in _REPLACED:
            value = pattern.sub(word, value)
        return value
    if isinstance(value, tuple):
        return {"tuple": [plain(item, folder) for item in value]}
    if isinstance(value, list):
        return [plain(item, folder) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted((plain(item, folder) for item in value), key=str)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, folder) for key, item in value.items()}
    return f"<{type(value).__name__}>"


def source_hash(function: Callable[..., Any]) -> str:
    """Return a short hash of a probe's source."""
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]


def _load(subject: str) -> dict[str, Callable[[str], dict[str, Any]]]:
    path = str(BEHAVIOURS / f"{subject}.py")
    PROBES.clear()
    linecache.clearcache()
    # In __main__, as a user's script, so that Trainables travel by value.
    exec(compile(Path(path).read_text(), path, "exec"), vars(sys.modules["__main__"]))
    return dict(PROBES)


def _answer(function: Callable[[str], dict[str, Any]]) -> Any:
    home = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        os.chdir(folder)
        try:
            found = {name: raised(value) if callable(value) else value for name, value in function(folder).items()}
        except Exception as error:  # noqa: BLE001  # a behaviour as well
            traceback.print_exc()
            found = {"ends": {"with": type(error).__name__}}
        finally:
            os.chdir(home)
        return plain(found, os.path.realpath(folder))


def main() -> None:
    """Ask, and keep each answer at once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subjects", nargs="+")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    vars(sys.modules["__main__"]).update(probe=probe, raised=raised, printed=printed)
    stdout, sys.stdout = sys.stdout, sys.stderr  # Ray prints there
    import ray  # which one is the question

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    for subject in options.subjects:
        file = options.into / f"{subject}.json"
        answers = json.loads(file.read_text()) if file.exists() else {}
        probes = _load(subject)
        answers = {name: answer for name, answer in answers.items() if name in probes}
        for name, function in probes.items():
            source = source_hash(function)
            known = answers.get(name, {}).get("source") == source
            if name not in options.only if options.only else known:
                continue
            started = time.monotonic()
            answers[name] = {"source": source, "found": _answer(function)}
            file.write_text(json.dumps({key: answers[key] for key in probes if key in answers}, indent=1) + "\n")
            print(f"{subject}.{name}: {time.monotonic() - started:.1f} s", file=stdout, flush=True)


if __name__ == "__main__":
    main()
