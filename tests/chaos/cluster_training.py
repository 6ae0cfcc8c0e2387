"""What the trials of a round in the cluster train, and their witness; a manifest has this text as its source.

Each process appends to a file of its own, before anything leaves it, what it reports, and after each answer what that
called durable: an account that no part under test has a hand in. The file is on the node's disk, so that it outlives
the pod. The training is a logistic regression in plain floats: a loss follows from the learning rates alone, which
the state remembers (`rates`), so that anybody can compute it again, also where a trial took over another one's state.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from pathlib import Path

import msgspec

from trialpod import tune
from trialpod.protocol.attempt_link import AttemptLink

STEP_S = float(os.environ.get("CHAOS_STEP_S", "0"))
WITNESS = os.environ.get("CHAOS_WITNESS", "")
_draw = random.Random(11)
_INPUTS = [[_draw.gauss(0, 1) for _ in range(5)] for _ in range(48)]
_LABELS = [1.0 if sum(row) + _draw.gauss(0, 1) > 0 else 0.0 for row in _INPUTS]
_life = f"{os.getpid()}-{time.time_ns()}"
_file: list[int] = []


def _note(link, **fact):
    """Write one fact down; it is there when this returns, whatever happens to the process then."""
    if not WITNESS:
        return
    if not _file:
        path = Path(WITNESS, f"{link._trial_id}-{_life}.jsonl")
        _file.append(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644))
    line = {"at": time.time(), "trial": link._trial_id, "attempt": link._attempt, "life": _life, **fact}
    os.write(_file[0], json.dumps(line).encode() + b"\n")


_publish, _take_in = AttemptLink.publish, AttemptLink._take_in


def _witnessed_publish(link, result, *args, **options):
    row = msgspec.msgpack.decode(result)
    _note(link, number=link._last + 1, iteration=row["training_iteration"], stamp=row.get("stamp"))
    return _publish(link, result, *args, **options)


def _witnessed_take_in(link, answer, *args, **options):
    before = link._durable
    _take_in(link, answer, *args, **options)
    if answer.superseded:
        _note(link, superseded=True)
    elif link._durable > before or answer.decision:
        _note(link, durable=link._durable, decision=answer.decision)


if WITNESS and not getattr(AttemptLink, "witnessed", False):
    AttemptLink.witnessed = True
    AttemptLink.publish, AttemptLink._take_in = _witnessed_publish, _witnessed_take_in


class Model:
    """Weights, and the learning rates of all steps that made them, as [rate, number of steps] pairs."""

    def __init__(self):
        self.weights = [0.0] * 5
        self.rates = []

    @property
    def steps(self):
        return sum(count for _, count in self.rates)

    def train(self, rate):
        """Take one step; return the loss."""
        if self.rates and self.rates[-1][0] == rate:
            self.rates[-1][1] += 1
        else:
            self.rates.append([rate, 1])
        gradient = [0.0] * 5
        for row, label in zip(_INPUTS, _LABELS, strict=True):
            error = _sigmoid(sum(w * x for w, x in zip(self.weights, row, strict=True))) - label
            for place, x in enumerate(row):
                gradient[place] += error * x / len(_INPUTS)
        self.weights = [w - rate * g for w, g in zip(self.weights, gradient, strict=True)]
        return self.loss()

    def loss(self):
        total = 0.0
        for row, label in zip(_INPUTS, _LABELS, strict=True):
            guess = _sigmoid(sum(w * x for w, x in zip(self.weights, row, strict=True)))
            total -= math.log(max(guess if label else 1 - guess, 1e-12))
        return total / len(_INPUTS)


def _sigmoid(value):
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, value))))


def loss_of(rates):
    """Return the loss after these steps."""
    model = Model()
    loss = model.loss()
    for rate, count in rates:
        for _ in range(count):
            loss = model.train(rate)
    return loss


class Train(tune.Trainable):
    """A step takes as long as the environment says, beside its work."""

    def setup(self, config):
        self.model = Model()

    def step(self):
        time.sleep(STEP_S)
        loss = self.model.train(self.config["lr"])
        # Which process reported it, and its place in the order: to compare what arrived with what was sent.
        stamp = f"{_life}/{time.monotonic_ns()}"
        return {"loss": loss, "trained": self.model.steps, "rates": json.dumps(self.model.rates), "stamp": stamp}

    def reset_config(self, config):
        self.model = Model()
        return True

    def save_checkpoint(self, folder):
        state = {"weights": self.model.weights, "rates": self.model.rates}
        Path(folder, "model.json").write_text(json.dumps(state))

    def load_checkpoint(self, folder):
        state = json.loads(Path(folder, "model.json").read_text())
        self.model = Model()
        self.model.weights, self.model.rates = state["weights"], state["rates"]
