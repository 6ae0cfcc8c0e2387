"""A control plane of its own for the benchmark: etcd, API server, controllers, scheduler, kwok's nodes, and MinIO.

It is made of the test cluster's programs (tools/cluster) and has no kubelets. Its network namespace has a name of its
own, so it runs beside the test cluster. Nothing of it is left at the end.

Invariants: every process is known by id and start time; what an earlier run has left is removed at the start.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/cluster"))

from testcluster import binaries, control_plane, layout, pki, processes, system  # noqa: E402

NAMESPACE = "scale"
OPERATOR_ACCOUNT = ("default", "trialpod-operator")
OPERATOR = "system:serviceaccount:{}:{}".format(*OPERATOR_ACCOUNT)
ISSUER = "https://kubernetes.default.svc"
TOKEN_S = 6 * 3600
BUCKET, ACCESS_KEY, SECRET_KEY = "scale", "scale-access", "scale-secret-key"
ENDPOINT = "http://127.0.0.1:9000"
REPORT_PORT, PROBE_PORT = 8443, 8080
"""Of the first operator; the others have the next ones."""
KUBELET_PORT = 10247
PODS_PER_NODE = 250
PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_CLONE_NEWNET = 0x40000000

# The test cluster's modules look all of this up when they act.
layout.TAG = layout.NETNS = f"{layout.TAG}-scale"
layout.NETNS_FILE = Path("/var/run/netns") / layout.NETNS
layout.STATE = layout.CACHE / "scale"
layout.LOGS, layout.PIDS = layout.STATE / "logs", layout.STATE / "pids"
layout.PKI, layout.CONFIG = layout.STATE / "pki", layout.STATE / "config"
layout.KUBECONFIG = layout.STATE / "kubeconfig"
layout.AUDIT_LOG = layout.LOGS / "audit.log"
layout.NODES = ()
layout.NODE_GRACE_SECONDS = 86_400  # nothing beats for nodes that do not exist

AUDIT_LOG, KUBECONFIG = layout.AUDIT_LOG, layout.KUBECONFIG
OPERATOR_KUBECONFIG = layout.CONFIG / "operator.kubeconfig"
WORK_DIR = layout.STATE / "operator"


@contextmanager
def running(nodes: int) -> Iterator[None]:
    """Run the control plane with so many nodes; this process is in its network from then on."""
    system.require_root()
    layout.CACHE.mkdir(parents=True, exist_ok=True)
    with open(layout.CACHE / "scale.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("another run of this benchmark is in progress") from None
        stop()
        try:
            start(nodes)
            yield
        except BaseException:
            for name in _operators():
                system.say(system.tail(processes.log_of(name)))
            raise
        finally:
            stop()


def start(nodes: int) -> None:
    """Start everything."""
    kwok = _built("tools/build_go", "kwok")
    minio = _built("tools/build_minio")
    binaries.ensure()
    for folder in (layout.LOGS, layout.PIDS, layout.CONFIG, WORK_DIR):
        folder.mkdir(parents=True, exist_ok=True)
    system.run(["ip", "netns", "add", layout.NETNS])
    _enter()
    for arguments in ("link set lo up", f"addr replace {layout.API_ADDRESS}/32 dev lo"):
        system.run(["ip", *arguments.split()])
    _keys()
    _configure()
    for name in PARTS:
        control_plane.start(name)
    drive = layout.STATE / "minio"
    (drive / BUCKET).mkdir(parents=True)  # a bucket of a server with one drive is a folder
    given = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_UPDATE": "off"}
    processes.start("minio", [minio, "server", "--quiet", "--address", "127.0.0.1:9000", drive], given)
    processes.wait_ready("minio", _minio_ready)
    _objects(nodes)
    processes.start("kwok", [
        kwok, "--kubeconfig", layout.KUBECONFIG, "--manage-all-nodes", "--config", layout.CONFIG / "kwok.json",
        "--node-ip=127.0.0.1", f"--node-port={KUBELET_PORT}", f"--server-address=127.0.0.1:{KUBELET_PORT}",
        "--tls-cert-file", layout.PKI / "kubelets/kubelet.crt",
        "--tls-private-key-file", layout.PKI / "kubelets/kubelet.key",
        "--cidr=10.0.0.0/8", "--node-lease-duration-seconds=0",
    ])  # fmt: skip


def stop() -> None:
    """End everything and remove it."""
    for name in reversed(processes.names()):
        processes.stop(name)
    if layout.NETNS_FILE.exists():
        system.run(["ip", "netns", "del", layout.NETNS], check=False)
    shutil.rmtree(layout.STATE, ignore_errors=True)


def start_operator(number: int, replicas: int) -> int:
    """Start one of so many operators of this tree, and return its process id."""
    settings = {
        "KUBECONFIG": str(OPERATOR_KUBECONFIG),
        "POD_NAME": operator_pod(number),
        "TRIALPOD_POD_ADDRESS": "127.0.0.1",
        "TRIALPOD_REPLICAS": str(replicas),
        "TRIALPOD_OPERATOR_NAMESPACE": OPERATOR_ACCOUNT[0],
        "TRIALPOD_SERVICE": "localhost",
        "TRIALPOD_REPORT_PORT": str(REPORT_PORT + number),
        "TRIALPOD_PROBE_PORT": str(PROBE_PORT + number),
        "TRIALPOD_DEFAULT_IMAGE": "trial:none",
        "TRIALPOD_WORK_DIR": str(WORK_DIR / str(number)),
        "TRIALPOD_LOG_LEVEL": "WARNING",
    }
    command = [Path(sys.executable).with_name("trialpod"), "operator"]
    return processes.start(_operator(number), command, settings)


def operator_pod(number: int) -> str:
    """Return the name of an operator's pod, the same after a restart, as that of a container."""
    return f"trialpod-{number}"


