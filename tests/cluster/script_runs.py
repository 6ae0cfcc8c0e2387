"""Runs a script on the desk, with its trials in the cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster_access import BUCKET, ENDPOINT, Cluster
from testcluster import layout


def environment(folder: Path, namespace: Cluster) -> dict[str, str]:
    """Return the environment of a user: no keys and no address of the store are known on the desk.

    The folder that a script names for its results is not for the cluster: TRIALPOD_STORAGE goes before it.
    """
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "TRIALPOD_"))},
        "KUBECONFIG": str(layout.KUBECONFIG),
        "HOME": str(folder),
        "TRIALPOD_BACKEND": "kubernetes",
        "TRIALPOD_NAMESPACE": namespace.namespace,
        "TRIALPOD_CREDENTIALS_SECRET": "minio",
        "TRIALPOD_CLUSTER_ENDPOINT": ENDPOINT,
        "TRIALPOD_STORAGE": f"s3://{BUCKET}/{namespace.namespace}",
    }


def run_script(
    script: Path, folder: Path, namespace: Cluster, *arguments: str, ray: bool = False, timeout: float = 280
) -> str:
    """Run a script as its user would, with `ray` under that name, and return what it prints; it must succeed."""
    alias = ["-m", "trialpod.compat.ray", "--replace"] if ray else []
    done = subprocess.run(
        [sys.executable, *alias, str(script), *arguments],
        cwd=folder,
        env=environment(folder, namespace),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    print(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
