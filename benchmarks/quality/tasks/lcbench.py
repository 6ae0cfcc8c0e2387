"""LCBench by its YAHPO surrogate: a neural network that predicts the curves of 2,000 MLPs on each of 34 OpenML tasks.

Sources: Zimmer et al., "Auto-PyTorch Tabular" (2021) for the data; Pfisterer et al., "YAHPO Gym" (2022) for the
surrogate, file ``lcbench/model.onnx`` of github.com/slds-lmu/yahpo_data (Apache-2.0). The value is the validation
error in percent, the time the cumulated training time.

At epoch 1 the surrogate ranks nothing (Spearman's correlation with epoch 52 is about 0), so the first rung lies at
epoch 3; in the tasks of the family "misleading" it lies at epoch 1 all the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from space import Config, real, whole

from tasks.task import Curve, Task

STEPS = 52
CONTINUOUS = ("batch_size", "learning_rate", "momentum", "weight_decay", "num_layers", "max_units", "max_dropout")
"""The surrogate's inputs after the epoch, in its order."""

MISLEADING = ("168868", "189866", "146212", "167149")


class Surrogate:
    """The network and the numbers by which it knows the tasks.

    Args:
        folder: where model.onnx and encoding.json are.
    """

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(folder / "model.onnx", options)
        encoding = json.loads((folder / "encoding.json").read_text())
        space = json.loads((folder / "config_space.json").read_text())
        self.codes: dict[str, int] = encoding["OpenML_task_id"]
        self.tasks: list[str] = next(
            parameter["choices"] for parameter in space["hyperparameters"] if parameter["name"] == "OpenML_task_id"
        )

    def predict(self, task: str, rows: Any) -> Any:
        """Return time in seconds and validation accuracy in percent for rows of epoch and `CONTINUOUS`."""
        codes = np.full((len(rows), 1), self.codes[task], dtype=np.int32)
        return self._session.run(None, {"x_cat": codes, "x_cont": np.asarray(rows, dtype=np.float32)})[0][:, :2]


class LCBenchTask(Task):
    """One of the 34 tasks."""

    space = (
        whole("batch_size", 16, 512, log=True),
        real("learning_rate", 1e-4, 1e-1, log=True),
        real("momentum", 0.1, 0.99),
        real("weight_decay", 1e-5, 1e-1),
        whole("num_layers", 1, 5),
        whole("max_units", 64, 1024, log=True),
        real("max_dropout", 0.0, 1.0),
    )
    steps = STEPS

    def __init__(self, surrogate: Surrogate, openml_id: str, *, misleading: bool = False) -> None:
        self.name = f"lcbench-{openml_id}" + ("-epoch1" if misleading else "")
        self.family = "misleading" if misleading else "lcbench"
        self.data = f"lcbench-{openml_id}"
        self.first_rung = 1 if misleading else 3
        self._surrogate, self._id = surrogate, openml_id

    def curve(self, config: Config) -> Curve:
        """Return error and time of 52 epochs; times that decrease in the surrogate are held."""
        row = [config[name] for name in CONTINUOUS]
        predicted = self._surrogate.predict(self._id, [[epoch, *row] for epoch in range(1, STEPS + 1)])
        cumulated = np.maximum.accumulate(np.maximum(predicted[:, 0].astype(float), 0.01))
        seconds = np.maximum(np.diff(cumulated, prepend=0.0), 1e-3)
        return Curve((100.0 - predicted[:, 1].astype(float)).tolist(), seconds.tolist())

    def finals(self, configs: Sequence[Config]) -> list[float]:
        """Return the final errors by one call of the network."""
        rows = [[STEPS, *(config[name] for name in CONTINUOUS)] for config in configs]
        found: list[float] = (100.0 - self._surrogate.predict(self._id, rows)[:, 1].astype(float)).tolist()
        return found

    def final(self, config: Config) -> float:
        """Return the error after the last epoch."""
        return self.finals([config])[0]


def lcbench_tasks(folder: Path) -> list[Task]:
    """Return the 34 tasks, and those whose first rung misleads."""
    surrogate = Surrogate(folder)
    tasks: list[Task] = [LCBenchTask(surrogate, openml_id) for openml_id in surrogate.tasks]
    return tasks + [LCBenchTask(surrogate, openml_id, misleading=True) for openml_id in MISLEADING]
