"""Does faults to the test cluster and to what runs in it, undoes them, and makes everything whole again.

Invariants: `heal` undoes whatever was begun, in any order and also after an error in between. A fault that lasts ends
at its time, whatever another one makes this process wait for meanwhile; a lost node gets nothing of it started before
all of it is. Network faults are rules in the network namespaces of single pods, which go with the pods; the cluster's
own rules are not touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cluster_access import NODES, Cluster, KubectlError, binaries, control_plane, layout, nodes, processes
from cluster_plan import Fault
from operator_release import LABELS, NAMESPACE, RELEASE, Operator, processes_of
from testcluster.system import ClusterError

from trialpod_operator.cluster.names import SHARDS_ANNOTATION
from trialpod_operator.cluster.operator import LEASE_NAME
from trialpod_operator.cluster.shards.assignment import shares

_TRIALS = "app.kubernetes.io/name=trialpod-trial"
_REPORTS_PORT = "8443"


class MissedError(Exception):
    """The fault found nothing that it could be done to: the message says why."""


@dataclass
class Done:
    """A fault that was done.

    Attributes:
        fault: which.
        began: seconds since the epoch.
        ended: likewise; 0 = still continuing.
        about: what it was done to, or why it was not.
        missed: it was not done.
    """

    fault: Fault
    began: float
    about: str = ""
    ended: float = 0.0
    missed: bool = False


@dataclass
class Faults:
    """All that goes wrong in one round.

    Attributes:
        operator: the installed one.
        trials: the namespace of the experiments.
    """

    operator: Operator
    trials: Cluster
    done: list[Done] = field(default_factory=list)
    _undo: dict[int, list[Callable[[], object]]] = field(default_factory=dict)
    _timers: list[threading.Timer] = field(default_factory=list)
    _lost: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _drains: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # -- from outside --

    def begin(self, fault: Fault) -> Done:
        """Do it; what lasts is ended in time by itself."""
        done = Done(fault, time.time())
        self._undo[id(done)] = []
        self.done.append(done)
        try:
            done.about = getattr(self, "_" + fault.kind.lower().replace(" ", "_").replace("-", "_"))(
                fault, self._undo[id(done)]
            )
        except (MissedError, KubectlError, ClusterError, OSError, subprocess.TimeoutExpired) as error:
            done.missed, done.about = True, f"not done: {str(error).splitlines()[0][:200]}"
            self.end(done)
        if fault.for_s and not done.missed:
            self._timers.append(threading.Timer(fault.for_s, self.end, [done]))
            self._timers[-1].daemon = True
            self._timers[-1].start()
        else:
            done.ended = time.time()
        return done

    def forget(self, done: Done) -> None:
        """Leave out one that was missed: it is retried."""
        self.done.remove(done)

    @property
    def going(self) -> bool:
        """Whether any still lasts."""
        return any(timer.is_alive() for timer in self._timers)

    def end(self, done: Done) -> None:
        """Undo it, if it lasts."""
        undo = self._undo.pop(id(done), [])
        while undo:
            with contextlib.suppress(KubectlError, ClusterError, OSError, subprocess.TimeoutExpired):
                undo.pop()()
        done.ended = done.ended or time.time()

    def heal(self) -> None:
        """Make everything whole; returns when the cluster and the operator work."""
        for timer in self._timers:
            timer.cancel()
        for timer in self._timers:
            timer.join()
        for done in list(self.done):
            self.end(done)
        for drain in self._drains:
            drain.kill()
            drain.wait()
        self.trials.heal()
        for node in layout.NODES:
            if processes.pid_of(node.containerd) is None:
                nodes.start_containerd(node)
            self.trials.wait_for(partial(self._uncordoned, node.name), f"{node.name} takes pods", 60)
            nodes.wait_ready(node, time.time() - 300)
        store = Cluster(layout.MINIO_NAMESPACE)
        self.trials.wait_for(partial(self._at_work, store, "app.kubernetes.io/name=minio"), "the store works", 90)
        self.trials.wait_for(partial(self._at_work, self.operator.cluster, LABELS), "the operator works", 120)
        for each in control_plane.COMPONENTS:
            self.trials.wait_for(each.ready, f"{each.name} is ready", 60)

    def _uncordoned(self, name: str) -> bool:
        self.trials.kubectl("uncordon", name)
        return True

    def _at_work(self, cluster: Cluster, labels: str) -> bool:
        """See that all pods are ready; those that wait long after a crash are deleted, as an administrator would."""
        pods = [pod for pod in cluster.list("pods", labels) if not pod["metadata"].get("deletionTimestamp")]
        for pod in pods:
            for status in pod["status"].get("containerStatuses") or ():
                waiting = (status["state"].get("waiting") or {}).get("reason", "")
                if waiting == "CrashLoopBackOff" or pod["status"].get("phase") in ("Failed", "Succeeded"):
                    cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        return bool(pods) and all(
            any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))
            for pod in pods
        )

    # -- the operator --

    def _operator_pids(self) -> tuple[dict[str, Any], list[int]]:
        """Return the pod of an operator, the one with the most shards first, and its processes."""
        pods = self.operator.cluster.list("pods", LABELS)
        lease = self.operator.cluster.get("lease", LEASE_NAME) or {"metadata": {}}
        shards = shares((lease["metadata"].get("annotations") or {}).get(SHARDS_ANNOTATION, ""))
        for pod in sorted(pods, key=lambda pod: -shards.get(pod["metadata"]["name"], 0)):
            if pids := processes_of(pod, "operator"):
                return pod, pids
        raise MissedError("no operator runs at the moment")

    def _operator_killed(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._operator_pids()
        processes.kill_all(pids)
        return str(pod["metadata"]["name"])

    def _operator_deleted(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, _ = self._operator_pids()
        name = str(pod["metadata"]["name"])
        self.operator.cluster.kubectl("delete", "pod", name, "--wait=false")
        return name

    def _operator_stopped(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._operator_pids()
        return self._stop(pids, undo, str(pod["metadata"]["name"]))

    def _operator_cut_off_from_trials(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._operator_pids()
        port = ("-p", "tcp", "--dport", _REPORTS_PORT), ("-p", "tcp", "--sport", _REPORTS_PORT)
        return self._cut(pod, pids[0], port[0], port[1], undo)

    def _operator_cut_off_from_the_store(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._operator_pids()
        return self._cut_from(pod, pids[0], self.trials.service_address("minio", layout.MINIO_NAMESPACE), undo)

    def _operator_cut_off_from_the_api_server(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._operator_pids()
        return self._cut_from(pod, pids[0], layout.KUBERNETES_SERVICE, undo)

    # -- trials --

    def _trial(self, fault: Fault) -> tuple[dict[str, Any], list[int]]:
        pods = [pod for pod in self.trials.list("pods", _TRIALS) if not pod["metadata"].get("deletionTimestamp")]
        running = [(pod, pids) for pod in pods if (pids := processes_of(pod, "trialpod"))]
        if not running:
            raise MissedError("no trial runs at the moment")
        return running[int(fault.x * len(running))]

    def _trial_deleted(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        name = str(self._trial(fault)[0]["metadata"]["name"])
        self.trials.kubectl("delete", "pod", name, "--wait=false")
        return name

    def _trial_force_deleted(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        name = str(self._trial(fault)[0]["metadata"]["name"])
        self.trials.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--wait=false")
        return name

    def _trial_stopped(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._trial(fault)
        return self._stop(pids, undo, str(pod["metadata"]["name"]))

    def _trial_cut_off(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._trial(fault)
        return self._cut(pod, pids[0], (), (), undo)

    def _shim_killed(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._trial(fault)
        parents = {_parent(pid) for pid in pids} - set(pids)
        shims = [pid for pid in parents if "containerd-shim" in _command(pid)]
        if not shims:
            raise MissedError("its shim was not found")
        processes.kill_all(shims)
        return str(pod["metadata"]["name"])

    # -- nodes --

    def _node(self, fault: Fault) -> layout.Node:
        return layout.NODES[int(fault.x * len(layout.NODES))]

    def _containerd_killed(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        node = self._present_node(fault)
        undo.append(partial(self._start_part, node, nodes.start_containerd))
        with self._lock:
            processes.stop(node.containerd)
        return node.name

    def _kubelet_killed(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        node = self._present_node(fault)
        undo.append(partial(self._start_part, node, nodes.start_kubelet))
        with self._lock:
            nodes.stop_kubelet(node)
        return node.name

    def _node_drained(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        node = self._node(fault)
        command = [
            str(binaries.path("kubectl")), f"--kubeconfig={layout.KUBECONFIG}", "drain", node.name,
            "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s",
            "--pod-selector=app.kubernetes.io/name!=minio",
        ]  # fmt: skip
        devnull = subprocess.DEVNULL
        self._drains.append(subprocess.Popen(command, stdin=devnull, stdout=devnull, stderr=devnull))
        undo.append(lambda: self.trials.kubectl("uncordon", node.name))
        return node.name

    def _node_lost(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        node = layout.NODES[1]  # the other one has the store
        if node.name in self._lost:
            raise MissedError(f"{node.name} is lost already")
        undo.append(partial(self._boot, node))
        with self._lock:
            self._lost.add(node.name)
            nodes.kill(node)
        return node.name

    def _boot(self, node: layout.Node) -> None:
        with self._lock:
            nodes.kill(node)
            nodes.prepare(node)
            nodes.start_kubelet(node)
            self._lost.discard(node.name)

    def _present_node(self, fault: Fault) -> layout.Node:
        node = self._node(fault)
        return node if node.name not in self._lost else layout.NODES[0]

    def _start_part(self, node: layout.Node, start: Callable[[layout.Node], object]) -> None:
        """Start one program of a node, unless the node has been lost since: then it comes with all of it."""
        with self._lock:
            if node.name not in self._lost:
                start(node)

    # -- the control plane --

    def _component(self, name: str, undo: list[Callable[[], object]]) -> str:
        undo.append(lambda: control_plane.start(name, wait=False))
        control_plane.stop(name, kill=True)
        return name

    def _api_server_killed(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        return self._component("kube-apiserver", undo)

    def _etcd_killed(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        return self._component("etcd", undo)

    def _controllers_killed(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        return ", ".join(self._component(name, undo) for name in ("kube-controller-manager", "kube-scheduler"))

    # -- the store --

    def _store(self) -> tuple[dict[str, Any], list[int]]:
        for pod in Cluster(layout.MINIO_NAMESPACE).list("pods", "app.kubernetes.io/name=minio"):
            if pids := processes_of(pod, "minio"):
                return pod, pids
        raise MissedError("the store does not run at the moment")

    def _store_killed(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._store()
        processes.kill_all(pids)
        return str(pod["metadata"]["name"])

    def _store_deleted(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        name = str(self._store()[0]["metadata"]["name"])
        Cluster(layout.MINIO_NAMESPACE).kubectl("delete", "pod", name, "--wait=false")
        return name

    def _store_stopped(self, fault: Fault, undo: list[Callable[[], object]]) -> str:
        pod, pids = self._store()
        return self._stop(pids, undo, str(pod["metadata"]["name"]))

    # -- how --

    def _stop(self, pids: list[int], undo: list[Callable[[], object]], name: str) -> str:
        undo.append(lambda: processes.kill_all(pids, signal.SIGCONT))
        processes.kill_all(pids, signal.SIGSTOP)
        return name

    def _cut_from(self, pod: dict[str, Any], pid: int, address: str, undo: list[Callable[[], object]]) -> str:
        return self._cut(pod, pid, ("-s", address), ("-d", address), undo)

    def _cut(
        self,
        pod: dict[str, Any],
        pid: int,
        arriving: tuple[str, ...],
        leaving: tuple[str, ...],
        undo: list[Callable[[], object]],
    ) -> str:
        """Drop a pod's packets, in the pod's own network namespace."""
        # The namespace may outlive this process: its sandbox is another one.
        place = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        undo.append(lambda: os.close(place))
        for chain, rule in (("INPUT", arriving), ("OUTPUT", leaving)):
            words = [chain, *rule, "-j", "DROP"]
            undo.append(partial(_rule, place, "-D", words))
            if not _rule(place, "-I", words):
                raise MissedError(f"iptables {' '.join(words)} failed in {pod['metadata']['name']}")
        return str(pod["metadata"]["name"])


def scale(operator: Operator, replicas: int) -> None:
    """Have so many operators, and wait until they are ready."""
    found = operator.cluster.get("deployment", RELEASE) or {}
    if found.get("spec", {}).get("replicas") != replicas:
        # Not `kubectl scale`: they have to know that they are several.
        Operator.install(Cluster(), f"replicas={replicas}")
    operator.wait_ready(120)


def _rule(place: int, action: str, words: list[str]) -> bool:
    command = ["nsenter", f"--net=/proc/self/fd/{place}", "--", "iptables", "-w", "5", action, *words]
    return not subprocess.run(command, pass_fds=(place,), capture_output=True, timeout=20, check=False).returncode


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return 0


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().decode(errors="replace")
    return ""


__all__ = ["NAMESPACE", "NODES", "Done", "Faults", "MissedError", "scale"]
