"""`wait_for_gpu`: waits until the memory of a GPU is free, for example of what the trial before left there."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

log = logging.getLogger(__name__)


class Gpu(NamedTuple):
    """One GPU as ``nvidia-smi`` shows it; memory in MiB."""

    number: str
    uuid: str
    used: float
    total: float


def query_gpus() -> list[Gpu]:
    """Return the GPUs of this machine.

    Raises:
        RuntimeError: ``nvidia-smi`` is missing or fails.
    """
    import subprocess

    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(
            f"wait_for_gpu: nvidia-smi cannot be run ({error}); it comes with the NVIDIA driver, and in a container "
            "with the driver's 'utility' capability"
        ) from error
    if ran.returncode:
        raise RuntimeError(f"wait_for_gpu: nvidia-smi failed: {(ran.stderr or ran.stdout).strip()}")
    found = []
    for line in ran.stdout.splitlines():
        index, uuid, used, total = (part.strip() for part in line.split(","))
        found.append(Gpu(index, uuid, float(used), float(total)))
    return found


def wait_for_gpu(
    gpu_id: int | str | None = None,
    target_util: float = 0.01,
    retry: int = 20,
    delay_s: float = 5,
    gpu_memory_limit: float | None = None,
    *,
    gpus: Callable[[], list[Gpu]] = query_gpus,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return True once a GPU's memory is free.

    Args:
        gpu_id: its index or UUID; None takes the first of ``CUDA_VISIBLE_DEVICES``, or the first there is.
        target_util: the part of its memory that may be in use, 0 to 1.
        retry: maximum number of checks.
        delay_s: seconds between two checks.
        gpu_memory_limit: MiB that may be in use, instead of `target_util`.
        gpus: returns the GPUs.
        sleep: waits that many seconds.

    Raises:
        RuntimeError: there is no such GPU, or it did not become free.
    """
    wanted = _wanted(gpu_id)
    found: Gpu | None = None
    for attempt in range(max(1, int(retry))):
        if attempt:
            sleep(delay_s)
        found = _pick(gpus(), wanted)
        if found.used / max(found.total, 1.0) <= target_util:
            return True
        if gpu_memory_limit is not None and found.used <= gpu_memory_limit:
            return True
        log.info("GPU %s: %.0f of %.0f MiB are in use; waiting", found.number, found.used, found.total)
    assert found is not None
    raise RuntimeError(
        f"wait_for_gpu: GPU {found.number} did not become free in {retry} checks, {delay_s} s apart: "
        f"{found.used:.0f} of {found.total:.0f} MiB are in use; `nvidia-smi` shows by whom"
    )


def _wanted(gpu_id: int | str | None) -> str:
    if isinstance(gpu_id, bool) or (gpu_id is not None and not isinstance(gpu_id, (int, str))):
        raise ValueError(f"wait_for_gpu(gpu_id={gpu_id!r}): must be an index or a UUID")
    if gpu_id is not None:
        return str(gpu_id)
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()


def _pick(gpus: list[Gpu], wanted: str) -> Gpu:
    if not gpus:
        raise RuntimeError("wait_for_gpu: this machine has no GPU that nvidia-smi knows")
    if not wanted:
        return gpus[0]
    for gpu in gpus:
        if wanted == gpu.number or gpu.uuid == wanted or gpu.uuid.startswith(wanted if "-" in wanted else "\0"):
            return gpu
    names = ", ".join(f"{gpu.number} ({gpu.uuid})" for gpu in gpus)
    raise RuntimeError(f"wait_for_gpu: there is no GPU {wanted!r}; there are {names}")
