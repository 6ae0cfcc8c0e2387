"""`trialpod results DIR|URI|NAME`: the trials of an experiment as a table, JSON or CSV. It also works while they run.

Of an experiment in a cluster the complete results are read from its storage, with the user's keys or those of its
Secret. Where that is not possible, the resources provide what they know: parameters, iterations and the metric.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, TrialpodError, nearest
from trialpod_operator.commands import target
from trialpod_operator.display.json_lines import experiment_data, strict, trial_data
from trialpod_operator.display.layout import text_table, trial_columns
from trialpod_operator.display.progress import standing, trials
from trialpod_operator.display.summary import no_best
from trialpod_operator.display.view import ExperimentView, TrialRow, best_first
from trialpod_operator.display.words import (
    VaryingParameters,
    brief,
    duration,
    flatten,
    one_line,
    plural,
)
from trialpod_operator.view.exports import RESULT_PREFIX, ROW_KEYS, results_csv

if TYPE_CHECKING:
    from trialpod.storage.base import Storage
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]
ReadTrial = Callable[[TrialRow], list[Json]]
"""Reads the results of a trial, one for each iteration; none where the storage cannot be read."""


def sort_value(row: TrialRow, key: str) -> Any:
    """Return what a row is sorted by under a key; None when it has no such value."""
    if key in ROW_KEYS:
        return getattr(row, key)
    if key in row.last_result:
        return row.last_result[key]
    reported = key.removeprefix(RESULT_PREFIX)
    if reported != key and reported in row.last_result:
        return row.last_result[reported]
    return flatten(row.config).get(key.removeprefix("config/"))


def sort_keys(rows: Iterable[TrialRow]) -> list[str]:
    """Return the keys that rows can be sorted by."""
    keys: dict[str, None] = dict.fromkeys(ROW_KEYS)
    for row in rows:
        keys.update(dict.fromkeys(row.last_result))
        keys.update(dict.fromkeys(flatten(row.config)))
    return list(keys)


def ordered(view: ExperimentView, key: str | None) -> list[TrialRow]:
    """Return the view's rows in order, those without a value last.

    Args:
        view: The experiment with all its trials.
        key: A metric, a parameter or a column; a leading ``-`` reverses it. None: the best by the metric first.

    Raises:
        InvalidInputError: No trial has such a key.
    """
    if key is None:
        return best_first(view)
    known = sort_keys(view.rows)
    if view.metric and any(row.value is not None for row in view.rows):
        known.append(view.metric)  # it may be in no trial's last result
    reverse = key.startswith("-") and key not in known
    name = key[1:] if reverse else key
    plain = [name.removeprefix(prefix) for prefix in ("", "config/", RESULT_PREFIX)]
    if view.rows and not any(each in known for each in plain):
        close = nearest(name, known)
        hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(map(one_line, known))}"
        raise InvalidInputError(f"--sort {name}: no trial has such a key; {hint}")
    values = [sort_value(row, name) for row in view.rows]
    if view.metric == name.removeprefix(RESULT_PREFIX):
        values = [row.value if value is None else value for row, value in zip(view.rows, values, strict=True)]
    missing = [value is None or (isinstance(value, float) and math.isnan(value)) for value in values]
    numeric = all(absent or isinstance(value, (int, float)) for absent, value in zip(missing, values, strict=True))
    present = [index for index, absent in enumerate(missing) if not absent]
    present.sort(key=lambda index: values[index] if numeric else brief(values[index], 200), reverse=reverse)
    last = [index for index, absent in enumerate(missing) if absent]
    return [view.rows[index] for index in present + last]


def results_table(view: ExperimentView, rows: Sequence[TrialRow], width: int | None) -> str:
    """Return the experiment's state in one line and the rows as a table; `width` None: as wide as needed."""
    varying = VaryingParameters()
    for row in view.rows:
        varying.observe(row.trial_id, row.config)
    parts = [f"{one_line(view.name)}: {view.state}", trials(view)]
    parts += [words for _, words in standing(view)]
    if view.results or view.best is None:  # the resources of a cluster know of the best one before they count
        parts.append(f"{plural(view.results, 'result')} in {duration(view.elapsed_s)}")
    else:
        parts.append(duration(view.elapsed_s))
    lines = [", ".join(parts)]
    if view.message:
        lines.append(one_line(view.message))
    if view.budget:
        lines.append(f"budget: {view.budget}")
    if view.metric and view.best is None and view.results:
        lines.append(no_best(view, view.metric))
    if not rows:
        return "\n".join([*lines, "", "no trial to show"])
    columns = trial_columns(rows, view.metric, varying.names, objectives=view.objectives)
    lines += ["", text_table(columns, width)]
    by_error: dict[str, list[TrialRow]] = {}
    for row in rows:
        if row.error:
            by_error.setdefault(row.error, []).append(row)
    for error, failed in by_error.items():
        others = f" and {plural(len(failed) - 1, 'more trial')}" if len(failed) > 1 else ""
        lines += ["", f"{one_line(failed[0].trial_id)}{others}: {one_line(error)}"]
        lines.append(f"  log: {one_line(failed[0].path)}/log.txt")
    return "\n".join(lines)


