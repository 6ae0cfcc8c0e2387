"""What the commands that ask a cluster have in common: their options, and what they say where to look next."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments

NAMESPACE = "TRIALPOD_NAMESPACE"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the experiment and where it is."""
    parser.add_argument("name", metavar="DIR|URI|NAME", help="the experiment, on this machine or in a cluster")
    configure_place(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def configure_place(parser: argparse.ArgumentParser) -> None:
    """Declare which cluster and which namespace, as kubectl does."""
    group = parser.add_argument_group("the cluster")
    group.add_argument("-n", "--namespace", help="namespace (default: TRIALPOD_NAMESPACE, or the kubeconfig's)")
    group.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    group.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig (default: KUBECONFIG, or ~/.kube/config)")


def connect(options: argparse.Namespace) -> Experiments:
    """Return the experiments of the namespace that is meant."""
    from trialpod_operator.kube_client.client import Experiments

    namespace = options.namespace or os.environ.get(NAMESPACE) or None
    return Experiments.connect(namespace, context=options.context, kubeconfig=options.kubeconfig)


def flags(options: argparse.Namespace, namespace: str) -> str:
    """Return the options that another command needs to find the same namespace of the same cluster."""
    found = ["-n", namespace]
    for name in ("context", "kubeconfig"):
        if value := getattr(options, name):
            found += [f"--{name}", value]
    return shlex.join(found)


def confirmed(question: str) -> bool:
    """Ask a person; anything but yes is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
