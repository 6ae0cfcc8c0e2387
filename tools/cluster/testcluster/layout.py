"""Versions, addresses, names and folders of the test cluster.

Invariants: whatever is outside of the checkout (network namespace, cgroups, /run) has TAG in its name; sockets live
in RUN, whose path is short, because a socket's path is limited to 107 bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = (ROOT / ".cache").resolve()
TAG = "trialpod-" + hashlib.sha256(str(CACHE.parent).encode()).hexdigest()[:6]
"""Of the checkout that owns the cache: a worktree whose `.cache` links there uses the same cluster."""

KUBERNETES = os.environ.get("TRIALPOD_CLUSTER_KUBERNETES", "newest")
"""Which Kubernetes runs: `newest`, or `oldest`, the oldest one that the chart accepts."""

KUBERNETES_SOURCES = (
    Path(__file__).parents[1] / "go" / ("kubernetes-oldest" if KUBERNETES == "oldest" else "kubernetes")
)
"""The folder whose go.mod pins that Kubernetes."""

KUBERNETES_VERSION = re.findall(r"k8s\.io/kubernetes (v\S+)", (KUBERNETES_SOURCES / "go.mod").read_text())[0]
KUBERNETES_MINOR = int(KUBERNETES_VERSION.split(".")[1])
COREDNS_VERSION = "v1.14.7"
HELM_VERSION = "v3.22.0"

BIN = CACHE / "bin"
IMAGES = CACHE / "cluster-images"
"""The base image, buildah's layers and the built images: kept when the cluster is taken down."""

STATE = Path(os.environ.get("TRIALPOD_CLUSTER_STATE") or CACHE / "cluster")
"""All state of the running cluster; gone when it is taken down."""

RUN = Path("/run") / TAG
LOCK = CACHE / "cluster.lock"
IN_USE = CACHE / "cluster-in-use.lock"
"""Held, shared, by everything that `tools/cluster/exec` runs: no one takes the cluster away from under a test."""

LOGS = STATE / "logs"
PIDS = STATE / "pids"
PKI = STATE / "pki"
CONFIG = STATE / "config"
KUBECONFIG = STATE / "kubeconfig"
AUDIT_LOG = LOGS / "audit.log"
MINIO_DATA = STATE / "minio-data"
READY = STATE / "ready"
"""Holds the key of the configuration that the running cluster was made from."""

NETNS = TAG
NETNS_FILE = Path("/var/run/netns") / NETNS

SERVICE_CIDR = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
POD_CIDR = "10.244.0.0/16"
API_ADDRESS = "10.245.0.1"
DNS_ADDRESS = "10.245.0.10"
API_URL = "https://127.0.0.1:6443"

PAUSE_IMAGE = "trialpod.dev/pause:1"
MINIO_IMAGE = "docker.io/trialpod/minio:test"
IMAGE = "docker.io/trialpod/trialpod:test"
BASE_IMAGE = "docker.io/library/python:3.11-slim-bookworm"

MINIO_NAMESPACE = "minio"
MINIO_USER, MINIO_PASSWORD = "trialpod-test", "trialpod-test-secret"
MINIO_ENDPOINT = "http://minio.minio.svc:9000"
MINIO_BUCKET = "tune"

GPUS = 4
NODE_GRACE_SECONDS = 10
EVICTION_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its processes are a kubelet and a containerd; both nodes share the machine and the kernel."""

    name: str
    letter: str
    number: int

    @property
    def address(self) -> str:
        """Its InternalIP."""
        return f"10.245.0.{10 + self.number}"

    @property
    def bridge(self) -> str:
        """The bridge that its pods hang on: two nodes cannot share one."""
        return f"cni-{self.letter}"

    @property
    def pod_cidr(self) -> str:
        """Addresses of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def gateway(self) -> str:
        """The bridge's own address."""
        return f"10.244.{self.number}.1"

    @property
    def kubelet_port(self) -> int:
        """Both kubelets listen in the same network namespace."""
        return 10250 + 10 * self.number

    @property
    def cgroup(self) -> str:
        """Name of the cgroup that all its pods are in, directly under each controller's root."""
        return f"{TAG}-{self.letter}"

    @property
    def state(self) -> Path:
        """What a disk would hold."""
        return STATE / self.name

    @property
    def run(self) -> Path:
        """What a real machine loses when it goes down: mounts, sockets, runc's state."""
        return RUN / self.letter

    @property
    def socket(self) -> Path:
        """The socket of its containerd."""
        return self.run / "containerd.sock"

    @property
    def kubelet(self) -> str:
        """Name of its kubelet's process."""
        return f"kubelet-{self.letter}"

    @property
    def containerd(self) -> str:
        """Name of its containerd's process."""
        return f"containerd-{self.letter}"


NODES = (Node("node-a", "a", 1), Node("node-b", "b", 2))


def node(name: str) -> Node:
    """Return the node of that name; `a` and `b` do as well."""
    for each in NODES:
        if name in (each.name, each.letter):
            return each
    raise SystemExit(f"cluster: there is no node {name!r}; there are {', '.join(each.name for each in NODES)}")


def configuration_key() -> str:
    """Return a hash of all that a running cluster was made from: another one needs another cluster."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    sources = [*sorted(folder.glob("*.py")), KUBERNETES_SOURCES / "go.mod"]
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