def kill_operator(number: int) -> None:
    """End an operator as a crash would."""
    processes.stop(_operator(number))


def _operator(number: int) -> str:
    return f"operator-{number}"


def _operators() -> list[str]:
    return [name for name in processes.names() if name.startswith("operator-")]


def processor_times() -> dict[str, float]:
    """Return the processor time in seconds that each program has taken until now, this one as "attempts"."""
    ticks, found = os.sysconf("SC_CLK_TCK"), {}
    for name in processes.names():
        pid = processes.pid_of(name)
        if pid is not None:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / ticks
    return {**found, "attempts": time.process_time()}


def operators_run() -> bool:
    """Return whether none has ended by itself."""
    return all(processes.pid_of(name) is not None for name in _operators())


def operator_errors() -> list[str]:
    """Return what operators have logged as an error; that libraries try again is none."""
    logs = (Path(processes.log_of(name)) for name in _operators())
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return [line[:1000] for line in lines if '"level": "error", "logger": "trialpod' in line]


class TokenIssuer:
    """Makes a ServiceAccount's tokens with the API server's own key: what a kubelet asks it for, without asking.

    Args:
        namespace: of the account.
        account: its name.
        audience: whom the tokens are for.
    """

    def __init__(self, namespace: str, account: str, audience: str) -> None:
        data = (layout.PKI / "service-accounts.key").read_bytes()
        key = serialization.load_pem_private_key(data, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._key_id = _encoded(hashlib.sha256(public).digest()).decode()
        self._namespace, self._account, self._audience = namespace, account, audience
        found = control_plane.kubectl("get", "serviceaccount", account, "-n", namespace, "-o", "json")
        self._uid = json.loads(found)["metadata"]["uid"]

    def issue(self, pod: Mapping[str, Any] | None = None) -> str:
        """Return a token, of a pod if one is given: the API server takes it as long as that is there."""
        now = int(time.time())
        bound: dict[str, Any] = {
            "namespace": self._namespace,
            "serviceaccount": {"name": self._account, "uid": self._uid},
        }
        if pod is not None:
            bound["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        claims = {
            "iss": ISSUER,
            "aud": [self._audience],
            "sub": f"system:serviceaccount:{self._namespace}:{self._account}",
            "iat": now,
            "nbf": now - 5,
            "exp": now + TOKEN_S,
            "jti": os.urandom(8).hex(),
            "kubernetes.io": bound,
        }
        header = {"alg": "ES256", "kid": self._key_id}
        signed = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        r, s = utils.decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return (signed + b"." + _encoded(r.to_bytes(32, "big") + s.to_bytes(32, "big"))).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(layout.NETNS_FILE) as space:
        if libc.setns(space.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


def _built(*command: str) -> str:
    return subprocess.run(
        [ROOT / command[0], *command[1:]], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def _minio_ready() -> bool:
    try:
        with urllib.request.urlopen(f"{ENDPOINT}/minio/health/ready", timeout=2):
            return True
    except OSError:
        return False


def _keys() -> None:
    pki.create()
    pki.Authority(layout.PKI / "kubelets").issue("kubelet", "kubelet", hosts=("127.0.0.1", "localhost"))


def _configure() -> None:
    quiet = {"level": "None"}
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [OPERATOR]}, quiet],
    }
    (layout.CONFIG / "audit-policy.yaml").write_text(json.dumps(policy))
    log = layout.CONFIG / "pod.log"
    log.write_text("what a trial prints\n")
    pod = {"apiGroup": "v1", "kind": "Pod"}
    gone = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    there = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    waits = {"key": ".status.phase", "operator": "In", "values": ["Pending"]}
    kwok = "kwok.x-k8s.io/v1alpha1"
    machine = {"apiGroup": "v1", "kind": "Node"}
    ready = '.status.conditions.[] | select( .type == "Ready" ) | .status'
    unready = {"key": ready, "operator": "NotIn", "values": ["True"]}
    documents = [
        _stage("boot", machine, [unready], {"statusTemplate": _READY}),
        _stage("run", pod, [there, waits], {"statusTemplate": _RUNNING}),
        _stage("remove", pod, [gone], {"delete": True}),
        {
            "apiVersion": kwok,
            "kind": "ClusterLogs",
            "metadata": {"name": "all"},
            "spec": {"logs": [{"logsFile": str(log)}]},
        },
        {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            "metadata": {"name": "all"},
            "options": {"nodePlayStageParallelism": 4, "podPlayStageParallelism": 16, "nodeLeaseParallelism": 4},
        },
    ]
    (layout.CONFIG / "kwok.json").write_text("\n---\n".join(json.dumps(each) for each in documents))


