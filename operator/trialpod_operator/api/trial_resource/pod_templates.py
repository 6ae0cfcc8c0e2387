"""The template of the pod that runs a trial, taken out of an object of another kind and put back. Pure.

Most kinds have a PodTemplateSpec. A template of an Argo Workflow has the same parts under other names: one
`container`, the others as `sidecars`, and no field for what it does not care for, which goes into `podSpecPatch`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod_operator.api.trial_resource.field_paths import find, put
from trialpod_operator.api.trial_resource.kinds import TrialKind, group_of

Json = dict[str, Any]

ARGO_CONTAINER = "main"
"""What Argo calls the container of a template."""

_ARGO_POD = (
    "volumes", "initContainers", "securityContext", "automountServiceAccountToken", "serviceAccountName",
    "tolerations", "nodeSelector", "affinity", "hostAliases", "priorityClassName", "schedulerName",
)  # fmt: skip
"""Fields of a pod that a template of Argo's has under the same name."""
_ARGO_PATCHED = ("terminationGracePeriodSeconds", "enableServiceLinks")


def take(item: Mapping[str, Any], kind: TrialKind) -> Json:
    """Return the pod template of an object, as a PodTemplateSpec of its own.

    Raises:
        InvalidInputError: there is none at the path, or its sidecars cannot be read.
    """
    found = find(item, kind.pod_template)
    if not isinstance(found, Mapping):
        raise InvalidInputError(
            f"has no pod template at {path_text(kind)}; give it there, or say in podTemplatePath where it is"
        )
    found = copy.deepcopy(dict(found))
    if not _is_argo(kind):
        return found
    container = found.get("container")
    if not isinstance(container, Mapping):
        raise InvalidInputError(
            f"the template at {path_text(kind)} has no container; say in podTemplatePath which one runs the trial, "
            "such as spec.templates[name=train]"
        )
    sidecars = found.get("sidecars") or []
    if not isinstance(sidecars, list):
        raise InvalidInputError(f"the sidecars of the template at {path_text(kind)} must be a list")
    spec = {name: found[name] for name in _ARGO_POD if found.get(name) is not None}
    spec["containers"] = [{**container, "name": ARGO_CONTAINER}, *sidecars]
    return {"metadata": found.get("metadata") or {}, "spec": spec}


def put_back(item: Json, kind: TrialKind, template: Mapping[str, Any]) -> None:
    """Put the pod template into the object that it was taken from."""
    if not _is_argo(kind):
        put(item, kind.pod_template, dict(template))
        return
    found: Json = find(item, kind.pod_template)
    spec = template["spec"]
    container, *sidecars = spec["containers"]
    found["container"] = {name: value for name, value in container.items() if name != "name"}
    found["metadata"] = {name: template["metadata"][name] for name in ("labels", "annotations")}
    found.update({name: spec[name] for name in _ARGO_POD if name in spec})
    if sidecars:
        found["sidecars"] = sidecars
    if not found.get("podSpecPatch"):
        found["podSpecPatch"] = json.dumps({name: spec[name] for name in _ARGO_PATCHED if name in spec})


def path_text(kind: TrialKind) -> str:
    """Return the path of the pod template as it is written."""
    parts: list[str] = []
    for segment in kind.pod_template:
        if isinstance(segment, str):
            parts.append(f".{segment}" if parts else segment)
        else:
            parts.append(f"[{segment}]" if isinstance(segment, int) else f"[{segment[0]}={segment[1]}]")
    return "".join(parts)


def _is_argo(kind: TrialKind) -> bool:
    return (group_of(kind.api_version), kind.kind) == ("argoproj.io", "Workflow")
