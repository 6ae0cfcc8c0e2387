"""What the trials of a round train, and their witness; copied as train.py into the round's folder.

Each process appends to a file of its own, before anything leaves it, what it reports, and after each answer what that
called durable: an account that no part under test has a hand in. The training is a logistic regression whose every
step follows from its config and the state before.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time
from typing import Any

import msgspec
import numpy as np

from trialpod import tune
from trialpod.protocol.attempt_link import AttemptLink

STEP_S = float(os.environ.get("STEP_S", "0.01"))
FREQUENCY = int(os.environ.get("FREQUENCY", "2"))
_draw = np.random.default_rng(7)
_INPUTS = _draw.normal(size=(256, 8))
_LABELS = (_INPUTS @ _draw.normal(size=8) + _draw.normal(size=256) > 0).astype(float)
_open: dict[int, int] = {}


def witness(link: AttemptLink, **fact: Any) -> None:
    """Write one fact down; it is there when this returns, whatever happens to the process then."""
    pid = os.getpid()
    if pid not in _open:
        path = os.path.join(os.environ["WITNESS"], f"{pid}-{time.monotonic_ns()}.jsonl")
        _open[pid] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    line = {"at": time.monotonic(), "trial": link._trial_id, "attempt": link._attempt, "pid": pid, **fact}
    os.write(_open[pid], json.dumps(line).encode() + b"\n")


_init, _publish, _take_in, _finish = (
    AttemptLink.__init__,
    AttemptLink.publish,
    AttemptLink._take_in,
    AttemptLink.finish,
)


def _witnessed_init(link: AttemptLink, *args: Any, **options: Any) -> None:
    _init(link, *args, **options)
    witness(link, start=True)


def _witnessed_publish(link: AttemptLink, result: bytes, *args: Any, **options: Any) -> int:
    row = msgspec.msgpack.decode(result)
    facts = {key: row.get(key) for key in ("training_iteration", "stamp", "error", "checkpoint_dir_name")}
    witness(link, number=link._last + 1, **facts)
    return _publish(link, result, *args, **options)


def _witnessed_take_in(
    link: AttemptLink, answer: Any, request: Any, announced: Any, deleted: int, final: bool
) -> None:
    before = link._durable
    _take_in(link, answer, request, announced, deleted, final)
    if answer.superseded:
        witness(link, superseded=True)
    elif link._durable > before or announced or answer.decision:
        saved = [[item.info.name, item.info.iteration] for item in announced if item.received]
        witness(link, durable=link._durable, saved=saved, decision=answer.decision)


def _witnessed_finish(link: AttemptLink, end: Any) -> None:
    _finish(link, end)
    witness(link, end=end.cause, error=end.error)


AttemptLink.__init__ = _witnessed_init  # type: ignore[method-assign]
AttemptLink.publish = _witnessed_publish  # type: ignore[method-assign]
AttemptLink._take_in = _witnessed_take_in  # type: ignore[method-assign]
AttemptLink.finish = _witnessed_finish  # type: ignore[method-assign]


class Model:
    """Weights, and how many steps they have been trained."""

    def __init__(self) -> None:
        self.weights = np.zeros(8)
        self.steps = 0

    def train(self, config: dict[str, Any]) -> dict[str, float]:
        """Take one step; return the result."""
        self.steps += 1
        time.sleep(STEP_S)
        batch = np.random.default_rng(self.steps).permutation(256)[:64]
        guess = 1 / (1 + np.exp(-(_INPUTS[batch] @ self.weights)))
        gradient = _INPUTS[batch].T @ (guess - _LABELS[batch]) / len(batch)
        self.weights = self.weights * (1 - config["decay"]) - config["lr"] * gradient
        guess = 1 / (1 + np.exp(-(_INPUTS @ self.weights)))
        error = float(np.mean(np.abs(guess - _LABELS)))
        return {"error": error, "stamp": time.monotonic_ns(), "trained": self.steps}

    def save(self, folder: str) -> None:
        """Write it into a folder."""
        np.save(os.path.join(folder, "weights.npy"), self.weights)
        pathlib.Path(folder, "steps.json").write_text(json.dumps(self.steps))

    def load(self, folder: str) -> None:
        """Read it from there."""
        self.weights = np.load(os.path.join(folder, "weights.npy"))
        self.steps = json.loads(pathlib.Path(folder, "steps.json").read_text())


class Train(tune.Trainable):
    """As a class."""

    def setup(self, config: dict[str, Any]) -> None:
        self.model = Model()

    def step(self) -> dict[str, float]:
        return self.model.train(self.config)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self.model.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.model.load(checkpoint)


def train(config: dict[str, Any]) -> None:
    """As a function."""
    model = Model()
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            model.load(folder)
    while model.steps < int(os.environ["MOST_STEPS"]):
        result = model.train(config)
        if model.steps % FREQUENCY == 0 or os.environ["SAVES_ALWAYS"] == "1":
            with tempfile.TemporaryDirectory(prefix="users-") as folder:
                model.save(folder)
                tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))
        else:
            tune.report(result)
