"""A neural network for handwritten digits, trained epoch by epoch. The data set ships with scikit-learn."""

import pickle
import tempfile
import warnings
from pathlib import Path

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
    epoch = 0

    # After an interruption the trial continues where it was.
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            epoch, model = pickle.loads(Path(folder, "model.pkl").read_bytes())

    while epoch < config["epochs"]:
        epoch += 1
        model.partial_fit(train_x, train_y, classes=range(10))
        metrics = {"accuracy": model.score(test_x, test_y), "loss": model.loss_}
        if epoch % 3 == 0:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "model.pkl").write_bytes(pickle.dumps((epoch, model)))
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
        else:
            tune.report(metrics)
