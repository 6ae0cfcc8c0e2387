"""The table of a run in Markdown, the peers' wins on top, and where runs are kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
OWN = "trialpod"
FIGURES = (
    ("first_trial_s", "apply to the first trial's start, s"),
    ("end_s", "apply to the end, s"),
    ("requests_own", "API requests of its own parts, for each trial"),
    ("requests_all", "API requests of all, for each trial"),
    ("objects", "objects in etcd, for each trial"),
    ("kilobytes", "kB in etcd, for each trial"),
    ("overhead_median_mb", "memory of everything but the trials, median, MB"),
    ("overhead_peak_mb", "memory of everything but the trials, peak, MB"),
    ("trial_median_mb", "memory of a running trial, MB"),
)
"""Of all of them less is better."""

_LOST = (
    "system", "fault", "ended", "s after the fault", "trials with a result", "finished ones lost",
    "finished ones run again", "trials run twice", "steps repeated",
)  # fmt: skip


def render(document: Mapping[str, Any]) -> str:
    """Return the text of a run."""
    systems = document["systems"]
    parts = [machine(document), wins(systems), measured(systems), lost(systems)]
    return "\n\n".join(part for part in parts if part)


def machine(document: Mapping[str, Any]) -> str:
    """Return where and with what a run was made."""
    versions = "; ".join(
        f"{each['title']}: " + ", ".join(f"{name} {version}" for name, version in each["versions"].items())
        for each in document["systems"].values()
    )
    return f"{document['machine']}\n\n{versions}"


def wins(systems: Mapping[str, Any]) -> str:
    """Return in what each peer is better than trialpod."""
    lines = []
    for name, each in systems.items():
        if name == OWN or OWN not in systems:
            continue
        found = [
            f"{what} with {size} trials: {theirs:g} against {ours:g}"
            for size, figures in each["experiments"].items()
            for key, what in FIGURES
            if "problem" not in figures
            and (theirs := figures.get(key)) is not None
            and (ours := systems[OWN]["experiments"].get(size, {}).get(key)) is not None
            and theirs < ours
        ]
        lines.append(f"{each['title']} is better in: " + ("; ".join(found) or "nothing that was measured") + ".")
    return "\n".join(lines)


def measured(systems: Mapping[str, Any]) -> str:
    """Return the table of undisturbed experiments."""
    sizes = list(dict.fromkeys(size for each in systems.values() for size in each["experiments"]))
    lines = ["| trials | what | " + " | ".join(each["title"] for each in systems.values()) + " |"]
    lines.append("|" + "---|" * (2 + len(systems)))
    for size in sizes:
        for key, what in FIGURES:
            cells = [_cell(each["experiments"].get(size, {}), key) for each in systems.values()]
            lines.append(f"| {size} | {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines) if sizes else ""


def _cell(figures: Mapping[str, Any], key: str) -> str:
    if "problem" in figures:
        return f"did not end: {figures['problem']}"
    value = figures.get(key)
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def lost(systems: Mapping[str, Any]) -> str:
    """Return the table of disturbed experiments."""
    lines = [
        f"| {' | '.join(_LOST)} |",
        "|" + "---|" * len(_LOST),
    ]
    for each in systems.values():
        for name, found in each["failures"].items():
            if "problem" in found:
                lines.append(f"| {each['title']} | {name} | {found['problem']} |" + " |" * 6)
                continue
            after = found["after_fault_s"] if found["after_fault_s"] is not None else found["took_s"]
            state = ("yes: " if found["ended"] else "no: ") + found["state"].split("{")[0].strip()
            lines.append(
                f"| {each['title']} | {name} | {state} | {after:g} | {found['with_result']} of {found['trials']} | "
                f"{found['finished_before_and_lost']} | {found['finished_before_and_run_again']} | "
                f"{found['ran_twice']} | {found['steps_repeated']} |"
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def describe_machine() -> str:
    """Return the machine, the day and the load."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} cores ({model}), {memory:.0f} GiB, "
        f"Linux {platform.release()}, load {os.getloadavg()[0]:.1f} before"
    )


def store(document: Mapping[str, Any]) -> Path:
    """Keep a run, and return where."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{time.strftime('%Y-%m-%dT%H%M')}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    return file


def commit(root: Path) -> str:
    """Return the commit that the tree is at."""
    said = subprocess.run(
        ["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return said.stdout.strip()
