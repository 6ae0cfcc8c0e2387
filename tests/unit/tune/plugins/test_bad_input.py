"""Wrong arguments and search spaces, for every scheduler and every searcher: an error that names what is wrong.

Wrong results (NaN, infinite, missing, of wrong type; time that goes back or jumps over rungs) are in the contracts
that all of them are held to: `SchedulerContract` and `SearcherContract`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.testing.simulation import SimulatedExperiment
from trialpod.tune.arguments import UnknownArgumentError
from trialpod.tune.schedulers import ASHAScheduler, create_scheduler
from trialpod.tune.search import ConcurrencyLimiter, Repeater, create_searcher, prepare
from trialpod.tune.stopper import create_stopper

LR = {"lr": [0.1, 0.2]}
NEEDED: dict[str, dict[str, Any]] = {
    "pbt": {"hyperparam_mutations": LR},
    "pb2": {"hyperparam_bounds": {"lr": [0.1, 0.2]}},
}
SCHEDULERS = ["asha", "asha_promotion", "hyperband", "hb_bohb", "median_stopping_rule", "pbt", "pb2"]
SEARCHERS = [
    # What loads a library that takes seconds to import stays in one process.
    pytest.param(name, marks=pytest.mark.xdist_group(name))
    for name in ("optuna", "hyperopt", "bayesopt", "ax", "nevergrad", "zoopt", "bohb", "hebo")
]


def scheduler(name: str, **arguments: Any) -> Any:
    try:
        return create_scheduler(name, **{**NEEDED.get(name, {}), **arguments})
    except InvalidInputError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise


def searcher(name: str, **arguments: Any) -> Any:
    try:
        return create_searcher(name, **arguments)
    except InvalidInputError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASHAScheduler(grace_perio=1), "has no argument 'grace_perio'; did you mean 'grace_period'"),
        (lambda: tune.search.BasicVariantGenerator(max_concurent=1), "did you mean 'max_concurrent'"),
        (lambda: tune.stopper.TimeoutStopper(timout=1), "did you mean 'timeout'"),
        (lambda: tune.CLIReporter(metric_column=[]), "CLIReporter has no argument.*did you mean 'metric_columns'"),
    ],
)
def test_misspelt_arguments_of_classes_name_the_nearest(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnknownArgumentError, match=message):
        make()


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"metric": "loss", "mode": "mni"}, r"mode must be .*got 'mni'; did you mean 'min'"),
        ({"metric": "loss", "mode": 1}, "mode must be 'min' or 'max'"),
        ({"metric": 3}, "metric must be the name of a reported value"),
        ({"time_attr": ""}, "time_attr must be the name of a reported value"),
        ({"time_attr": None}, "time_attr must be the name of a reported value"),
        ({"tme_attr": "x"}, "tme_attr.*time_attr"),
    ],
)
def test_schedulers_refuse_wrong_metrics_modes_and_times(name: str, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"(?is){message}") as refused:
        scheduler(name, **wrong)
    assert refused.value.parameter == tuple(wrong)[-1:]


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        *[
            ("pbt", {"quantile_fraction": value}, "quantile_fraction")
            for value in (-0.1, 0.6, 1, "0.2", float("nan"))
        ],
        *[
            ("pb2", {"quantile_fraction": value}, "quantile_fraction")
            for value in (-0.1, 0.6, 1, "0.2", float("nan"))
        ],
        ("pbt", {"resample_probability": 1.5}, "resample_probability"),
        ("pbt", {"perturbation_interval": 0}, "perturbation_interval"),
        ("pbt", {"perturbation_interval": float("inf")}, "perturbation_interval"),
        ("pbt", {"perturbation_factors": [0, 1]}, "perturbation_factors"),
        ("pbt", {"hyperparam_mutations": {}}, "hyperparam_mutations"),
        ("pbt", {"hyperparam_mutations": None}, "hyperparam_mutations"),
        ("pbt", {"hyperparam_mutations": {"lr": []}}, "at least one value"),
        ("pb2", {"hyperparam_bounds": {}}, "hyperparam_bounds"),
        ("pb2", {"hyperparam_bounds": {"lr": [2, 1]}}, "hyperparam_bounds"),
        ("asha", {"grace_period": 0}, "grace_period"),
        ("asha", {"max_t": 1, "grace_period": 2}, "max_t|grace_period"),
        ("asha", {"reduction_factor": 1}, "reduction_factor"),
        ("asha", {"max_t": float("nan")}, "max_t"),
        ("hyperband", {"max_t": "81"}, "max_t"),
        ("median_stopping_rule", {"min_samples_required": -1}, "min_samples_required"),
        ("median_stopping_rule", {"hard_stop": "no"}, "hard_stop"),
    ],
)
def test_schedulers_refuse_values_out_of_range_by_name(name: str, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        scheduler(name, **wrong)


@pytest.mark.parametrize("name", ["pbt", "pb2"])
def test_mistyped_mutation_names_the_nearest(name: str) -> None:
    mutations = {"learning_rat": [0.1, 0.2]}
    made = scheduler(name, **{"hyperparam_mutations" if name == "pbt" else "hyperparam_bounds": mutations})
    made.set_search_properties("score", "max")
    with pytest.raises(InvalidInputError, match=r"learning_rat\b.*learning_rate"):
        SimulatedExperiment(lambda: made, [{"learning_rate": 0.1}]).flush()


@pytest.mark.parametrize("name", SEARCHERS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"metric": "loss", "mode": "mni"}, "mode must be 'min' or 'max'"),
        ({"metric": 3, "mode": "min"}, "metric must be a name"),
        ({"space": 3}, "space must be a dict"),
        ({"points_to_evaluate": {"x": 1}}, "list of dicts"),
        ({"points_to_evaluate": [{"x": 1}], "evaluated_rewards": []}, "one value for each"),
        ({"points_to_evalute": []}, "Did you mean 'points_to_evaluate'"),
    ],
)
def test_searchers_refuse_wrong_arguments(name: str, wrong: dict[str, Any], message: str) -> None:
    searcher(name)
    with pytest.raises(InvalidInputError, match=message):
        create_searcher(name, **wrong)


@pytest.mark.parametrize("name", SEARCHERS)
@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"x": tune.grid_search([1, 2])}, "use choice"),
        ({"x": tune.randn(0, 2)}, "use uniform|uniform"),
        ({"x": 1}, "nothing to search"),
        ({}, "nothing to search"),
    ],
)
def test_searchers_refuse_spaces_that_they_cannot_express(name: str, space: dict[str, Any], message: str) -> None:
    made = searcher(name)
    if name == "hyperopt" and "uniform" in message:
        pytest.skip("HyperOpt can search normal distributions")
    with pytest.raises(InvalidInputError, match=message):
        prepare(made, space=space, num_samples=2, metric="loss", mode="min", seed=1)


@pytest.mark.parametrize("name", SEARCHERS)
def test_searchers_refuse_points_outside_of_the_space(name: str) -> None:
    made = searcher(name, points_to_evaluate=[{"x": 7.0}])
    with pytest.raises(InvalidInputError, match=r"points_to_evaluate\[0\] sets x: 7"):
        prepare(made, space={"x": tune.uniform(0, 1)}, num_samples=2, metric="loss", mode="min", seed=1)


@pytest.mark.parametrize("name", SEARCHERS)
def test_searchers_say_where_to_name_a_metric(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"spec\.metric"):
        prepare(searcher(name), space={"x": tune.uniform(0, 1)}, num_samples=2, metric=None, mode=None, seed=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConcurrencyLimiter(searcher("optuna"), max_concurrent=0), "max_concurrent"),
        (lambda: Repeater(searcher("optuna"), repeat=0), "repeat"),
        (lambda: create_searcher("random", points_to_evaluate={"x": 1}), "list of dicts"),
    ],
)
def test_wrappers_refuse_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("timeout", {"timeout": "10"}, "timeout"),
        ("maximum_iteration", {"max_iter": 0}, "max_iter"),
        ("trial_plateau", {"metric": "loss", "std": -1}, "std"),
        ("trial_plateau", {"metric": "loss", "mode": "mni", "metric_threshold": 1}, "mode"),
        ("experiment_plateau", {"metric": "loss", "mode": "mni"}, "mode"),
        ("experiment_plateau", {"metric": "loss", "top": 0}, "top"),
        ("timeuot", {}, "timeout"),
    ],
)
def test_stoppers_refuse_wrong_arguments_by_name(name: str, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        create_stopper(name, **wrong)
