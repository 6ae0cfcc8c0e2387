"""`trialpod best DIR|URI|NAME`: the best trial and its parameters. It also works while trials run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from functools import partial

from trialpod.cli.command import Command
from trialpod.storage.parallel import run_all
from trialpod.tune.results import latest_finite, lookup
from trialpod_operator.commands import results, target
from trialpod_operator.commands.results import ReadTrial
from trialpod_operator.display.json_lines import front_data, strict, trial_data
from trialpod_operator.display.summary import EXIT_FAILED, EXIT_FINE, best_text, no_best, paste_text
from trialpod_operator.display.view import ExperimentView, TrialRow
from trialpod_operator.display.words import yaml_text

READERS = 20
"""How many trials are read at a time."""


def best_by(view: ExperimentView, metric: str, mode: str, read: ReadTrial) -> TrialRow | None:
    """Return the trial whose latest finite value of a metric is best, `value` set to it; None when no trial has one.

    Args:
        view: The experiment with all its trials.
        metric: A key of the results.
        mode: ``max`` or ``min``.
        read: Reads the results of a trial; called for those whose last one has no finite value.
    """
    found: dict[str, tuple[float | None, int | None]] = {}
    unread = []
    for row in view.rows:
        value = lookup(row.last_result, metric)
        if isinstance(value, (int, float)) and math.isfinite(value):
            found[row.trial_id] = (None if isinstance(value, bool) else value), row.iteration
        elif row.last_result:
            unread.append(row)

    def look(row: TrialRow) -> None:
        found[row.trial_id] = latest_finite(read(row), metric)

    run_all([partial(look, row) for row in unread], READERS)
    sign = 1.0 if mode == "max" else -1.0
    best: TrialRow | None = None
    best_value = -math.inf
    for row in view.rows:
        value, iteration = found.get(row.trial_id, (None, None))
        if value is not None and (best is None or sign * value > best_value):
            best, best_value = dataclasses.replace(row, value=float(value), value_iteration=iteration), sign * value
    return best


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    target.add_directory_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the trial as one JSON object")
    form.add_argument("--yaml", action="store_true", help="its parameters alone, as YAML")
    parser.add_argument(
        "--metric", help="judge by the latest value of this key of the results (default: the experiment's)"
    )
    parser.add_argument(
        "--mode",
        choices=("max", "min"),
        help="whether large or small values are better (default: the experiment's)",
    )
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), help="output format")
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Print the best trial; exit status 1 when there is none (yet)."""
    results.apply_output(options, ("json", "yaml"))
    with target.without_collections():
        if not (options.metric or options.mode):
            view = results.view_of_target(options, rows=0)
            if view.best is not None:
                return show(view, options)
        with results.opened_target(options) as (view, read):  # why there is no best one is in the trials
            return show(view, options, read)


def show(view: ExperimentView, options: argparse.Namespace, read: ReadTrial | None = None) -> int:
    """Print the best trial of an experiment with all its trials; return the exit status."""
    metric = options.metric or view.metric
    mode = options.mode or view.mode
    if read is not None and metric is not None and (metric, mode) != (view.metric, view.mode):
        found = best_by(view, metric, mode, read)
        view = dataclasses.replace(view, metric=metric, mode=mode, best=found, objectives=[])
    best = view.best
    if best is None:
        print(no_best(view, metric), file=sys.stderr)
        return EXIT_FAILED
    if options.json:
        print(json.dumps(strict({"metric": metric, "mode": mode, **trial_data(best), **front_data(view)}), indent=2))
    elif options.yaml:
        print(yaml_text(best.config))
    else:
        print(f"{best_text(view)}\n\n{paste_text(best)}")
    return EXIT_FINE


command = Command(
    "best", "show the best trial of an experiment: a directory, a URI, or by name in a cluster", configure, run
)
