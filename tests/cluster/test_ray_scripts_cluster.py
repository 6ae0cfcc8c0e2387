"""Scripts written for Ray Tune run unchanged with their trials in the cluster, and print what they print anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_access import BUCKET, ENDPOINT, ROOT, Cluster
from testcluster import layout

pytestmark = pytest.mark.usefixtures("operator")

SCRIPTS = ROOT / "examples/ray_scripts"
PRINTED = {
    "asha_checkpoints": ["4 trials, 0 failed", "best lr 0.45, epoch 7, checkpoint of epoch 7"],
    "first_generation": [
        "descent: 2 trials, best lr 0.2",
        "reporter: 0.4 after 5 steps",
        "track: 3 of track, iteration 3",
    ],
    "second_generation": [
        "dicts: step 3, checkpoint {'step': 3}",
        "folders: score 3, started at 3",
        "model: a=3, rows 1000, x 5",
    ],
}
"""As of tests/local/test_ray_scripts.py, where the same scripts run on one machine."""


def run(script: Path, folder: Path, namespace: Cluster, *arguments: str, timeout: float = 280) -> str:
    """Run a script as its user would: no keys and no address of the store are known on the desk.

    The folder that the script names for its results is not for the cluster: TRIALPOD_STORAGE goes before it.
    """
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "TRIALPOD_"))},
        "KUBECONFIG": str(layout.KUBECONFIG),
        "HOME": str(folder),
        "TRIALPOD_BACKEND": "kubernetes",
        "TRIALPOD_NAMESPACE": namespace.namespace,
        "TRIALPOD_CREDENTIALS_SECRET": "minio",
        "TRIALPOD_CLUSTER_ENDPOINT": ENDPOINT,
        "TRIALPOD_STORAGE": f"s3://{BUCKET}/{namespace.namespace}",
    }
    command = [sys.executable, "-m", "trialpod.compat.ray", "--replace", str(script), *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    print(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_unmodified_script(name: str, tmp_path: Path, namespace: Cluster) -> None:
    lines = run(SCRIPTS / f"{name}.py", tmp_path, namespace).splitlines()
    assert [line for line in lines if line in PRINTED[name]] == PRINTED[name]
