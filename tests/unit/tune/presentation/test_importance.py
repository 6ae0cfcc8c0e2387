from __future__ import annotations

import random

import pytest

from trialpod.tune.presentation.importance import MAX_RESAMPLED_TRIALS, Importance, importance

optuna = pytest.importorskip("optuna")


def evaluated(trials: int, noise: float) -> Importance:
    pick = random.Random(3)
    configs = [{"lr": pick.random(), "width": pick.random()} for _ in range(trials)]
    values = [config["lr"] + noise * pick.random() for config in configs]
    spaces = dict.fromkeys(("lr", "width"), optuna.distributions.FloatDistribution(0.0, 1.0))
    return importance(configs, values, spaces, "max")


class TestImportance:
    def test_many_trials_of_one_cause_are_sure(self) -> None:
        found = evaluated(100, noise=0.01)
        assert [share.name for share in found.shares] == ["lr", "width"]
        assert found.first == 1.0
        assert found.remark == "100 trials: lr comes first in 100% of 20 resamples"

    def test_few_trials_without_a_cause_are_rough(self) -> None:
        found = evaluated(12, noise=1000.0)
        assert found.first is not None
        assert found.first < 0.9
        assert found.remark.startswith("12 trials: rough; ")

    def test_the_interval_holds_the_value(self) -> None:
        for share in evaluated(24, noise=1.0).shares:
            assert share.low is not None
            assert share.high is not None
            assert share.low <= share.value <= share.high

    def test_the_same_trials_give_the_same_answer(self) -> None:
        assert evaluated(24, noise=1.0) == evaluated(24, noise=1.0)

    def test_of_many_trials_no_resamples_are_made(self) -> None:
        found = evaluated(MAX_RESAMPLED_TRIALS + 1, noise=0.1)
        assert found.first is None
        assert found.remark == ""
