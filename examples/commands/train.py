"""Logistic regression for breast cancer data, as a script that prints its progress.

It does not import trialpod. The data set ships with scikit-learn::

    python train.py --eta0 0.01 --alpha 1e-4 --epochs 20
"""

import argparse
import os
import pickle
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

parser = argparse.ArgumentParser()
parser.add_argument("--eta0", type=float, default=0.01, help="first learning rate")
parser.add_argument("--alpha", type=float, default=1e-4, help="regularization")
parser.add_argument("--learning-rate", choices=["constant", "adaptive", "invscaling"], default="constant")
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()

data, target = load_breast_cancer(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(data, target, test_size=0.3, random_state=0, stratify=target)
scaler = StandardScaler().fit(train_x)
train_x, test_x = scaler.transform(train_x), scaler.transform(test_x)

saved = Path(os.environ.get("TRIALPOD_CHECKPOINT_DIR", "."), "model.pkl")
if os.environ.get("TRIALPOD_RESUMED") == "1":
    epoch, model = pickle.loads(saved.read_bytes())
else:
    epoch = 0
    model = SGDClassifier(
        "log_loss",
        alpha=arguments.alpha,
        eta0=arguments.eta0,
        learning_rate=arguments.learning_rate,
        random_state=0,
    )

while epoch < arguments.epochs:
    epoch += 1
    model.partial_fit(train_x, train_y, classes=[0, 1])
    loss = log_loss(test_y, model.predict_proba(test_x))
    print(f"[epoch {epoch:3d}] accuracy: {model.score(test_x, test_y):.4f} | logloss: {loss:.4f}")
    # Renamed when it is whole: no reader may see half a model.
    part = saved.with_suffix(".tmp")
    part.write_bytes(pickle.dumps((epoch, model)))
    part.replace(saved)
