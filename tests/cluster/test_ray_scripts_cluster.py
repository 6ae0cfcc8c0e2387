"""Scripts written for Ray Tune run unchanged with their trials in the cluster, and print what they print anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_access import ROOT, Cluster
from script_runs import run_script

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


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_unmodified_script(name: str, tmp_path: Path, namespace: Cluster) -> None:
    lines = run_script(SCRIPTS / f"{name}.py", tmp_path, namespace, ray=True).splitlines()
    assert [line for line in lines if line in PRINTED[name]] == PRINTED[name]
