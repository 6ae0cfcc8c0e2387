"""A MinIO server for one run of a workload: on a free port, with its data below the run's folder.

It ends with the process that started it, whatever ends that one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

from free_port import free_port  # noqa: E402

ACCESS_KEY, SECRET_KEY = "trialpod-bench", "trialpod-bench-secret"
_PR_SET_PDEATHSIG = 1
_START_S = 60.0


class Server:
    """The server, as a context.

    Args:
        folder: an empty folder for its data and its log.
    """

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        self.endpoint = f"http://127.0.0.1:{free_port()}"
        self._log = folder / "minio.log"

    def __enter__(self) -> Server:
        binary = subprocess.run([ROOT / "tools" / "build_minio"], check=True, stdout=subprocess.PIPE, text=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MINIO_"))}
        environment |= {
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": SECRET_KEY,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        libc = ctypes.CDLL(None)
        address = self.endpoint.removeprefix("http://")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [binary.stdout.strip(), "server", "--quiet", "--address", address, str(self.data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self._wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def environment(self) -> dict[str, str]:
        """Return the variables that S3 tools read."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def bytes_read(self) -> int:
        """Return how many bytes the server has read since its start, nearly all of them from its clients."""
        for line in Path(f"/proc/{self._process.pid}/io").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "rchar":
                return int(value)
        raise SystemExit("/proc/PID/io does not tell what a process reads")

    def _wait(self) -> None:
        until = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/minio/health/ready", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise SystemExit(f"MinIO does not start:\n{self._log.read_text(errors='replace')[-2000:]}")
