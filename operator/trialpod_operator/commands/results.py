"""`trialpod results` and `trialpod best`: of a directory, a URI, or an experiment in a cluster by its name.

Of an experiment in a cluster the whole results are read from its storage, with the user's keys or those of its
Secret. When that cannot be, the resources tell what they know: parameters, iterations and the metric.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.commands import local_best, local_results, target

if TYPE_CHECKING:
    from trialpod_operator.display.view import ExperimentView
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]


def _configure_results(parser: argparse.ArgumentParser) -> None:
    local_results.configure(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), help="form of what is printed")
    target.configure(parser)


def _configure_best(parser: argparse.ArgumentParser) -> None:
    local_best.configure(parser)
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), help="form of what is printed")
    target.configure(parser)


def results(options: argparse.Namespace) -> int:
    """Print the trials."""
    _take_output(options, ("json", "csv"))
    view = _view(options)
    return local_results.run(options) if view is None else local_results.show(view, options)


def best(options: argparse.Namespace) -> int:
    """Print the best trial."""
    _take_output(options, ("json", "yaml"))
    view = _view(options)
    return local_best.run(options) if view is None else local_best.show(view, options)


def _take_output(options: argparse.Namespace, forms: tuple[str, ...]) -> None:
    for form in forms:
        if options.output == form:
            setattr(options, form, True)
        elif options.output is not None and getattr(options, form):
            raise InvalidInputError(f"--{form} and --output {options.output}: choose one of them")


def _view(options: argparse.Namespace) -> ExperimentView | None:
    """Return the experiment in a cluster that is meant; None: it is a local one, or in a bucket."""
    place = target.place(options.directory, options)
    if place is not None:
        options.directory = place
        return None
    with target.experiment(options.directory, options) as (api, item):
        return whole_view(api, item, api.trials(options.directory))


def whole_view(api: Experiments, item: Json, trials: list[Json]) -> ExperimentView:
    """Return an experiment in a cluster with all that its storage knows, or what its resources know."""
    from trialpod_operator.kube_client.storage import opened
    from trialpod_operator.kube_client.view import view_of
    from trialpod_operator.local.reading import read_view

    shown = view_of(item, trials, now=time.time(), rows=None)
    if not trials:
        return shown
    try:
        with opened(api, item) as (uri, storage):
            stored = read_view(uri, rows=None, storage=storage)
    except TrialpodError as error:
        print(
            f"trialpod: the storage cannot be read from here: {error}\n"
            "trialpod: shown is what the cluster's resources say: parameters, iterations, the metric",
            file=sys.stderr,
        )
        return shown
    return dataclasses.replace(stored, name=shown.name, state=shown.state, message=shown.message)


results_command = Command(
    "results",
    "show the trials of an experiment: a directory, a URI, or by name in a cluster",
    _configure_results,
    results,
)
best_command = Command(
    "best", "show the best trial of an experiment: a directory, a URI, or by name in a cluster", _configure_best, best
)
