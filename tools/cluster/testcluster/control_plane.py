"""The processes that a cluster has once: etcd, API server, controllers, scheduler, Service rules, DNS."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import binaries, layout, processes
from .system import ClusterError, run

_QUICK = ("--kube-api-qps=200", "--kube-api-burst=400")
"""The controllers' and the scheduler's own limits of requests per second would make a test cluster seem slow."""


@dataclass(frozen=True, slots=True)
class Component:
    """A process of the control plane: its command, and how to see that it works."""

    name: str
    command: Callable[[], Sequence[str | Path]]
    ready: Callable[[], bool]


def kubectl(*arguments: str, given: str | None = None, timeout: float = 60, check: bool = True) -> str:
    """Run kubectl as the cluster's administrator; return what it printed."""
    command = [binaries.path("kubectl"), f"--kubeconfig={layout.KUBECONFIG}", *arguments]
    return run(command, given=given, timeout=timeout, check=check, namespaced=True)


def _answers(url: str, word: str = "ok") -> bool:
    command = ["curl", "--silent", "--insecure", "--noproxy", "*", "--max-time", "2", url]
    return word in run(command, check=False, namespaced=True, timeout=10).lower()


def api_ready() -> bool:
    """Whether the API server says that it is ready."""
    try:
        return kubectl("get", "--raw", "/readyz", "--request-timeout=3s", check=False, timeout=20).strip() == "ok"
    except ClusterError:
        return False


def _etcd() -> Sequence[str | Path]:
    return [
        binaries.path("etcd"), "--name=test", f"--data-dir={layout.STATE}/etcd", "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=test=http://127.0.0.1:2380", "--quota-backend-bytes=4294967296", "--log-level=warn",
    ]  # fmt: skip


def _apiserver() -> Sequence[str | Path]:
    pki = layout.PKI
    return [
        binaries.path("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={layout.API_ADDRESS}", "--secure-port=6443",
        f"--service-cluster-ip-range={layout.SERVICE_CIDR}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt", f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        # Tests of a lost node are not to wait for the five minutes that pods tolerate one by default.
        f"--default-not-ready-toleration-seconds={layout.EVICTION_SECONDS}",
        f"--default-unreachable-toleration-seconds={layout.EVICTION_SECONDS}",
        # Written before a request is answered, so that who counts requests sees all of them.
        f"--audit-policy-file={layout.CONFIG}/audit-policy.yaml", f"--audit-log-path={layout.AUDIT_LOG}",
        "--audit-log-format=json", "--audit-log-mode=blocking", "--audit-log-maxsize=1000",
        "--audit-log-maxbackup=1", "--profiling=false",
    ]  # fmt: skip


def _controller_manager() -> Sequence[str | Path]:
    pki = layout.PKI
    config = f"{layout.CONFIG}/kube-controller-manager.kubeconfig"
    return [
        binaries.path("kube-controller-manager"), f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
        "--controllers=*", "--use-service-account-credentials",
        "--leader-elect=false", "--allocate-node-cidrs=false", f"--cluster-cidr={layout.POD_CIDR}",
        f"--root-ca-file={pki}/ca.crt", f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
        f"--node-monitor-grace-period={layout.NODE_GRACE_SECONDS}s", "--node-monitor-period=1s",
        "--bind-address=127.0.0.1", *_QUICK,
    ]  # fmt: skip


def _scheduler() -> Sequence[str | Path]:
    config = f"{layout.CONFIG}/kube-scheduler.kubeconfig"
    return [
        binaries.path("kube-scheduler"), f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}", "--leader-elect=false", "--bind-address=127.0.0.1", *_QUICK,
    ]  # fmt: skip


def _proxy() -> Sequence[str | Path]:
    return [binaries.path("kube-proxy"), f"--config={layout.CONFIG}/kube-proxy.json"]


def _coredns() -> Sequence[str | Path]:
    return [binaries.path("coredns"), "-conf", layout.CONFIG / "Corefile"]


