"""The trainings of the check on a real cluster as a task of the simulator: the same curves, computed with NumPy.

`digits_trial` has the training. This task is on neither side of the split: it is there to compare what the
simulator says with what pods did. An epoch takes `epoch_s`, which was fitted to the processor time of the pure Python
code on a free processor.
"""

from __future__ import annotations

import math
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from space import Config, one_of, real, whole

from tasks.task import Curve, Task

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "digits"))

import digits_trial
import train
from digits_trial import EPOCHS, IMAGES, MAX_ENTROPY, MIN_ENTROPY, UNSEEN

START_S = 0.08
"""Processor time of the start or resume of a trial in a pod that is there."""


class DigitsTask(Task):
    """Networks for handwritten digits: minimise the logarithm of the cross-entropy of images not trained on."""

    name = family = "digits"
    steps = EPOCHS
    first_rung = 3
    contents = Path(digits_trial.__file__).read_text()
    space = (
        real("lr", 1e-3, 1.0, log=True),
        real("momentum", 0.0, 0.98),
        real("decay", 0.8, 1.0),
        real("alpha", 1e-6, 1e-1, log=True),
        real("scale", 0.3, 3.0, log=True),
        whole("units", 4, 24),
        one_of("layers", 1, 2),
        one_of("batch_size", 16, 32, 64, 128),
    )

    def curve(self, config: Config) -> Curve:
        """Return the training of a config."""
        return Curve(_losses(tuple(sorted(config.items()))), [epoch_s(config)] * EPOCHS)


def epoch_s(config: Config) -> float:
    """Return the processor time of an epoch in seconds."""
    units, hidden = config["units"], config["layers"]
    weights = 65 * units + (hidden - 1) * (units + 1) * units + (units + 1) * 10
    batches = -(-len(IMAGES) // config["batch_size"])
    return 1.44e-5 * weights + 5.65e-7 * weights * batches + 3.1e-4 * (units * hidden + 10)


def _matrices(images: list[Any]) -> tuple[Any, Any]:
    return np.array([image for image, _ in images]), np.array([digit for _, digit in images])


_X, _Y = _matrices(IMAGES)
_UNSEEN_X, _UNSEEN_Y = _matrices(UNSEEN)
_ORDERS = [np.array(random.Random(epoch).sample(range(len(IMAGES)), len(IMAGES))) for epoch in range(1, EPOCHS + 1)]


@cache
def _first_layers(units: int, layers: int) -> list[Any]:
    return [np.array(layer) for layer in train.new_layers([64, *[units] * layers, 10])]


@cache
def _losses(items: tuple[tuple[str, Any], ...]) -> list[float]:
    config = dict(items)
    layers = [config["scale"] * layer for layer in _first_layers(config["units"], config["layers"])]
    speeds = [np.zeros_like(layer) for layer in layers]
    momentum, alpha, size = config["momentum"], config["alpha"], config["batch_size"]
    losses = []
    with np.errstate(all="ignore"):
        for epoch, order in enumerate(_ORDERS):
            lr = config["lr"] * config["decay"] ** epoch
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                _learn(layers, speeds, _X[chosen], _Y[chosen], lr, momentum, alpha)
            losses.append(_loss(layers))
    return losses


def _with_bias(rows: Any) -> Any:
    return np.hstack([rows, np.ones((len(rows), 1))])


def _predict(layers: list[Any], images: Any) -> list[Any]:
    values = [_with_bias(images)]
    for depth, layer in enumerate(layers):
        scores = values[-1] @ layer.T
        values.append(scores if depth == len(layers) - 1 else _with_bias(np.maximum(scores, 0.0)))
    return values


def _learn(layers: list[Any], speeds: list[Any], x: Any, y: Any, lr: float, momentum: float, alpha: float) -> None:
    *inputs, scores = _predict(layers, x)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    errors = powers / powers.sum(axis=1, keepdims=True)
    errors[np.arange(len(y)), y] -= 1.0
    errors /= len(y)
    for depth in reversed(range(len(layers))):
        slopes = errors.T @ inputs[depth]
        if depth:
            back = errors @ layers[depth][:, :-1]
            errors = np.where(inputs[depth][:, :-1] > 0, back, 0.0)
        speeds[depth] = momentum * speeds[depth] - lr * (slopes + alpha * layers[depth])
        layers[depth] = layers[depth] + speeds[depth]


def _loss(layers: list[Any]) -> float:
    scores = _predict(layers, _UNSEEN_X)[-1]
    highest = scores.max(axis=1)
    logs = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    found = float((logs - scores[np.arange(len(_UNSEEN_Y)), _UNSEEN_Y]).mean())
    return math.log(max(MIN_ENTROPY, min(MAX_ENTROPY, found)))  # NaN is not lower
