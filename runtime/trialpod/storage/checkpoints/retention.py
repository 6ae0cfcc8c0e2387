"""Which checkpoints of a trial to remove: the rules of Ray Tune's checkpoint manager, restated.

Invariants:

* Checkpoints are ranked from worst to best. One with a score goes in front of the first that is better; so ties keep
  the order of registration. NaN is worse than every number.
* One that is registered without the score attribute goes last, so it counts as the best at that time.
* All but the best `num_to_keep` go, except the latest, which always stays: up to ``num_to_keep + 1`` remain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import CheckpointInfo, CheckpointRules

_ABSENT = object()
_WORST = -math.inf


def to_delete(checkpoints: Sequence[CheckpointInfo], rules: CheckpointRules) -> list[CheckpointInfo]:
    """Return the checkpoints that the rules no longer keep, worst first.

    Args:
        checkpoints: all that the trial has, in the order of their registration (oldest first).
        rules: `num_to_keep`, `score_attribute` ("a/b" for nested metrics) and `score_order` are used.

    Raises:
        InvalidInputError: a score is not a number, or `num_to_keep` is below 1.
    """
    keep = rules.num_to_keep
    if keep is None:
        return []
    if keep < 1:
        raise InvalidInputError(f"num_to_keep must be 1 or more, or None to keep every checkpoint; it is {keep}")
    if not checkpoints:
        return []
    latest = checkpoints[-1]
    return [info for info in ranked(checkpoints, rules)[:-keep] if info is not latest]


def ranked(checkpoints: Sequence[CheckpointInfo], rules: CheckpointRules) -> list[CheckpointInfo]:
    """Return the checkpoints from worst to best; arguments and errors as for `to_delete`."""
    if rules.score_attribute is None:
        return list(checkpoints)
    order: list[CheckpointInfo] = []
    ranks: list[tuple[bool, float]] = []
    for info in checkpoints:
        rank = _rank(info, rules)
        if rank is None:
            # Last now, yet no later one stops in front of it.
            place, rank = len(order), (False, _WORST)
        else:
            place = next((i for i, other in enumerate(ranks) if other > rank), len(ranks))
        order.insert(place, info)
        ranks.insert(place, rank)
    return order


def _rank(info: CheckpointInfo, rules: CheckpointRules) -> tuple[bool, float] | None:
    attribute = rules.score_attribute or ""
    score = _lookup(info.metrics, attribute)
    if score is _ABSENT:
        return None
    if not isinstance(score, Real):
        raise InvalidInputError(
            f"the checkpoint score {attribute!r} of {info.name} is {score!r} ({type(score).__name__}), not a number; "
            "report a number under that name, or choose another checkpoint score attribute"
        )
    value = float(score)
    if math.isnan(value):
        return False, _WORST
    return True, value if rules.score_order == "max" else -value


def _lookup(metrics: Mapping[str, Any], attribute: str) -> Any:
    if attribute in metrics:
        return metrics[attribute]
    found: Any = metrics
    for part in attribute.split("/"):
        if not isinstance(found, Mapping) or part not in found:
            return _ABSENT
        found = found[part]
    return found
