"""Which NVIDIA GPUs a process can use, found without CUDA."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_NVIDIA_SMI_TIMEOUT_S = 10.0


def visible_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return their ids as ``CUDA_VISIBLE_DEVICES`` takes them.

    Args:
        environ: where to look for ``CUDA_VISIBLE_DEVICES``; without it all GPUs of the machine are visible.
        root: where ``dev`` is.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        ids = []
        for part in visible.split(","):
            name = part.strip()
            # CUDA ignores everything from the first invalid id on.
            if not name or name.startswith("-") or name == "NoDevFiles":
                break
            ids.append(name)
        return tuple(ids)
    dev = root / "dev"
    devices = [name for name in os.listdir(dev) if re.fullmatch(r"nvidia\d+", name)] if dev.is_dir() else []
    # A container may have only /dev/nvidia3; CUDA still counts from 0.
    count = len(devices) or (_count_by_nvidia_smi(environ) if root == Path("/") else 0)
    return tuple(str(index) for index in range(count))


def _count_by_nvidia_smi(environ: Mapping[str, str]) -> int:
    import shutil
    import subprocess

    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return 0
    try:
        done = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0
