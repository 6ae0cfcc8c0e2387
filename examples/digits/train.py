"""A neural network for handwritten digits, trained epoch by epoch. The data set ships with scikit-learn."""

import warnings

from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from trialpod import tune

DIGITS = load_digits()


def train_digits(config):
    warnings.simplefilter("ignore", ConvergenceWarning)
    train_x, test_x, train_y, test_y = train_test_split(
        DIGITS.data / 16.0, DIGITS.target, test_size=0.3, random_state=0, stratify=DIGITS.target
    )
    model = MLPClassifier(
        hidden_layer_sizes=(config["units"],) * config["layers"],
        learning_rate_init=config["lr"],
        alpha=config["alpha"],
        batch_size=config["batch_size"],
        random_state=0,
    )
    for _ in range(config["epochs"]):
        model.partial_fit(train_x, train_y, classes=range(10))
        tune.report({"accuracy": model.score(test_x, test_y), "loss": model.loss_})