# In the order in which they start. One kube-proxy: both nodes share the namespace that its rules are in.
COMPONENTS = (
    Component("etcd", _etcd, lambda: _answers("http://127.0.0.1:2379/health", "true")),
    Component("kube-apiserver", _apiserver, api_ready),
    Component("kube-controller-manager", _controller_manager, lambda: _answers("https://127.0.0.1:10257/healthz")),
    Component("kube-scheduler", _scheduler, lambda: _answers("https://127.0.0.1:10259/healthz")),
    Component("kube-proxy", _proxy, lambda: _answers("http://127.0.0.1:10256/healthz", "lastupdated")),
    Component("coredns", _coredns, lambda: _answers(f"http://{layout.DNS_ADDRESS}:8181/ready")),
)  # fmt: skip


def component(name: str) -> Component:
    """Return a component; its `kube-` may be left out.

    Raises:
        ClusterError: There is none of this name.
    """
    for each in COMPONENTS:
        if each.name in (name, f"kube-{name}"):
            return each
    raise ClusterError(f"there is no component {name!r}; there are {', '.join(each.name for each in COMPONENTS)}")


def start(name: str, *, wait: bool = True, timeout: float = 60) -> None:
    """Start a component, and wait until it works.

    Raises:
        ClusterError: It does not within `timeout` seconds.
    """
    what = component(name)
    processes.start(what.name, what.command())
    if wait:
        processes.wait_ready(what.name, what.ready, timeout)


def stop(name: str, *, kill: bool = False) -> None:
    """End a component, by SIGTERM or like a crash by SIGKILL."""
    processes.stop(component(name).name, sig=signal.SIGKILL if kill else signal.SIGTERM, timeout=40)


def write_configuration() -> None:
    """Write the files that the components read."""
    layout.CONFIG.mkdir(parents=True, exist_ok=True)
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": f"{layout.CONFIG}/kube-proxy.kubeconfig", "qps": 50, "burst": 100},
        "hostnameOverride": layout.NODES[0].name,
        "clusterCIDR": layout.POD_CIDR,
        "conntrack": {"maxPerCore": 0},
        # Where the kernel does not show packets within a bridge to iptables, answers must come back through the host.
        "iptables": {"minSyncPeriod": "0s", "masqueradeAll": not Path("/proc/sys/net/bridge").exists()},
    }
    (layout.CONFIG / "kube-proxy.json").write_text(json.dumps(proxy))
    (layout.CONFIG / "Corefile").write_text(
        "cluster.local in-addr.arpa {\n"
        f"  bind {layout.DNS_ADDRESS}\n"
        "  errors\n"
        f"  ready {layout.DNS_ADDRESS}:8181\n"
        "  kubernetes cluster.local in-addr.arpa {\n"
        f"    kubeconfig {layout.CONFIG}/coredns.kubeconfig\n"
        "    ttl 1\n  }\n"
        "}\n"
        # Nothing leads out of the network namespace: other names do not exist, and asking for them is quick.
        f". {{\n  bind {layout.DNS_ADDRESS}\n  template ANY ANY {{\n    rcode NXDOMAIN\n  }}\n}}\n"
    )
    (layout.CONFIG / "resolv.conf").write_text("# Nothing leads out of the test cluster.\n")
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            # Heartbeats and health checks, forever, of the cluster itself.
            {"level": "None", "nonResourceURLs": ["/healthz*", "/readyz*", "/livez*"]},
            {
                "level": "None",
                "userGroups": ["system:nodes"],
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            },
            {"level": "None", "users": ["system:apiserver"]},
            {"level": "Metadata"},
        ],
    }
    (layout.CONFIG / "audit-policy.yaml").write_text(json.dumps(policy))


def version() -> str:
    """Return what the API server is."""
    return str(json.loads(kubectl("get", "--raw", "/version"))["gitVersion"])
