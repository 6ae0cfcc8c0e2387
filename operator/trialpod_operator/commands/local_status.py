"""`trialpod status` of an experiment on this machine: its trials as a table, and the best of them."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable

from trialpod.cli.program import program
from trialpod.errors import InvalidInputError
from trialpod_operator.commands.local_results import results_json, results_table
from trialpod_operator.display.base import write_closing
from trialpod_operator.display.choose import choose_display
from trialpod_operator.display.row_changes import changes
from trialpod_operator.display.summary import EXIT_FAILED, EXIT_INTERRUPTED, best_text, exit_status, summarize
from trialpod_operator.display.view import ExperimentView, TrialRow
from trialpod_operator.display.words import plural
from trialpod_operator.local.running import INTERRUPTED, RUNNING, Activity, live_view

POLL_INTERVAL_S = 1.0


def run(place: str, options: argparse.Namespace) -> int:
    """Print the table, once or until the end."""
    if options.limit < 1:
        raise InvalidInputError(f"--limit {options.limit}: must be 1 or more")
    if options.watch:
        return watch(place, json=options.json, verbose=options.verbose)
    view, found = live_view(place, rows=None)
    if options.json:
        print(results_json(view, view.rows))
        return 0
    # Running ones first, then the latest ended.
    shown = live_view(place, rows=options.limit)[0].rows
    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    print(results_table(view, shown, width))
    if len(shown) < len(view.rows):
        print(f"… and {plural(len(view.rows) - len(shown), 'more trial')}; raise --limit to see them")
    if view.best is not None:
        print(f"\n{best_text(view)}")
    print(f"\n{next_step(view, place, found)}")
    return 0


def next_step(view: ExperimentView, place: str, found: Activity) -> str:
    """Return the command to type next."""
    where = shlex.quote(place)
    if view.state == RUNNING and not found.elsewhere:
        return f"watch: {program()} status {where} --watch"
    if view.state in ("Succeeded", "Stopped"):
        return f"best: {program()} best {where}"
    return f"why: {program()} why {where}"


def watch(place: str, *, json: bool, verbose: int, sleep: Callable[[float], None] = time.sleep) -> int:
    """Show an experiment until it has ended or nobody runs it; 1 when it or a trial failed, 130 after Ctrl-C."""
    display = choose_display(sys.stdout, json=json, verbose=verbose)
    rows: dict[str, TrialRow] = {}
    try:
        view, _ = live_view(place, rows=display.rows)
        display.start(view)
        while True:
            whole, _ = live_view(place, rows=None)
            fresh = {row.name: row for row in whole.rows}
            for event in changes(rows, fresh, whole.metric, lost="its process was lost"):
                display.event(event)
            rows = fresh
            if whole.state != RUNNING:
                display.finish(whole)
                break
            display.update(live_view(place, rows=display.rows)[0])
            sleep(POLL_INTERVAL_S)
    except KeyboardInterrupt:
        if not json:
            again = f"{program()} status {shlex.quote(place)} --watch"
            write_closing(sys.stdout, f"the experiment runs on; come back: {again}")
        return EXIT_INTERRUPTED
    finally:
        display.close()
    if not json:
        write_closing(sys.stdout, summarize(whole))
    return EXIT_FAILED if whole.state == INTERRUPTED else exit_status(whole, interrupted=False)
