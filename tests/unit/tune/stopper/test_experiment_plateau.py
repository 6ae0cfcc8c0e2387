"""ExperimentPlateauStopper: deviation of the best values of all trials."""

from __future__ import annotations

import math
from typing import Any

import pytest
from stopper_checks import first_stop, met, reloaded, result

from trialpod.errors import InvalidInputError
from trialpod.tune.stopper import ExperimentPlateauStopper


def test_stops_when_best_values_are_close() -> None:
    stopper = ExperimentPlateauStopper("loss", std=0.01, top=3)
    assert first_stop(stopper, [0.5, 0.9, 0.505, 0.501]) == 4
    assert stopper.stop_all()
    assert stopper.reason()["best"] == 0.5
    assert met(stopper, "a", result(1))


def test_the_largest_values_are_the_best_in_max_mode() -> None:
    assert first_stop(ExperimentPlateauStopper("loss", std=0.01, top=2, mode="max"), [1, 1, 5, 5.001]) == 2
    assert first_stop(ExperimentPlateauStopper("loss", std=0.01, top=2, mode="max"), [1, 3, 5, 5.001]) == 4


def test_patience_asks_for_the_plateau_in_a_row() -> None:
    values = [1.0, 1.0, 0.5, 0.5, 0.7, 0.7]
    assert first_stop(ExperimentPlateauStopper("loss", top=2, patience=0), values) == 2
    assert first_stop(ExperimentPlateauStopper("loss", top=2, patience=1), values) == 2
    assert first_stop(ExperimentPlateauStopper("loss", top=2, patience=2), values) == 5  # 0.5 began it again


def test_results_without_a_finite_value_are_passed_over() -> None:
    values = [1.0, math.nan, None, -math.inf, 1.0]
    assert first_stop(ExperimentPlateauStopper("loss", top=2), values) == 5


@pytest.mark.parametrize("large", [1e160, 1.7e308])
def test_values_too_large_to_square_are_no_plateau(large: float) -> None:
    values = [large, large / 2, large, 1.0, 1.0, 1.0]
    assert first_stop(ExperimentPlateauStopper("loss", top=3), values) == 6


def test_the_best_values_survive_a_restart() -> None:
    stopper = ExperimentPlateauStopper("loss", top=2, patience=2)
    first_stop(stopper, [1.0, 1.0])
    assert first_stop(reloaded(stopper, ExperimentPlateauStopper("loss", top=2, patience=2)), [1.0]) == 1


@pytest.mark.parametrize(
    "wrong", [{"metric": 3}, {"mode": "up"}, {"patience": -1}, {"top": 1}, {"top": 2.5}, {"std": 0}]
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        ExperimentPlateauStopper(**{"metric": "loss", **wrong})
