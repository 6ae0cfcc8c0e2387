"""Pythons that tests bring: an older release, one of another architecture, and a public training script.

Releases are those of python-build-standalone, which the Go module go-embed-python carries file by file, compressed.

Invariants: a folder in .cache/pythons that has its final name is complete. Each is fetched once, and needs Go's
module proxy, or PyPI, for it.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import layout
from .binaries import go, go_environment
from .system import run, say

_MODULE = "github.com/kluctl/go-embed-python@v0.0.0"
_RELEASES = {"3.10": "3.10.16-20241219-1", "3.11": "3.11.11-20241219-1"}
_SOCKEYE = (
    "sockeye==2.3.24", "mxnet==1.9.1", "numpy==1.23.5", "pyyaml==6.0.3", "portalocker==3.2.0", "sacrebleu==1.4.14",
    "graphviz==0.8.4", "requests==2.32.5", "urllib3==2.5.0", "idna==3.11", "certifi==2025.10.5",
    "charset-normalizer==3.4.4",
)  # fmt: skip
"""Sockeye (Apache-2.0) and all that its training script imports; wheels for CPython 3.11."""


def release(version: str, architecture: str) -> Path:
    """Return the folder of a CPython: bin/python3 and lib/python3.10, say. The architecture has Go's name for it."""

    def fetch(folder: Path) -> None:
        shown = run(
            [go(), "mod", "download", "-json", f"{_MODULE}-{_RELEASES[version]}"],
            cwd=folder,
            environment=go_environment(),
            timeout=600,
        )
        source = Path(json.loads(shown)["Dir"], "python/internal/data", f"linux-{architecture}")
        for file in (each for each in source.rglob("*") if each.is_file() and each.name != "files.json"):
            place = folder / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".gz":
                place = place.with_suffix("")
                place.write_bytes(gzip.decompress(file.read_bytes()))
            else:
                shutil.copyfile(file, place)
            place.chmod(0o755 if place.parent.name == "bin" or ".so" in place.suffixes else 0o644)
        os.symlink(f"python{version}", folder / "bin/python3")

    return _once(f"cpython-{_RELEASES[version]}-{architecture}", fetch)


def sockeye() -> Path:
    """Return a folder for sys.path of Python 3.11, with Sockeye in it."""

    def fetch(folder: Path) -> None:
        run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
                *(f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "_2_17", "2014")),
                "--target", folder, *_SOCKEYE,
            ],
            timeout=900,
        )  # fmt: skip

    return _once(_SOCKEYE[0].replace("==", "-"), fetch)


FETCHED: dict[str, Callable[[], Path]] = {
    "python3.10-amd64": lambda: release("3.10", "amd64"),
    "python3.11-arm64": lambda: release("3.11", "arm64"),
    "sockeye": sockeye,
}


def _once(name: str, fetch: Callable[[Path], None]) -> Path:
    place = layout.CACHE / "pythons" / name
    if not place.exists():
        say(f"fetching {name} (once)")
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            made = Path(folder, "made")
            made.mkdir()
            fetch(made)
            os.rename(made, place)
    return place
