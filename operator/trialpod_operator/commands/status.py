"""`trialpod status DIR|URI|NAME`: the state of an experiment: its trials as a table, and the best of them.

With `--watch` the table stays until the experiment has ended, and the exit status says how.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.cli.program import program
from trialpod.errors import InvalidInputError
from trialpod_operator.commands import target

if TYPE_CHECKING:
    from trialpod_operator.display.view import ExperimentView, TrialRow
    from trialpod_operator.kube_client.client import Experiments
    from trialpod_operator.view.reading import Activity

Json = dict[str, Any]

DEFAULT_LIMIT = 20
POLL_INTERVAL_S = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    target.add_experiment_options(parser)
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help=f"at most N trials (default: {DEFAULT_LIMIT})"
    )
    parser.add_argument(
        "-w", "--watch", action="store_true",
        help="show it until it has ended; exit status 1 if it, or a trial of it, has failed",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Print the table, once or until the end."""
    if options.limit < 1:
        raise InvalidInputError(f"--limit {options.limit}: must be 1 or more")
    location = target.experiment_location(options.name, options)
    return _cluster_status(options) if location is None else _local_status(location, options)


def _local_status(location: str, options: argparse.Namespace) -> int:
    from trialpod_operator.view.reading import activity_at, current_view, reading

    if options.watch:
        return watch_local(location, json=options.json, verbose=options.verbose)
    found, now = activity_at(location), time.time()
    with target.without_collections():
        with reading(location) as experiment:
            view = current_view(experiment, found, None, now)
            shown = current_view(experiment, found, options.limit, now).rows  # running first, then latest ended
        _print_table(view, shown, options)
    if not options.json:
        print(f"\n{local_next_step(view, location, found)}")
    return 0


def _cluster_status(options: argparse.Namespace) -> int:
    from trialpod_operator.display.summary import account_text
    from trialpod_operator.kube_client.view import view_of

    with target.connect_for(options.name, options) as api:
        item = api.get(options.name)
        flags = target.cluster_flags(options, api.namespace)
        if options.watch:
            return watch(api, item, flags, json=options.json, verbose=options.verbose)
        trials = api.trials(options.name)
        silence = api.operator_silence(time.time(), str(item["metadata"].get("uid") or ""))
    now = time.time()
    view = view_of(item, trials, now=now, rows=None)
    _print_table(view, view_of(item, trials, now=now, rows=options.limit).rows, options)
    if options.json:
        return 0
    if account := account_text(view.resources):
        print(f"\n{account}")
    if silence:
        print(f"\n{silence}; the table is as it was then")
    if view.state not in ("Running", "Succeeded", "Stopped"):
        print(f"\nwhy: trialpod why {options.name} {flags}")
    elif view.state == "Running":
        print(f"\nwatch: trialpod status {options.name} {flags} --watch")
    return 0


def _print_table(view: ExperimentView, shown: Sequence[TrialRow], options: argparse.Namespace) -> None:
    from trialpod_operator.commands.results import results_json, results_table
    from trialpod_operator.display.summary import best_text
    from trialpod_operator.display.words import plural

    if options.json:
        print(results_json(view, view.rows))
        return
    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    print(results_table(view, shown, width))
    if len(shown) < len(view.rows):
        print(f"… and {plural(len(view.rows) - len(shown), 'more trial')}; raise --limit to see them")
    if view.best is not None:
        print(f"\n{best_text(view)}")


def local_next_step(view: ExperimentView, location: str, found: Activity) -> str:
    """Return the command to type next."""
    from trialpod_operator.view.reading import RUNNING

    where = shlex.quote(location)
    if view.state == RUNNING and not found.other_host:
        return f"watch: {program()} status {where} --watch"
    if view.state in ("Succeeded", "Stopped"):
        return f"best: {program()} best {where}"
    return f"why: {program()} why {where}"


def watch_local(location: str, *, json: bool, verbose: int, sleep: Callable[[float], None] = time.sleep) -> int:
    """Show an experiment until it has ended or no process runs it; 1 when it or a trial failed, 130 after Ctrl-C."""
    from trialpod_operator.display.base import write_closing
    from trialpod_operator.display.choose import choose_display
    from trialpod_operator.display.events import changes
    from trialpod_operator.display.summary import EXIT_FAILED, EXIT_INTERRUPTED, exit_status, summarize
    from trialpod_operator.ui.beside import print_link
    from trialpod_operator.view.reading import INTERRUPTED, RUNNING, activity_at, current_view, reading

    display = choose_display(sys.stdout, json=json, verbose=verbose)
    rows: dict[str, TrialRow] = {}
    found = activity_at(location)
    try:
        with reading(location) as experiment:

            def view(rows: int | None) -> ExperimentView:
                return current_view(experiment, found, rows, time.time())

            if not json and verbose >= 0:
                print_link(location, sys.stdout)
            display.start(view(display.rows))
            while True:
                whole = view(None)
                fresh = {row.name: row for row in whole.rows}
                for event in changes(rows, fresh, whole.metric, lost="its process was lost"):
                    display.event(event)
                rows = fresh
                if whole.state != RUNNING:
                    display.finish(whole)
                    break
                display.update(view(display.rows))
                sleep(POLL_INTERVAL_S)
                found = activity_at(location)
                experiment.refresh()
    except KeyboardInterrupt:
        if not json:
            again = f"{program()} status {shlex.quote(location)} --watch"
            write_closing(sys.stdout, f"the experiment continues; come back: {again}")
        return EXIT_INTERRUPTED
    finally:
        display.close()
    if not json:
        write_closing(sys.stdout, summarize(whole))
    return EXIT_FAILED if whole.state == INTERRUPTED else exit_status(whole, interrupted=False)


def watch(api: Experiments, item: Json, flags: str, *, json: bool = False, verbose: int = 0) -> int:
    """Show an experiment until it has ended; return 1 when it or one of its trials failed, 130 after Ctrl-C.

    Args:
        api: its namespace.
        item: the TuneExperiment.
        flags: the options with which other commands find it.
        json: one JSON object per event, for programs.
        verbose: as for displays.
    """
    from trialpod_operator.cluster import names
    from trialpod_operator.display.base import write_closing
    from trialpod_operator.display.choose import choose_display
    from trialpod_operator.display.summary import EXIT_INTERRUPTED, exit_status, summarize
    from trialpod_operator.kube_client.following import follow
    from trialpod_operator.kube_client.view import view_of

    name = item["metadata"]["name"]
    if not json and verbose >= 0 and api.operator_facts().get(names.UI_ANNOTATION):
        print(f"page: trialpod ui {name} {flags}", flush=True)
    display = choose_display(sys.stdout, json=json, verbose=verbose)
    try:
        item = follow(api, item, display)
    except KeyboardInterrupt:
        if not json:
            again = f"trialpod status {name} {flags} --watch"
            write_closing(sys.stdout, f"{name} continues in the cluster; come back: {again}")
        return EXIT_INTERRUPTED
    finally:
        display.close()
    view = view_of(item, api.trials(name), now=time.time(), rows=None)
    if not json:
        write_closing(sys.stdout, f"{summarize(view)}\n\nall trials: trialpod results {name} {flags}")
    return exit_status(view, interrupted=False)


command = Command(
    name="status",
    help="show the state of an experiment: a directory, a URI, or by name in a cluster",
    configure=configure,
    run=run,
)
