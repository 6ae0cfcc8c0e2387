"""What somebody means who names an experiment to a command: a folder or URI, or an experiment in a cluster.

One rule for all commands. With -n, --context or --kubeconfig it is a name in a cluster. Else what has a "/" in it, or
exists here, is a folder or a URI; so is what exists in ./trialpod-results. Everything else is a name.

Invariants: what is neither is refused with both readings; a cluster is never asked about what is a place.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError
from trialpod_operator.commands import connection_options

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

LOCAL_FOLDER = "trialpod-results"

RULE = (
    "Which experiment is meant: with -n, --context or --kubeconfig its name in a cluster; else what has a / in it, "
    f"or exists here or in ./{LOCAL_FOLDER}, is a folder or a URI, and everything else is a name in a cluster."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the cluster's options, and tell the rule."""
    parser.epilog = RULE
    connection_options.configure_place(parser)


def in_cluster(options: argparse.Namespace) -> bool:
    """Return whether the options say that it is a name in a cluster."""
    return any((options.namespace, options.context, options.kubeconfig))


def names_a_place(text: str) -> bool:
    """Return whether somebody means a directory or a URI, and not the name of an experiment in a cluster."""
    return "://" in text or "/" in text or os.sep in text or text in (".", "..") or Path(text).exists()


def place(text: str, options: argparse.Namespace) -> str | None:
    """Return the folder or URI that is meant; None: it is a name in a cluster.

    Raises:
        InvalidInputError: it can be none, and the options say that it is.
    """
    if in_cluster(options):
        if "/" in text:
            raise InvalidInputError(
                f"{text} is a folder or a URI; -n, --context and --kubeconfig are for the name of an experiment in a "
                "cluster: leave them out, or give the name"
            )
        return None
    if names_a_place(text):
        return text
    local = Path(LOCAL_FOLDER, text)
    return str(local) if local.is_dir() else None


def experiment_place(text: str, options: argparse.Namespace) -> str | None:
    """Return the folder or URI of an experiment that is meant; None: it is a name in a cluster.

    As `place`, but a folder that happens to have the name and is no experiment is passed over.
    """
    from trialpod_operator.local.reading import is_experiment

    found = place(text, options)
    if found is None or "/" in text or is_experiment(Path(found)):
        return found
    local = Path(LOCAL_FOLDER, text)
    return str(local) if is_experiment(local) else None


def connect(text: str, options: argparse.Namespace) -> Experiments:
    """Return the experiments of the namespace that is meant, for a name that `experiment_place` has found nowhere.

    Raises:
        InvalidInputError: there is no cluster to ask; the message has both readings.
    """
    try:
        return connection_options.connect(options)
    except InvalidInputError as error:
        if in_cluster(options):
            raise
        nowhere = f"there is no experiment {text} here or in ./{LOCAL_FOLDER}"
        raise InvalidInputError(f"{nowhere}; if it is the name of one in a cluster: {error}") from error


@contextlib.contextmanager
def experiment(text: str, options: argparse.Namespace) -> Iterator[tuple[Experiments, Json]]:
    """Yield the namespace, and the TuneExperiment of that name, which `place` has said to be one.

    Raises:
        InvalidInputError: there is none; the message has both readings.
        ClusterUnreachableError: the cluster cannot be reached.
    """
    from trialpod_operator.kube_client.client import NotThereError

    nowhere = "" if in_cluster(options) else f"{text} does not exist, here or in ./{LOCAL_FOLDER}; "
    try:
        api = connection_options.connect(options)
    except InvalidInputError as error:
        if not nowhere:
            raise
        raise InvalidInputError(f"{nowhere}if it is the name of an experiment in a cluster: {error}") from error
    with api:
        try:
            item = api.get(text)
        except NotThereError as error:
            raise NotThereError(f"{nowhere}{'and ' if nowhere else ''}{error}") from error
        yield api, item
