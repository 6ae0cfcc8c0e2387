"""What can be said of a pod template without a cluster: its outline, and whether it fights the short cuts.

`spec.image` and `spec.resources` are laid over the trial's container: the one named "trial", else the first. The same
thing said in both places with different values is a mistake, not a question of precedence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.api.models import API_VERSION
from trialpod_operator.api.paths import Path
from trialpod_operator.api.quantity import parse_quantity

TRIAL_CONTAINER = "trial"

OWN_PREFIX = f"{API_VERSION.partition('/')[0]}/"
"""Of trialpod's labels and annotations, by which it finds its pods and knows what it has done with them."""

_MAPPING, _TEXTS, _NAMES, _MAPPINGS = "a mapping", "a mapping of texts", "a list of texts", "a list of mappings"
_TEXT, _WHOLE = "a text", "a whole number"
_TYPES: Mapping[str, Any] = {
    _MAPPING: dict, _TEXTS: dict, _NAMES: list, _MAPPINGS: list, _TEXT: str, _WHOLE: int
}  # fmt: skip

_METADATA = (
    ("metadata.labels", _TEXTS, "{team: vision}"),
    ("metadata.annotations", _TEXTS, '{example.com/note: "1"}'),
)
_CONTAINER = (
    ("env", _MAPPINGS, "[{name: LEVEL, value: debug}]"),
    ("env[].name", _TEXT, "LEVEL"),
    ("volumeMounts", _MAPPINGS, "[{name: data, mountPath: /data}]"),
    ("resources", _MAPPING, "{limits: {memory: 2Gi}}"),
    ("resources.requests", _MAPPING, "{memory: 2Gi}"),
    ("resources.limits", _MAPPING, "{memory: 2Gi}"),
    ("securityContext", _MAPPING, "{runAsUser: 1000}"),
    ("securityContext.capabilities", _MAPPING, "{add: [SYS_PTRACE]}"),
    ("securityContext.capabilities.add", _NAMES, "[SYS_PTRACE]"),
)
_POD = (
    ("os", _MAPPING, "{name: linux}"),
    ("securityContext", _MAPPING, "{runAsUser: 1000}"),
    ("terminationGracePeriodSeconds", _WHOLE, "30"),
    ("activeDeadlineSeconds", _WHOLE, "3600"),
    ("volumes", _MAPPINGS, "[{name: data, emptyDir: {}}]"),
    ("volumes[].name", _TEXT, "data"),
    ("initContainers", _MAPPINGS, "[{name: fetch, image: busybox}]"),
    *((f"initContainers[].{field}", wanted, example) for field, wanted, example in _CONTAINER),
    *((f"containers[].{field}", wanted, example) for field, wanted, example in _CONTAINER),
)
_SHAPES: tuple[tuple[str, str, str], ...] = (
    *_METADATA,
    *((f"spec.{field}", wanted, example) for field, wanted, example in _POD),
)
"""Fields that trialpod reads: path, what stands there, and an example. Those above a field come before it."""


def check_outline(template: Mapping[str, Any], *, placeholders: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield the fields that are not of their type, and the labels and annotations that are trialpod's own.

    Args:
        template: a pod template, or an object whose metadata are to be checked.
        placeholders: texts with a placeholder may stand for anything, since they are filled in for each trial.
    """
    for place, wanted, example in _SHAPES:
        for path, value in _values_at(template, tuple(place.split(".")), ()):
            yield from _wrong_shape(value, path, wanted, example, placeholders)
    for place, _, _ in _METADATA:
        for path, value in _values_at(template, tuple(place.split(".")), ()):
            for key in value if isinstance(value, dict) else ():
                if str(key).startswith(OWN_PREFIX):
                    yield (*path, key), "is trialpod's own, which it sets where it is needed; remove it"


def _values_at(value: Any, parts: tuple[str, ...], path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield what stands at a place such as `spec.volumes[].name`, unless something above it is of another type."""
    if not parts:
        yield path, value
        return
    name = parts[0].removesuffix("[]")
    found = value.get(name) if isinstance(value, dict) else None
    if found is None:
        return
    if name == parts[0]:
        yield from _values_at(found, parts[1:], (*path, name))
    else:
        for index, each in enumerate(found if isinstance(found, list) else ()):
            yield from _values_at(each, parts[1:], (*path, name, index))


def _wrong_shape(value: Any, path: Path, wanted: str, example: str, placeholders: bool) -> Iterator[tuple[Path, str]]:
    if placeholders and _has_placeholder(value):
        return
    if not isinstance(value, _TYPES[wanted]) or isinstance(value, bool):
        seconds = ", of seconds" if wanted == _WHOLE else ""
        yield path, f"must be {wanted}{seconds}, such as {example}"
    elif wanted == _TEXTS:
        for key, each in value.items():
            if each is not None and not isinstance(each, str):
                yield (*path, key), "must be a text; put it in quotes"
    elif wanted in (_NAMES, _MAPPINGS):
        item, words = (str, _TEXT) if wanted == _NAMES else (dict, _MAPPING)
        for index, each in enumerate(value):
            if not isinstance(each, item) and not (placeholders and _has_placeholder(each)):
                yield (*path, index), f"must be {words}; the list is such as {example}"


def _has_placeholder(value: Any) -> bool:
    return isinstance(value, str) and "${trial" in value


def check_template(
    template: Mapping[str, Any],
    image: str | None,
    resources: Mapping[str, int | str],
    *,
    placeholders: bool = False,
) -> Iterator[tuple[Path, str]]:
    """Yield the mistakes as paths below the template and messages; `placeholders` as in `check_outline`."""
    for key in template:
        if key not in ("metadata", "spec"):
            guess = nearest(key, ["metadata", "spec"])
            advice = f'did you mean "{guess}"?' if guess else "a pod's fields go below template.spec."
            yield (key,), f"unknown field; {advice} Allowed here: metadata, spec"
        elif not isinstance(template[key], dict):
            yield (key,), "must be a mapping"
    yield from check_outline(template, placeholders=placeholders)
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
