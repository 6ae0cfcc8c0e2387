"""The running test cluster, as tests see it: kubectl, waiting, logs, faults, who asked the API server for what.

Invariants: several test sessions may use one cluster. A namespace carries its session's process (id and start time),
and is swept by another session only when that process is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/cluster"))

from api_client import ApiClient, KubectlError  # noqa: E402
from testcluster import binaries, cluster, control_plane, layout, nodes, processes, system  # noqa: E402

IMAGE = "trialpod/trialpod:test"
BUCKET = layout.MINIO_BUCKET
ENDPOINT = layout.MINIO_ENDPOINT
ACCESS_KEY, SECRET_KEY = layout.MINIO_USER, layout.MINIO_PASSWORD
NODES = tuple(node.name for node in layout.NODES)
SESSION_LABEL = "trialpod.dev/test-session"
_API = ApiClient()

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def session_of(pid: int) -> str:
    """Return what names a process beyond its id, which may be given to another one later."""
    return f"{pid}-{processes.start_time(pid)}"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One finished request to the API server, from its audit log."""

    user: str
    verb: str
    resource: str
    """Such as `pods` or `tuneexperiments/status`."""
    namespace: str
    name: str
    code: int
    user_agent: str
    at: str
    """When it was received: UTC, RFC 3339 with microseconds."""


class AuditLog:
    """The API server's audit log from a moment on: the requests that were finished since then."""

    def __init__(self, path: Path = layout.AUDIT_LOG) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115 - followed across a rotation, which renames it
        self._file.seek(0, 2)
        self._rest = b""

    def close(self) -> None:
        self._file.close()

    def read(self) -> list[ApiRequest]:
        """Return the requests since the last call, or since this was made."""
        data = self._rest + self._file.read()
        if self._path.stat().st_ino != Path(f"/proc/self/fd/{self._file.fileno()}").stat().st_ino:
            data += self._file.read()
            self._file.close()
            self._file = open(self._path, "rb")  # noqa: SIM115
            data += self._file.read()
        *lines, self._rest = data.split(b"\n")
        events = [json.loads(line) for line in lines if line]
        # Long requests, logs among them, are written down when they begin, too.
        return [_request(event) for event in events if event.get("stage") != "ResponseStarted"]

    def count(
        self,
        *,
        by: Callable[[ApiRequest], object] = lambda request: (request.verb, request.resource),
        user: str | None = None,
        where: Callable[[ApiRequest], bool] = lambda _: True,
    ) -> Counter[object]:
        """Count the requests since the last reading: of one user, by verb and resource unless told otherwise."""
        found = (each for each in self.read() if (user is None or each.user == user) and where(each))
        return Counter(by(each) for each in found)


def _request(event: Mapping[str, Any]) -> ApiRequest:
    reference = event.get("objectRef") or {}
    resource = reference.get("resource", event.get("requestURI", ""))
    if reference.get("subresource"):
        resource += f"/{reference['subresource']}"
    return ApiRequest(
        user=event["user"].get("username", ""),
        verb=event["verb"],
        resource=resource,
        namespace=reference.get("namespace", ""),
        name=reference.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
        user_agent=event.get("userAgent", ""),
        at=event["requestReceivedTimestamp"],
    )