def results_json(view: ExperimentView, rows: Sequence[TrialRow]) -> str:
    """Return the experiment and the rows as one JSON document."""
    listed = [{**trial_data(row), "last_result": row.last_result} for row in rows]
    return json.dumps(strict({**experiment_data(view), "trials": listed}), indent=2, allow_nan=False)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    target.add_directory_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON document")
    form.add_argument("--csv", action="store_true", help="CSV, one line per trial")
    parser.add_argument(
        "--sort", metavar="KEY", help="a metric, parameter or column; --sort=-KEY reverses (default: best first)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="show only the first N trials")
    parser.add_argument("--failed", action="store_true", help="show only trials that failed")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), help="output format")
    target.add_cluster_options(parser, rule=True)


def apply_output(options: argparse.Namespace, forms: tuple[str, ...]) -> None:
    """Set the option of the form that -o names."""
    for form in forms:
        if options.output == form:
            setattr(options, form, True)
        elif options.output is not None and getattr(options, form):
            raise InvalidInputError(f"--{form} and --output {options.output}: choose one of them")


def view_of_target(options: argparse.Namespace, rows: int | None = None) -> ExperimentView:
    """Return the selected experiment with at most `rows` trials; None = all."""
    with opened_target(options, rows) as (view, _):
        return view


@contextlib.contextmanager
def opened_target(options: argparse.Namespace, rows: int | None = None) -> Iterator[tuple[ExperimentView, ReadTrial]]:
    """Yield the selected experiment with at most `rows` trials (None = all), and what reads the results of one."""
    from trialpod_operator.view.reading import live_view

    location = target.location(options.directory, options)
    if location is not None:
        yield live_view(location, rows=rows, orphans=False)[0], _reader_of(location)
        return
    with (
        target.experiment(options.directory, options) as (api, item),
        _with_storage(api, item, api.trials(options.directory)) as found,
    ):
        yield found


def _reader_of(location: str) -> ReadTrial:
    from trialpod.storage.registry import local_folder, open_storage
    from trialpod.tune.results import read_rows

    if local_folder(location) is not None:
        return lambda row: read_rows(row.path)
    storages: list[Storage] = []

    def read(row: TrialRow) -> list[Json]:
        if not storages:
            storages.append(open_storage(location))
        return _read_stored(row, storages[0])

    return read


def _read_stored(row: TrialRow, storage: Storage) -> list[Json]:
    from trialpod.tune.results import read_rows

    return read_rows(row.path, storage.sub(row.path.rpartition("/")[2]))


@contextlib.contextmanager
def _with_storage(api: Experiments, item: Json, trials: list[Json]) -> Iterator[tuple[ExperimentView, ReadTrial]]:
    """Yield an experiment in a cluster with what its storage knows, or else what its resources know."""
    from trialpod_operator.kube_client.storage import opened
    from trialpod_operator.kube_client.view import view_of
    from trialpod_operator.view.reading import read_view

    shown = view_of(item, trials, now=time.time(), rows=None)
    with contextlib.ExitStack() as stack:
        stored, read = None, _nothing
        if trials:
            try:
                uri, storage = stack.enter_context(opened(api, item))
                stored, read = read_view(uri, rows=None, storage=storage), partial(_read_stored, storage=storage)
            except TrialpodError as error:
                print(
                    f"trialpod: the storage cannot be read from here: {error}\n"
                    "trialpod: shown is what the cluster's resources say: parameters, iterations, the metric",
                    file=sys.stderr,
                )
        if stored is not None:
            shown = dataclasses.replace(stored, name=shown.name, state=shown.state, message=shown.message)
        yield shown, read


def _nothing(_row: TrialRow) -> list[Json]:
    return []


def run(options: argparse.Namespace) -> int:
    """Print the results."""
    apply_output(options, ("json", "csv"))
    with target.without_collections():
        return show(view_of_target(options), options)


def show(view: ExperimentView, options: argparse.Namespace) -> int:
    """Print the results of an experiment with all its trials; return the exit status."""
    if options.limit is not None and options.limit < 1:
        raise InvalidInputError(f"--limit {options.limit}: must be 1 or more")
    rows = ordered(view, options.sort)
    if options.failed:
        rows = [row for row in rows if row.status == "ERROR"]
    left_out = len(rows) - options.limit if options.limit is not None else 0
    rows = rows[: options.limit]
    if options.json:
        print(results_json(view, rows))
    elif options.csv:
        print(results_csv(rows))
    else:
        width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
        print(results_table(view, rows, width))
        if left_out > 0:
            print(f"… and {plural(left_out, 'more trial')}; raise --limit to see them")
    return 0


command = Command(
    "results", "show the trials of an experiment: a directory, a URI, or by name in a cluster", configure, run
)
