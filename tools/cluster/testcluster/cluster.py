"""The cluster as a whole: up, down, and whether it is well.

Invariants: `up` leaves a running cluster that is well alone, and recreates one that is not, or that other sources
made; `down` leaves nothing that runs, is mounted or hangs in /sys and /run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from . import addons, binaries, control_plane, images, layout, network, nodes, packages, pki, processes
from .system import ClusterError, require_root, run, say, unmount_below

_MAX_SOCKET_PATH = 107


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Let one at a time change the cluster; the others wait."""
    layout.CACHE.mkdir(parents=True, exist_ok=True)
    with open(layout.LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command that changes the cluster")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def use() -> None:
    """Mark the cluster as in use for as long as this process lives, also as another program.

    Raises:
        ClusterError: It is being recreated or taken down.
    """
    layout.CACHE.mkdir(parents=True, exist_ok=True)
    # Never closed: the lock goes with the process. Its children are given no files.
    descriptor = os.open(layout.IN_USE, os.O_RDWR | os.O_CREAT, 0o644)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ClusterError("the cluster is being recreated or taken down; try again when that is done") from error


@contextlib.contextmanager
def _unused(purpose: str) -> Iterator[None]:
    """Hold the cluster for what disturbs all who use it.

    Raises:
        ClusterError: Something that `tools/cluster/exec` started still runs.
    """
    with open(layout.IN_USE, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError(
                f"{purpose} would take the cluster away from what runs in it:\n  " + "\n  ".join(_users())
            ) from error
        yield


def _users() -> list[str]:
    wanted = os.stat(layout.IN_USE).st_ino
    found = []
    for pid in (entry for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()):
        with contextlib.suppress(OSError):
            if any(os.stat(f"/proc/{pid}/fd/{fd}").st_ino == wanted for fd in os.listdir(f"/proc/{pid}/fd")):
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    found.append(
                        f"process {pid}: {file.read().replace(bytes(1), b' ').decode(errors='replace')[:150]}"
                    )
    return found


def trouble() -> str:
    """Return what is wrong with the running cluster, or "" when it is well."""
    if not layout.READY.exists():
        return "none runs" if not layout.PIDS.exists() else "it did not come up completely"
    if layout.READY.read_text() != layout.configuration_key():
        return "it was made by other sources than these"
    wanted = [each.name for each in control_plane.COMPONENTS]
    wanted += [name for node in layout.NODES for name in (node.containerd, node.kubelet)]
    gone = [name for name in wanted if processes.pid_of(name) is None]
    if gone:
        return f"not running: {', '.join(gone)}"
    if not control_plane.api_ready():
        return "the API server is not ready"
    try:
        found = json.loads(control_plane.kubectl("get", "nodes", "-o", "json", timeout=20))["items"]
        for node in found:
            conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
            if conditions.get("Ready") != "True":
                return f"{node['metadata']['name']} is not Ready"
            if node["status"]["allocatable"].get("nvidia.com/gpu") != str(layout.GPUS):
                return f"{node['metadata']['name']} has lost its GPUs"
            if node["spec"].get("unschedulable"):
                return f"{node['metadata']['name']} is cordoned"
        if len(found) != len(layout.NODES):
            return f"{len(found)} nodes instead of {len(layout.NODES)}"
        for each in control_plane.COMPONENTS:
            if not each.ready():
                return f"{each.name} is not ready"
        addons.wait_ready(timeout=15)
    except ClusterError as error:
        return error.message.splitlines()[0]
    return ""


def up() -> None:
    """Build what is missing and make a cluster run that has the image of the present sources.

    Raises:
        ClusterError: It cannot.
    """
    require_root()
    longest = layout.NODES[0].state / "kubelet/pod-resources/kubelet.sock.12345678"
    if len(str(longest)) > _MAX_SOCKET_PATH:
        raise ClusterError(f"{layout.STATE} is too long for sockets; set TRIALPOD_CLUSTER_STATE to a shorter path")
    started = time.monotonic()
    with lock():
        key = _build()
        wrong = trouble()
        if not wrong:
            import_image(key)
            say(f"the cluster runs, and has this image ({time.monotonic() - started:.1f} s)")
            return
        with _unused(f"rebuilding it ({wrong})"):
            if layout.PIDS.exists():
                say(f"making the cluster again: {wrong}")
            _down()
            try:
                _create(key)
            except BaseException:
                say("it did not come up; its logs stay in " + str(layout.LOGS))
                _stop_everything()
                raise
    say(f"the cluster runs ({time.monotonic() - started:.1f} s)")


def build() -> None:
    """Build what is missing for a cluster, and run none."""
    require_root()
    with lock():
        _build()


def _build() -> str:
    packages.ensure()
    binaries.ensure()
    binaries.minio()
    return images.build()


def import_image(key: str) -> None:
    """Give the built image to all nodes."""
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(images.import_image, node, key) for node in layout.NODES]:
            done.result()


def _create(key: str) -> None:
    say("starting the control plane")
    layout.STATE.mkdir(parents=True, exist_ok=True)
    layout.RUN.mkdir(parents=True, exist_ok=True)
    network.create()
    pki.create()
    control_plane.write_configuration()
    control_plane.start("etcd")
    control_plane.start("kube-apiserver")
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        control_plane.start(name, wait=False)
    say("starting the nodes")

    def start(node: layout.Node) -> float:
        nodes.prepare(node)
        images.import_pause(node)
        since = nodes.start_kubelet(node)
        images.import_image(node, key)
        return since

    with ThreadPoolExecutor() as pool:
        starting = [pool.submit(start, node) for node in layout.NODES]
        since = [each.result() for each in starting]
    for node in layout.NODES:  # the chart's own MinIO may be scheduled to any node
        images.import_minio(node)
    addons.install()
    for node, begun in zip(layout.NODES, since, strict=True):
        nodes.wait_ready(node, begun, timeout=120)
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        control_plane.start(name)
    addons.wait_ready()
    layout.READY.write_text(layout.configuration_key())


def down() -> None:
    """Stop the cluster and remove all that it made, except for binaries and images.

    Raises:
        ClusterError: Something does not go.
    """
    require_root()
    with lock(), _unused("taking it down"):
        _down()
    say("the cluster is down")


def _stop_everything() -> None:
    # Nodes first, and all by SIGKILL: nothing of it is needed again.
    for node in layout.NODES:
        nodes.remove(node)
    for name in reversed(processes.names()):
        processes.stop(name, sig=signal.SIGKILL)


def _down() -> None:
    _stop_everything()
    network.remove()
    images.release()
    unmount_below(layout.STATE, layout.RUN)
    for folder in (layout.STATE, layout.RUN):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            # Something was written while it was removed: again, and say what stays.
            run(["rm", "-rf", "--one-file-system", folder])
