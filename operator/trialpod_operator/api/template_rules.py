"""What can be said of a pod template without a cluster: its outline, and whether it fights the short cuts.

`spec.image` and `spec.resources` are laid over the trial's container: the one named "trial", else the first. The same
thing said in both places with different values is a mistake, not a question of precedence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.api.paths import Path
from trialpod_operator.api.quantity import parse_quantity

TRIAL_CONTAINER = "trial"


def check_template(
    template: Mapping[str, Any], image: str | None, resources: Mapping[str, int | str]
) -> Iterator[tuple[Path, str]]:
    """Yield the mistakes as paths below the template and messages."""
    for key in template:
        if key not in ("metadata", "spec"):
            guess = nearest(key, ["metadata", "spec"])
            advice = f'did you mean "{guess}"?' if guess else "a pod's fields go below template.spec."
            yield (key,), f"unknown field; {advice} Allowed here: metadata, spec"
        elif not isinstance(template[key], dict):
            yield (key,), "must be a mapping"
    pod = template.get("spec")
    if not isinstance(pod, dict):
        return
    if pod.get("restartPolicy", "Never") != "Never":
        yield ("spec", "restartPolicy"), "must be Never: a failed trial gets a new pod, by spec.failurePolicy"
    containers = pod.get("containers", [])
    if not isinstance(containers, list):
        yield ("spec", "containers"), "must be a list"
        return
    for index, container in enumerate(containers):
        if not isinstance(container, dict) or not isinstance(container.get("name"), str):
            yield ("spec", "containers", index), "must be a mapping with a name"
    named = [each for each in containers if isinstance(each, dict) and each.get("name") == TRIAL_CONTAINER]
    trial = (named or containers or [None])[0]
    if isinstance(trial, dict):
        for path, message in _conflicts(trial, image, resources):
            yield ("spec", "containers", containers.index(trial), *path), message


def _conflicts(
    container: Mapping[str, Any], image: str | None, resources: Mapping[str, int | str]
) -> Iterator[tuple[Path, str]]:
    own_image = container.get("image")
    if image is not None and own_image is not None and own_image != image:
        yield ("image",), f'"{own_image}" contradicts spec.image, which is "{image}"; keep one of them'
    own = container.get("resources")
    for part in ("requests", "limits"):
        amounts = own.get(part) if isinstance(own, dict) else None
        for name, value in amounts.items() if isinstance(amounts, dict) else ():
            try:
                differs = name in resources and parse_quantity(value) != parse_quantity(resources[name])
            except (InvalidInputError, TypeError, ValueError):
                yield ("resources", part, name), f"{value!r} is not a Kubernetes quantity such as 2, 500m or 2Gi"
                continue
            if differs:
                message = f"{value} contradicts spec.resources, which says {resources[name]}; keep one of them"
                yield ("resources", part, name), message
