"""Which fields a pod template has, as far as it can be known without a cluster.

`pod_fields.txt` lists them, from the models of the Kubernetes client (`tools/make_pod_fields` writes it). A cluster
may be newer than the list, so a field that is not in it is a warning here; only the API server refuses one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from trialpod.errors import nearest
from trialpod_operator.api.paths import Path, format_path, parse_path

_TEMPLATE = "V1PodTemplateSpec"
_POD = "V1PodSpec"
_CONTAINER = "V1Container"

Fields = Mapping[str, str]
"""Names of the fields of a type, each with the type of what is in it; "" where that has no fields of its own."""


@functools.cache
def _listed() -> tuple[str, dict[str, Fields]]:
    """Return the release that the list is of, and its types."""
    release, *lines = files(__package__).joinpath("pod_fields.txt").read_text(encoding="utf-8").splitlines()
    types: dict[str, Fields] = {}
    for line in lines:
        name, _, fields = line.partition(": ")
        types[name] = {field: kind for field, _, kind in (each.partition("=") for each in fields.split(" "))}
    return release, types


def unknown_fields(template: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the fields of a template that are not in the list, as paths below it and messages."""
    release, types = _listed()
    # What else a template itself has is reported as a mistake, by `check_template`.
    for key in ("metadata", "spec"):
        for path, kind in _unknown(template.get(key), types[_TEMPLATE][key], (key,), types):
            hint = _hint(kind, str(path[-1]), types)
            yield path, f"a pod of {release} has no such field{f'; {hint}' if hint else ''}"


def hint_for(path: str) -> str:
    """Return what an unknown field of a pod was to be, in words; "" where nothing is near.

    Args:
        path: of the field in the pod, as the API server names it, such as `spec.containers[0].imag`.
    """
    _, types = _listed()
    *above, name = parse_path(path)[0] or ("",)
    kind = _TEMPLATE
    for part in above:
        kind = kind if isinstance(part, int) else types.get(kind, {}).get(part, "")
    return _hint(kind, str(name), types)


def _unknown(value: Any, kind: str, path: Path, types: Mapping[str, Fields]) -> Iterator[tuple[Path, str]]:
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _unknown(each, kind, (*path, index), types)
    elif isinstance(value, dict) and kind:
        for name, inner in value.items():
            if name not in types[kind]:
                yield (*path, name), kind
            else:
                yield from _unknown(inner, types[kind][name], (*path, name), types)


def _hint(kind: str, name: str, types: Mapping[str, Fields]) -> str:
    if kind == _POD and name in types[_CONTAINER]:
        return f"a container has it: {format_path(('spec', 'containers', 0, name))}"
    if kind == _CONTAINER and name in types[_POD]:
        return f"a pod has it: {format_path(('spec', name))}"
    guess = nearest(name, types.get(kind, {}))
    return f"did you mean {guess}?" if guess else ""
