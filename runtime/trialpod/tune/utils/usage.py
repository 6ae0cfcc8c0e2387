"""`UtilMonitor`: how busy this machine is, sampled while it runs."""

from __future__ import annotations

import os
import threading
from typing import Any


class UtilMonitor(threading.Thread):
    """Samples CPU and memory use in the background; `get_data` returns the means since the last call.

    Args:
        start: whether to sample at all.
        delay: seconds between samples.
    """

    def __init__(self, start: bool = True, delay: float = 0.7) -> None:
        super().__init__(daemon=True)
        self._delay = delay
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._values: dict[str, list[float]] = {}
        self._before = _cpu_times()
        if start:
            self.start()

    def run(self) -> None:
        """Sample until `stop`."""
        while not self._ends.wait(self._delay):
            now = _cpu_times()
            total, idle = now[0] - self._before[0], now[1] - self._before[1]
            self._before = now
            with self._lock:
                if total > 0:
                    self._values.setdefault("cpu_util_percent", []).append(100.0 * (1 - idle / total))
                self._values.setdefault("ram_util_percent", []).append(_memory_percent())

    def get_data(self) -> dict[str, Any]:
        """Return ``{"perf": {"cpu_util_percent": ..., "ram_util_percent": ...}}``, empty when nothing was sampled."""
        with self._lock:
            values, self._values = self._values, {}
        return {"perf": {name: sum(many) / len(many) for name, many in values.items()}} if values else {}

    def stop(self) -> None:
        """End sampling."""
        self._ends.set()


def _cpu_times() -> tuple[float, float]:
    """Return all CPU time of the machine, and the idle part, in ticks."""
    with open("/proc/stat", encoding="ascii") as stream:
        ticks = [float(part) for part in stream.readline().split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def _memory_percent() -> float:
    total = os.sysconf("SC_PHYS_PAGES")
    with open("/proc/meminfo", encoding="ascii") as stream:
        for line in stream:
            if line.startswith("MemAvailable:"):
                available = float(line.split()[1]) * 1024
                return 100.0 * (1 - available / (total * os.sysconf("SC_PAGE_SIZE")))
    return 0.0
