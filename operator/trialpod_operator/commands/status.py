"""`trialpod status NAME`: how an experiment in a cluster stands: its trials as a table, and the best of them.

With `--watch` the table stays until the experiment has ended, and the exit status says how.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.commands import connection_options, local_status, target

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

DEFAULT_LIMIT = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    connection_options.configure(parser)
    parser.epilog = target.RULE
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help=f"at most N trials (default: {DEFAULT_LIMIT})"
    )
    parser.add_argument(
        "-w", "--watch", action="store_true",
        help="stay until it has ended; exit status 1 when it, or a trial of it, has failed",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Print the table, once or until the end."""
    from trialpod_operator.commands.local_results import results_json, results_table
    from trialpod_operator.display.account import account_text
    from trialpod_operator.display.summary import best_text
    from trialpod_operator.display.words import plural
    from trialpod_operator.kube_client.view import view_of

    place = target.experiment_place(options.name, options)
    if place is not None:
        return local_status.run(place, options)
    if options.limit < 1:
        raise InvalidInputError(f"--limit {options.limit}: must be 1 or more")
    with target.connect(options.name, options) as api:
        item = api.get(options.name)
        if options.watch:
            return watch(
                api,
                item,
                connection_options.flags(options, api.namespace),
                json=options.json,
                verbose=options.verbose,
            )
        trials = api.trials(options.name)
        silence = api.operator_silence(time.time())
    now = time.time()
    whole = view_of(item, trials, now=now, rows=None)
    if options.json:
        print(results_json(whole, whole.rows))
        return 0
    shown = view_of(item, trials, now=now, rows=options.limit).rows
    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    print(results_table(whole, shown, width))
    if len(shown) < len(whole.rows):
        print(f"… and {plural(len(whole.rows) - len(shown), 'more trial')}; raise --limit to see them")
    if whole.best is not None:
        print(f"\n{best_text(whole)}")
    if taken := account_text(whole.resources):
        print(f"\n{taken}")
    place = connection_options.flags(options, api.namespace)
    if silence:
        print(f"\n{silence}; the table is as it was then")
    if whole.state not in ("Running", "Succeeded", "Stopped"):
        print(f"\nwhy: trialpod why {options.name} {place}")
    elif whole.state == "Running":
        print(f"\nwatch: trialpod status {options.name} {place} --watch")
    return 0


def watch(api: Experiments, item: Json, place: str, *, json: bool = False, verbose: int = 0) -> int:
    """Show an experiment until it has ended; return 1 when it or one of its trials failed, 130 after Ctrl-C.

    Args:
        api: its namespace.
        item: the TuneExperiment.
        place: the options with which other commands find it.
        json: one JSON object per event, for programs.
        verbose: as for displays.
    """
    from trialpod_operator.display.base import write_closing
    from trialpod_operator.display.choose import choose_display
    from trialpod_operator.display.summary import EXIT_INTERRUPTED, exit_status, summarize
    from trialpod_operator.kube_client.following import follow
    from trialpod_operator.kube_client.view import view_of

    name = item["metadata"]["name"]
    display = choose_display(sys.stdout, json=json, verbose=verbose)
    try:
        item = follow(api, item, display)
    except KeyboardInterrupt:
        if not json:
            again = f"trialpod status {name} {place} --watch"
            write_closing(sys.stdout, f"{name} goes on in the cluster; come back: {again}")
        return EXIT_INTERRUPTED
    finally:
        display.close()
    view = view_of(item, api.trials(name), now=time.time(), rows=None)
    if not json:
        write_closing(sys.stdout, f"{summarize(view)}\n\nall trials: trialpod results {name} {place}")
    return exit_status(view, interrupted=False)


command = Command(
    name="status",
    help="show the state of an experiment: a directory, a URI, or by name in a cluster",
    configure=configure,
    run=run,
)
