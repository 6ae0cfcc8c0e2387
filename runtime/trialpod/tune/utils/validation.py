"""Checks before an experiment: does a class save and restore, do the points of a warm start fit together?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trialpod.errors import InvalidInputError, TrainableError


def validate_save_restore(
    trainable_cls: type,
    config: dict[str, Any] | None = None,
    num_gpus: int = 0,  # noqa: ARG001
    use_object_store: bool = False,
) -> bool:
    """Train an object three times, save it, restore it in a second one, and continue with both.

    Args:
        trainable_cls: a subclass of `tune.Trainable`, or the name of a registered one.
        config: what to make the objects with.
        num_gpus: accepted for compatibility; the objects live in this process.
        use_object_store: whether the state travels as bytes (`save_to_object`) instead of in a directory.

    Returns:
        True.

    Raises:
        InvalidInputError: it is not a Trainable class.
        TrainableError: the restored object does not continue where the first one was.
    """
    import shutil
    import tempfile

    from trialpod.tune.registry import resolve_trainable
    from trialpod.tune.trainable.trainable import Trainable

    cls: Any = resolve_trainable(trainable_cls)
    if not isinstance(cls, type) or not issubclass(cls, Trainable):
        raise InvalidInputError(
            f"validate_save_restore({trainable_cls!r}): needs a subclass of tune.Trainable; functions restore "
            "themselves, from tune.get_checkpoint()"
        )
    first, second = cls(dict(config or {})), cls(dict(config or {}))
    try:
        for _ in range(3):
            first.train()
        if use_object_store:
            second.restore_from_object(first.save_to_object())
        else:
            folder = tempfile.mkdtemp(prefix="trialpod-validate-")
            try:
                saved = first.save(folder)
                second.restore(saved)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        for expected in (4, 5):
            got = second.train()["training_iteration"]
            if got != expected:
                raise TrainableError(
                    f"{cls.__name__} was saved after iteration 3 and restored, and its next result has "
                    f"training_iteration {got}, not {expected}; does step() set that itself?"
                )
    finally:
        first.stop()
        second.stop()
    return True


def validate_warmstart(
    parameter_names: Sequence[str],
    points_to_evaluate: Sequence[Any],
    evaluated_rewards: Sequence[Any] | None,
    validate_point_name_lengths: bool = True,
) -> None:
    """Raise unless points and rewards to start a search from fit together.

    Args:
        parameter_names: of the search space.
        points_to_evaluate: configs, as dicts or lists.
        evaluated_rewards: their metrics, if they are known.
        validate_point_name_lengths: whether each point must have as many values as there are names.

    Raises:
        InvalidInputError: they do not; it says where.
    """
    if points_to_evaluate:
        if not isinstance(points_to_evaluate, (list, tuple)):
            raise InvalidInputError(
                f"points_to_evaluate must be a list of configs, not {type(points_to_evaluate).__name__}"
            )
        for index, point in enumerate(points_to_evaluate):
            if not isinstance(point, (dict, list)):
                raise InvalidInputError(f"points_to_evaluate[{index}] must be a dict or a list, not {point!r}")
            if validate_point_name_lengths and len(point) != len(parameter_names):
                raise InvalidInputError(
                    f"points_to_evaluate[{index}] has {len(point)} values, and the search space has "
                    f"{len(parameter_names)} parameters ({', '.join(parameter_names)})"
                )
    if evaluated_rewards is None or len(evaluated_rewards) == 0:
        return
    if not isinstance(evaluated_rewards, (list, tuple)):
        raise InvalidInputError(f"evaluated_rewards must be a list, not {type(evaluated_rewards).__name__}")
    if len(evaluated_rewards) != len(points_to_evaluate or ()):
        raise InvalidInputError(
            f"there are {len(evaluated_rewards)} evaluated_rewards for {len(points_to_evaluate or ())} "
            "points_to_evaluate; give one for each"
        )
