"""Handwritten digits, learnt in small steps: the one objective of all examples in this folder.

Random Fourier features (``gamma`` says how quickly two images cease to look alike), and on them a linear classifier,
trained by stochastic gradient descent with a constant learning rate ``lr`` and the weight decay ``alpha``. An
iteration is one pass over 898 images and takes some ten milliseconds; ``error`` is how many of the other 899 are
misread, in percent. The data set ships with scikit-learn.

Everything is seeded by the number of the pass, so that a trial that paused continues as if it had not.
"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # trials run side by side; each has one CPU

import numpy as np
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

from trialpod import tune

DIGITS = load_digits()
CLASSES = np.arange(10)


class Digits(tune.Trainable):
    """Config: ``lr``, ``gamma`` and ``alpha``. Without an end of its own: the scheduler or ``stop`` ends it."""

    def setup(self, config):
        images, others, self.labels, self.other_labels = train_test_split(
            DIGITS.data / 16.0, DIGITS.target, test_size=0.5, random_state=0, stratify=DIGITS.target
        )
        features = RBFSampler(gamma=config["gamma"], n_components=200, random_state=0).fit(images)
        self.images, self.others = features.transform(images), features.transform(others)
        self.model = SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=config["lr"], alpha=config["alpha"], random_state=0
        )

    def step(self):
        order = np.random.default_rng(self.iteration).permutation(len(self.images))
        self.model.partial_fit(self.images[order], self.labels[order], classes=CLASSES)
        error = 100.0 * (1.0 - self.model.score(self.others, self.other_labels))
        return {"error": round(error, 3), "clock": time.time()}

    def save_checkpoint(self, checkpoint_dir):
        return {"model": self.model}

    def load_checkpoint(self, checkpoint):
        # The parameters are the config's: a trial that copied this checkpoint may have others than the one that wrote
        # it.
        self.model = checkpoint["model"].set_params(eta0=self.config["lr"], alpha=self.config["alpha"])
