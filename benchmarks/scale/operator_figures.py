"""What the operator takes and does: memory, processor time, files, metrics, requests, bytes of the API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plane import AUDIT_LOG, OPERATOR, PROBE_PORT

ETCD_METRICS = "http://127.0.0.1:2379/metrics"
_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


@dataclass
class Sample:
    """All operators at one moment."""

    rss: int
    """Bytes; of the largest one."""
    cpu_s: float
    files: int
    metrics: dict[tuple[str, str], float] = field(repr=False)
    """By name and labels as they are printed."""


def sample(pids: Mapping[int, int]) -> Sample:
    """Look at all operators: the sum of what they take and count.

    Args:
        pids: process id of each, by its number.
    """
    found = [_sample(number, pid) for number, pid in pids.items()]
    counts: Counter[tuple[str, str]] = Counter()
    for each in found:
        counts.update(each.metrics)
    return Sample(
        rss=max(each.rss for each in found),
        cpu_s=sum(each.cpu_s for each in found),
        files=sum(each.files for each in found),
        metrics=counts,
    )


def _sample(number: int, pid: int) -> Sample:
    proc = Path(f"/proc/{pid}")
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    return Sample(
        rss=int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        files=len(os.listdir(proc / "fd")),
        metrics=metrics(f"http://127.0.0.1:{PROBE_PORT + number}/metrics"),
    )


def metrics(url: str) -> dict[tuple[str, str], float]:
    """Return what a Prometheus endpoint says."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = (_SAMPLE.match(line) for line in lines)
    return {(each[1], each[2] or ""): float(each[3]) for each in found if each}


def etcd_bytes() -> int:
    """Return what etcd's data takes."""
    return int(metrics(ETCD_METRICS)["etcd_mvcc_db_total_size_in_use_in_bytes", ""])


def quantile(before: Mapping[tuple[str, str], float], after: Mapping[tuple[str, str], float], name: str, q: float):  # type: ignore[no-untyped-def]
    """Return a quantile, in seconds, of what a histogram counted between two samples, as Prometheus works it out."""
    buckets = []
    for (metric, labels), count in after.items():
        if metric == f"{name}_bucket":
            bound = labels.split('"')[1]
            buckets.append((float(bound.replace("+Inf", "inf")), count - before.get((metric, labels), 0.0)))
    buckets.sort()
    if not buckets or not buckets[-1][1]:
        return float("nan")
    wanted, low, below = q * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / max(count - below, 1e-9)
        low, below = bound, count
    return low


class Requests:
    """The operator's requests to the API server, from its audit log; watches and Leases are counted apart."""

    def __init__(self) -> None:
        self._file = open(AUDIT_LOG, "rb")  # noqa: SIM115 - followed to the end of the run
        self._rest = b""

    def read(self) -> Counter[str]:
        """Return the requests since the last call, by verb and resource."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        found: Counter[str] = Counter()
        for line in lines:
            event = json.loads(line)
            if event.get("stage") != "ResponseComplete" or event["user"].get("username") != OPERATOR:
                continue
            reference = event.get("objectRef") or {}
            resource = reference.get("resource", event.get("requestURI", ""))
            if reference.get("subresource"):
                resource += f"/{reference['subresource']}"
            found[f"{event['verb']} {resource}"] += 1
        return found


class Received:
    """How many bytes the operators got from the API server: their watches, and the answers to their requests.

    Args:
        pids: of the operators.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._last: dict[str, int] = {}
        self.total = 0

    def look(self) -> int:
        """Return all that came until now; what a connection got after the last look before it ended is missed."""
        command = ["ss", "-tinpH", "dst", "127.0.0.1:6443"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        now: dict[str, int] = {}
        local = ""
        for line in said.splitlines():
            if not line.startswith((" ", "\t")):
                local = line.split()[3] if any(f"pid={pid}," in line for pid in self._pids) else ""
            elif local and (found := re.search(r"bytes_received:(\d+)", line)):
                now[local] = int(found[1])
        self.total += sum(count - self._last.get(name, 0) for name, count in now.items())
        self._last = now
        return self.total
