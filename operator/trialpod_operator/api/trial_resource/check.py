"""What can be said of a trial's object without a cluster: its kind, its pod template, its placeholders."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.api.paths import Path
from trialpod_operator.api.pod_fields import unknown_fields
from trialpod_operator.api.template_rules import check_outline, check_template
from trialpod_operator.api.trial_resource.field_paths import Segment, find, parse_path
from trialpod_operator.api.trial_resource.kinds import TrialKind, trial_kind
from trialpod_operator.api.trial_resource.placeholders import names_in
from trialpod_operator.api.trial_resource.pod_templates import take

_OURS = ("name", "generateName", "namespace", "ownerReferences", "finalizers")


def kind_of(resource: Mapping[str, Any]) -> TrialKind:
    """Return how the object of `spec.trialResource` is handled; raises as `trial_kind`."""
    texts = (resource.get(name) for name in ("podTemplatePath", "successCondition", "failureCondition"))
    return trial_kind(resource.get("template") or {}, *texts)


def check_resource(
    resource: Mapping[str, Any], parameters: Collection[str] | None, image: str | None, amounts: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    """Yield the mistakes as paths below `spec.trialResource` and messages.

    Args:
        resource: that field.
        parameters: dotted names of all parameters of the search space; None where only the trials know them.
        image: `spec.image`.
        amounts: `spec.resources`.
    """
    template = resource["template"]
    for name in ("apiVersion", "kind", "spec"):
        if not template.get(name):
            yield ("template", name), "is missing; the template is a whole object, such as a Job of batch/v1"
    if any(not template.get(name) for name in ("apiVersion", "kind", "spec")):
        return
    metadata = template.get("metadata") or {}
    for name in _OURS if isinstance(metadata, dict) else ():
        if name in metadata:
            yield ("template", "metadata", name), "is trialpod's to set; remove it"
    if not isinstance(metadata, dict):
        yield ("template", "metadata"), "must be a mapping"
    for path, message in check_outline({"metadata": metadata}, placeholders=True):
        yield ("template", *path), message
    yield from _placeholders(template, parameters)
    try:
        kind = kind_of(resource)
    except InvalidInputError as error:
        yield error.parameter, str(error)
        return
    for text in kind.known.single if kind.known is not None and not resource.get("podTemplatePath") else ():
        if (found := find(template, parse_path(text))) not in (None, 1):
            message = (
                f"{found} is more than one pod of the template that runs the trial; one pod speaks for a trial: put "
                "the others into a group of replicas of their own, or use spec.workers without trialResource"
            )
            yield ("template", *_as_path(parse_path(text), template)), message
    try:
        pod = take(template, kind)
    except InvalidInputError as error:
        yield ("template",) if "podTemplatePath" not in resource else ("podTemplatePath",), str(error)
        return
    at = ("template", *_as_path(kind.pod_template, template))
    for path, message in check_template(pod, image, amounts, placeholders=True):
        yield (*at, *path), message
    yield from _container(pod, resource.get("primaryContainer"), at)


def unknown_pod_fields(resource: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the fields of the pod template that no pod is known to have, as `check_resource` does."""
    with contextlib.suppress(InvalidInputError):  # reported by `check_resource`
        kind, template = kind_of(resource), resource["template"]
        at = ("template", *_as_path(kind.pod_template, template))
        for path, message in unknown_fields(take(template, kind)):
            yield (*at, *path), message


def _container(pod: Mapping[str, Any], name: Any, at: Path) -> Iterator[tuple[Path, str]]:
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None  # else `check_template` reports it
    if not isinstance(containers, list) or not all(isinstance(each, dict) for each in containers):
        return
    index = primary_container(containers, name)
    if index is None:
        listed = ", ".join(str(each.get("name")) for each in containers) or "none"
        yield ("primaryContainer",), f'there is no container "{name}" in the pod template; it has {listed}'
        return
    for field in ("command", "args"):
        if containers and containers[index].get(field):
            message = (
                "is what trialpod sets: say in spec.trainable.command what runs, with {lr} for a parameter, and "
                "remove it here"
            )
            yield (*at, "spec", "containers", index, field), message


def primary_container(containers: list[Any], name: str | None) -> int | None:
    """Return the position of the container that runs the trial; 0 where there is none, None for a wrong name."""
    if not containers:
        return 0 if name is None else None
    for index, each in enumerate(containers):
        if each.get("name") == (name or "trial"):
            return index
    return 0 if name is None else None


def _placeholders(template: Mapping[str, Any], parameters: Collection[str] | None) -> Iterator[tuple[Path, str]]:
    try:
        found = list(names_in(template))
    except InvalidInputError as error:
        yield ("template", *error.parameter), str(error)
        return
    for path, name, has_default in found if parameters is not None else ():
        if has_default or _known(name, parameters or ()):
            continue
        close = nearest(name, parameters or ())
        advice = f"; did you mean {close}?" if close else "."
        listed = ", ".join(parameters or ()) or "no parameter"
        message = (
            f"${{trialParameters.{name}}} is not a parameter of the search space, which has {listed}{advice} Write "
            f"${{trialParameters.{name}=default}} for one that may be missing"
        )
        yield ("template", *path), message


def used_parameters(resource: object) -> list[str]:
    """Return the names of the parameters that the object's texts ask for; of a wrong one, what can be read."""
    if not isinstance(resource, Mapping):
        return []
    try:
        return [name for _, name, _ in names_in(resource.get("template"))]
    except InvalidInputError:
        return []


def _known(name: str, parameters: Collection[str]) -> bool:
    dotted = name.replace("/", ".")
    return any(
        dotted == each or dotted.startswith(f"{each}.") or each.startswith(f"{dotted}.")
        for each in (other.replace("/", ".") for other in parameters)
    )


def _as_path(segments: tuple[Segment, ...], item: Any) -> Path:
    """Return segments as a path in a document: an item that is named by a field has its position."""
    path: list[str | int] = []
    for segment in segments:
        if isinstance(segment, tuple):
            found = find(item, (segment,))
            path.append(item.index(found) if isinstance(item, list) and found is not None else 0)
        else:
            path.append(segment)
        item = find(item, (segment,))
    return tuple(path)
