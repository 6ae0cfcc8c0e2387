"""What a pod takes of a cluster, as the scheduler counts it.

The rule is Kubernetes' own (docs: "Resource sharing within containers", and KEP-753 for sidecars): containers and
sidecars together, or the init container that needs most where that is more, and the overhead of the runtime class.
Requests count; where only a limit is given, the API server has made it the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod_operator.api.quantity import quantity_to_float

Amounts = dict[str, float]

MOST_RESOURCES = 16
"""So many different resources of a pod are told apart, the first ones by name."""


def pod_resources(pod: Mapping[str, Any]) -> Amounts:
    """Return what a pod takes: cores, bytes and devices, without what it takes nothing of.

    Args:
        pod: as the API server shows it.
    """
    spec = pod.get("spec") or {}
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = _requests(container.get("resources"))
        if container.get("restartPolicy") == "Always":
            _add(sidecars, asked)
            asked = {}
        _raise(peak, _sum(sidecars, asked))
    total = dict(sidecars)
    for container in spec.get("containers") or ():
        _add(total, _requests(container.get("resources")))
    _raise(total, peak)
    total |= _requests(spec.get("resources"))  # of the pod as a whole, where that is given
    _add(total, _amounts(spec.get("overhead") or {}))
    return {name: total[name] for name in sorted(total)[:MOST_RESOURCES] if total[name] > 0}


def total_resources(pods: Iterable[Mapping[str, Any]]) -> Amounts:
    """Return what pods take together."""
    total: Amounts = {}
    for pod in pods:
        _add(total, pod_resources(pod))
    return total


def _requests(resources: Any) -> Amounts:
    given = resources or {}
    return _amounts({**(given.get("limits") or {}), **(given.get("requests") or {})})


def _amounts(quantities: Mapping[str, Any]) -> Amounts:
    found: Amounts = {}
    for name, value in quantities.items():
        try:
            found[name] = quantity_to_float(value)
        except InvalidInputError:  # the API server would not have taken it
            continue
    return found


def _sum(*parts: Amounts) -> Amounts:
    total: Amounts = {}
    for part in parts:
        _add(total, part)
    return total


def _add(total: Amounts, more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0.0) + amount


def _raise(total: Amounts, least: Amounts) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, 0.0), amount)
