"""Scripts written for Ray Tune run unchanged with their trials in the cluster, and print what they print anywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cluster_access import ROOT, Cluster
from experiments import storage_at
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


FILES = """
import pathlib
import numpy as np
from ray import tune

def train(config):
    pathlib.Path("plots").mkdir()
    pathlib.Path("plots", "x.txt").write_text(str(config["x"]))
    tune.report({"score": config["x"]})

np.random.seed(7)
grid = tune.Tuner(
    train,
    param_space={"x": tune.uniform(0, 1), "a": tune.randint(0, 100)},
    tune_config=tune.TuneConfig(num_samples=2),
    run_config=tune.RunConfig(name="files", sync_config=tune.SyncConfig(sync_artifacts=True)),
).fit()
print(sorted([result.config["x"], result.config["a"]] for result in grid), np.random.rand())
"""


def test_files_of_trials_are_kept_and_draws_are_the_scripts(tmp_path: Path, namespace: Cluster) -> None:
    """Ray draws the parameters in the order in which the script has them, the first trial's first."""
    (tmp_path / "files.py").write_text(FILES)
    generator = np.random.RandomState(7)
    draws = [[float(generator.uniform(0, 1, size=1)[0]), int(generator.randint(0, 100, size=1)[0])] for _ in range(2)]
    printed = run_script(tmp_path / "files.py", tmp_path, namespace, ray=True)
    assert f"{sorted(draws)} {generator.rand()}" in printed.splitlines()
    storage = storage_at(namespace, "files")
    kept = [storage.read(key).decode() for key in storage.list() if key.endswith("/plots/x.txt")]
    assert sorted(kept) == sorted(str(x) for x, _ in draws)
