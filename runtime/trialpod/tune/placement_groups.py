"""What a trial needs to run: Ray Tune's `PlacementGroupFactory`, and the plain form that trialpod works with.

The plain form is a dict of names to numbers: ``cpu`` and ``gpu`` (counts, fractions allowed), ``memory`` (bytes), and
any other name unchanged (an extended resource of the cluster, for instance).

Invariant: on one machine a trial is one process. What it and the workers that it starts need lies in one place, so
several bundles, and the ``extra_`` amounts of old, count together. In a cluster, bundles beside the first are pods of
their own (`bundles_of_group`), unless they are to be together on one node in any case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, NotSupportedError, nearest

DEFAULT_RESOURCES = {"cpu": 1.0}
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

_PLAIN_NAMES = {"CPU": "cpu", "GPU": "gpu"}
_CUSTOM = ("custom_resources", "extra_custom_resources")
# An object store of its own there is not: objects lie in the memory of the trial.
_MEANS = {"object_store_memory": "memory", "extra_object_store_memory": "memory"}


def plain_resources(given: Mapping[str, Any], where: str = "resources") -> dict[str, float]:
    """Return resources in their plain form; those of amount 0 are left out.

    Raises:
        InvalidInputError: a name or an amount cannot be one.
    """
    resources: dict[str, float] = {}
    amounts = {key: value for key, value in given.items() if key not in _CUSTOM}
    for group in _CUSTOM:
        custom = given.get(group) or {}
        if not isinstance(custom, Mapping):
            raise InvalidInputError(f"{where}[{group!r}] = {custom!r}: must be a dict of names to amounts")
        for name, amount in custom.items():
            amounts[f"extra_{name}" if group.startswith("extra_") else name] = amount
    for name, amount in amounts.items():
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"{where}: {name!r} is not the name of a resource; use 'cpu', 'gpu', 'memory'")
        value = _as_number(amount)
        if value is None or not 0 <= value < math.inf:
            hint = "; memory is a number of bytes" if name == "memory" and isinstance(amount, str) else ""
            raise InvalidInputError(f"{where}[{name!r}] = {amount!r}: must be a number of at least 0{hint}")
        plain = _PLAIN_NAMES.get(name, name)
        if plain in resources:
            raise InvalidInputError(f"{where}: {plain!r} is given twice, as 'cpu' and 'CPU' mean the same")
        resources[plain] = value
    for legacy in [name for name in resources if name.startswith("extra_") or name == "object_store_memory"]:
        _add(resources, _MEANS.get(legacy, legacy.removeprefix("extra_")), resources.pop(legacy))
    return {name: amount for name, amount in resources.items() if amount}


def _as_number(amount: Any) -> float | None:
    """Return an amount as a float, None if it is not a number; under the name `ray` as a number `float` takes it."""
    if type(amount) is not bool and isinstance(amount, Real):
        return float(amount)
    if not under_ray():
        return None
    try:
        return float(amount)
    except (TypeError, ValueError):
        return None


def _add(resources: dict[str, float], name: str, amount: float) -> None:
    resources[name] = resources.get(name, 0.0) + amount


class PlacementGroupFactory:
    """The resources of one trial as bundles; the first bundle is for the Trainable itself.

    On one machine a trial is one process, which is given the sum of the bundles. In a cluster each bundle is a pod:
    the pods start together and all run the Trainable, with a rank each (``tune.get_context().get_world_rank()``), and
    only what rank 0 reports counts. With STRICT_PACK a trial is one pod with the sum.

    Args:
        bundles: dicts such as ``{"CPU": 1, "GPU": 0.5, "memory": 2e9}``; the first may be empty.
        strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD": how bundles are laid over nodes. The last one,
            with several bundles, is refused where a trial would be started with it.

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
            if not (under_ray() and all(isinstance(amount, (int, float)) for amount in bundle.values())):
                plain_resources(bundle, f"PlacementGroupFactory: bundles[{index}]")  # else where it is used
        if strategy not in STRATEGIES:
            guess = nearest(str(strategy), STRATEGIES)
            raise InvalidInputError(
                f"PlacementGroupFactory(strategy={strategy!r}): strategy must be one of {', '.join(STRATEGIES)}"
                + (f" (did you mean {guess!r}?)" if guess else "")
            )
        self._bundles = [
            {name: value for name, amount in bundle.items() if (value := float(amount))} for bundle in bundles
        ]
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: there are no placement groups to make.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            "a PlacementGroupFactory cannot be called: there are no placement groups; pass it to tune.with_resources"
        )

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
        if under_ray():
            arguments = f"bundles={self._bundles!r}, strategy={self._strategy!r}"
            empty = self.head_bundle_is_empty
            return f"<ResourceRequest (_bound=<BoundArguments ({arguments})>, head_bundle_is_empty={empty})>"
        return f"PlacementGroupFactory({self._bundles!r}, strategy={self._strategy!r})"


