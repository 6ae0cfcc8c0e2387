"""A training in which a wider model reaches a lower loss, and costs more parameters."""

from trialpod import tune

EPOCHS = 9


def train(config):
    floor = 1 / (1 + config["width"]) + (config["lr"] - 0.3) ** 2
    for epoch in range(1, EPOCHS + 1):
        tune.report({"loss": floor + 0.4 / epoch, "parameters": 10 * config["width"]})
