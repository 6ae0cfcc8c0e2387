#!/usr/bin/env python3
"""Runs public scripts that were written for Ray Tune on Ray and here, unmodified, and writes what came of both.

    scripts.py SCRIPTS --ray RELEASE=PYTHON ... [--only FOLDER ...]     run them on Ray and here
    scripts.py SCRIPTS --cluster [--only FOLDER ...]                    run them here, with trials in pods
    scripts.py --page                                                   write docs/ray-scripts.md

scripts.tsv lists them: SCRIPTS/FOLDER/SCRIPT is a copy of the file at PATH of a public repository, which is not kept
here. PYTHON has ``ray[tune]==RELEASE``, the release of the script's generation, and the libraries that the script
imports, as has the Python that runs this. Random numbers are seeded and what cannot be had offline is replaced by
stand_ins/sitecustomize.py, the same for all.

With --cluster the environment names the cluster, as for any script with TRIALPOD_BACKEND=kubernetes (KUBECONFIG,
TRIALPOD_NAMESPACE, TRIALPOD_STORAGE, TRIALPOD_CREDENTIALS_SECRET), and kubectl is found. A script runs there if the
pods' image has the libraries that it imports. Its experiments are deleted afterwards.

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
_OWN_LINES = re.compile(
    r"^(Best|The best|\{'(?!metric')|Starting Ray Tune job"
    r"|best flaml |ray best |(flaml|ray) config |  metrics=|0\.\d+$)"
)
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
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
        elsewhere = [Path(row["results"])] if row.get("results") else []
        for folder in elsewhere:
            shutil.rmtree(folder, ignore_errors=True)
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
            [*command, row["script"], *(row.get("arguments") or "").split()],
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
            "trials": sorted(_trials([home, work, *elsewhere]), key=json.dumps),
        }


def run_in_cluster(row: dict[str, str], scripts: Path, command: list[str]) -> dict[str, Any]:
    """Run one script with its trials in pods, and return what came of it; trials are read from the API server."""
    os.environ["TRIALPOD_BACKEND"] = "kubernetes"
    found = run(row, scripts, command)
    listed = _kubectl("get", "tunetrials", "-o", "json")
    found["trials"] = sorted(
        (
            {
                "config": {key: _rounded(value) for key, value in (each["spec"].get("params") or {}).items()},
                "state": each.get("status", {}).get("state"),
                "iteration": each.get("status", {}).get("iteration"),
            }
            for each in json.loads(listed)["items"]
        ),
        key=json.dumps,
    )
    _kubectl("delete", "tuneexperiments", "--all", "--timeout=60s")
    return found


def _kubectl(*arguments: str) -> str:
    command = ["kubectl", f"--namespace={os.environ['TRIALPOD_NAMESPACE']}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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
        text = _ADDRESS.sub("ADDRESS", params.read_text())
        parameters = {key: _rounded(value) for key, value in json.loads(text).items()}
        found.append({"config": parameters, "last": metrics, "files": files})
    return found


def _rounded(value: Any) -> Any:
    return round(value, 9) if isinstance(value, float) else value


def page() -> str:
    """Return the page."""
    results = {name: each for name, each in json.loads(RESULTS.read_text()).items() if "ray" in each}
    projects = {row["repository"].partition(" ")[0] for row in listed() if row["folder"] in results}
    lines = [
        "# Public scripts on Ray and here",
        "",
        f"{len(results)} scripts of {len(projects)} projects, unmodified, ran on Ray and with",
        "`python -m trialpod.compat.ray`.",
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
            details += ["", _in_cluster(found["cluster"], here)]
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


def _in_cluster(cluster: dict[str, Any], here: dict[str, Any]) -> str:
    """Return what became of a script with its trials in pods."""
    if cluster["ended"] != "well":
        return f"With its trials in pods: {_cell(cluster['ended']).strip(' -')}."
    configs = [sorted(_text(trial["config"]) for trial in side["trials"]) for side in (cluster, here)]
    done = sum(trial["state"] == "TERMINATED" for trial in cluster["trials"])
    ended = f"With its trials in pods it ended well; {done} of {len(cluster['trials'])} trials completed"
    if configs[0] != configs[1]:
        note = f"; {cluster['note']}" if "note" in cluster else ""
        return f"{ended}, with other draws{note}."
    printed = "the same" if cluster["printed"] == here["printed"] else "something else"
    return f"{ended}, with the same parameters, and it printed {printed}."


def _text(config: dict[str, Any]) -> str:
    """Return a config as text in which 1.0 is 1, as the API server writes it."""
    whole = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in config.items()}
    return json.dumps(whole, sort_keys=True)


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
    parser.add_argument("--ray", nargs="*", default=[], metavar="RELEASE=PYTHON", help="a Python with Ray")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cluster", action="store_true", help="ours only, with trials in pods")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page())
        return 0
    if options.scripts is None:
        parser.error("SCRIPTS is missing")
    pythons = dict(each.split("=", 1) for each in options.ray)
    ours = [sys.executable, "-m", "trialpod.compat.ray", "--replace"]
    for row in listed():
        if options.only and row["folder"] not in options.only:
            continue
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        found = results.setdefault(row["folder"], {})
        if options.cluster:
            found["cluster"] = run_in_cluster(row, options.scripts, ours)
        else:
            if row["ray"] in pythons:
                found["release"] = row["ray"]
                found["ray"] = run(row, options.scripts, [pythons[row["ray"]]])
            found["here"] = run(row, options.scripts, ours)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(row["folder"], {side: found[side]["ended"] for side in ("ray", "here", "cluster") if side in found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
