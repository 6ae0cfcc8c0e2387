"""`trialpod ui [DIR|URI|NAME]`: experiments as a page in the browser, live while they run."""

from __future__ import annotations

import argparse
import sys
import webbrowser

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.commands import target


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "location",
        nargs="?",
        metavar="DIR|URI|NAME",
        help=f"an experiment, or a folder of experiments (default: ./{target.LOCAL_FOLDER})",
    )
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1 (default: a free one)")
    parser.add_argument("--open", action="store_true", help="open the link in the browser")
    parser.add_argument("--optuna", action="store_true", help="show optuna-dashboard in place of trialpod's own page")
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    from trialpod_operator.ui.local_experiments import LocalExperiments
    from trialpod_operator.ui.serve import serve

    if not 0 <= options.port < 65536:
        raise InvalidInputError(f"--port {options.port}: must be 0 to 65535")
    location = target.location(options.location or target.LOCAL_FOLDER, options)
    if location is None:
        raise InvalidInputError(f"{options.location} does not exist, here or in ./{target.LOCAL_FOLDER}")
    first = True

    def announce(link: str) -> None:
        nonlocal first
        if not first:
            print(f"for another browser: {link}", flush=True)
            return
        first = False
        print(f"{link}\n(Ctrl-C ends it; the link opens one browser's session)", flush=True)
        if options.open:
            webbrowser.open(link)

    serve(LocalExperiments(location), port=options.port, optuna=options.optuna, announce=announce)
    print("ended", file=sys.stderr)
    return 0


command = Command("ui", "show experiments as a page in the browser, live", configure, run)
