"""`trialpod status NAME`: how an experiment in a cluster stands: its trials as a table, and the best of them."""

from __future__ import annotations

import argparse
import os
import sys
import time

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.cluster.commands import asking

DEFAULT_LIMIT = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    asking.configure(parser)
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help=f"at most N trials (default: {DEFAULT_LIMIT})"
    )


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    from trialpod_operator.cluster.remote_view import view_of
    from trialpod_operator.local.commands.results import results_json, results_table
    from trialpod_operator.local.display.words import plural
    from trialpod_operator.local.summary import best_text

    if options.limit < 1:
        raise InvalidInputError(f"--limit {options.limit}: must be 1 or more")
    with asking.connect(options) as api:
        item = api.get(options.name)
        trials = api.trials(options.name)
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
    if whole.state not in ("Running", "Succeeded", "Stopped"):
        print(f"\nwhy: trialpod why {options.name} -n {api.namespace}")
    return 0


command = Command(name="status", help="show how an experiment in a cluster stands", configure=configure, run=run)
