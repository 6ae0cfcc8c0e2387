from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from trialpod import tune
from trialpod.compat import ray as compat
from trialpod.errors import InvalidInputError
from trialpod.tune import PlacementGroupFactory
from trialpod.tune.resources import bundles_of, resources_of


def train(config: dict[str, Any]) -> None: ...


class Train(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {}


def test_one_cpu_is_the_default() -> None:
    assert resources_of(train) == ({"cpu": 1.0}, None)
    assert resources_of(Train) == ({"cpu": 1.0}, None)


def test_dict_leaves_the_function_unchanged() -> None:
    given = tune.with_resources(train, {"CPU": 2, "gpu": 0.5, "memory": 2e9, "tpu": 1, "disk": 0})
    assert resources_of(given) == ({"cpu": 2.0, "gpu": 0.5, "memory": 2e9, "tpu": 1.0}, None)
    assert resources_of(train) == ({"cpu": 1.0}, None)


def test_amounts_may_be_numpy_numbers() -> None:
    given = tune.with_resources(train, {"cpu": np.int64(4), "gpu": np.float32(0.5)})
    assert resources_of(given) == ({"cpu": 4.0, "gpu": 0.5}, None)


@pytest.mark.parametrize("amount", [True, np.bool_(True), np.array(1), "1"], ids=repr)
def test_under_ray_any_float_is_an_amount(amount: Any) -> None:
    """``{"gpu": torch.cuda.is_available()}``."""
    with pytest.raises(InvalidInputError, match="must be a number"):
        resources_of(tune.with_resources(train, {"cpu": 1, "gpu": amount}))
    compat.install(replace=True)
    try:
        given = tune.with_resources(train, {"cpu": 1, "gpu": amount})
        assert resources_of(given) == ({"cpu": 1.0, "gpu": 1.0}, None)
        assert PlacementGroupFactory([{"CPU": 1, "GPU": amount}]).bundles == [{"CPU": 1.0, "GPU": 1.0}]
        with pytest.raises(InvalidInputError, match="must be a number"):
            resources_of(tune.with_resources(train, {"cpu": "all"}))
    finally:
        compat.uninstall()


def test_a_generator_function_is_still_one() -> None:
    def steps(config: dict[str, Any]) -> Iterator[int]:
        yield 1

    assert inspect.isgeneratorfunction(tune.with_resources(steps, {"cpu": 1}))


def test_a_class_with_resources_is_still_its_class() -> None:
    given = tune.with_resources(Train, {"gpu": 1})
    assert issubclass(given, Train)
    assert given.__name__ == "Train"
    assert resources_of(given) == ({"gpu": 1.0}, None)
    assert resources_of(Train) == ({"cpu": 1.0}, None)


def test_a_command_with_resources_is_still_a_command() -> None:
    command = tune.Command(["train", "--lr={lr}"], name="digits")
    described = tune.with_resources(command, {"cpu": 2})
    assert isinstance(described, tune.Command)
    assert described.command_spec == command.command_spec
    assert resources_of(described)[0]["cpu"] == 2
    assert resources_of(command)[0]["cpu"] == 1


def test_what_is_said_last_counts() -> None:
    twice = tune.with_resources(tune.with_resources(train, {"cpu": 1}), {"cpu": 4})
    assert resources_of(twice)[0] == {"cpu": 4.0}
    assert resources_of(tune.with_parameters(twice))[0] == {"cpu": 4.0}


def test_a_function_of_the_config_is_asked_for_each_config() -> None:
    default, ask = resources_of(tune.with_resources(train, lambda config: {"cpu": config["n"]}))
    assert ask is not None
    assert default == {"cpu": 1.0}
    assert ask({"n": 3}) == {"cpu": 3.0}
    with pytest.raises(InvalidInputError, match=r"returned for \{'n': -1\}"):
        ask({"n": -1})


def test_a_class_can_say_itself_what_it_needs() -> None:
    class Own(Train):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
            return PlacementGroupFactory([{"CPU": config["n"], "GPU": 1}])

    ask = resources_of(Own)[1]
    assert ask is not None
    assert ask({"n": 2}) == {"cpu": 2.0, "gpu": 1.0}
    assert resources_of(tune.with_resources(Own, {"cpu": 8})) == ({"cpu": 8.0}, None)


def test_a_function_for_a_class_is_called_with_the_config_only() -> None:
    ask = resources_of(tune.with_resources(Train, lambda config: {"cpu": config["n"]}))[1]
    assert ask is not None
    assert ask({"n": 5}) == {"cpu": 5.0}


def test_trial_gets_the_sum_of_its_bundles() -> None:
    five = PlacementGroupFactory([{"CPU": 1, "GPU": 1}, *[{"GPU": 1}] * 4])
    assert resources_of(tune.with_resources(train, five))[0] == {"cpu": 1.0, "gpu": 5.0}
    spread = PlacementGroupFactory([{"CPU": 1}, {"GPU": 1}], strategy="STRICT_SPREAD")
    with pytest.raises(InvalidInputError, match=r"2 bundles on as many nodes"):
        tune.with_resources(train, spread)
    with pytest.raises(NotImplementedError, match="no placement groups"):
        five()


def test_bundles_are_kept_unless_packed() -> None:
    bundles = [{"CPU": 1}, {"GPU": 1}, {"GPU": 1}]
    assert bundles_of(tune.with_resources(train, PlacementGroupFactory(bundles))) == [
        {"cpu": 1.0}, {"gpu": 1.0}, {"gpu": 1.0},
    ]  # fmt: skip
    assert bundles_of(tune.with_resources(train, PlacementGroupFactory(bundles, strategy="STRICT_PACK"))) == []
    assert bundles_of(tune.with_resources(train, PlacementGroupFactory([{"CPU": 1}]))) == []
    assert bundles_of(tune.with_resources(train, {"cpu": 2})) == []
    assert bundles_of(train) == []


def test_the_oldest_resources_count_with_their_extras() -> None:
    class Workers(Train):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> tune.Resources:
            return tune.Resources(cpu=0, gpu=0, extra_cpu=config["workers"], extra_gpu=int(config["use_gpu"]))

    ask = resources_of(Workers)[1]
    assert ask is not None
    assert ask({"workers": 3, "use_gpu": True}) == {"cpu": 3.0, "gpu": 1.0}
    given = {"cpu": 1, "extra_cpu": 2, "custom_resources": {"tpu": 1}, "object_store_memory": 10, "memory": 5}
    assert resources_of(tune.with_resources(train, given))[0] == {"cpu": 3.0, "tpu": 1.0, "memory": 15.0}
    old = tune.Resources(cpu=1, extra_cpu=2, custom_resources={"tpu": 4})
    assert (old.cpu_total(), old.gpu_total(), old.get_res_total("tpu"), old.summary_string()) == (
        3,
        0,
        4,
        "3 cpu, 4 tpu",
    )
    with pytest.raises(InvalidInputError, match=r"Resources\['cpu'\] = -1"):
        tune.Resources(cpu=-1)


def test_what_a_trial_was_granted_answers_in_every_form() -> None:
    from trialpod.tune.placement_groups import TrialResources

    granted = TrialResources({"cpu": 2.0, "nvidia.com/gpu": 1.0})
    assert granted["cpu"] == granted.cpu == granted.head_cpus == 2.0
    assert granted.gpu == 1.0
    assert granted.required_resources == granted.bundles[0] == {"CPU": 2.0, "nvidia.com/gpu": 1.0}


@pytest.mark.parametrize(
    "resources",
    [
        {"cpu": -1},
        {"cpu": "2"},
        {"memory": "2Gi"},
        {"cpu": True},
        {"cpu": 1, "CPU": 1},
        {1: 1},
        5,
        None,
        {"cpu": float("inf")},
        {"extra_cpu": -1},
        {"custom_resources": 1},
    ],
)
def test_what_cannot_be_resources_is_refused(resources: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"tune\.with_resources\(resources=\.\.\.\)"):
        tune.with_resources(train, resources)


def test_placement_groups_compare_by_what_they_hold() -> None:
    first = PlacementGroupFactory([{"CPU": 1, "GPU": 0}, {"GPU": 2}], strategy="SPREAD")
    assert first == PlacementGroupFactory([{"CPU": 1.0}, {"GPU": 2.0}], strategy="SPREAD")
    assert hash(first) == hash(PlacementGroupFactory([{"CPU": 1.0}, {"GPU": 2.0}], strategy="SPREAD"))
    assert first != PlacementGroupFactory([{"CPU": 1.0}, {"GPU": 2.0}])
    assert first.required_resources == {"CPU": 1.0, "GPU": 2.0}
    assert first.head_cpus == 1.0
    assert not first.head_bundle_is_empty
    assert PlacementGroupFactory([{}, {"CPU": 1}]).head_bundle_is_empty


@pytest.mark.parametrize("arguments", [([],), ({"CPU": 1},), ([1],), ([{"CPU": 1}], "PACKED"), ([{"CPU": -1}],)])
def test_a_wrong_placement_group_is_refused(arguments: Any) -> None:
    with pytest.raises(InvalidInputError, match="PlacementGroupFactory"):
        PlacementGroupFactory(*arguments)


def test_an_error_of_the_users_function_names_its_config() -> None:
    _, for_config = resources_of(tune.with_resources(train, lambda config: {"gpu": config["gpus"]}))
    assert for_config is not None
    with pytest.raises(InvalidInputError, match=r"resources for \{'lr': 1\}, raised KeyError: 'gpus'"):
        for_config({"lr": 1})
