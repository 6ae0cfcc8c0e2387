"""Scratch environments with what trialpod is compared with: each made once under .cache/, then used again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RAY = "ray[tune]==2.60.0"
RAY_PACKAGES = (RAY, "optuna==5.0.0")
"""With what Ray's OptunaSearch needs, in the version that trialpod's runs with."""
S3_PACKAGES = ("minio==7.2.20", "obstore==0.12.1")


def make_environment(root: Path, name: str, packages: tuple[str, ...], otherwise: str) -> Path:
    """Return the Python of the scratch environment .cache/bench-`name`, after making it if needed.

    Args:
        root: of the repository.
        name: of the environment.
        packages: what is installed, with versions.
        otherwise: what to do where that is not possible, for the message.

    Raises:
        SystemExit: it cannot be made.
    """
    folder = root / ".cache" / f"bench-{name}"
    python, done, content = folder / "venv" / "bin" / "python", folder / "installed", " ".join(packages)
    if python.exists() and done.exists() and done.read_text() == content:
        return python
    uv = root / ".venv" / "bin" / "uv"
    print(f"installing {content} into {folder} (once) ...", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", root / ".venv" / "bin" / "python", folder / "venv"],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *packages],
    ):
        if subprocess.run([str(part) for part in command], check=False).returncode != 0:
            raise SystemExit(f"{content} could not be installed into {folder}; {otherwise}")
    done.write_text(content)
    return python
