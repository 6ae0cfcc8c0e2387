"""Fit a classifier to two rings of points: what `trialpod run experiment.yaml` tunes.

Pure Python, so that it runs as it is. With scikit-learn or PyTorch the shape is the same: read `config`, train in
steps, report after each one, and save a checkpoint that the next attempt can start from.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

from trialpod import tune

Point = tuple[float, float, int]


def rings(count: int, seed: int) -> list[Point]:
    """Points on an inner ring (label 0) and an outer one (label 1), with noise."""
    rng = random.Random(seed)
    points = []
    for index in range(count):
        label = index % 2
        angle, radius = rng.uniform(0, 2 * math.pi), 0.5 + 0.5 * label + rng.gauss(0, 0.18)
        points.append((radius * math.cos(angle), radius * math.sin(angle), label))
    return points


def features(x: float, y: float, degree: int) -> list[float]:
    """All products of powers of x and y up to a degree."""
    return [x**i * y ** (total - i) for total in range(degree + 1) for i in range(total + 1)]


def probability(weights: list[float], values: list[float]) -> float:
    """The probability of label 1."""
    score = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


def train(config: dict[str, Any]) -> None:
    """One trial: logistic regression by stochastic gradient descent with momentum."""
    degree = config["degree"]
    data = [(features(x, y, degree), label) for x, y, label in rings(200, seed=1)]
    test = [(features(x, y, degree), label) for x, y, label in rings(400, seed=2)]
    weights = [0.0] * len(data[0][0])
    speed = list(weights)
    epoch = 0

    # After an interruption a trial continues where it was.
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = json.loads((Path(folder) / "state.json").read_text())
        weights, speed, epoch = state["weights"], state["speed"], state["epoch"]

    while epoch < config["epochs"]:
        epoch += 1
        for values, label in random.Random(epoch).sample(data, len(data)):
            error = probability(weights, values) - label
            for i, value in enumerate(values):
                speed[i] = config["momentum"] * speed[i] - config["lr"] * error * value
                weights[i] += speed[i]
        right = sum((probability(weights, values) > 0.5) == bool(label) for values, label in test)
        with tempfile.TemporaryDirectory() as folder:
            state = {"weights": weights, "speed": speed, "epoch": epoch}
            (Path(folder) / "state.json").write_text(json.dumps(state))
            tune.report({"accuracy": right / len(test)}, checkpoint=tune.Checkpoint.from_directory(folder))