@dataclass
class Cluster:
    """The cluster, or one namespace of it: what is asked without a namespace is asked for this one."""

    namespace: str = "default"

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as subprocess.run calls it
        check: bool = True,
        timeout: float = 60,
    ) -> str:
        """Run kubectl in this namespace and return what it printed, of a failure (without check) also the error.

        Raises:
            KubectlError: It failed, and `check` was not turned off.
        """
        program = [str(binaries.path("kubectl")), f"--kubeconfig={layout.KUBECONFIG}"]
        command = [*program, f"--namespace={self.namespace}", *arguments]
        done = subprocess.run(
            command,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode and check:
            raise KubectlError(
                f"kubectl {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout + (done.stderr if done.returncode else "")

    def kubectl_json(self, *arguments: str, **options: Any) -> Any:
        """Run kubectl with `-o json` and return what it says."""
        return json.loads(self.kubectl(*arguments, "-o", "json", **options))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if it is not there.

        Raises:
            KubectlError: The API server does not answer, or refuses.
        """
        if _API.knows(kind):
            return _API.get(kind, self.namespace, name)
        found = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(found) if found.strip() else None

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return all objects of a kind, those with labels that match.

        Raises:
            KubectlError: The API server does not answer, or refuses.
        """
        if _API.knows(kind):
            return _API.list(kind, self.namespace, selector)
        return list(self.kubectl_json("get", kind, *(["-l", selector] if selector else []))["items"])

    def apply(self, *objects: Mapping[str, Any] | str) -> str:
        """Apply objects (or YAML text)."""
        # As YAML: the kubectl of 1.30 reads no second document after one of JSON.
        texts = [each if isinstance(each, str) else yaml.safe_dump(json.loads(json.dumps(each))) for each in objects]
        return self.kubectl("apply", "-f", "-", input="\n---\n".join(texts))

    def helm(self, *arguments: str, check: bool = True, timeout: float = 180) -> str:
        """Run Helm in this namespace and return what it printed."""
        command = [str(binaries.path("helm")), f"--kubeconfig={layout.KUBECONFIG}", "-n", self.namespace, *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode and check:
            raise KubectlError(
                f"helm {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout + (done.stderr if done.returncode else "")

    def wait_for(self, predicate: Callable[[], T], what: str, timeout: float = 60, every: float = 0.2) -> T:
        """Wait until a predicate returns something true, and return that.

        A KubectlError that it raises is "not yet": the API server may be what a test has stopped.

        Raises:
            AssertionError: It does not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            last: object = None
            try:
                last = found = predicate()
                if found:
                    return found
            except (KubectlError, subprocess.TimeoutExpired) as error:
                last = error
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:.0f} s: {what} (last: {str(last)[:500]})")
            time.sleep(every)  # polls other processes

    def wait_condition(self, kind: str, name: str, condition: str, timeout: float = 60) -> None:
        """Wait for a condition, such as `Ready` or `Succeeded`, or `jsonpath={...}=value`, or `delete`."""
        wanted = condition if condition == "delete" or "=" in condition else f"condition={condition}"
        self.kubectl("wait", kind, name, f"--for={wanted}", f"--timeout={timeout:.0f}s", timeout=timeout + 10)

    # Namespaces

    def make_namespace(self, prefix: str = "test", labels: Mapping[str, str] | None = None) -> Cluster:
        """Make a new namespace with the Secret `minio`, and return the cluster as seen from it."""
        name = f"{prefix}-{time.time_ns() // 1000 % 36**7:x}"
        made = Cluster(name)
        described = {"name": name, "labels": {SESSION_LABEL: session_of(os.getpid()), **(labels or {})}}
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "minio"}, "stringData": keys}
        _API.create({"apiVersion": "v1", "kind": "Namespace", "metadata": described})
        _API.create(secret, name)
        # Controllers that have lost the API server, in a test before, wait for half a minute and more between tries.
        made.wait_for(lambda: made.get("serviceaccount", "default"), f"{name} has its ServiceAccount", timeout=120)
        return made

    def evict(self, pod: Mapping[str, Any]) -> None:
        """Have a pod evicted, as a drain of its node does."""
        name = pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction"
        self.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))

    def delete_namespace(self, name: str, *, wait: bool = False) -> None:
        """Delete a namespace with all that is in it."""
        if wait:
            self.kubectl("delete", "namespace", name, "--ignore-not-found", timeout=120)
            return
        _API.delete_namespace(name)

    def sweep_namespaces(self) -> list[str]:
        """Delete the namespaces of sessions that have ended without doing so; return their names."""
        found = self.list("namespaces", SESSION_LABEL)
        left = {each["metadata"]["name"]: each["metadata"]["labels"][SESSION_LABEL] for each in found}
        swept = [name for name, session in left.items() if session != session_of(int(session.partition("-")[0]))]
        for name in swept:
            self.delete_namespace(name)
        return swept

    # Pods

    def pod(
        self,
        name: str,
        command: Sequence[str],
        *,
        image: str = IMAGE,
        node: str | None = None,
        resources: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """Return a restricted pod that runs a command once; `spec` is more of its specification."""
        container = {
            "name": "main",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": list(command),
            "securityContext": RESTRICTED,
            "resources": dict(resources or {}),
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 2,
                "automountServiceAccountToken": False,
                "containers": [container],
                **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
                **spec,
            },
        }

    def wait_pod(self, name: str, *phases: str, timeout: float = 60) -> dict[str, Any]:
        """Wait until a pod is in one of these phases (Succeeded unless told otherwise), and return it."""
        wanted = phases or ("Succeeded",)
        last: dict[str, Any] = {}

        def there() -> bool:
            nonlocal last
            last = self.get("pod", name) or {}
            phase = last.get("status", {}).get("phase")
            if phase in ("Succeeded", "Failed") and phase not in wanted:
                raise AssertionError(f"pod {name} is {phase}, not {'/'.join(wanted)}\n{self.logs(name)}")
            return phase in wanted

        self.wait_for(there, f"pod {name} is {'/'.join(wanted)}", timeout)
        return last

    def logs(self, pod: str, *arguments: str) -> str:
        """Return what a pod printed, or why that cannot be had."""
        return self.kubectl("logs", pod, *arguments, check=False)

    def exec(self, pod: str, *command: str, check: bool = True, timeout: float = 60) -> str:
        """Run a command in a pod."""
        return self.kubectl("exec", pod, "--", *command, check=check, timeout=timeout)

    def events(self) -> str:
        """Return the namespace's events, the latest last."""
        return self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)

    def service_address(self, name: str, namespace: str | None = None) -> str:
        """Return a Service's ClusterIP, which tests reach as pods do; names they cannot resolve."""
        found = self.kubectl_json("get", "service", name, "-n", namespace or self.namespace)
        return str(found["spec"]["clusterIP"])

    def minio_endpoint(self) -> str:
        """Return MinIO's endpoint for this process; pods use ENDPOINT."""
        return f"http://{self.service_address('minio', layout.MINIO_NAMESPACE)}:9000"

    # Faults

    def kill_node(self, name: str) -> None:
        """Lose a node: its kubelet, containerd and all of its containers end at once."""
        nodes.kill(layout.node(name))

    def start_node(self, name: str) -> None:
        """Boot a node that was killed, and wait until it is Ready; nothing happens to one that runs."""
        nodes.start(layout.node(name))
        self.kubectl("uncordon", name)

    def stop_kubelet(self, name: str) -> None:
        """Kill a node's kubelet; its containers continue."""
        nodes.stop_kubelet(layout.node(name))

    def start_kubelet(self, name: str) -> None:
        """Start a node's kubelet again and wait until the node is Ready."""
        node = layout.node(name)
        nodes.wait_ready(node, nodes.start_kubelet(node))

    def restart_kubelet(self, name: str) -> None:
        """Kill a node's kubelet and start it again; its containers continue."""
        nodes.restart_kubelet(layout.node(name))

    def stop_component(self, name: str, *, kill: bool = False) -> None:
        """End a part of the control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler ..."""
        control_plane.stop(name, kill=kill)

    def start_component(self, name: str) -> None:
        """Start a part of the control plane and wait until it works; nothing happens if it runs."""
        control_plane.start(name)

    def heal(self) -> None:
        """Start again whatever a test has ended."""
        for each in control_plane.COMPONENTS:
            control_plane.start(each.name)
        for node in layout.NODES:
            nodes.start(node)

    def trouble(self) -> str:
        """Return what is wrong with the cluster, or ""."""
        return cluster.trouble()

    def audit(self) -> AuditLog:
        """Return the API server's audit log from now on."""
        return AuditLog()

    def describe_failure(self) -> str:
        """Return what helps to understand a failed test in this namespace: objects, events, logs of its pods."""
        parts = [f"== namespace {self.namespace}"]
        parts += [
            f"$ kubectl {' '.join(arguments)}\n{self.kubectl(*arguments, check=False)}"
            for arguments in (("get", "pods", "-o", "wide"), ("get", "tuneexperiments,tunetrials"))
        ]
        try:
            parts.append("$ kubectl get events\n" + "\n".join(self.events().splitlines()[-40:]))
            for pod in self.list("pods"):
                name = pod["metadata"]["name"]
                parts.append(f"$ kubectl logs {name}\n{self.logs(name, '--all-containers', '--tail=30')}")
        except KubectlError as error:  # the cluster itself may be what has failed
            parts.append(str(error))
            parts += [system.tail(processes.log_of(each.name)) for each in control_plane.COMPONENTS[:2]]
        return "\n".join(parts)


def go_program(name: str) -> Path:
    """Return the path of a program that `tools/build_go NAME` has built.

    It is not built here: the cluster's network leads to no module proxy. `make test-cluster` and `make test-addons`
    build what their tests need before they enter it.

    Raises:
        FileNotFoundError: It has not been built.
    """
    found = Path(_build_go("--where", name))
    if not found.exists():
        raise FileNotFoundError(f"{name} is not built: run tools/build_go {name}, outside the cluster's network")
    return found


def go_source(name: str) -> Path:
    """Return the folder of the module that such a program is built from."""
    return Path(_build_go("--source", name))


def _build_go(*arguments: str) -> str:
    command = [ROOT / "tools/build_go", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return done.stdout.strip()


def not_inside() -> str:
    """Return why this process cannot reach the cluster, or ""."""
    if not layout.READY.exists():
        return "no test cluster runs: `make cluster` starts one, `make test-cluster` runs these tests in it"
    if not system.inside():
        return "not in the cluster's network namespace: use `make test-cluster`, or tools/cluster/exec pytest ..."
    return ""


__all__ = ["ACCESS_KEY", "BUCKET", "ENDPOINT", "IMAGE", "NODES", "SECRET_KEY", "ApiRequest", "AuditLog", "Cluster"]
