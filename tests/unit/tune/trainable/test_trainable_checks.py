from __future__ import annotations

import functools
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune import CheckpointConfig
from trialpod.tune.trainable.checks import checkpoint_rules, inspect_trainable, trainable_name


def train(config: dict[str, Any]) -> None: ...


class Steps(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {}


class Saves(Steps):
    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True


class Functor:
    def __call__(self, config: dict[str, Any]) -> None: ...

    def method(self, config: dict[str, Any]) -> None: ...


def test_names_are_taken_as_ray_takes_them() -> None:
    assert trainable_name(train) == "train"
    assert trainable_name(functools.partial(functools.partial(train), {})) == "train"
    assert trainable_name(lambda config: None) == "lambda"
    assert trainable_name(Functor().method) == "method"
    assert trainable_name(Functor()) == "DEFAULT"
    assert trainable_name(Steps) == "Steps"


def test_functions_methods_partials_and_callables_are_trainables() -> None:
    oldest = lambda config, reporter: None  # noqa: E731
    for function in (train, Functor(), Functor().method, functools.partial(train), lambda config: 1, legacy, oldest):
        assert not inspect_trainable(function).is_class


def test_a_class_tells_what_it_implements() -> None:
    assert (inspect_trainable(Steps).saves, inspect_trainable(Steps).resets) == (False, False)
    assert (inspect_trainable(Saves).saves, inspect_trainable(Saves).resets) == (True, True)


async def asynchronous(config: dict[str, Any]) -> None: ...


def legacy(config: dict[str, Any], checkpoint_dir: str | None = None) -> None: ...


class NoStep(tune.Trainable):
    pass


class NoTrainable:
    pass


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        (lambda: None, "one positional argument, the config"),
        (lambda config, data: None, "one positional argument, the config"),
        (asynchronous, "asyncio.run"),
        (5, "not int"),
        (None, "not NoneType"),
        (NoTrainable, "must be a subclass of tune.Trainable"),
        (NoStep, "does not implement step"),
    ],
)
def test_what_cannot_be_a_trainable_is_refused(trainable: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        inspect_trainable(trainable)


def test_saving_class_is_checkpointed_at_its_end() -> None:
    assert checkpoint_rules(CheckpointConfig(), inspect_trainable(Saves)).at_end
    assert not checkpoint_rules(CheckpointConfig(), inspect_trainable(Steps)).at_end
    assert not checkpoint_rules(CheckpointConfig(), inspect_trainable(train)).at_end
    assert not checkpoint_rules(CheckpointConfig(checkpoint_at_end=False), inspect_trainable(Saves)).at_end


@pytest.mark.parametrize(
    "config", [CheckpointConfig(checkpoint_at_end=True), CheckpointConfig(checkpoint_frequency=2)]
)
def test_checkpoints_that_nobody_writes_are_refused(config: CheckpointConfig) -> None:
    with pytest.raises(ValueError, match="cannot be used with the function train"):
        checkpoint_rules(config, inspect_trainable(train))
    with pytest.raises(ValueError, match=r"Steps does not implement save_checkpoint\(\)"):
        checkpoint_rules(config, inspect_trainable(Steps))
    checkpoint_rules(config, inspect_trainable(Saves))


def test_all_rules_are_carried_over() -> None:
    rules = checkpoint_rules(CheckpointConfig(2, "loss", "min", 3, False), inspect_trainable(Saves))
    assert (rules.num_to_keep, rules.score_attribute, rules.score_order) == (2, "loss", "min")
    assert (rules.frequency, rules.at_end) == (3, False)
