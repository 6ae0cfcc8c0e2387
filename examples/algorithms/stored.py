"""Reads what is stored of an experiment: every result, and every decision with its evidence.

Only public interfaces are used: ``trialpod results --json``, ``trialpod explain --json`` and the trials' result.json.
"""

import contextlib
import io
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from trialpod.cli.main import main


@dataclass
class Trial:
    """One trial: its config at the start, its results and what was decided about it, both oldest first."""

    trial_id: str
    number: int
    rows: list = field(default_factory=list)
    all_rows: list = field(default_factory=list)  # with those that an exploit took back
    decisions: list = field(default_factory=list)
    stop_reason: dict = field(default_factory=dict)

    @property
    def fate(self):
        """One of "end", "stopped" and "paused" (never continued)."""
        if self.stop_reason.get("rule") == "left paused":
            return "paused"
        source, rule = self.stop_reason.get("source"), self.stop_reason.get("rule")
        name = self.stop_reason.get("stopper", "")
        judged = (source == "scheduler" and rule != "max_t") or (source == "stopper" and name != "maximum_iteration")
        return "stopped" if judged else "end"


@dataclass
class Stored:
    """An experiment."""

    name: str
    metric: str
    mode: str
    spec: dict
    trials: list

    def best(self):
        """Return the trial whose latest value is best."""
        sign = 1 if self.mode == "min" else -1
        with_results = [trial for trial in self.trials if trial.rows]
        return min(with_results, key=lambda trial: _order(sign * trial.rows[-1][self.metric]))


def read(place):
    """Return the experiment that is stored in a directory."""
    table = _json("results", "--json", str(place))
    if not table["metric"]:
        raise SystemExit(f"{place} names no metric, which the pictures show: set spec.metric and spec.mode")
    trials = []
    for row in sorted(table["trials"], key=lambda row: row["trial_id"]):
        about = _json("explain", "--json", row["trial_id"], str(place))
        lines = Path(row["path"], "result.json")
        results = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        add_clocks(results)
        results = [result for result in results if isinstance(result.get(table["metric"]), (int, float))]
        latest = {result["training_iteration"]: result for result in results}
        rows = sorted(latest.values(), key=lambda result: result["training_iteration"])
        number = int(row["trial_id"].rpartition("_")[2])
        trials.append(Trial(row["trial_id"], number, rows, results, about["decisions"], about["stop_reason"] or {}))
    kept = json.loads(Path(place, ".trialpod", "experiment.json").read_text())
    if not any(trial.rows for trial in trials):
        raise SystemExit(f"{place} has no results yet, so there is nothing to draw")
    spec = kept.get("manifest", {}).get("spec", {})  # of a Tuner there is none
    return Stored(table["name"], table["metric"], table["mode"], spec, trials)


def add_clocks(results):
    """Give each result that has no ``clock`` the time at which it was reported, in seconds since the epoch.

    ``timestamp`` has whole seconds; ``time_total_s``, which pauses do not count in, tells the fractions.
    """
    begun = max(
        (row["timestamp"] - row.get("time_total_s", 0.0) for row in results if "timestamp" in row), default=0.0
    )
    for row in results:
        second = row.get("timestamp", begun)
        row.setdefault("clock", min(max(begun + row.get("time_total_s", 0.0), second), second + 0.999))


def sentences(place, trial_id):
    """Return what `trialpod explain` says about a trial."""
    return _said("explain", trial_id, str(place))


def _json(*arguments):
    return json.loads(_said(*arguments))


def _said(*arguments):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = main(list(arguments))
    if status:
        raise SystemExit(status)
    return output.getvalue()


def _order(value):
    return math.inf if math.isnan(value) else value
