"""What a trial of the check on a real cluster trains: the network of examples/digits, with more to tune.

The text of this file is the `source` of the experiment's trainable, so it stands alone, beside `train` of
examples/digits. The metric is the logarithm of the cross-entropy of images that are not trained on: it differs where
two configs get equally many images right, and as a logarithm it does not count one good config as another. With few
images random search was far from the best config after forty full trainings; that is how they were chosen, and the
space, before any other method ran. `tasks.digits` computes the same curves with NumPy.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from itertools import starmap
from pathlib import Path
from typing import Any

import train

from trialpod import tune

EPOCHS = 27
IMAGES = train.DIGITS[:150]
UNSEEN = train.DIGITS[600:800]
MIN_ENTROPY, MAX_ENTROPY = 1e-9, 10.0
"""Bounds of the cross-entropy; a network that has diverged has the upper one."""

Layers = list[list[list[float]]]


def new_network(config: dict[str, Any]) -> tuple[Layers, Layers]:
    """Return the weights of each layer before the first epoch, and how fast they move."""
    sizes = [64, *[config["units"]] * config["layers"], 10]
    layers = [[[config["scale"] * w for w in row] for row in layer] for layer in train.new_layers(sizes)]
    return layers, [[[0.0] * len(row) for row in layer] for layer in layers]


def learn_epoch(layers: Layers, speeds: Layers, config: dict[str, Any], epoch: int) -> None:
    """Train one epoch, in an order of the images that depends on the epoch alone."""
    images = random.Random(epoch).sample(IMAGES, len(IMAGES))
    train.MOMENTUM = config["momentum"]
    lr, size = config["lr"] * config["decay"] ** (epoch - 1), config["batch_size"]
    for start in range(0, len(images), size):
        train.learn(layers, speeds, images[start : start + size], lr, config["alpha"])


def loss_of(layers: Layers) -> float:
    """Return the logarithm of the mean cross-entropy of the unseen images."""
    scores = train.predict(layers, [image for image, _ in UNSEEN])[-1]
    found = sum(starmap(_cross_entropy, zip(scores, (digit for _, digit in UNSEEN), strict=True))) / len(UNSEEN)
    return math.log(max(MIN_ENTROPY, min(MAX_ENTROPY, found)))  # NaN is not lower


def _cross_entropy(scores: list[float], digit: int) -> float:
    highest = max(scores)
    if not math.isfinite(highest):
        return math.inf
    return highest - scores[digit] + math.log(sum(math.exp(score - highest) for score in scores))


def train_counted(config: dict[str, Any]) -> None:
    """Train, and report the loss and the processor time of this process after each epoch."""
    layers, speeds = new_network(config)
    epoch = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            epoch, layers, speeds = json.loads(Path(folder, "model.json").read_text())
    while epoch < EPOCHS:
        epoch += 1
        learn_epoch(layers, speeds, config, epoch)
        metrics = {"loss": loss_of(layers), "cpu_s": time.process_time()}
        if epoch % 3 == 0:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "model.json").write_text(json.dumps([epoch, layers, speeds]))
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
        else:
            tune.report(metrics)
