"""What a trial needs to run: Ray Tune's `PlacementGroupFactory`, and the plain form that trialpod works with.

The plain form is a dict of names to numbers: ``cpu`` and ``gpu`` (counts, fractions allowed), ``memory`` (bytes), and
any other name as it stands (an extended resource of the cluster, for instance).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trialpod.errors import InvalidInputError, nearest

DEFAULT_RESOURCES = {"cpu": 1.0}
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

_PLAIN_NAMES = {"CPU": "cpu", "GPU": "gpu"}


def plain_resources(given: Mapping[str, Any], where: str = "resources") -> dict[str, float]:
    """Return resources in their plain form; those of amount 0 are left out.

    Raises:
        InvalidInputError: a name or an amount cannot be one.
    """
    resources: dict[str, float] = {}
    for name, amount in given.items():
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"{where}: {name!r} is not the name of a resource; use 'cpu', 'gpu', 'memory'")
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < math.inf:
            hint = "; memory is a number of bytes" if name == "memory" and isinstance(amount, str) else ""
            raise InvalidInputError(f"{where}[{name!r}] = {amount!r}: must be a number of at least 0{hint}")
        plain = _PLAIN_NAMES.get(name, name)
        if plain in resources:
            raise InvalidInputError(f"{where}: {plain!r} is given twice, as 'cpu' and 'CPU' mean the same")
        resources[plain] = float(amount)
    for legacy in resources:
        if legacy.startswith("extra_") or legacy in ("custom_resources", "object_store_memory"):
            raise InvalidInputError(f"{where}[{legacy!r}]: not supported yet; a trial is one process")
    return {name: amount for name, amount in resources.items() if amount}


class PlacementGroupFactory:
    """The resources of one trial as bundles; the first bundle is for the Trainable itself.

    Only one bundle can run yet: a trial is one process or one pod. Objects with more can be made, compared and
    passed around, and are refused where a trial would be started with them.

    Args:
        bundles: dicts such as ``{"CPU": 1, "GPU": 0.5, "memory": 2e9}``; the first may be empty.
        strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD": how bundles are laid over nodes.

    Raises:
        InvalidInputError: there is no bundle, or something in them cannot be a resource.
    """

    def __init__(self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK") -> None:
        if isinstance(bundles, Mapping) or not isinstance(bundles, Sequence) or not bundles:
            raise InvalidInputError(
                f"PlacementGroupFactory(bundles={bundles!r}): bundles must be a list of dicts, at least one, "
                "such as [{'CPU': 1, 'GPU': 1}]"
            )
        for index, bundle in enumerate(bundles):
            if not isinstance(bundle, Mapping):
                raise InvalidInputError(
                    f"PlacementGroupFactory(bundles=...): bundles[{index}] must be a dict, not {bundle!r}"
                )
            plain_resources(bundle, f"PlacementGroupFactory: bundles[{index}]")
        if strategy not in STRATEGIES:
            guess = nearest(str(strategy), STRATEGIES)
            raise InvalidInputError(
                f"PlacementGroupFactory(strategy={strategy!r}): strategy must be one of {', '.join(STRATEGIES)}"
                + (f" (did you mean {guess!r}?)" if guess else "")
            )
        self._bundles = [{name: float(amount) for name, amount in bundle.items() if amount} for bundle in bundles]
        self._strategy = strategy

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The bundles, without amounts of 0."""
        return [dict(bundle) for bundle in self._bundles]

    @property
    def strategy(self) -> str:
        """How the bundles are laid over nodes."""
        return self._strategy

    @property
    def head_bundle_is_empty(self) -> bool:
        """True when the Trainable itself needs nothing."""
        return not self._bundles[0]

    @property
    def head_cpus(self) -> float:
        """CPUs for the Trainable itself."""
        return self._bundles[0].get("CPU", self._bundles[0].get("cpu", 0.0))

    @property
    def required_resources(self) -> dict[str, float]:
        """The sum over all bundles."""
        total: dict[str, float] = {}
        for bundle in self._bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PlacementGroupFactory)
            and self._bundles == other._bundles
            and self._strategy == other._strategy
        )

    def __hash__(self) -> int:
        return hash((tuple(tuple(sorted(bundle.items())) for bundle in self._bundles), self._strategy))

    def __repr__(self) -> str:
        return f"PlacementGroupFactory({self._bundles!r}, strategy={self._strategy!r})"


def to_resources(given: PlacementGroupFactory | Mapping[str, Any], where: str = "resources") -> dict[str, float]:
    """Return the plain form of either way to write resources.

    Raises:
        InvalidInputError: it is neither, holds what cannot be a resource, or has more than one bundle.
    """
    if isinstance(given, PlacementGroupFactory):
        if len(given.bundles) > 1:
            raise InvalidInputError(
                f"{where}: {given!r} has {len(given.bundles)} bundles, and trials of more than one bundle are not "
                "supported yet; put what the trial needs into one bundle"
            )
        return plain_resources(given.bundles[0], where)
    if isinstance(given, Mapping):
        return plain_resources(given, where)
    raise InvalidInputError(
        f"{where}: must be a dict such as {{'cpu': 2, 'gpu': 1}} or a PlacementGroupFactory, not {given!r}"
    )
