"""The real check of tuning quality: what an experiment has found when it has used so much processor time."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "quality"))
sys.path.append(str(Path(__file__).parents[3] / "examples" / "digits"))

import digits_trial
from digits import EPOCHS, difference, domain, mean_and_spread, reports, returned
from space import draw, one_of, real, whole
from tasks.digits import START_S, DigitsTask, epoch_s

pytestmark = pytest.mark.once


def row(trial: str, time: float, epoch: int, cpu_s: float, loss: float) -> dict[str, object]:
    return {
        "trial_id": trial,
        "timestamp": time,
        "training_iteration": epoch,
        "cpu_s": cpu_s,
        "loss": loss,
        "config": {"name": trial, "units": 8, "layers": 1, "batch_size": 32},
    }


class TestEqualProcessorTime:
    RESULTS = (
        [row("a", 1, 1, 2.0, 0.5), row("a", 3, 2, 3.0, 0.1), row("a", 9, EPOCHS, 1.5, 0.4)],  # resumed for the last
        [row("b", 2, 1, 4.0, 0.3)],
    )

    def test_a_process_that_continues_a_trial_counts_from_its_start(self):
        found = reports([*self.RESULTS])
        assert [(each.trial, each.cpu_s) for each in found] == [("a", 2.0), ("b", 4.0), ("a", 1.0), ("a", 1.5)]

    @pytest.mark.parametrize(
        ("cpu_s", "best", "loss", "trials", "full"),
        [(2.0, "a", 0.5, 1, 0), (6.9, "b", 0.3, 2, 0), (7.0, "a", 0.1, 2, 0), (8.5, "b", 0.3, 2, 1)],
    )
    def test_the_latest_loss_within_it_decides(self, cpu_s, best, loss, trials, full):
        config, *others = returned(reports([*self.RESULTS]), cpu_s)
        assert (config["name"], *others) == (best, loss, trials, full)

    def test_nominal_costs_depend_on_config_and_starts_alone(self):
        costs = [each.nominal_s for each in reports([*self.RESULTS])]
        epoch = epoch_s({"units": 8, "layers": 1, "batch_size": 32})
        assert costs == pytest.approx([epoch + START_S, epoch + START_S, epoch, epoch + START_S])


class TestCurves:
    def test_the_simulator_has_the_losses_of_the_trials(self):
        config = draw(DigitsTask.space, random.Random(1))
        layers, speeds = digits_trial.new_network(config)
        losses = []
        for epoch in (1, 2):
            digits_trial.learn_epoch(layers, speeds, config, epoch)
            losses.append(digits_trial.loss_of(layers))
        assert losses == pytest.approx(DigitsTask().curve(config).values[:2], rel=1e-9)

    def test_a_diverged_network_has_the_highest_loss(self):
        config = draw(DigitsTask.space, random.Random(1)) | {"lr": 1e9}
        layers, speeds = digits_trial.new_network(config)
        for epoch in (1, 2):
            digits_trial.learn_epoch(layers, speeds, config, epoch)
        assert digits_trial.loss_of(layers) == math.log(digits_trial.MAX_ENTROPY)
        assert DigitsTask().curve(config).values[-1] == math.log(digits_trial.MAX_ENTROPY)


def test_manifests_have_the_bounds_of_the_space() -> None:
    assert domain(whole("units", 4, 24)) == {"randint": [4, 25]}
    assert domain(real("lr", 0.1, 1.0, log=True)) == {"loguniform": [0.1, 1.0]}
    assert domain(one_of("layers", 1, 2)) == {"choice": [1, 2]}


def test_the_spread_of_one_seed_is_none() -> None:
    assert mean_and_spread([0.9, 0.8, 1.0]) == "0.900 ± 0.100"
    assert mean_and_spread([0.9]) == "0.900 ± 0.000"


def test_a_difference_has_the_interval_of_student() -> None:
    # Differences -1, 0, 1, 2: mean 0.5, standard deviation 1.291; t is 3.182 with three degrees of freedom.
    assert difference([1, 2, 3, 4], [2, 2, 2, 2]) == pytest.approx((0.5, -1.554, 2.554), abs=1e-3)
