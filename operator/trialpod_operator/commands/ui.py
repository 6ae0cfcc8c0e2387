"""`trialpod ui [DIR|URI|NAME]`: experiments as a page in the browser, live while they run."""

from __future__ import annotations

import argparse
import contextlib
import sys
import webbrowser
from typing import TYPE_CHECKING

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.commands import target

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments as ClusterExperiments
    from trialpod_operator.kube_client.ui_relay import PageRelay
    from trialpod_operator.ui.access import Actions
    from trialpod_operator.ui.serve import AppOf


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "location",
        nargs="?",
        metavar="DIR|URI|NAME",
        help=f"an experiment, or a folder of them (default: ./{target.LOCAL_FOLDER}, or with -n a namespace)",
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--open", action="store_true", help="open the link in the browser")
    parser.add_argument("--optuna", action="store_true", help="show optuna-dashboard instead of trialpod's own page")
    parser.add_argument(
        "--actions",
        action="store_true",
        help="let the page suspend, resume, stop trials and add samples, with your permissions",
    )
    parser.add_argument(
        "--shared", action="store_true",
        help="serve all users of a cluster, each with their own permissions: what the chart runs with ui.enabled",
    )  # fmt: skip
    target.add_cluster_options(parser, rule=True)


def run(options: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    if options.optuna:
        import optuna_dashboard  # noqa: F401 - its extra has all that the page needs

    from trialpod_operator.ui.local_experiments import LocalExperiments

    if not 0 <= options.port < 65536:
        raise InvalidInputError(f"--port {options.port}: must be 0 to 65535")
    if options.shared:
        return _serve_shared(options)
    in_cluster = target.is_in_cluster(options)
    default = None if in_cluster else target.LOCAL_FOLDER
    asked = options.location or default
    location = target.location(asked, options) if asked is not None else None
    if location is not None:
        from trialpod_operator.ui.actions import LocalActions
        from trialpod_operator.ui.serve import page_of

        page = page_of(LocalExperiments(location), _wanted(LocalActions(), options), optuna=options.optuna)
        return _serve(page, options, location="" if options.optuna else location)
    return _serve_cluster(options)


def _serve_shared(options: argparse.Namespace) -> int:
    from trialpod_operator.cluster.operator import configure_logging
    from trialpod_operator.cluster.options import OperatorOptions
    from trialpod_operator.cluster_ui.serve import PORT, serve_shared

    if options.location or target.is_in_cluster(options) or options.optuna or options.open or options.actions:
        raise InvalidInputError("--shared takes its settings from the environment; leave out the other options")
    configure_logging(OperatorOptions.from_environment().log_level)
    return serve_shared(port=options.port or PORT)


def _serve_cluster(options: argparse.Namespace) -> int:
    from trialpod_operator.kube_client.ui_experiments import DeskActions, DeskExperiments
    from trialpod_operator.ui.serve import page_of

    with contextlib.ExitStack() as stack:
        name = options.location or ""
        if name:
            api, _ = stack.enter_context(target.experiment(name, options))
        else:
            api = stack.enter_context(target.connect(options))
        relay = _shared_page(api, options)
        if relay is not None:
            print("this is the cluster's own page", file=sys.stderr)
            return _serve(relay.app_of, options, f"#/e/{api.namespace}.{name}" if name else "")
        actions = DeskActions(api, target.cluster_flags(options, api.namespace))
        return _serve(page_of(DeskExperiments(api, name), _wanted(actions, options), optuna=options.optuna), options)


def _shared_page(api: ClusterExperiments, options: argparse.Namespace) -> PageRelay | None:
    """Return the way to the cluster's own page; None where this machine has to serve one."""
    from trialpod_operator.kube_client.ui_relay import PageRelay, PageUnavailableError

    if options.optuna:
        return None
    try:
        relay = PageRelay.connect(api)
        # Its administrator decides on actions there, and the user on those here.
        return relay if bool(relay.session()["actions"]) == options.actions else None
    except PageUnavailableError as error:
        if str(error):
            print(f"not the cluster's own page: {error}", file=sys.stderr)
        return None


def _wanted(actions: Actions, options: argparse.Namespace) -> Actions | None:
    return actions if options.actions else None


def _serve(app_of: AppOf, options: argparse.Namespace, at: str = "", location: str = "") -> int:
    from trialpod_operator.ui.serve import serve

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

    serve(app_of, port=options.port, at=at, location=location, announce=announce)
    print("ended", file=sys.stderr)
    return 0


command = Command("ui", "show experiments as a page in the browser, live", configure, run)
