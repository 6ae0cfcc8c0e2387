"""Fit a line to noisy points by gradient descent: a training program that knows nothing of trialpod.

It takes its parameters as arguments, prints its loss, and continues from the file that it keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path


def main() -> None:
    """Train, and print the loss after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    source = random.Random(1)
    points = [(x / 50, 3 * x / 50 + 1 + source.gauss(0, 0.1)) for x in range(50)]
    kept = Path(os.environ.get("TRIALPOD_CHECKPOINT_DIR", ".")) / "state.json"
    state = {"epoch": 0, "slope": 0.0, "offset": 0.0, "dslope": 0.0, "doffset": 0.0}
    if os.environ.get("TRIALPOD_RESUMED") == "1":
        state = json.loads(kept.read_text())
    while state["epoch"] < options.epochs:
        state["epoch"] += 1
        errors = [state["slope"] * x + state["offset"] - y for x, y in points]
        gradients = {
            "slope": 2 * sum(error * x for error, (x, _) in zip(errors, points, strict=True)) / len(points),
            "offset": 2 * sum(errors) / len(points),
        }
        for name, gradient in gradients.items():
            state[f"d{name}"] = options.momentum * state[f"d{name}"] - options.lr * gradient
            state[name] += state[f"d{name}"]
        loss = sum((state["slope"] * x + state["offset"] - y) ** 2 for x, y in points) / len(points)
        print(f"epoch={state['epoch']} loss={loss:.6f}", flush=True)
        part = kept.with_suffix(".tmp")
        part.write_text(json.dumps(state))
        part.replace(kept)


if __name__ == "__main__":
    main()
