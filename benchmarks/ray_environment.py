"""The scratch environment with Ray Tune from its wheel: made once under .cache/bench-ray/, then used again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RAY = "ray[tune]==2.60.0"
INSTALLED = (RAY, "optuna==5.0.0")
"""With what its OptunaSearch needs, in the version that trialpod's runs with."""


def ray_python(root: Path) -> Path:
    """Return the Python of the scratch environment, after making it if needed.

    Raises:
        SystemExit: it cannot be made.
    """
    folder = root / ".cache" / "bench-ray"
    python, done = folder / "venv" / "bin" / "python", folder / "installed"
    if python.exists() and done.exists() and done.read_text() == "\n".join(INSTALLED):
        return python
    uv = root / ".venv" / "bin" / "uv"
    print(f"installing {RAY} into {folder} (once) ...", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", root / ".venv" / "bin" / "python", folder / "venv"],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *INSTALLED],
    ):
        if subprocess.run([str(part) for part in command], check=False).returncode != 0:
            raise SystemExit(f"{RAY} could not be installed into {folder}; use --no-ray to measure without it")
    done.write_text("\n".join(INSTALLED))
    return python
