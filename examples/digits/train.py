"""A neural network for handwritten digits, trained epoch by epoch. It needs no package but trialpod.

``digits.txt`` has 1,797 images of 8 x 8 pixels, one a line: the digit, then each pixel's brightness, 0 to g (16).
They are the test set of E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits* (1998), UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, under the licence CC BY 4.0; only the file's form was changed.
"""

import json
import math
import random
import tempfile
from itertools import pairwise
from operator import mul
from pathlib import Path

from trialpod import tune

MOMENTUM = 0.9


def load_digits():
    """Return images as rows of 64 numbers from 0 to 1, and what each shows."""
    lines = Path(__file__).with_name("digits.txt").read_text().splitlines()
    return [([int(pixel, 17) / 16 for pixel in line[2:]], int(line[0])) for line in lines]


DIGITS = random.Random(0).sample(load_digits(), 1797)
TRAIN, TEST = DIGITS[:600], DIGITS[600:900]  # a part of them: the whole demo takes half a minute


def times(a, b):
    """Return the product of the matrix a and the transposed matrix b."""
    return [[sum(map(mul, row, other)) for other in b] for row in a]


def transposed(a):
    return list(zip(*a, strict=True))


def with_bias(rows):
    return [[*row, 1.0] for row in rows]


def new_layers(sizes):
    """Return a matrix for each layer, with a row of weights and a bias for each of its units."""
    rng = random.Random(0)
    return [
        [[rng.gauss(0, math.sqrt(2 / inputs)) for _ in range(inputs)] + [0.0] for _ in range(units)]
        for inputs, units in pairwise(sizes)
    ]


def predict(layers, images):
    """Return the inputs of each layer (the last entry: one score for each digit)."""
    values = [images]
    for depth, layer in enumerate(layers):
        if depth:
            values[-1] = [[max(0.0, value) for value in row] for row in values[-1]]
        values.append(times(with_bias(values[-1]), layer))
    return values


def learn(layers, speeds, batch, lr, alpha):
    """Take one step of gradient descent with momentum; return the batch's cross-entropy."""
    *inputs, scores = predict(layers, [image for image, _ in batch])
    loss, errors = 0.0, []
    for row, (_, digit) in zip(scores, batch, strict=True):
        powers = [math.exp(score - max(row)) for score in row]
        total = sum(powers)
        loss -= math.log(max(powers[digit] / total, 1e-30))
        errors.append([(power / total - (digit == which)) / len(batch) for which, power in enumerate(powers)])
    for depth in reversed(range(len(layers))):
        slopes = times(transposed(errors), transposed(with_bias(inputs[depth])))
        back = times(errors, transposed(layers[depth])[:-1]) if depth else []
        errors = [
            [error if value > 0 else 0.0 for error, value in zip(*rows, strict=True)]
            for rows in zip(back, inputs[depth], strict=False)
        ]
        for weights, speed, slope in zip(layers[depth], speeds[depth], slopes, strict=True):
            speed[:] = [MOMENTUM * v - lr * (g + alpha * w) for v, g, w in zip(speed, slope, weights, strict=True)]
            weights[:] = [w + v for w, v in zip(weights, speed, strict=True)]
    return loss / len(batch)


def accuracy(layers):
    scores = predict(layers, [image for image, _ in TEST])[-1]
    right = sum(row.index(max(row)) == digit for row, (_, digit) in zip(scores, TEST, strict=True))
    return right / len(TEST)


def train_digits(config):
    layers = new_layers([64, *[config["units"]] * config["layers"], 10])
    speeds = [[[0.0] * len(row) for row in layer] for layer in layers]
    epoch = 0

    # After an interruption the trial continues where it was.
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            epoch, layers, speeds = json.loads(Path(folder, "model.json").read_text())

    while epoch < config["epochs"]:
        epoch += 1
        images = random.Random(epoch).sample(TRAIN, len(TRAIN))
        batches = [images[i : i + config["batch_size"]] for i in range(0, len(images), config["batch_size"])]
        losses = [learn(layers, speeds, batch, config["lr"], config["alpha"]) for batch in batches]
        metrics = {"accuracy": accuracy(layers), "loss": sum(losses) / len(losses)}
        if epoch % 3 == 0:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "model.json").write_text(json.dumps([epoch, layers, speeds]))
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
        else:
            tune.report(metrics)
