"""The two nodes: containerd and kubelet each, with a disk, mounts and cgroups of their own.

Invariants: `kill` leaves what a machine without power leaves, which is its disk and the Node object; `start` begins
as a machine does that boots: no mounts, no sockets, no runtime state, all of the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from datetime import datetime
from pathlib import Path

from . import binaries, cgroups, layout, network, processes
from .control_plane import kubectl
from .layout import Node
from .packages import CNI_PLUGINS
from .system import ClusterError, mounts_below, run, unmount_below, wait_until

_CONTAINERD = """\
version = 2
root = "{state}/containerd"
state = "{run}/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{run}/runc"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{state}/cni"
"""
_SHIM_SOCKETS = Path("/run/containerd/s")
_CNI_RESULTS = Path("/var/lib/cni/results")
_CONTAINER_LOGS = Path("/var/log/containers")


def _network_name(node: Node) -> str:
    return f"{layout.TAG}-{node.letter}"


def write_configuration(node: Node) -> None:
    """Write what the node's containerd, CNI plugins and kubelet read."""
    for folder in (node.state / "cni", node.state / "kubelet", node.state / "pod-logs"):
        folder.mkdir(parents=True, exist_ok=True)
    node.run.mkdir(parents=True, exist_ok=True)
    (node.state / "containerd.toml").write_text(
        _CONTAINERD.format(
            state=node.state, run=node.run, socket=node.socket, pause=layout.PAUSE_IMAGE, cni=CNI_PLUGINS,
            snapshotter="overlayfs" if overlay_works(node.state) else "native",
        )
    )  # fmt: skip
    plugins = [
        {
            "type": "bridge",
            "bridge": node.bridge,
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": f"{node.state}/cni-addresses",
                "ranges": [[{"subnet": node.pod_cidr, "gateway": node.gateway}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    conflist = {"cniVersion": "0.4.0", "name": _network_name(node), "plugins": plugins}
    (node.state / "cni/10-bridge.conflist").write_text(json.dumps(conflist))
    (node.state / "kubelet.json").write_text(json.dumps(_kubelet_configuration(node)))


def overlay_works(folder: Path) -> bool:
    """Whether an overlay can be mounted here: not where the checkout itself is on one."""
    trial = folder / "overlay-trial"
    parts = {name: trial / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
    try:
        run(["mount", "-t", "overlay", "overlay", "-o", options, parts["merged"]])
    except ClusterError:
        return False
    else:
        run(["umount", parts["merged"]])
        return True
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _kubelet_configuration(node: Node) -> dict[str, object]:
    configuration: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": node.kubelet_port,
        "healthzPort": node.kubelet_port - 2,
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "clusterDNS": [layout.DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{layout.CONFIG}/resolv.conf",
        "podLogsDir": f"{node.state}/pod-logs",
        "maxPods": 200,
        "evictionHard": {
            "memory.available": "64Mi", "nodefs.available": "1%", "imagefs.available": "1%",
            "nodefs.inodesFree": "1%", "imagefs.inodesFree": "1%",
        },
        # The images cannot be pulled again, so none is ever collected; 100 turns it off.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeLeaseDurationSeconds": 6,
        "nodeStatusUpdateFrequency": "4s",
        "nodeStatusReportFrequency": "30s",
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "registerWithTaints": [],
        "shutdownGracePeriod": "0s",
        "volumePluginDir": f"{node.state}/volume-plugins",
    }  # fmt: skip
    if layout.KUBERNETES_MINOR >= 32:  # an older kubelet refuses a gate that it does not know
        # Tests kill the operator again and again, each for its own reason; the wait would double to five minutes.
        configuration["featureGates"] = {"KubeletCrashLoopBackOffMax": True}
        configuration["crashLoopBackOff"] = {"maxContainerRestartPeriod": "10s"}
    return configuration


def start_containerd(node: Node) -> None:
    """Start the node's containerd and wait until it answers."""
    processes.start(node.containerd, ["containerd", "--config", node.state / "containerd.toml"])
    processes.wait_ready(
        node.containerd,
        lambda: node.socket.exists() and "Server:" in ctr(node, "version", check=False),
    )


def ctr(node: Node, *arguments: str | Path, check: bool = True, timeout: float = 300) -> str:
    """Run containerd's client on a node."""
    return run(["ctr", "--address", node.socket, "--namespace", "k8s.io", *arguments], check=check, timeout=timeout)


def start_kubelet(node: Node) -> float:
    """Start the node's kubelet, without waiting; return when."""
    started = time.time()
    processes.start(
        node.kubelet,
        [
            binaries.path("kubelet"), f"--config={node.state}/kubelet.json",
            f"--kubeconfig={layout.CONFIG}/{node.name}.kubeconfig", f"--root-dir={node.state}/kubelet",
            f"--cert-dir={node.state}/kubelet/pki", f"--hostname-override={node.name}", f"--node-ip={node.address}",
            f"--node-labels=trialpod.dev/test-node={node.letter}", "--v=1",
        ],
    )  # fmt: skip
    return started


def wait_ready(node: Node, since: float, timeout: float = 60) -> None:
    """Wait until the node is Ready again since a time, and has its GPUs."""

    def ready() -> bool:
        found = kubectl("get", "node", node.name, "-o", "json", "--ignore-not-found", check=False)
        if not found.strip():
            return False
        status = json.loads(found)["status"]
        conditions = {each["type"]: each for each in status.get("conditions", ())}
        condition = conditions.get("Ready", {})
        seen = condition.get("lastHeartbeatTime", "1970-01-01T00:00:00Z")
        # Times of conditions are whole seconds.
        return condition.get("status") == "True" and datetime.fromisoformat(seen).timestamp() >= int(since)

    processes.wait_ready(node.kubelet, ready, timeout)
    advertise_gpus(node)


def advertise_gpus(node: Node) -> None:
    """Give the node GPUs as far as the scheduler can see: Kubernetes' way to advertise an extended resource."""
    patch = {"status": {"capacity": {"nvidia.com/gpu": str(layout.GPUS)}}}

    def there() -> bool:
        # A kubelet that has just registered takes them away again once.
        status = json.loads(kubectl("get", "node", node.name, "-o", "json"))["status"]
        if status["allocatable"].get("nvidia.com/gpu") == str(layout.GPUS):
            return True
        kubectl("patch", "node", node.name, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
        return False

    wait_until(there, f"{node.name} has its GPUs", timeout=30, log=processes.log_of(node.kubelet))


def stop_kubelet(node: Node) -> None:
    """Kill the node's kubelet alone: its containers continue."""
    processes.stop(node.kubelet)


def restart_kubelet(node: Node) -> None:
    """Kill the node's kubelet and start it again; its containers continue."""
    stop_kubelet(node)
    wait_ready(node, start_kubelet(node))


def kill(node: Node) -> None:
    """Lose the node: kubelet, containerd and everything in its containers end at once, by SIGKILL."""
    processes.stop(node.kubelet)
    processes.stop(node.containerd)
    sockets = _shim_sockets(node)
    # The shims first, while they cannot start anything, then what runs in containers.
    deadline = time.monotonic() + 20
    while shims := processes.with_argument(str(node.socket)):
        processes.kill_all(shims)
        if time.monotonic() > deadline:
            raise ClusterError(f"{node.name}: shims {shims[:10]} do not go though they were killed")
        time.sleep(0.02)
    cgroups.kill(node)
    for socket in sockets:
        socket.unlink(missing_ok=True)


def _shim_sockets(node: Node) -> list[Path]:
    found = []
    for file in (node.run / "containerd").glob("io.containerd.runtime.v2.task/*/*/address"):
        with contextlib.suppress(OSError):
            socket = Path(file.read_text().strip().removeprefix("unix://"))
            if socket.parent == _SHIM_SOCKETS:
                found.append(socket)
    return found


def prepare(node: Node) -> None:
    """Do what a booting node does before its kubelet starts: containerd runs afterwards."""
    _power_off_remains(node)
    cgroups.create(node)
    write_configuration(node)
    start_containerd(node)


def start(node: Node, timeout: float = 90) -> None:
    """Start whatever the node lacks, and wait until it is Ready: its kubelet, or all after a `kill`."""
    if processes.pid_of(node.containerd) is None:
        kill(node)
        prepare(node)
    elif processes.pid_of(node.kubelet) is not None:
        return
    wait_ready(node, start_kubelet(node), timeout)


def _power_off_remains(node: Node) -> None:
    """Remove what does not survive a power cut."""
    unmount_below(node.state, node.run)
    if mounts_below(node.state, node.run):
        raise ClusterError(f"{node.name}: these stay mounted: {mounts_below(node.state, node.run)[:5]}")
    shutil.rmtree(node.run, ignore_errors=True)
    network.unplug(node)


def remove(node: Node) -> None:
    """Kill the node and remove all that it has made outside of its state folder."""
    kill(node)
    unmount_below(node.state, node.run)
    cgroups.remove(node)
    shutil.rmtree(node.run, ignore_errors=True)
    for result in _CNI_RESULTS.glob(f"{_network_name(node)}-*"):
        result.unlink(missing_ok=True)
    if _CONTAINER_LOGS.is_dir():
        for link in _CONTAINER_LOGS.iterdir():
            if link.is_symlink() and os.readlink(link).startswith(f"{node.state}/"):
                link.unlink(missing_ok=True)