_READY = f"""
{{{{ $now := Now }}}}
phase: Running
addresses: [{{type: InternalIP, address: 127.0.0.1}}]
daemonEndpoints: {{kubeletEndpoint: {{Port: {KUBELET_PORT}}}}}
capacity: {{cpu: 1k, memory: 4Ti, pods: "{PODS_PER_NODE}"}}
allocatable: {{cpu: 1k, memory: 4Ti, pods: "{PODS_PER_NODE}"}}
conditions:
- type: Ready
  status: "True"
  reason: Fake
  message: it does not exist
  lastHeartbeatTime: {{{{ $now | Quote }}}}
  lastTransitionTime: {{{{ $now | Quote }}}}
"""

_RUNNING = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
hostIP: 127.0.0.1
podIP: 127.0.0.1
conditions:
{{ range $type := list "Initialized" "ContainersReady" "Ready" }}
- {type: {{ $type }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
"""


def _stage(
    name: str, resource: dict[str, str], conditions: list[dict[str, Any]], then: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {"resourceRef": resource, "selector": {"matchExpressions": conditions}, "next": then},
    }


def _objects(nodes: int) -> None:
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        control_plane.kubectl("apply", "--server-side", "-f", str(file))
    machines = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"fake-{number:03d}", "labels": {"kubernetes.io/hostname": f"fake-{number:03d}"}},
        }
        for number in range(nodes)
    ]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": OPERATOR_ACCOUNT[1]},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": OPERATOR_ACCOUNT[0], "name": OPERATOR_ACCOUNT[1]}],
    }
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"namespace": OPERATOR_ACCOUNT[0], "name": OPERATOR_ACCOUNT[1]},
    }
    keys = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "minio", "namespace": NAMESPACE},
        "stringData": {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
    }
    for items in ([space, account], [binding, keys, *machines]):
        control_plane.kubectl(
            "create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        )

    def there() -> bool:
        return "default" in control_plane.kubectl("get", "serviceaccounts", "-n", NAMESPACE, "-o", "name")

    system.wait_until(there, "the namespace has its ServiceAccount", timeout=60)
    token = TokenIssuer(*OPERATOR_ACCOUNT, ISSUER).issue()
    config = json.loads(layout.KUBECONFIG.read_text())
    config["users"] = [{"name": "admin", "user": {"token": token}}]
    OPERATOR_KUBECONFIG.write_text(json.dumps(config))
