from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.trainable.checks import trainable_name


def test_a_function_gets_its_arguments() -> None:
    def train(config: dict[str, Any], data: list[int], scale: int = 1) -> int:
        return sum(data) * scale * int(config["x"])

    bound = tune.with_parameters(train, data=[1, 2], scale=10)
    assert bound({"x": 2}) == 60
    assert trainable_name(bound) == "train"
    assert pickle.loads(cloudpickle.dumps(bound))({"x": 1}) == 30


def test_a_generator_function_stays_one() -> None:
    def steps(config: dict[str, Any], n: int) -> Iterator[int]:
        yield from range(n)

    bound = tune.with_parameters(steps, n=2)
    assert inspect.isgeneratorfunction(bound)
    assert list(bound({})) == [0, 1]


class Train(tune.Trainable):
    def setup(self, config: dict[str, Any], data: Any = None) -> None:
        self.data = data

    def step(self) -> dict[str, Any]:
        return {"n": len(self.data)}


def test_a_class_gets_its_arguments_in_setup() -> None:
    data = [1, 2, 3]
    bound = tune.with_parameters(Train, data=data)
    assert issubclass(bound, Train)
    assert bound.__name__ == "Train"
    trial = bound({"x": 1})
    assert trial.data is data
    copied = pickle.loads(cloudpickle.dumps(bound))({"x": 1})
    assert copied.data == data


def test_two_trainables_of_one_name_keep_their_own_arguments() -> None:
    first, second = tune.with_parameters(Train, data=[1]), tune.with_parameters(Train, data=[2])
    assert (first({}).data, second({}).data) == ([1], [2])


def test_parameters_and_resources_combine_in_either_order() -> None:
    from trialpod.tune.resources import resources_of

    for bound in (
        tune.with_parameters(tune.with_resources(Train, {"cpu": 2}), data=[1]),
        tune.with_resources(tune.with_parameters(Train, data=[1]), {"cpu": 2}),
    ):
        assert bound({}).data == [1]
        assert resources_of(bound)[0] == {"cpu": 2.0}


def test_an_argument_that_is_not_taken_is_refused() -> None:
    def train(config: dict[str, Any]) -> None: ...

    with pytest.raises(InvalidInputError, match=r"train cannot be called as \(config, data=\.\.\.\)"):
        tune.with_parameters(train, data=1)
    with pytest.raises(InvalidInputError, match=r"Train\.setup.*other"):
        tune.with_parameters(Train, other=1)
    with pytest.raises(InvalidInputError, match="must be a function"):
        tune.with_parameters(5, data=1)
    with pytest.raises(InvalidInputError, match="no Trainable is registered as 'nowhere'"):
        tune.with_parameters("nowhere", data=1)


def test_what_the_runner_passes_does_not_have_to_be_bound() -> None:
    def first(config: dict[str, Any], reporter: Any, data: Any) -> Any:
        return data

    def second(config: dict[str, Any], checkpoint_dir: str, data: Any) -> Any:
        return data

    assert tune.with_parameters(first, data=1)({}, reporter=None) == 1
    assert tune.with_parameters(second, data=2)({}, checkpoint_dir=None) == 2
