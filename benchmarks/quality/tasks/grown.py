"""Learning curves of gradient boosting on data sets of scikit-learn, made by `python -m tasks.grown` and stored here.

On each data set (breast cancer, diabetes) 256 random configs were trained on a fixed split; a step is four trees.
Values are validation errors, seconds processor time. Making them again takes minutes; values repeat, seconds do not.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from space import Config, Space, real, whole

from tasks.pool import PoolTask
from tasks.task import Curve, Task

FILE = Path(__file__).with_name("grown.npz")
CONFIGS = 256
STEPS = 27

BOOSTING: Space = (
    real("learning_rate", 1e-3, 1.0, log=True),
    whole("max_depth", 1, 8),
    real("subsample", 0.2, 1.0),
    real("max_features", 0.05, 1.0),
    whole("min_samples_leaf", 1, 64, log=True),
)
TREES_PER_STEP = 4

SPACES = {"boosting-cancer": BOOSTING, "boosting-diabetes": BOOSTING}


def grown_tasks() -> list[Task]:
    """Return the tasks, from the stored file."""
    tasks: list[Task] = []
    with np.load(FILE) as stored:
        for name, space in SPACES.items():
            units, values, seconds = (
                stored[f"{name}/{part}"].astype(float) for part in ("units", "values", "seconds")
            )
            configs = [
                {parameter.name: parameter.at(float(unit)) for parameter, unit in zip(space, row, strict=True)}
                for row in units
            ]
            curves = [
                Curve(row.tolist(), [float(cost)] * values.shape[1])
                for row, cost in zip(values, seconds, strict=True)
            ]
            tasks.append(PoolTask(f"grown-{name}", "grown", space, configs, curves))
    return tasks


def _data(name: str) -> tuple[Any, ...]:
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    loaders: dict[str, Callable[..., Any]] = {
        "cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
    }
    features, target = loaders[name](return_X_y=True)
    if name == "diabetes":
        target = (target - target.mean()) / target.std()
    train, valid, train_target, valid_target = train_test_split(features, target, test_size=0.3, random_state=0)
    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(valid), train_target, valid_target


def _boosting(config: Config, data: tuple[Any, ...]) -> list[float]:
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
    from sklearn.metrics import log_loss, mean_squared_error

    train, valid, train_target, valid_target = data
    classes = np.unique(train_target) if train_target.dtype.kind == "i" else None
    kind = GradientBoostingRegressor if classes is None else GradientBoostingClassifier
    model = kind(n_estimators=STEPS * TREES_PER_STEP, random_state=0, **config).fit(train, train_target)
    if classes is None:
        values = [mean_squared_error(valid_target, predicted) for predicted in model.staged_predict(valid)]
    else:
        values = [
            log_loss(valid_target, predicted, labels=classes) for predicted in model.staged_predict_proba(valid)
        ]
    return values[TREES_PER_STEP - 1 :: TREES_PER_STEP]


def main(names: Sequence[str] = tuple(SPACES)) -> None:
    """Train what these tasks are made of and write the file; the others stay in it."""
    arrays: dict[str, Any] = dict(np.load(FILE)) if FILE.exists() else {}
    for name in names:
        space = SPACES[name]
        data, rng = _data(name.partition("-")[2]), random.Random(f"grown/{name}")
        units, values, seconds = [], [], []
        for _ in range(CONFIGS):
            units.append([rng.random() for _ in space])
            config = {parameter.name: parameter.at(unit) for parameter, unit in zip(space, units[-1], strict=True)}
            began = time.process_time()
            values.append(_boosting(config, data))
            seconds.append((time.process_time() - began) / STEPS)
        arrays |= {f"{name}/units": np.array(units, np.float32), f"{name}/values": np.array(values, np.float32)}
        arrays[f"{name}/seconds"] = np.array(seconds, np.float32)
        middle = np.nanmedian(np.array(values)[:, -1])
        print(f"{name}: {CONFIGS} trainings, median final value {middle:.3f}", flush=True)
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main(sys.argv[1:] or tuple(SPACES))
