#!/usr/bin/env python3
"""Runs public scripts that were written for Ray Tune on Ray and here, unmodified, and writes what came of both.

    scripts.py SCRIPTS --ray PYTHON --older PYTHON --nine PYTHON [--only FOLDER ...]     run them
    scripts.py --page                                                    write docs/ray-scripts.md

scripts.tsv lists them: SCRIPTS/FOLDER/SCRIPT is a copy of the file at PATH of a public repository, which is not kept
here. The first PYTHON has ``ray[tune]==2.60.0``, the others 2.6.3 and 2.9.3, for scripts of their generations. Random
numbers are seeded and what cannot be had offline is replaced by stand_ins/sitecustomize.py, the same for all.

results.json beside this file keeps: how the script ended, the lines that it printed itself, and each trial's
parameters, last metrics and files.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "ray-scripts.md"
TIMEOUT_S = 420
_OWN_LINES = re.compile(r"^(Best|The best|\{'|Starting Ray Tune job)")
_AUTO = frozenset(
    [
        "timestamp",
        "date",
        "done",
        "pid",
        "hostname",
        "node_ip",
        "config",
        "time_this_iter_s",
        "time_total_s",
        "time_since_restore",
        "trial_id",
        "iterations_since_restore",
        "checkpoint_dir_name",
        "experiment_tag",
        "experiment_id",
        "episodes_total",
        "timesteps_total",
        "timesteps_since_restore",
        "warmup_time",
        "should_checkpoint",
    ]
)
_FILES = ("params.json", "params.pkl", "progress.csv", "result.json", "error.txt")
_ID = re.compile(r"[0-9a-f]{5,8}_\d{5}")


def listed() -> list[dict[str, str]]:
    """Return the rows of scripts.tsv."""
    with open(HERE / "scripts.tsv") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def run(row: dict[str, str], scripts: Path, command: list[str]) -> dict[str, Any]:
    """Run one script in a copy of its folder, with a home of its own, and return what came of it."""
    with tempfile.TemporaryDirectory(prefix="ray-script-") as name:
        home, work = Path(name, "home"), Path(name, "work")
        home.mkdir()
        shutil.copytree(scripts / row["folder"], work)
        environ = {
            **os.environ,
            "HOME": str(home),
            "PYTHONPATH": str(HERE / "stand_ins"),
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "RAY_AUTH_MODE": "disabled",
            "RAY_DEDUP_LOGS": "0",
        }
        done = subprocess.run(
            [*command, row["script"]],
            cwd=work,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return {
            "ended": "well" if done.returncode == 0 else _last_error(done.stderr),
            "printed": [_ID.sub("ID", line) for line in done.stdout.splitlines() if _OWN_LINES.match(line)],
            "trials": sorted(_trials([home, work]), key=json.dumps),
        }


def _last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if re.match(r"^[\w.]+(Error|Exception|Invalid)\b", line)]
    return (lines or text.splitlines() or ["?"])[-1][:200]


def _trials(places: list[Path]) -> list[dict[str, Any]]:
    found = []
    for params in [path for place in places for path in place.rglob("params.json")]:
        folder = params.parent
        rows = (folder / "result.json").read_text().splitlines() if (folder / "result.json").exists() else []
        last = json.loads(rows[-1]) if rows else {}
        metrics = {key: _rounded(value) for key, value in last.items() if key not in _AUTO}
        files = [name for name in _FILES if (folder / name).exists()]
        parameters = {key: _rounded(value) for key, value in json.loads(params.read_text()).items()}
        found.append({"config": parameters, "last": metrics, "files": files})
    return found


def _rounded(value: Any) -> Any:
    return round(value, 9) if isinstance(value, float) else value


def page() -> str:
    """Return the page."""
    results = {name: each for name, each in json.loads(RESULTS.read_text()).items() if "ray" in each}
    lines = [
        "# Public scripts on Ray and here",
        "",
        f"Scripts of {len(results)} projects, unmodified, ran on Ray and with `python -m trialpod.compat.ray`.",
        "Random numbers were seeded from outside, the same for both. Compared are: how the script ended, what it",
        "printed itself, and each trial's parameters, last metrics and files. `tools/compare_with_ray/scripts.py`",
        "runs them again from copies of the files; the scripts are their authors' and not kept here.",
        "",
        "| script | generation of the API | Ray | trials on Ray, here | end, output, table, files |",
        "|---|---|---|---|---|",
    ]
    details: list[str] = []
    for row in listed():
        found = results.get(row["folder"])
        if found is None:
            continue
        ray, here = found["ray"], found["here"]
        verdict = _verdict(ray, here)
        link = f"{row['repository']}: `{row['path']}`"
        counts = f"{len(ray['trials'])}, {len(here['trials'])}"
        lines.append(f"| {link} | {row['age']} | {found['release']} | {counts} | {verdict} |")
        details += ["", f"## {row['repository']}", ""]
        details += [f"{row['note']}.", ""] if row["note"] else []
        details += [
            "| | Ray | here |",
            "|---|---|---|",
            f"| ended | {_cell(ray['ended'])} | {_cell(here['ended'])} |",
        ]
        details.append(f"| printed | {_cell(ray['printed'])} | {_cell(here['printed'])} |")
        details.append(f"| best and worst | {_cell(_extremes(ray))} | {_cell(_extremes(here))} |")
        files = [sorted({", ".join(trial["files"]) for trial in side["trials"]}) for side in (ray, here)]
        details.append(f"| files of trials | {_cell(files[0])} | {_cell(files[1])} |")
        if "cluster" in found:
            same = found["cluster"]["printed"] == here["printed"] and found["cluster"]["ended"] == here["ended"]
            details += ["", f"With its trials in pods it printed {'the same' if same else 'something else'}."]
    return "\n".join([*lines, *details, ""])


def _verdict(ray: dict[str, Any], here: dict[str, Any]) -> str:
    if ray["ended"] != "well" and here["ended"] != "well":
        return "both refuse it"
    table = [[t["config"], t["last"]] for t in ray["trials"]] == [[t["config"], t["last"]] for t in here["trials"]]
    facts = (
        ("end", (ray["ended"] == "well") == (here["ended"] == "well")),
        ("output", ray["printed"] == here["printed"]),
        ("table", table),
        ("files", [t["files"] for t in ray["trials"]] == [t["files"] for t in here["trials"]]),
    )
    differ = [name for name, same in facts if not same]
    return "the same" if not differ else f"differ: {', '.join(differ)}"


def _extremes(side: dict[str, Any]) -> list[str]:
    trials = [{**trial["config"], "": "", **trial["last"]} for trial in side["trials"]]
    shown = [", ".join(f"{k}={v}" if k else "->" for k, v in trial.items()) for trial in trials]
    return shown if len(shown) < 3 else [shown[0], shown[-1]]


def _cell(value: Any) -> str:
    text = "<br>".join(value) if isinstance(value, list) else str(value)
    return text.replace("|", "\\|") or "nothing"


def main() -> int:
    """Run scripts, or write the page."""
    parser = argparse.ArgumentParser(description="public scripts on Ray and here")
    parser.add_argument("scripts", nargs="?", type=Path)
    parser.add_argument("--ray", help="a Python with Ray 2.60")
    parser.add_argument("--older", help="a Python with Ray 2.6.3")
    parser.add_argument("--nine", help="a Python with Ray 2.9.3")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cluster", action="store_true", help="ours only, with trials in pods")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page())
        return 0
    if options.scripts is None:
        parser.error("SCRIPTS is missing")
    ours = [sys.executable, "-m", "trialpod.compat.ray", "--replace"]
    for row in listed():
        if options.only and row["folder"] not in options.only:
            continue
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        found = results.setdefault(row["folder"], {})
        if options.cluster:
            found["cluster"] = run(row, options.scripts, ours)
        else:
            real = {"new": options.ray, "older": options.older, "nine": options.nine}[row["ray"]]
            if real:
                found["release"] = {"new": "2.60", "older": "2.6.3", "nine": "2.9.3"}[row["ray"]]
                found["ray"] = run(row, options.scripts, [real])
            found["here"] = run(row, options.scripts, ours)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(row["folder"], {side: found[side]["ended"] for side in ("ray", "here", "cluster") if side in found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
