"""The commands behind tools/cluster/*: see docs/cluster-tests.md."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import binaries, cluster, control_plane, images, layout, nodes, pythons
from .system import ClusterError, entering, require_root, say

_HELP = f"""
    tools/cluster/exec kubectl get pods -A          kubectl (and helm) inside the cluster's network namespace
    tools/cluster/exec .venv/bin/pytest -m cluster tests/cluster
    tools/cluster/node kill|start|restart-kubelet|stop-kubelet node-b
    tools/cluster/component stop|kill|start|restart etcd
    tools/cluster/down

  KUBECONFIG={layout.KUBECONFIG}  logs: {layout.LOGS}
  MinIO: {layout.MINIO_ENDPOINT}, bucket {layout.MINIO_BUCKET}, {layout.MINIO_USER} / {layout.MINIO_PASSWORD}
"""


def _node(arguments: argparse.Namespace) -> None:
    node = layout.node(arguments.node)
    action = {
        "kill": nodes.kill,
        "start": nodes.start,
        "stop-kubelet": nodes.stop_kubelet,
        "restart-kubelet": nodes.restart_kubelet,
    }[arguments.action]
    with cluster.lock():
        action(node)
    say(f"{node.name}: {arguments.action} done")


def _component(arguments: argparse.Namespace) -> None:
    with cluster.lock():
        if arguments.action != "start":
            control_plane.stop(arguments.component, kill=arguments.action == "kill")
        if arguments.action in ("start", "restart"):
            control_plane.start(arguments.component)
    say(f"{arguments.component}: {arguments.action} done")


def _exec(arguments: argparse.Namespace) -> None:
    if not layout.NETNS_FILE.exists():
        raise ClusterError("no cluster runs; `make cluster` starts one")
    cluster.use()
    command = entering() + arguments.command
    os.environ["KUBECONFIG"] = str(layout.KUBECONFIG)
    os.environ["PATH"] = f"{binaries.PATH_FOLDER}:{os.environ.get('PATH', '')}"
    os.execvp(command[0], command)


def _image(_: argparse.Namespace) -> None:
    require_root()
    with cluster.lock():
        key = images.build()
        if layout.READY.exists():
            cluster.import_image(key)
    say(f"trialpod/trialpod:test is {key}")


def _debian(arguments: argparse.Namespace) -> None:
    require_root()
    images.make_debian(arguments.name)


def _packages(arguments: argparse.Namespace) -> None:
    require_root()
    print(images.import_packages(arguments.folder))


def _python(arguments: argparse.Namespace) -> None:
    sys.stdout.write(f"{pythons.FETCHED[arguments.name]()}\n")


def _up(_: argparse.Namespace) -> None:
    cluster.up()
    sys.stderr.write(_HELP)


def _status(_: argparse.Namespace) -> None:
    wrong = cluster.trouble()
    if wrong:
        raise ClusterError(wrong)
    say("the cluster is well")


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="tools/cluster", description="A real Kubernetes cluster for tests.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function, text in (
        ("build", lambda _: cluster.build(), "build what is missing, and run nothing"),
        ("up", _up, "build what is missing and run the cluster"),
        ("down", lambda _: cluster.down(), "stop it and remove all that it made"),
        ("image", _image, "build the image and give it to the nodes"),
        ("status", _status, "say what is wrong with it"),
    ):
        command = commands.add_parser(name, help=text)
        command.set_defaults(run=function)
    command = commands.add_parser("node", help="end or start a node, or its kubelet alone")
    command.add_argument("action", choices=("kill", "start", "stop-kubelet", "restart-kubelet"))
    command.add_argument("node")
    command.set_defaults(run=_node)
    command = commands.add_parser("component", help="end or start a part of the control plane")
    command.add_argument("action", choices=("stop", "kill", "start", "restart"))
    command.add_argument("component")
    command.set_defaults(run=_component)
    command = commands.add_parser("debian", help="make one of the images that tests take besides the built one")
    command.add_argument("name", choices=sorted(images.DEBIANS))
    command.set_defaults(run=_debian)
    command = commands.add_parser("packages", help="give the nodes an image with an environment's packages")
    command.add_argument("folder", type=Path, help="its site-packages, of a Python 3.11")
    command.set_defaults(run=_packages)
    command = commands.add_parser("python", help="fetch what tests bring into images, and print its folder")
    command.add_argument("name", choices=sorted(pythons.FETCHED))
    command.set_defaults(run=_python)
    command = commands.add_parser("exec", help="run a command in the cluster's network namespace")
    command.add_argument("command", nargs=argparse.REMAINDER)
    command.set_defaults(run=_exec)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