class Resources:
    """The resources of one trial as the first API had them; the ``extra_`` ones are for what the trial starts.

    Args:
        cpu: CPUs of the Trainable itself.
        gpu: GPUs of the Trainable itself; fractions are allowed.
        memory: bytes.
        object_store_memory: bytes; counts as memory.
        extra_cpu: CPUs beside those.
        extra_gpu: GPUs beside those.
        extra_memory: bytes beside those.
        extra_object_store_memory: bytes; counts as memory.
        custom_resources: amounts of any other resources by name.
        extra_custom_resources: the same, beside those.
        has_placement_group: accepted for compatibility, unused.

    Raises:
        InvalidInputError: an amount cannot be one.
    """

    def __init__(
        self,
        cpu: float = 0,
        gpu: float = 0,
        memory: float = 0,
        object_store_memory: float = 0,
        extra_cpu: float = 0,
        extra_gpu: float = 0,
        extra_memory: float = 0,
        extra_object_store_memory: float = 0,
        custom_resources: Mapping[str, float] | None = None,
        extra_custom_resources: Mapping[str, float] | None = None,
        has_placement_group: bool = False,
    ) -> None:
        self.cpu, self.gpu, self.memory, self.object_store_memory = cpu, gpu, memory, object_store_memory
        self.extra_cpu, self.extra_gpu, self.extra_memory = extra_cpu, extra_gpu, extra_memory
        self.extra_object_store_memory = extra_object_store_memory
        self.custom_resources = dict(custom_resources or {})
        self.extra_custom_resources = dict(extra_custom_resources or {})
        self.has_placement_group = has_placement_group
        plain_resources(self.amounts(), "Resources")

    def amounts(self) -> dict[str, Any]:
        """Return what was given, by the arguments' names."""
        return {name: value for name, value in vars(self).items() if name != "has_placement_group" and value}

    def cpu_total(self) -> float:
        """Return all CPUs."""
        return self.cpu + self.extra_cpu

    def gpu_total(self) -> float:
        """Return all GPUs."""
        return self.gpu + self.extra_gpu

    def memory_total(self) -> float:
        """Return all memory in bytes."""
        return self.memory + self.extra_memory

    def object_store_memory_total(self) -> float:
        """Return all object store memory in bytes."""
        return self.object_store_memory + self.extra_object_store_memory

    def get_res_total(self, key: str) -> float:
        """Return all there is of another resource."""
        return self.custom_resources.get(key, 0) + self.extra_custom_resources.get(key, 0)

    def get(self, key: str) -> float:
        """Return what the Trainable itself has of another resource."""
        return self.custom_resources.get(key, 0)

    def is_nonnegative(self) -> bool:
        """Return True: nothing else can be made."""
        return True

    def to_json(self) -> dict[str, Any]:
        """Return the arguments as a dict."""
        return {name: value for name, value in vars(self).items() if name != "has_placement_group"}

    def summary_string(self) -> str:
        """Return a short text for people."""
        return ", ".join(f"{amount:g} {name}" for name, amount in to_resources(self).items()) or "nothing"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resources) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Resources({', '.join(f'{name}={value!r}' for name, value in self.amounts().items())})"


class TrialResources(dict[str, float]):
    """What a trial was granted: the plain form, which also answers as the older classes do."""

    @property
    def cpu(self) -> float:
        """CPUs."""
        return self.get("cpu", 0.0)

    @property
    def gpu(self) -> float:
        """GPUs, possibly under a name such as ``nvidia.com/gpu``."""
        return self.get("gpu", 0.0) or sum(amount for name, amount in self.items() if name.endswith("/gpu"))

    @property
    def bundles(self) -> list[dict[str, float]]:
        """All of it as one bundle, with Ray's names."""
        names = {"cpu": "CPU", "gpu": "GPU"}
        return [{names.get(name, name): amount for name, amount in self.items()}]

    @property
    def strategy(self) -> str:
        """Always PACK: it is one bundle."""
        return "PACK"

    @property
    def required_resources(self) -> dict[str, float]:
        """The same as the one bundle."""
        return self.bundles[0]

    @property
    def head_cpus(self) -> float:
        """CPUs."""
        return self.cpu

    @property
    def head_bundle_is_empty(self) -> bool:
        """True when the trial was granted nothing."""
        return not self


def bundles_of_group(given: Any, where: str = "resources") -> list[dict[str, float]]:
    """Return the bundles, in the plain form, of a trial that is a group of pods in a cluster; else an empty list."""
    if not isinstance(given, PlacementGroupFactory) or len(given.bundles) < 2 or given.strategy == "STRICT_PACK":
        return []
    return [plain_resources(bundle, where) for bundle in given.bundles]


def to_resources(
    given: PlacementGroupFactory | Resources | Mapping[str, Any], where: str = "resources"
) -> dict[str, float]:
    """Return the plain form of any way to write resources.

    Raises:
        InvalidInputError: it is none, holds what cannot be a resource, or wants bundles on several nodes.
    """
    if isinstance(given, PlacementGroupFactory):
        if len(given.bundles) > 1 and given.strategy == "STRICT_SPREAD":
            raise InvalidInputError(
                f"{where}: {given!r} wants its {len(given.bundles)} bundles on as many nodes, and a trial is one "
                "process or one pod; leave the strategy out if the bundles may be together"
            )
        total: dict[str, float] = {}
        for bundle in given.bundles:
            for name, amount in plain_resources(bundle, where).items():
                _add(total, name, amount)
        return total
    if isinstance(given, Resources):
        return plain_resources(given.amounts(), where)
    if isinstance(given, Mapping):
        return plain_resources(given, where)
    raise InvalidInputError(
        f"{where}: must be a dict such as {{'cpu': 2, 'gpu': 1}} or a PlacementGroupFactory, not {given!r}"
    )
