"""What a `Tuner` must know of a Trainable before it starts anything, and what it refuses."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

from trialpod.errors import InvalidInputError, refuse_stand_ins
from trialpod.protocol.messages import CheckpointRules
from trialpod.tune.trainable.function_call import SignatureError, check_call
from trialpod.tune.trial_config import CheckpointConfig


@dataclass(frozen=True, slots=True)
class TrainableFacts:
    """A checked Trainable.

    Attributes:
        name: what trials and experiments are named after.
        is_class: whether it is a class Trainable.
        saves: whether it implements `save_checkpoint`; only classes do.
        resets: whether it can be reused for another trial.
    """

    name: str
    is_class: bool
    saves: bool
    resets: bool


def trainable_name(trainable: Any) -> str:
    """Return the name of a Trainable: its own, or that of the function that a partial wraps."""
    name = getattr(trainable, "_name", None) or getattr(trainable, "__name__", None)
    if not isinstance(name, str) and isinstance(trainable, functools.partial):
        return trainable_name(trainable.func)
    return name.strip("<>") if isinstance(name, str) and name.strip("<>") else "DEFAULT"


def inspect_trainable(trainable: Any) -> TrainableFacts:
    """Return the facts of a Trainable."""
    refuse_stand_ins(trainable)
    if inspect.isclass(trainable):
        return _class(trainable)
    if not callable(trainable):
        trainer = " (a Trainer is not supported; wrap it in a function)" if hasattr(trainable, "fit") else ""
        raise InvalidInputError(
            f"Tuner(trainable={trainable!r}): must be a function (config) or a subclass of tune.Trainable, "
            f"not {type(trainable).__name__}{trainer}"
        )
    _function(trainable)
    return TrainableFacts(trainable_name(trainable), is_class=False, saves=False, resets=True)


def _class(cls: type) -> TrainableFacts:
    from trialpod.tune.trainable.trainable import Trainable

    if not issubclass(cls, Trainable):
        raise InvalidInputError(
            f"Tuner(trainable={cls.__name__}): a class must be a subclass of tune.Trainable; "
            f"write class {cls.__name__}(tune.Trainable)"
        )
    if cls.step is Trainable.step:
        overridden = " or train(), which the base class needs itself" if cls.train is not Trainable.train else ""
        if not overridden:
            raise InvalidInputError(
                f"Tuner(trainable={cls.__name__}): the class does not implement step(), which does one iteration "
                "and returns a dict of metrics"
            )
    return TrainableFacts(
        trainable_name(cls),
        is_class=True,
        saves=cls.save_checkpoint is not Trainable.save_checkpoint,
        resets=cls.reset_config is not Trainable.reset_config,
    )


def _function(function: Any) -> None:
    name = trainable_name(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInputError(
            f"Tuner(trainable={name}): an async function cannot be a Trainable; "
            "write a function that runs it with asyncio.run()"
        )
    try:
        check_call(function)
    except SignatureError as error:
        reason = f" ({error.reason})" if error.reason else ""
        raise InvalidInputError(
            f"Tuner(trainable={name}): a Trainable is called with one positional argument, the config, but its "
            f"signature is {name}({error.arguments}){reason}; bind further arguments with tune.with_parameters (only "
            "one called reporter or checkpoint_dir is passed)"
        ) from None


def checkpoint_rules(config: CheckpointConfig, facts: TrainableFacts) -> CheckpointRules:
    """Return the rules that a CheckpointConfig means for a Trainable."""
    for argument, value in (
        ("checkpoint_at_end", config.checkpoint_at_end),
        ("checkpoint_frequency", config.checkpoint_frequency),
    ):
        if not value or facts.saves:
            continue
        if facts.is_class:
            raise InvalidInputError(
                f"CheckpointConfig({argument}={value!r}): {facts.name} does not implement save_checkpoint(); "
                "implement it, and load_checkpoint(), or leave the argument out"
            )
        raise InvalidInputError(
            f"CheckpointConfig({argument}={value!r}): cannot be used with the function {facts.name}, which decides "
            "itself when to checkpoint: tune.report(metrics, checkpoint=...)"
        )
    at_end = config.checkpoint_at_end
    return CheckpointRules(
        frequency=config.checkpoint_frequency,
        at_end=facts.saves if at_end is None else at_end,
        num_to_keep=config.num_to_keep,
        score_attribute=config.checkpoint_score_attribute,
        score_order=config.checkpoint_score_order,
    )
