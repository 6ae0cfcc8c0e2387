"""The experiments of a folder on this machine, for `trialpod list`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trialpod.errors import TrialpodError
from trialpod_operator.display.progress import done
from trialpod_operator.display.words import duration, number, one_line
from trialpod_operator.local.reading import is_experiment
from trialpod_operator.local.running import live_view

Json = dict[str, Any]


def experiments(root: Path) -> list[Json]:
    """Return what a list says of each experiment in a folder, as data, by name."""
    below = sorted(root.iterdir()) if root.is_dir() else []
    return [_facts(path) for path in [root, *below] if is_experiment(path)]


def _facts(path: Path) -> Json:
    try:
        view, _ = live_view(str(path), rows=0)
    except TrialpodError as error:  # of a newer version, or damaged: the others are still listed
        return {"name": path.name, "path": str(path), "state": "Unreadable", "message": str(error)}
    total = "" if view.total is None else f"/{view.total}"
    best = view.best
    return {
        "name": view.name,
        "path": str(path),
        "state": view.state,
        "progress": f"{done(view)}{total}",
        "running": view.counts.get("RUNNING", 0),
        "failed": view.counts.get("ERROR", 0),
        "metric": view.metric,
        "best": best.value if best is not None else None,
        "best_trial": best.trial_id if best is not None else None,
        "active_s": view.elapsed_s,
    }


def table(found: Sequence[Json]) -> str:
    """Return the list as a table."""
    rows = [["NAME", "STATE", "TRIALS", "RUNNING", "FAILED", "BEST", "TIME", "FOLDER"]]
    for each in found:
        best = f"{each['metric']}={number(each['best'])}" if each.get("best") is not None else ""
        cells = [each.get("progress", ""), each.get("running", ""), each.get("failed", ""), best]
        time = duration(each["active_s"]) if "active_s" in each else ""
        rows.append([one_line(str(cell)) for cell in (each["name"], each["state"], *cells, time, each["path"])])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in padded)
