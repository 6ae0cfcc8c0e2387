"""The scratch environment with other S3 clients, to compare with: made once under .cache/bench-s3/."""

from __future__ import annotations

import subprocess
from pathlib import Path

CLIENTS = ("minio==7.2.20", "obstore==0.12.1")


def make_s3_environment(root: Path) -> None:
    """Make the environment if it is not there, and build the server that the clients talk to.

    Raises:
        SystemExit: one of them cannot be made.
    """
    folder = root / ".cache" / "bench-s3"
    python, done = folder / "venv" / "bin" / "python", folder / "installed"
    uv = root / ".venv" / "bin" / "uv"
    commands: list[list[Path | str]] = [[root / "tools" / "build_minio"]]
    if not (python.exists() and done.exists() and done.read_text() == " ".join(CLIENTS)):
        folder.mkdir(parents=True, exist_ok=True)
        commands += [
            [uv, "venv", "--quiet", "--clear", "--python", root / ".venv" / "bin" / "python", folder / "venv"],
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *CLIENTS],
        ]
    for command in commands:
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            raise SystemExit(f"the checkpoint rows need MinIO and {' and '.join(CLIENTS)}; {command[0]} failed")
    done.write_text(" ".join(CLIENTS))
