"""docs/recipes.md: data prepared before an experiment, and a model trained and registered after it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from cluster_access import BUCKET, IMAGE, ROOT, Cluster
from experiments import storage_at
from testcluster import layout

pytestmark = pytest.mark.usefixtures("operator")


def test_before_and_after_with_kubectl_wait(tmp_path: Path, namespace: Cluster) -> None:
    folder = tmp_path / "hooks"
    shutil.copytree(ROOT / "examples/kubernetes/hooks", folder)
    for path in folder.iterdir():
        text = path.read_text().replace("registry.example/trialpod:0.1.0", IMAGE)
        path.write_text(text.replace("s3://tune/", f"s3://{BUCKET}/{namespace.namespace}/"))
    config = yaml.safe_load(layout.KUBECONFIG.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace.namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        ["sh", str(folder / "run.sh")],
        env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    print(done.stdout + done.stderr)
    assert done.returncode == 0
    assert "registered" in done.stdout
    storage = storage_at(namespace, "models")
    model = json.loads(storage.read("fit/model.json"))
    assert 2.9 < model["slope"] < 3.1
    best = namespace.get("tuneexperiment", "fit")["status"]["best"]["params"]  # type: ignore[index]
    assert model["config"] == best
