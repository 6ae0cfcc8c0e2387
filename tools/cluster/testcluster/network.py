"""The cluster's network namespace: its addresses, one bridge per node, and routes; nothing leads out of it."""

from __future__ import annotations

import contextlib
import json
import os

from . import layout
from .system import run


def create() -> None:
    """Make the namespace with all that nodes need; what is there already stays."""
    if not layout.NETNS_FILE.exists():
        run(["ip", "netns", "add", layout.NETNS])
    _ip("link set lo up")
    # On lo they are up whatever happens to pods: the API server, DNS, and the nodes' own addresses.
    for address in (layout.API_ADDRESS, layout.DNS_ADDRESS, *(node.address for node in layout.NODES)):
        _ip(f"addr replace {address}/32 dev lo")
    for node in layout.NODES:
        if node.bridge not in _links():
            _ip(f"link add {node.bridge} type bridge")
        # Else it has the lowest of its ports' addresses: another one when that pod goes. Others then send to the
        # old one, without end where a connection to a pod beside them, which needs no router, keeps that confirmed.
        _ip(f"link set dev {node.bridge} address 02:00:0a:f4:{node.number:02x}:01")
        _ip(f"addr replace {node.gateway}/24 dev {node.bridge}")
        _ip(f"link set {node.bridge} up")
    # Without a route the kernel refuses a Service's address before kube-proxy's rules can change it.
    _ip(f"route replace {layout.SERVICE_CIDR} dev lo src {layout.API_ADDRESS}")
    _sysctl("net/ipv4/ip_forward", "1")
    # So that an answer within one bridge passes the rules that turn a pod's address back into the Service's.
    _sysctl("net/bridge/bridge-nf-call-iptables", "1")


def _ip(arguments: str) -> None:
    run(["ip", *arguments.split()], namespaced=True)


def _links() -> list[str]:
    return [link["ifname"] for link in json.loads(run(["ip", "-json", "link"], namespaced=True))]


def _sysctl(name: str, value: str) -> None:
    # /proc/sys/net shows the values of the reader's own network namespace.
    run(["sh", "-c", f"[ ! -e /proc/sys/{name} ] || echo {value} > /proc/sys/{name}"], namespaced=True)


def unplug(node: layout.Node) -> None:
    """Remove the cables of a node's pods."""
    for link in json.loads(run(["ip", "-json", "link", "show", "master", node.bridge], namespaced=True) or "[]"):
        run(["ip", "link", "del", link["ifname"]], namespaced=True, check=False)


def remove() -> None:
    """Remove the namespace, and with it bridges, addresses and rules."""
    if layout.NETNS_FILE.exists():
        run(["ip", "netns", "del", layout.NETNS], check=False)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(layout.NETNS_FILE)
