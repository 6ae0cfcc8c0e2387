"""What the commands that ask a cluster have in common: their options."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialpod_operator.cluster.client import Experiments


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the experiment and where it is."""
    parser.add_argument("name", metavar="NAME", help="name of the TuneExperiment")
    parser.add_argument("-n", "--namespace", help="its namespace (default: TRIALPOD_NAMESPACE, or the kubeconfig's)")
    parser.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def connect(options: argparse.Namespace) -> Experiments:
    """Return the experiments of the namespace that is meant."""
    from trialpod_operator.cluster.client import Experiments

    namespace = options.namespace or os.environ.get("TRIALPOD_NAMESPACE") or None
    return Experiments.connect(namespace, context=options.context)
