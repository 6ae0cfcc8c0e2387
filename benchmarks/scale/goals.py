"""The goals of `make bench-scale`, and the table that compares a run with them and with the last one stored."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

STORED = Path(__file__).with_name("results")
"""One JSON file for each run that was kept: figures, machine, commit and arguments."""

CALM = "calm: "
"""How the names of those parts begin in which trials end more slowly than the machine can make pods."""

LAST, BESIDE, RESTART, FAIL_OVER = "of them", "small experiments beside", "kill -9", "fail-over"


class Goal(NamedTuple):
    """A figure that is to be reached.

    Attributes:
        text: what it is.
        part: how the name of the part of the run begins, or what it contains.
        figure: its name there.
        goal: at most so much.
        unit: of both.
    """

    text: str
    part: str
    figure: str
    goal: float | None
    unit: str = "s"


GOALS = (
    Goal("reconcile p50", LAST, "reconcile_p50_s", 0.02),
    Goal("reconcile p99", LAST, "reconcile_p99_s", 0.1),
    Goal("... of it without waiting, one step p99", LAST, "reconcile_step_p99_s", None),
    Goal("event loop late p99", LAST, "loop_lag_p99_s", None),
    Goal("decision p50", LAST, "decision_p50_s", 0.02),
    Goal("decision p99", LAST, "decision_p99_s", 0.2),
    Goal("result durable p50", LAST, "durable_p50_s", 0.03),
    Goal("result durable p99.9", LAST, "durable_p999_s", 2.0),
    Goal("operator memory", LAST, "rss_mb", 250.0, "MB"),
    Goal("operator CPU per trial", LAST, "cpu_ms_per_trial", 30.0, "ms"),
    Goal("API requests per trial", LAST, "requests_per_trial", 6.0, ""),
    Goal("kill -9 until all attempts are answered", RESTART, "answered_all_s", 5.0),
    Goal("fail-over until all attempts are answered", FAIL_OVER, "answered_all_s", 10.0),
    Goal("small: first pod p99", BESIDE, "apply_to_first_pod_p99_s", 1.0),
    Goal("small: decision p99", BESIDE, "decision_p99_s", 0.1),
)


def value(figures: Mapping[str, Mapping[str, Any]], goal: Goal, *, calm: bool = False) -> float | None:
    """Return the figure of a goal, None when the run has none; of several parts the last."""
    parts = {name: part for name, part in figures.items() if name.startswith(CALM) == calm}
    found = [part.get(goal.figure) for name, part in parts.items() if goal.part in name]
    known = [each for each in found if isinstance(each, int | float) and each == each]
    return known[-1] if known else None


def table(figures: Mapping[str, Mapping[str, Any]], last: Mapping[str, Any] | None) -> str:
    """Return the table as Markdown.

    Args:
        figures: of this run, by part.
        last: what `newest` returned; None = nothing was stored.
    """
    before = f"{last['commit'][:7]}, scale {last['scale']:g}" if last is not None else "nothing stored"
    lines = [f"| figure | goal | full machine | calm | {before}: full | calm |", "|---|---|---|---|---|---|"]
    for goal in GOALS:
        cells = [_judged(value(figures, goal, calm=calm), goal) for calm in (False, True)]
        if last is not None:
            cells += [_shown(value(last["figures"], goal, calm=calm), goal.unit) for calm in (False, True)]
        else:
            cells += ["", ""]
        lines.append("| " + " | ".join((goal.text, _shown(goal.goal, goal.unit), *cells)) + " |")
    return "\n".join(lines)


def _judged(number: float | None, goal: Goal) -> str:
    if number is None or goal.goal is None:
        return _shown(number, goal.unit)
    return f"{_shown(number, goal.unit)} {'ok' if number <= goal.goal else '**missed**'}"


def newest(scale: float, running: int | None = None, folder: Path = STORED) -> dict[str, Any] | None:
    """Return the last run that was stored, of this scale and so many running trials if there is one."""
    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    wanted = str(running)
    runs.sort(
        key=lambda run: (
            run["scale"] == scale,
            str(run.get("arguments", {}).get("running")) == wanted,
            run["date"],
        )
    )
    return runs[-1] if runs else None


def store(figures: Mapping[str, Any], arguments: Mapping[str, Any], folder: Path = STORED) -> Path:
    """Keep a run, with the machine and the commit that it was made on."""
    now = datetime.now(UTC)
    document = {
        "date": now.isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "machine": machine(),
        "scale": arguments["scale"],
        "arguments": {name: str(each) for name, each in arguments.items() if name not in ("json", "store")},
        "figures": figures,
    }
    folder.mkdir(exist_ok=True)
    file = folder / f"{now:%Y%m%d-%H%M%S}-{arguments['scale']:g}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    return file


def machine() -> dict[str, Any]:
    """Return what the run was made on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _shown(number: float | None, unit: str) -> str:
    return "" if number is None else f"{number:.3g} {unit}".strip()
