"""XGBoost as it prints by itself: boost.py --eta=E --max-depth=D. Continues from the model that it has kept."""

import argparse
import os
from pathlib import Path

import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

ROUNDS = 30

parser = argparse.ArgumentParser()
parser.add_argument("--eta", type=float, default=0.3)
parser.add_argument("--max-depth", type=int, default=6)
options = parser.parse_args()

x, y = load_breast_cancer(return_X_y=True)
x_train, x_valid, y_train, y_valid = train_test_split(x, y, random_state=0)
train, valid = xgboost.DMatrix(x_train, y_train), xgboost.DMatrix(x_valid, y_valid)
parameters = {
    "objective": "binary:logistic",
    "eval_metric": "logloss",
    "eta": options.eta,
    "max_depth": options.max_depth,
    "nthread": 1,
}


class Keep(xgboost.callback.TrainingCallback):
    """Keeps the model after each round, whole or not at all."""

    def after_iteration(self, model, epoch, evals_log):
        unfinished = saved.with_suffix(".tmp.json")
        model.save_model(unfinished)
        os.replace(unfinished, saved)


saved = Path(os.environ.get("TRIALPOD_CHECKPOINT_DIR", "."), "model.json")
earlier = xgboost.Booster(model_file=saved) if saved.exists() and "TRIALPOD_CHECKPOINT_DIR" in os.environ else None
done = earlier.num_boosted_rounds() if earlier is not None else 0
xgboost.train(parameters, train, ROUNDS - done, evals=[(valid, "valid")], xgb_model=earlier, callbacks=[Keep()])
