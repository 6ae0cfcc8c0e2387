"""1,500 trainings of OpenCLIP with their loss and seconds after each epoch, from the package scan-bench.

The data are under CC BY-SA 4.0, the package under MIT; neither is copied here. Trainings of the same number of
epochs form a task. One that diverged reports NaN from there on; one that is incomplete for another reason is left
out. Costs are GPU-seconds: the duration of an epoch times the number of GPUs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from space import Config, real, whole

from tasks.pool import PoolTask
from tasks.task import Curve, Task

EPOCHS = (6, 7, 8, 9, 10)

SPACE = (
    real("lr", 1e-5, 5e-2, log=True),
    real("wd", 1e-6, 2e-1, log=True),
    real("warmup_fraction", 0.0, 0.75),
    real("beta1", 0.9, 0.99),
    real("beta2", 0.95, 0.999),
    real("eps", 1e-8, 1e-6, log=True),
    whole("text_width", 32, 512, log=True),
    whole("vision_width", 32, 768, log=True),
    whole("train_num_samples_per_epoch", 10_000, 40_000_000, log=True),
)


def openclip_tasks() -> list[Task]:
    """Return a task for each number of epochs."""
    package = find_spec("scan_bench")
    assert package is not None
    assert package.origin is not None
    rows: dict[str, list[dict[str, str]]] = {}
    with (Path(package.origin).parent / "vlm" / "data.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            rows.setdefault(row["config_id"], []).append(row)
    tasks: list[Task] = []
    for epochs in EPOCHS:
        configs: list[Config] = []
        curves: list[Curve] = []
        for run in rows.values():
            if round(float(run[0]["total_epochs"])) == epochs and (curve := _curve(run, epochs)) is not None:
                configs.append({parameter.name: float(run[0][parameter.name]) for parameter in SPACE})
                curves.append(curve)
        tasks.append(PoolTask(f"openclip-{epochs}", "openclip", SPACE, configs, curves))
    return tasks


def _curve(run: Sequence[Mapping[str, str]], epochs: int) -> Curve | None:
    diverged = any(row["epoch_diverged"] == "True" for row in run)
    if len(run) < epochs and not diverged:
        return None
    values = [math.nan if row["epoch_diverged"] == "True" else float(row["val_loss"] or "nan") for row in run]
    seconds = [float(row["train_duration(s)"] or "nan") * float(row["world_size"] or "1") for row in run]
    if not all(math.isfinite(each) and each > 0 for each in seconds):
        return None
    seconds += [max(seconds)] * (epochs - len(seconds))
    values += [math.nan] * (epochs - len(values))
    return Curve(values, seconds)
