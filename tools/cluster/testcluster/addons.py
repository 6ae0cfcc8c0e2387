"""What runs in the cluster from the start: MinIO, as a Deployment with a Service, on node-a."""

from __future__ import annotations

import json
import os

from . import layout
from .control_plane import kubectl
from .system import ClusterError

_LABELS = {"app.kubernetes.io/name": "minio"}
_USER = 65532


def _objects() -> list[dict[str, object]]:
    namespace = layout.MINIO_NAMESPACE
    container = {
        "name": "minio",
        "image": layout.MINIO_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["--quiet", "--address", ":9000", "--certs-dir", "/data/.certs", "/data/drive"],
        "envFrom": [{"secretRef": {"name": "minio-root"}}],
        "env": [
            {"name": "MINIO_BROWSER", "value": "off"},
            {"name": "MINIO_UPDATE", "value": "off"},
            {"name": "HOME", "value": "/data"},
        ],
        "ports": [{"name": "s3", "containerPort": 9000}],
        "readinessProbe": {
            "httpGet": {"path": "/minio/health/ready", "port": "s3"},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    pod = {
        "nodeSelector": {"kubernetes.io/hostname": layout.NODES[0].name},
        "securityContext": {"runAsUser": _USER, "runAsGroup": _USER, "runAsNonRoot": True},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 2,
        "containers": [container],
        # On the disk of the node, so that a test may end the pod, and even the node, without losing what is stored.
        "volumes": [{"name": "data", "hostPath": {"path": str(layout.MINIO_DATA), "type": "Directory"}}],
        # It comes back to its node, so nothing is gained by leaving it.
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "minio-root", "namespace": namespace},
            "stringData": {"MINIO_ROOT_USER": layout.MINIO_USER, "MINIO_ROOT_PASSWORD": layout.MINIO_PASSWORD},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "minio", "namespace": namespace},
            "spec": {"selector": _LABELS, "ports": [{"name": "s3", "port": 9000, "targetPort": "s3"}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "minio", "namespace": namespace},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": _LABELS},
                "template": {"metadata": {"labels": _LABELS}, "spec": pod},
            },
        },
    ]


def install() -> None:
    """Start MinIO; what is there already stays."""
    # A bucket of a server with one drive is a folder.
    for folder in (layout.MINIO_DATA, layout.MINIO_DATA / "drive", layout.MINIO_DATA / "drive" / layout.MINIO_BUCKET):
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, _USER, _USER)
    kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": _objects()}))


def wait_ready(timeout: float = 90) -> None:
    """Wait until MinIO serves.

    Raises:
        ClusterError: It does not in time; the message has what its pod says.
    """
    namespace = ("-n", layout.MINIO_NAMESPACE)
    try:
        kubectl(
            *namespace, "rollout", "status", "deployment/minio", f"--timeout={timeout:.0f}s", timeout=timeout + 10
        )
    except ClusterError as error:
        pods = kubectl(*namespace, "describe", "pods", check=False)
        logs = kubectl(*namespace, "logs", "deployment/minio", "--tail=20", check=False)
        raise ClusterError(f"MinIO does not become ready\n{error.message}\n{pods[-3000:]}\n{logs}") from error
