"""PB2: bounds, types, determinism, and what it learns from."""

from __future__ import annotations

import builtins
import random
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment, Step
from trialpod.tune.schedulers import create_scheduler

pytest.importorskip("numpy")
BOUNDS = {"lr": [0.001, 1.0], "net": {"width": [8, 64]}}


def experiment(**arguments: Any) -> SimulatedExperiment:
    def make() -> Any:
        given = {
            "hyperparam_bounds": BOUNDS,
            "perturbation_interval": 1,
            "metric": "score",
            "mode": "max",
            **arguments,
        }
        return create_scheduler("pb2", **given)

    rng = random.Random(0)
    configs = [{"lr": rng.uniform(0.001, 1.0), "net": {"width": rng.randrange(8, 64)}, "n": n} for n in range(6)]
    return SimulatedExperiment(make, configs)


def train(simulated: SimulatedExperiment, rounds: int) -> None:
    """A trial improves by 1 - (lr - 0.7)**2 each time."""
    scores: dict[str, float] = {}
    for _ in range(rounds):
        for number, trial in enumerate(simulated.trials):
            source = scores.get(trial.trial_id, 0.0)
            scores[trial.trial_id] = source + 1 - (trial.config["lr"] - 0.7) ** 2
            simulated.play([Step(number, metrics={"score": scores[trial.trial_id]})])


def test_chosen_values_lie_in_their_bounds_and_keep_their_types() -> None:
    simulated = experiment()
    train(simulated, 8)
    changed = [config for _, what, config in simulated.log if what == "NEW_CONFIG"]
    assert len(changed) >= 4
    for config in changed:
        assert 0.001 <= config["lr"] <= 1.0
        assert isinstance(config["net"]["width"], int)
        assert 8 <= config["net"]["width"] <= 64
    how = [reason["operations"]["lr"] for _, what, reason in simulated.log if what == "EXPLOIT"]
    assert how[0] == "drawn"
    assert how[-1] == "chosen by the model"


def test_seed_decides_the_choice() -> None:
    logs = []
    for seed in (1, 1, 2):
        simulated = experiment(seed=seed)
        train(simulated, 6)
        logs.append(simulated.log)
    assert logs[0] == logs[1] != logs[2]


def test_without_numpy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InvalidInputError, match="pip install numpy"):
        create_scheduler("pb2", hyperparam_bounds=BOUNDS)


@pytest.mark.parametrize(
    "wrong", [None, {}, {"lr": 3}, {"lr": [1]}, {"lr": [2, 1]}, {"lr": [1, "2"]}, {"a": {"lr": [2, 1]}}, {"a": {}}]
)
def test_wrong_bounds_are_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="hyperparam_bounds"):
        create_scheduler("pb2", hyperparam_bounds=wrong)
